"""What a keyframe shows of the floor: where nothing stands, and where an obstacle does.

Small, and kept for as long as the map: a grid is carved from all of them again when a correction
moves them. Lengths are in the unit of the keyframe's submap, so that a correction scales them too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from da3_ros.types import Array, FloatImage

BINS = 360  # of azimuth, all around
GAP = 3  # bins, at most, from one with floor to the next: cameras of wide angle see fewer rays
HOLE = 0.06  # rad, vertically; pixels of floor lie nearer to each other
CELLS = 32767  # farthest cell of a mark
WIDTH = 2 * CELLS + 1
FARTHEST = float(np.finfo(np.float16).max)


@dataclass(frozen=True, eq=False)
class FloorView:
    """A keyframe's view of the floor, in the level frame below it: z up, x where it looks.

    Its pose in its submap is that of its frame in the path. Bin ``i`` of ``free`` has the azimuths
    from ``first + i`` on, in parts of a turn by ``BINS``; ``first`` may be negative.
    """

    stamp_ns: int
    camera: str
    submap: int
    R_level_camera: FloatImage  # [3, 3]
    height: float  # of the camera above the floor, unit of the submap
    first: int  # bin of ``free[0]``
    free: NDArray[np.float16]  # [B, 2] nearest and farthest free distance; NaN: none is known
    cell: float  # edge of a cell of ``marks``, unit of the submap
    marks: NDArray[np.int16]  # [M, 2] cells with an obstacle, x and y; cell 0 begins at 0

    @property
    def key(self) -> tuple[str, int]:
        """Camera and stamp."""
        return self.camera, self.stamp_ns

    @property
    def nbytes(self) -> int:
        """Memory of the arrays, bytes."""
        return self.free.nbytes + self.marks.nbytes + self.R_level_camera.nbytes

    @property
    def reach(self) -> float:
        """Distance of the farthest that is known, unit of the submap; 0: nothing is."""
        far = self.free[np.isfinite(self.free)].max(initial=0.0)
        marks = np.abs(self.marks.astype(np.float64) + 0.5).max(initial=0.0)
        return max(float(far), float(np.sqrt(2.0) * self.cell * marks))

    def T_level_camera(self, unit: float) -> Array:
        """Returns the camera [4, 4] in the level frame; unit: lengths per unit of the submap."""
        T = np.eye(4)
        T[:3, :3], T[2, 3] = self.R_level_camera, unit * self.height
        return T

    def place(self, T_ros_camera: Array, unit: float) -> Array:
        """Returns where the level frame is on a map that is level: x, y, yaw and z [4].

        T_ros_camera: the camera's pose [4, 4] in that map. What its up differs from the
        keyframe's by is left out. unit: lengths per unit of the submap.
        """
        R = T_ros_camera[:3, :3] @ self.R_level_camera.T
        yaw = np.arctan2(R[1, 0] - R[0, 1], R[0, 0] + R[1, 1])
        x, y, z = T_ros_camera[:3, 3]
        return np.array([x, y, yaw, z - unit * self.height])


@dataclass(frozen=True, eq=False)
class FloorViews:
    """What the keyframes of a scene saw of the floor."""

    resolution: float = 0.05  # edge of the cells of its grid, metres
    views: tuple[FloorView, ...] = ()  # in the order in which they count


def floor_view(
    frame: tuple[int, str, int], marks: Array, floor: Array, T_level_camera: Array,
    unit: float, cell_m: float,
) -> FloorView:  # fmt: skip
    """Returns the view of a frame (stamp, camera, submap) by points [N, 3] of its optical frame.

    marks: surfaces of obstacles. floor: surfaces that are floor. Metres.
    T_level_camera: [4, 4] camera over the floor, z up, metres. unit: metres per unit of the
    submap. cell_m: edge of the cells of marks.
    """
    R = _ahead(T_level_camera[:3, :3])
    stands, seen = (points @ R[:2].T.astype(np.float32) for points in (marks, floor))
    free = _free(seen, stands, cell_m, float(T_level_camera[2, 3]))
    cells = _cells(stands, cell_m)
    known = np.flatnonzero(np.isfinite(free[:, 0]))
    first, end = (int(known[0]), int(known[-1]) + 1) if len(known) else (0, 0)
    return FloorView(
        *frame, R.astype(np.float32), float(T_level_camera[2, 3]) / unit, first - BINS // 2,
        np.minimum(free[first:end] / unit, FARTHEST).astype(np.float16), cell_m / unit, cells,
    )  # fmt: skip


def _cells(stands: Array, cell: float) -> NDArray[np.int16]:
    """Returns the cells [M, 2] that hold points [N, 2]."""
    at = (np.floor(stands / np.float32(cell)).clip(-CELLS, CELLS) + CELLS).astype(np.uint32)
    keys = np.unique(at[:, 0] * np.uint32(WIDTH) + at[:, 1])
    cells = np.stack(np.divmod(keys, np.uint32(WIDTH)), axis=1)
    return (cells.astype(np.int32) - CELLS).astype(np.int16)


def _ahead(R_level_camera: Array) -> Array:
    """Returns the rotation [3, 3] with x of the level frame where the camera looks."""
    x, y = R_level_camera[:2, 2]
    if np.hypot(x, y) < 1e-6:  # straight up or down
        return R_level_camera
    c, s = np.array([x, y]) / np.hypot(x, y)
    return np.array([[c, s, 0], [-s, c, 0], [0, 0, 1]]) @ R_level_camera


def azimuth_bin(x: Array, y: Array) -> NDArray[np.int64]:
    """Returns the bin of each direction, from 0 to ``BINS`` - 1; x has ``BINS // 2``."""
    turn = np.arctan2(y, x) * np.float32(BINS / (2 * np.pi)) + np.float32(BINS // 2)
    return np.minimum(turn.astype(np.int64), BINS - 1)


def _first_hole(at: Array, distance: Array, height: float) -> Array:
    """Returns [BINS] the distance of the last floor before the first hole; +Inf: there is none.

    Each bin is judged with those beside it: one alone may have few pixels.
    """
    beside = np.concatenate([(at + k) % BINS for k in (-1, 0, 1)])
    far = np.tile(distance, 3)
    order = np.lexsort((far, beside))
    beside, far = beside[order], far[order]
    down = np.arctan2(np.float32(height), far)
    holes = np.flatnonzero((beside[1:] == beside[:-1]) & (down[:-1] - down[1:] > HOLE))
    last = np.full(BINS, np.inf, np.float32)
    np.minimum.at(last, beside[holes], far[holes])
    return last


def _free(seen: Array, stands: Array, cell: float, height: float) -> FloatImage:
    """Returns [BINS, 2] the nearest and the farthest free distance of each azimuth, metres; NaN:
    none. What lies nearer than the nearest floor that is seen, the camera looks over.

    height: of the camera, metres. Where no floor is seen over an angle of ``HOLE``, a way down may
    be: what lies behind does not count.
    """
    near, far, stop = (np.full(BINS, fill, np.float32) for fill in (np.inf, -np.inf, np.inf))
    at, distance = azimuth_bin(seen[:, 0], seen[:, 1]), np.hypot(seen[:, 0], seen[:, 1])
    before = distance <= _first_hole(at, distance, height)[at]
    at, distance = at[before], distance[before]
    np.minimum.at(near, at, distance)
    np.maximum.at(far, at, distance)
    known = np.flatnonzero(np.isfinite(near))
    if len(known):  # bins between two rays
        index = np.arange(BINS)
        low = known[np.maximum(np.searchsorted(known, index, side="right") - 1, 0)]
        high = known[np.minimum(np.searchsorted(known, index), len(known) - 1)]
        between = (low < index) & (index < high) & (high - low <= GAP)
        near[between] = np.maximum(near[low], near[high])[between]
        far[between] = np.minimum(far[low], far[high])[between]
    np.minimum.at(stop, azimuth_bin(stands[:, 0], stands[:, 1]), np.hypot(*stands.T))
    free = np.stack((near, np.minimum(far, stop) - np.float32(cell)), axis=1)  # rays end at walls
    free[~(free[:, 0] < free[:, 1])] = np.nan
    return free
