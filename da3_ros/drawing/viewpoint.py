"""Virtual cameras from which pictures of a scene are drawn, in the map frame (z up)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from da3_ros.types import Array

FIELD_OF_VIEW_DEG = 45.0  # of the shorter side of a picture
FILL = 0.93  # share of the picture that the scene fills
# Viewing direction: azimuth to the right of the first camera's heading, and elevation, degrees.
SIDES = {"behind": (0.0, 45.0), "corner": (40.0, 40.0), "side": (90.0, 35.0), "top": (0.0, 90.0)}


@dataclass(frozen=True, eq=False)
class Viewpoint:
    """A virtual pinhole camera."""

    R: Array  # [3, 3] map to view (x right, y down, z forward)
    eye: Array  # [3]
    focal: float  # pixels
    size: tuple[int, int]  # width and height, pixels
    near: float = 0.0  # what is nearer is not drawn

    @staticmethod
    def looking(
        eye: Array, direction: Array, size: tuple[int, int], fov_deg: float, near: float = 0.0
    ) -> Viewpoint:
        """Returns one with an upright picture at ``eye`` [3] that looks in ``direction`` [3], a
        unit vector that is not vertical. fov_deg: of the shorter side of the picture."""
        right = np.array([direction[1], -direction[0], 0.0])
        right /= np.linalg.norm(right)
        R = np.stack((right, np.cross(direction, right), direction))
        return Viewpoint(R, eye, _focal(size, fov_deg), size, near)

    def project(self, points: Array) -> tuple[Array, Array]:
        """Returns pixels [..., 2] and view depth [...] of map points [..., 3]."""
        view = (points - self.eye.astype(points.dtype)) @ self.R.T.astype(points.dtype)
        depth = view[..., 2]
        with np.errstate(divide="ignore", invalid="ignore"):
            xy = view[..., :2] / depth[..., None] * points.dtype.type(self.focal)
        return xy + np.array(self.size, points.dtype) / 2, depth

    def enlarged(self, factor: int) -> Viewpoint:
        """Returns the same view in a picture that is larger by a whole factor."""
        size = (self.size[0] * factor, self.size[1] * factor)
        return dataclasses.replace(self, focal=self.focal * factor, size=size)


def fitted(
    points: Array, heading: Array, azimuth_deg: float, elevation_deg: float, size: tuple[int, int]
) -> Viewpoint:
    """Returns the nearest viewpoint of a direction from which all points [N, 3] are visible.

    azimuth_deg: to the right of the horizontal direction ``heading`` [2]. elevation_deg: how far
    above the points it is.
    """
    azimuth, elevation = np.radians((azimuth_deg, elevation_deg))
    c, s = np.cos(azimuth), np.sin(azimuth)
    forward = np.array([c * heading[0] + s * heading[1], c * heading[1] - s * heading[0]])
    look = np.array([*(np.cos(elevation) * forward), -np.sin(elevation)])
    right = np.array([forward[1], -forward[0], 0.0])
    R = np.stack((right, np.cross(look, right), look))
    focal = _focal(size, FIELD_OF_VIEW_DEG)
    view = points @ R.T
    # A point is visible if |x - eye_x| <= slope (z - eye_z), likewise for y. The outermost points
    # bound the eye on both sides; of x and y, the one that needs the larger distance decides.
    slope = FILL * np.array(size) / 2 / focal
    ahead = view[:, 2:] * slope
    most, least = (view[:, :2] - ahead).max(axis=0), (-view[:, :2] - ahead).max(axis=0)
    back = float((-(most + least) / (2 * slope)).min())
    eye = np.array([*((most - least) / 2), back - 1e-6])
    return Viewpoint(R, eye @ R, focal, size)


def _focal(size: tuple[int, int], fov_deg: float) -> float:
    return float(min(size) / 2 / np.tan(np.radians(fov_deg) / 2))
