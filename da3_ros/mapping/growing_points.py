"""Points of a submap that grows, some of whose keyframes wait for their measured depth."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from da3_ros.mapping.voxel_map import PointCloud, VoxelMap, VoxelSums
from da3_ros.types import Array


class GrowingPoints:
    """Voxels of a submap, in its frame and unit.

    What a keyframe that waits has added is kept, and taken away when its depth was measured: the
    cost is that of one keyframe's points, whatever the submap holds. Another thread may read
    ``len`` and ``nbytes``.
    """

    def __init__(self, voxel: float) -> None:
        self.shown = VoxelMap(voxel)
        self._waiting: dict[int, VoxelSums] = {}  # by id of the keyframe
        # Edge length and keys of voxels that were removed since then: its next points stay out.
        self._removed: dict[int, list[tuple[float, NDArray[np.int64]]]] = {}

    def __len__(self) -> int:
        return len(self.shown)

    @property
    def nbytes(self) -> int:
        """Memory held, bytes."""
        return self.shown.nbytes + sum(added.nbytes for added in list(self._waiting.values()))

    @property
    def waiting(self) -> tuple[int, ...]:
        """Ids of the keyframes that wait."""
        return tuple(self._waiting)

    def insert(self, points: PointCloud, waiting: int | None = None) -> None:
        """Adds the points of a keyframe; waiting: its id, if its depth is measured later."""
        added = VoxelSums.of(points, self.shown.voxel)
        if waiting is not None:
            self._waiting[waiting], self._removed[waiting] = added, []
        self.shown.add(added)

    def replace(self, points: Iterable[tuple[int, VoxelSums | None, bool]]) -> None:
        """Replaces the points of waiting keyframes.

        points: id of the keyframe, its points (None: as they are), and whether they stay so: then
        it waits no more.
        """
        for id, new, stays in points:
            if new is not None:
                self._replace(id, new.regridded(self.shown.voxel))
            if stays:
                del self._waiting[id], self._removed[id]

    def _replace(self, id: int, new: VoxelSums) -> None:
        for voxel, keys in self._removed[id]:
            new = new.outside(keys, voxel)
        self.shown.add(new)  # first: another thread shall not see less than there is
        self.shown.subtract(self._waiting[id])
        self._waiting[id] = new

    def remove(self, chosen: Array) -> None:
        """Removes points by their indices [K] in what is shown."""
        voxel, keys = self.shown.voxel, self.shown.keys(chosen)
        self.shown.remove(chosen)
        for id, added in self._waiting.items():
            self._waiting[id] = added.outside(keys, voxel)
            self._removed[id].append((voxel, keys))

    def regrid(self, voxel: float) -> None:
        """Averages all points in voxels of another edge length."""
        for added in self._waiting.values():
            self.shown.subtract(added)
        shown = VoxelMap(voxel)
        shown.add(VoxelSums.of(self.shown.cloud(), voxel))
        for id, added in self._waiting.items():
            self._waiting[id] = added.regridded(voxel)
            shown.add(self._waiting[id])
        self.shown = shown


def seen_points(
    xyz: NDArray[np.float32], rgb: NDArray[np.uint8], confidence: NDArray[np.float32]
) -> PointCloud:
    """Returns the points [M] of one keyframe: each was seen once."""
    return PointCloud(xyz, rgb, confidence, np.broadcast_to(np.int32(1), len(xyz)))
