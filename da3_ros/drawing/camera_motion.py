"""Viewpoints of a moving picture: around a scene, or behind the camera that recorded it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.ndimage import gaussian_filter1d

from da3_ros.drawing.scene_drawing import Drawing
from da3_ros.drawing.viewpoint import FIELD_OF_VIEW_DEG, FILL, Viewpoint
from da3_ros.export.camera_frusta import camera_lines
from da3_ros.types import Array

ORBIT_ELEVATION_DEG = 35.0
ORBIT_DIRECTIONS = 36  # in which an orbit's distance is checked
SAMPLES = 2000  # points that distances are measured by
TILT_DEG = 20.0  # how much more the viewpoint looks down than the camera
STEEPEST_DEG, FLATTEST_DEG = 70.0, 5.0  # limits of how far it looks down
BACK, NEAR = 0.4, 0.1  # distance behind the camera, and of what is cut off, by typical depth
SMOOTH_S = 0.5  # standard deviation of the smoothing
TURN = 0.7  # a turn by a radian takes as long as a way of this share of the typical depth
SHORTEST_S = 1.5  # chains that would take less are left out
STANDS = 0.02  # a way that is shorter, by typical depth, is none
FOLLOW_FOV_DEG = 55.0
FRUSTUM = 0.12  # size of the drawn camera, by typical depth


@dataclass(frozen=True, eq=False)
class Shot:
    """A viewpoint, and lines [N, 2, 3] in the map that are drawn in it alone."""

    viewpoint: Viewpoint
    lines: Array | None = None


def orbit(points: Array, heading: Array, size: tuple[int, int], count: int) -> Iterator[Shot]:
    """Yields a full turn around points [N, 3], all of them visible, that begins behind the
    horizontal direction ``heading`` [2]."""
    some = points[:: max(1, len(points) // SAMPLES)]
    middle = (points.min(axis=0) + points.max(axis=0)) / 2
    elevation, start = np.radians(ORBIT_ELEVATION_DEG), np.arctan2(heading[1], heading[0])

    def looking(turn: float, distance: float) -> Viewpoint:
        azimuth = start - 2 * np.pi * turn
        flat = np.cos(elevation) * np.array([np.cos(azimuth), np.sin(azimuth)])
        direction = np.array([*flat, -np.sin(elevation)])
        return Viewpoint.looking(middle - distance * direction, direction, size, FIELD_OF_VIEW_DEG)

    distance = 1e-6
    for turn in np.arange(ORBIT_DIRECTIONS) / ORBIT_DIRECTIONS:
        viewpoint = looking(turn, 0.0)
        view = (some - middle) @ viewpoint.R.T
        slope = FILL * np.array(size) / 2 / viewpoint.focal
        needed = np.abs(view[:, :2]) / slope - view[:, 2:]
        distance = max(distance, float(needed.max()))
    for k in range(count):
        yield Shot(looking(k / count, distance))


def along_path(drawing: Drawing, size: tuple[int, int], count: int, rate: float) -> Iterator[Shot]:
    """Yields viewpoints behind and above the recording camera, smoothly along its path, with the
    camera itself. Between chains the picture is cut.

    rate: pictures per second. Yields nothing if the camera has not moved.
    """
    depth = _typical_depth(drawing)
    ways = [_Way(T_map_camera, depth) for T_map_camera in drawing.chains]
    for way, n in zip(ways, _shares([way.length for way in ways], count, rate), strict=True):
        if n:
            yield from way.shots(n, size, rate)


class _Way:
    """The path of a camera in one chain."""

    def __init__(self, T_map_camera: Array, depth: float) -> None:
        """depth: typical one, in the map's unit."""
        self.depth = depth
        self.position, self.axes = T_map_camera[:, :3, 3], T_map_camera[:, :3, :3]
        axis = self.axes[:, :, 2]
        step = np.linalg.norm(np.diff(self.position, axis=0), axis=1) / depth
        cosine = (axis[1:] * axis[:-1]).sum(axis=1)
        turn = np.arccos(np.clip(cosine, -1, 1))
        # When each pose is reached: a camera that stands takes no time.
        self._at = np.concatenate(([0.0], np.cumsum(step + TURN * turn)))
        self.length = float(self._at[-1])

    def shots(self, count: int, size: tuple[int, int], rate: float) -> Iterator[Shot]:
        """Yields viewpoints at even steps of the way."""
        position, look, axes = (
            self._smooth(values, count, rate)
            for values in (self.position, self._directions(), self.axes.reshape(-1, 9))
        )
        look /= np.linalg.norm(look, axis=1, keepdims=True)
        for k in range(count):
            eye = position[k] - BACK * self.depth * look[k]
            viewpoint = Viewpoint.looking(eye, look[k], size, FOLLOW_FOV_DEG, NEAR * self.depth)
            yield Shot(viewpoint, _frustum(position[k], axes[k].reshape(3, 3), self.depth))

    def _directions(self) -> Array:
        """Returns directions [N, 3] to look in: those of the camera, tilted down, never upward."""
        down, ahead = self.axes[:, :, 1], self.axes[:, :, 2]
        # The upper side of the picture is ahead where a camera looks down.
        flat = ahead[:, :2] + ahead[:, 2:] * down[:, :2]
        flat /= np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-9)
        below = np.arcsin(np.clip(-ahead[:, 2], -1, 1)) + np.radians(TILT_DEG)
        below = np.clip(below, *np.radians((FLATTEST_DEG, STEEPEST_DEG)))
        return np.column_stack((np.cos(below)[:, None] * flat, -np.sin(below)))

    def _smooth(self, values: Array, count: int, rate: float) -> Array:
        """Returns values [N, C] at even steps of the way, [count, C]."""
        at = np.linspace(0, self.length, count)
        columns = [np.interp(at, self._at, column) for column in values.T]
        return np.asarray(
            gaussian_filter1d(np.stack(columns, axis=1), SMOOTH_S * rate, axis=0, mode="nearest")
        )


def _shares(lengths: Sequence[float], count: int, rate: float) -> list[int]:
    """Returns the number of pictures of each way, by its length; 0 for those that are too short
    to be seen."""
    kept = np.array([length > STANDS for length in lengths], bool)
    while kept.any():
        shares = np.where(kept, lengths, 0.0)
        numbers = np.round(count * shares / shares.sum()).astype(int)
        shortest = int(np.argmin(np.where(kept, numbers, count + 1)))
        if numbers[shortest] >= SHORTEST_S * rate or kept.sum() == 1:
            return list(numbers)
        kept[shortest] = False
    return [0] * len(lengths)


def _typical_depth(drawing: Drawing) -> float:
    """Returns the median distance of points to the nearest camera; without points the extent of
    the path. Above 0."""
    centres, points = drawing.centres(), drawing.points
    centres = centres[:: max(1, len(centres) // 200)]
    if not len(points):
        return max(float(np.linalg.norm(np.ptp(centres, axis=0))), 1e-3)
    some = points[:: max(1, len(points) // SAMPLES)].astype(np.float64)
    nearest = np.full(len(some), np.inf)
    for centre in centres:
        nearest = np.minimum(nearest, np.linalg.norm(some - centre, axis=1))
    return max(float(np.median(nearest)), 1e-3)


def _frustum(position: Array, axes: Array, depth: float) -> Array:
    """Returns lines [8, 2, 3] of a camera: four rays, and the rim. axes [3, 3]: R_map_camera, but
    for its lengths."""
    corners = np.array([[-0.6, -0.45, 1], [0.6, -0.45, 1], [0.6, 0.45, 1], [-0.6, 0.45, 1]])
    rim = position + FRUSTUM * depth * corners @ axes.T
    return camera_lines(position, rim)
