"""The floor that a camera sees: what is up, and how high the camera is, without a robot.

The floor is the plane that most of what is near lies on, with little beneath it. Once found, it is
followed from frame to frame in the frame of odometry, and corrected by each frame that shows it;
it is looked for anew from time to time, since the first image may show a table or a ramp. Works
on points; no network, no ROS.
"""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

from da3_ros.geometry.poses import invert_pose
from da3_ros.mapping.frames import LocalFrame
from da3_ros.types import Array

log = logging.getLogger(__name__)

COLUMNS = 80  # pixels along the longer side that are looked at
UPRIGHT = np.cos(np.radians(35.0))  # least cosine between up and the image's up
IMAGE_UP = np.array([0.0, -1.0, 0.0])
SLOPE = np.cos(np.radians(10.0))  # least cosine between a floor's normal and up, where up is known
TRIES = 256  # planes through three points
THICK = 0.04  # largest distance of the floor's points from it, per height of the camera
FITTED = 16  # of the planes with the most points on them
LEAST = 0.05  # share of a frame's points that a floor has at least
BENEATH = 0.03  # largest share of points beneath a floor; more: it is a table
NEAR = 5.0  # heights of the camera, as far as a known floor is corrected
TURN = np.cos(np.radians(4.0))  # least cosine between a known floor's normal and the corrected one
RISE = 0.12  # largest correction of a known floor, per height of the camera
STRAIGHT = 0.999  # cosine of looking straight down: the image's top is ahead then
SHARE = 0.3  # of a correction that is taken over
EVERY = 5  # frames between two searches for another floor
CONTRADICTED = 3  # searches in a row that find another one, until that is the floor
UNSEEN = 10.0  # heights of the camera that it moves without seeing the floor, until that is lost


class Floor:
    """The floor of one scene; ``follow`` is called with each frame, in order."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begins to look for the floor anew."""
        self._plane: Array | None = None  # [4] n, d: n x + d is the height of x over it, ``local``
        self._chain = -1
        self._seen_at = np.zeros(3)  # camera that saw it last, ``local``
        self._frames = self._others = 0  # since it was found; searches that found another one

    def follow(self, frame: LocalFrame, up: Array | None = None) -> Array | None:
        """Returns ``T_level_camera`` [4, 4] of a frame, unit of odometry; None: no floor is known.

        up: [3] in the camera's axes; None: across the floor, and near the image's up. The level
        frame is on the floor below the camera: z up, x where the camera looks.
        """
        if frame.window.chain != self._chain:
            self.forget()
            self._chain = frame.window.chain
        T = frame.T_local_camera
        if not np.isfinite(T).all():
            return None
        points = _points(frame)
        plane = None if self._plane is None else _moved(self._plane, T)
        if plane is not None and not _is_upright(plane, up):
            self._plane = plane = None
        if plane is not None and self._is_another(points, plane, up):
            log.warning(
                "another floor is seen than at the start (a table or a ramp?): heights are from "
                "it now; call ~/reset for a map that is level"
            )
            self._plane = plane = None
        found = find_floor(points, up) if plane is None else corrected_floor(points, plane)
        if found is None and plane is not None:
            if np.linalg.norm(T[:3, 3] - self._seen_at) > UNSEEN * plane[3]:
                self._plane = None
                return None
            return level_below(plane, up)
        if found is None:
            return None
        self._seen_at = T[:3, 3]
        self._plane = _moved(found, invert_pose(T))
        return level_below(found, up)

    def _is_another(self, points: Array, plane: Array, up: Array | None) -> bool:
        """Whether frames have shown another floor, again and again. A plane that is nearer than
        the known floor is a table or a platform, which must stay an obstacle."""
        self._frames += 1
        if self._frames % EVERY:
            return False
        found = find_floor(points, up)
        differs = (
            found is not None and found[3] > (1 - RISE) * plane[3] and not _is_same(found, plane)
        )
        self._others = self._others + 1 if differs else 0
        if self._others < CONTRADICTED:
            return False
        self._frames = self._others = 0
        return True


def _is_same(found: Array, plane: Array) -> bool:
    return bool(found[:3] @ plane[:3] >= TURN and abs(found[3] / plane[3] - 1) <= RISE)


def _points(frame: LocalFrame) -> Array:
    """Returns points [N, 3] of an even choice of pixels with known depth, camera axes."""
    step = max(1, max(frame.depth.shape) // COLUMNS)
    depth = frame.depth[step // 2 :: step, step // 2 :: step]
    row, column = np.nonzero(np.isfinite(depth))
    pixel = np.stack((column, row), axis=1) * step + (step // 2 + 0.5)
    rays = np.column_stack((pixel, np.ones(len(pixel)))) @ np.linalg.inv(frame.K).T
    return np.asarray(rays * depth[row, column][:, None], np.float64)


def _moved(plane: Array, T_local_camera: Array) -> Array:
    """Returns a plane [4] of ``local`` in camera axes."""
    n = plane[:3]
    return np.append(T_local_camera[:3, :3].T @ n, n @ T_local_camera[:3, 3] + plane[3])


def _is_upright(plane: Array, up: Array | None) -> bool:
    """Whether a plane [4] may be a floor. up: as in ``Floor.follow``."""
    if up is None:
        return bool(plane[:3] @ IMAGE_UP >= UPRIGHT)
    return bool(plane[:3] @ up >= SLOPE)


def find_floor(points: Array, up: Array | None = None) -> Array | None:
    """Returns the floor [4] (n, height of the camera) among points [N, 3] in camera axes, unit of
    the points; None: they show none.

    up: [3]; the floor is within 10 degrees of level. None: the image's up is within 35 degrees of
    up. Deterministic.
    """
    if len(points) < 3 / LEAST:
        return None
    triples = points[np.random.default_rng(0).integers(len(points), size=(TRIES, 3))]
    n = np.cross(triples[:, 1] - triples[:, 0], triples[:, 2] - triples[:, 0])
    length = np.linalg.norm(n, axis=1)
    n = n[length > 0] / length[length > 0, None]
    n *= np.where(n @ (IMAGE_UP if up is None else up) < 0, -1.0, 1.0)[:, None]
    height = -np.einsum("ij,ij->i", n, triples[length > 0, 0])
    upright = n @ IMAGE_UP >= UPRIGHT if up is None else n @ up >= SLOPE
    planes = np.column_stack((n, height))[upright & (height > 0)]
    on = np.abs(points @ planes[:, :3].T + planes[:, 3]) < THICK * planes[:, 3]
    # What is near counts more: stairs ahead have more pixels than the floor before them.
    near = 1 / points[:, 2] ** 2
    for best in np.argsort(-(near @ on), kind="stable")[:FITTED]:
        # A plane that cuts a wall at a slant becomes the wall when it is fitted.
        found = _fitted(points, planes[best], np.ones(len(points), bool))
        if found is not None and _is_upright(found, up) and _is_lowest(points, found):
            return found
    return None


def _is_lowest(points: Array, plane: Array) -> bool:
    """Whether little is beneath a plane: else it is a table."""
    over = points @ plane[:3] + plane[3]
    return float((over < -2 * THICK * plane[3]).mean()) <= BENEATH


def corrected_floor(points: Array, plane: Array) -> Array | None:
    """Returns a known floor [4] in camera axes, corrected by points [N, 3] in its neighbourhood;
    None: they do not show it."""
    far = points - plane[:3] * (points @ plane[:3])[:, None]
    near = np.einsum("ij,ij->i", far, far) < (NEAR * plane[3]) ** 2
    fitted = _fitted(points, plane, near)
    if fitted is None:
        return None
    if not _is_same(fitted, plane):
        return None
    out = plane + SHARE * (fitted - plane)
    out[:3] /= np.linalg.norm(out[:3])
    return out


def _fitted(points: Array, plane: Array, among: NDArray[np.bool_]) -> Array | None:
    """Returns the plane [4] through the points on ``plane``; None: too few."""
    for _ in range(3):
        on = among & (np.abs(points @ plane[:3] + plane[3]) < THICK * plane[3])
        if on.sum() < max(3, LEAST * len(points) / 2):
            return None
        middle = points[on].mean(axis=0)
        n = np.linalg.svd(points[on] - middle, full_matrices=False)[2][2]
        n = n if n @ plane[:3] > 0 else -n
        plane = np.append(n, -n @ middle)
        if plane[3] <= 0:
            return None
    return plane


def level_below(plane: Array, up: Array | None = None) -> Array:
    """Returns ``T_level_camera`` [4, 4] over a floor [4] in camera axes. up: [3]; None: across
    the floor."""
    z, height = plane[:3], plane[3]
    if up is not None:
        z, height = up, height / (plane[:3] @ up)
    forward = np.array([0.0, 0.0, 1.0] if abs(z[2]) < STRAIGHT else [0.0, -1.0, 0.0])
    x = forward - z * (forward @ z)
    T = np.eye(4)
    T[0, :3] = x / np.linalg.norm(x)
    T[1, :3], T[2, :3] = np.cross(z, T[0, :3]), z
    T[2, 3] = height
    return T


def level_at(up: Array) -> Array:
    """Returns ``T_level_camera`` [4, 4] at an unknown height (z is NaN). up: [3] in camera
    axes."""
    return level_below(np.append(up, np.nan))


def below_first_camera(T_level_map: Array) -> Array:
    """Returns ``T_ros_map`` [4, 4] of a map that begins on the floor below its first camera, x
    where that looks; ``T_level_map``: the map in any level frame."""
    x, y = T_level_map[:2, 2] if abs(T_level_map[2, 2]) < STRAIGHT else -T_level_map[:2, 1]
    c, s = np.array([x, y]) / np.hypot(x, y)
    T = np.eye(4)
    T[:3, :3] = np.array([[c, s, 0], [-s, c, 0], [0, 0, 1]]) @ T_level_map[:3, :3]
    T[2, 3] = T_level_map[2, 3]
    return T
