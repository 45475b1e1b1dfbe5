"""Where a camera has been that is localized in a read-only map: submaps without points, and poses.

Both are bounded. Corrections move the newest submaps only. Poses of older ones keep the place in
the scene that they had last; if their place was a guess, they are forgotten.
"""

from __future__ import annotations

from da3_ros.mapping.map_table import MapTable
from da3_ros.mapping.scene import REFERENCE
from da3_ros.mapping.submap_spill import Submap
from da3_ros.mapping.trajectory import Trajectory

MAX_SUBMAPS = 16  # newest submaps, which corrections move
SETTLED = -1  # submap of poses that are given in the map, and stay


class LocalizedPath:
    """The newest submaps of a localized camera; owner of ``live_path``, its poses in the table."""

    def __init__(self, table: MapTable, first: int) -> None:
        """first: id of the first submap that is not the map's."""
        self._table, self.first = table, first
        self.forget()

    def forget(self) -> None:
        """Begins without submaps and poses."""
        self.submaps: dict[int, Submap] = {}
        self._table.live_path = self._path = Trajectory()
        self.newest: Submap | None = None  # None: the next frame begins one

    def close(self) -> None:
        """Ends the newest submap."""
        self.newest = None

    def begin(self, submap: Submap) -> None:
        """Adds the submap of the next frames; the oldest one leaves."""
        self.submaps[submap.id] = self.newest = submap
        while len(self.submaps) > MAX_SUBMAPS:
            oldest = self.submaps.pop(min(self.submaps))
            if oldest.part == REFERENCE:
                self._path.settle(oldest.id, oldest.T_map_submap, SETTLED)
            else:
                self._path.forget(oldest.id)
