"""Which part of the occupancy grid is sent: all of it, or what has changed. No middleware."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from da3_ros.navigation.floor_grid import UNKNOWN, GridPart, OccupancyGrid


class GridFeed:
    """The grid as subscribers have it."""

    def __init__(
        self, grid: Callable[[], OccupancyGrid | None], updates: Callable[[], bool]
    ) -> None:
        """grid: returns that of the map. updates: whether changed parts are asked for."""
        self._grid, self._updates = grid, updates
        self._sent: OccupancyGrid | None = None
        self._is_new = True  # whether a subscriber may have no grid

    def renew(self) -> None:
        """The next grid is sent whole: there is a new subscriber."""
        self._is_new = True

    def whole(self) -> OccupancyGrid | None:
        """Returns the grid if it is to be sent whole; None: it is not, or there is none."""
        grid = self._newest()
        if grid is None:
            return None
        same = self._sent is not None and grid.same_geometry(self._sent)
        if same and self._updates() and not self._is_new:
            return None
        self._sent, self._is_new = grid, False
        return grid

    def update(self) -> GridPart | None:
        """Returns the part that has changed since the last one; None: nothing, or too much for a
        part, or no parts are asked for."""
        grid, sent = self._newest(), self._sent
        if not self._updates() or grid is None or sent is None or not grid.same_geometry(sent):
            return None
        self._sent = grid
        return changed_part(sent, grid)

    def _newest(self) -> OccupancyGrid | None:
        """Returns the grid; after a reset the last one, without what it knew: else subscribers
        would go on with it."""
        grid = self._grid()
        if grid is None and self._sent is not None:
            return replace(self._sent, cells=np.full_like(self._sent.cells, UNKNOWN))
        return grid


def changed_part(before: OccupancyGrid, after: OccupancyGrid) -> GridPart | None:
    """Returns the smallest rectangle with all cells that differ in two grids of one geometry;
    None: they are equal."""
    rows, columns = np.nonzero(before.cells != after.cells)
    if not len(rows):
        return None
    x, y = int(columns.min()), int(rows.min())
    return GridPart(x, y, after.cells[y : rows.max() + 1, x : columns.max() + 1])
