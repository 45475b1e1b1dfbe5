"""A grid of the floor with evidence of obstacles and of free space, carved from keyframes' views.

Each view takes evidence from the cells that it sees free, and adds some to those that it marks.
Evidence is limited, so that a few views take away what is gone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from da3_ros.mapping.floor_view import BINS, FloorView, azimuth_bin
from da3_ros.types import Array

BLOCK = 128  # cells, by which a grid grows: each new size makes Nav2 resize its layer
MOST_CELLS = 36_000_000  # 300 m x 300 m of 5 cm
FARTHEST = 1e6  # metres from the map's origin; what is beyond is an error
# Of floors' heights in one storey, metres: less than from one storey to the next, more than a map
# without loops bends over the size of a grid.
STOREY = 2.0
# Limits of evidence, of which each view adds or takes one: four views that see a cell free take
# away what is gone; two that mark a cell are not outvoted by all that saw it free before.
MOST, LEAST = 3, -2
UNKNOWN, FREE, OCCUPIED = -1, 0, 100  # of nav_msgs/OccupancyGrid


@dataclass(frozen=True, eq=False)
class OccupancyGrid:
    """Which cells of the map's floor are free, occupied or unknown."""

    resolution: float  # edge of a cell, metres
    origin: tuple[float, float]  # corner of the first cell in the map as it goes out, metres
    cells: NDArray[np.int8]  # [height, width] UNKNOWN, FREE, OCCUPIED; x goes along rows

    def same_geometry(self, other: OccupancyGrid) -> bool:
        """Whether both have the same cells."""
        same = self.resolution == other.resolution and self.origin == other.origin
        return same and self.cells.shape == other.cells.shape


@dataclass(frozen=True, eq=False)
class GridPart:
    """A rectangle of a grid's cells."""

    x: int  # column of its first cell in the grid
    y: int  # row
    cells: NDArray[np.int8]  # [height, width] as in ``OccupancyGrid``


class FloorGrid:
    """Evidence by cell; its corner lies at a whole number of blocks from the map's origin."""

    def __init__(self, resolution: float) -> None:
        """resolution: edge of a cell, metres."""
        # As the message has it: the origin is a multiple of that.
        self.resolution = float(np.float32(resolution))
        self._corner = np.zeros(2, np.int64)  # column and row of the first cell
        self._evidence = np.zeros((0, 0), np.int8)  # [rows, columns]

    def copy(self) -> FloorGrid:
        """Returns a grid that can be carved without changing this one."""
        out = FloorGrid(self.resolution)
        out._corner, out._evidence = self._corner, self._evidence.copy()
        return out

    def occupancy(self) -> OccupancyGrid | None:
        """Returns what the evidence says; None: nothing was seen yet."""
        if not self._evidence.size:
            return None
        cells = np.full(self._evidence.shape, UNKNOWN, np.int8)
        cells[self._evidence < 0], cells[self._evidence > 0] = FREE, OCCUPIED
        x, y = (int(k) * self.resolution for k in self._corner)
        return OccupancyGrid(self.resolution, (x, y), cells)

    def carve(self, view: FloorView, place: Array, unit: float) -> None:
        """Adds the evidence of a view; not of one so far away that the grid would be too large.

        place: x, y, yaw, z [4] of its level frame, metres. unit: metres per unit of its submap.
        """
        if not np.isfinite(place).all() or np.abs(place).max() > FARTHEST:
            return
        marks = self._cells(_moved(unit * view.cell * (view.marks + 0.5), place))
        outline = self._cells(_moved(unit * _outline(view), place))
        if not len(marks) + len(outline):
            return
        reached = np.concatenate((marks, outline))
        low, high = reached.min(axis=0), reached.max(axis=0) + 1
        if not self._cover(low, high):
            return
        column, row = low - self._corner
        part = self._evidence[row : row + high[1] - low[1], column : column + high[0] - low[0]]
        free = self._free(view, place, unit, low, high)
        marked = np.zeros(part.shape, bool)
        marked[marks[:, 1] - low[1], marks[:, 0] - low[0]] = True
        np.maximum(part - 1, LEAST, out=part, where=free & ~marked)
        np.minimum(part + 1, MOST, out=part, where=marked)

    def _free(
        self, view: FloorView, place: Array, unit: float, low: Array, high: Array
    ) -> NDArray[np.bool_]:
        """Returns which cells from ``low`` to before ``high`` a view sees free."""
        x, y = (
            ((np.arange(low[k], high[k]) + 0.5) * self.resolution - place[k]).astype(np.float32)
            for k in range(2)
        )
        c, s = np.float32(np.cos(place[2])), np.float32(np.sin(place[2]))
        ahead = c * x + (s * y)[:, None]
        left = (c * y)[:, None] - s * x
        limits = np.full((BINS, 2), np.nan, np.float32)
        first = view.first + BINS // 2
        limits[first : first + len(view.free)] = np.float32(unit) * view.free
        near, far = limits[azimuth_bin(ahead, left)].transpose(2, 0, 1)
        distance = np.sqrt(ahead * ahead + left * left)
        return np.asarray((distance >= near) & (distance <= far))

    def _cells(self, xy: Array) -> NDArray[np.int64]:
        return np.floor(xy / self.resolution).astype(np.int64)

    def crop(self, xy: Array, radius: float) -> bool:
        """Drops the blocks that are farther than ``radius`` from ``xy`` [2] along x or y, metres;
        returns whether there were such."""
        if not self._evidence.size:
            return False
        low, high = _blocks(self._cells(xy - radius), self._cells(xy + radius) + 1)
        end = self._corner + self._evidence.shape[::-1]
        low, high = np.maximum(low, self._corner), np.minimum(high, end)
        if (low == self._corner).all() and (high == end).all():
            return False
        (x, y), (width, height) = low - self._corner, np.maximum(high - low, 0)
        self._evidence = self._evidence[y : y + height, x : x + width].copy()
        self._corner = low
        return True

    def limit(self, low: Array, high: Array) -> None:
        """Drops what lies outside of a rectangle [2] to [2] of x and y, metres."""
        rows, columns = self._evidence.shape
        for k, count in enumerate((columns, rows)):
            middle = (self._corner[k] + np.arange(count) + 0.5) * self.resolution
            outside = (middle < low[k]) | (middle > high[k])
            self._evidence[(slice(None), outside) if k == 0 else outside] = 0

    @property
    def reach(self) -> float:
        """Distance of its farthest corner from the map's origin, metres; 0: it is empty."""
        ends = np.stack((self._corner, self._corner + self._evidence.shape[::-1]))
        return self.resolution * float(np.hypot(*np.abs(ends).max(axis=0)))

    def _cover(self, low: Array, high: Array) -> bool:
        """Makes the grid contain the cells from ``low`` to before ``high`` [2]; returns False, and
        changes nothing, if it had too many cells then."""
        low, high = _blocks(low, high)
        if self._evidence.size:
            low = np.minimum(low, self._corner)
            high = np.maximum(high, self._corner + self._evidence.shape[::-1])
        width, height = high - low
        if self._evidence.shape == (height, width):
            return True
        if width * height > MOST_CELLS:
            return False
        grown = np.zeros((height, width), np.int8)
        if self._evidence.size:
            x, y = self._corner - low
            rows, columns = self._evidence.shape
            grown[y : y + rows, x : x + columns] = self._evidence
        self._corner, self._evidence = low, grown
        return True


def _blocks(low: Array, high: Array) -> tuple[Array, Array]:
    """Returns the ends of all blocks that have cells from ``low`` to before ``high``."""
    return low // BLOCK * BLOCK, -(-high // BLOCK) * BLOCK


def _outline(view: FloorView) -> Array:
    """Returns the ends [N, 2] of what a view sees free, at both ends of each bin."""
    known = np.flatnonzero(np.isfinite(view.free[:, 1]))
    turns = (view.first + known[:, None] + (0, 1)) * (2 * math.pi / BINS)
    far = view.free[known, 1].astype(np.float64)[:, None]
    ends = np.stack((far * np.cos(turns), far * np.sin(turns)), axis=2).reshape(-1, 2)
    near = view.free[known, 0].astype(np.float64)[:, None]
    begins = np.stack((near * np.cos(turns), near * np.sin(turns)), axis=2).reshape(-1, 2)
    return np.concatenate((ends, begins))


def _moved(xy: Array, place: Array) -> Array:
    """Returns points [N, 2] of a level frame where that has its place."""
    c, s = math.cos(place[2]), math.sin(place[2])
    return xy @ np.array([[c, s], [-s, c]]) + place[:2]
