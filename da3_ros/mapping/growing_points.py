"""Points of a submap that grows, some of whose keyframes wait for their measured depth."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from da3_ros.mapping.voxel_map import PointCloud, VoxelMap, voxel_keys
from da3_ros.types import Array


class GrowingPoints:
    """Voxels of a submap, in its frame and unit.

    The points of a keyframe that waits are replaced when its depth was measured. What is shown
    are the voxels of all: those that stay, with the points of waiting keyframes added. All of
    these are added again at each change: 0.3 s for five keyframes of 504x378.
    """

    def __init__(self, voxel: float) -> None:
        self._settled = self.shown = VoxelMap(voxel)  # one object while no keyframe waits
        self._waiting: dict[int, PointCloud] = {}  # by id of the keyframe
        # Keys of the voxels that were removed since then: its next points stay out of them.
        self._removed: dict[int, list[NDArray[np.int64]]] = {}

    def __len__(self) -> int:
        return len(self.shown)

    @property
    def nbytes(self) -> int:
        """Memory held, bytes. Another thread may read it."""
        settled = 0 if self._settled is self.shown else self._settled.nbytes
        return self.shown.nbytes + settled + sum(c.nbytes for c in list(self._waiting.values()))

    @property
    def waiting(self) -> tuple[int, ...]:
        """Ids of the keyframes that wait."""
        return tuple(self._waiting)

    def insert(self, points: PointCloud, waiting: int | None = None) -> None:
        """Adds the points of a keyframe; waiting: its id, if its depth is measured later."""
        if waiting is not None:
            if self._settled is self.shown:
                self.shown = self._settled.copy()
            self._waiting[waiting], self._removed[waiting] = points, []
        elif self._settled is not self.shown:
            _insert(self._settled, points)
        _insert(self.shown, points)

    def replace(self, points: Iterable[tuple[int, PointCloud | None, bool]]) -> None:
        """Replaces the points of waiting keyframes.

        points: id of the keyframe, its points (None: as they are), and whether they stay so: then
        it waits no more.
        """
        for id, new, stays in points:
            if new is not None:
                for keys in self._removed[id]:
                    new = self._outside(new, keys)
                self._waiting[id] = new
            if stays:
                _insert(self._settled, self._waiting.pop(id))
                del self._removed[id]
        self._show()

    def _outside(self, cloud: PointCloud, keys: NDArray[np.int64]) -> PointCloud:
        """Returns the points that are in none of the voxels with these ``keys``."""
        return cloud.take(np.isin(voxel_keys(cloud.xyz, self.shown.voxel), keys, invert=True))

    def remove(self, chosen: Array) -> None:
        """Removes points by their indices [K] in what is shown."""
        keys = self.shown.keys(chosen)
        self.shown.remove(chosen)
        if self._settled is self.shown:
            return
        self._settled.remove_keys(keys)
        for id, cloud in self._waiting.items():
            self._waiting[id] = self._outside(cloud, keys)
            self._removed[id].append(keys)

    def regrid(self, voxel: float) -> None:
        """Averages all points in voxels of another edge length."""
        self._removed = {id: [] for id in self._waiting}  # they were of other voxels
        cloud, self._settled = self._settled.cloud(), VoxelMap(voxel)
        self._settled.insert(cloud.xyz, cloud.rgb, cloud.confidence, cloud.count)
        self._show()

    def _show(self) -> None:
        self.shown = self._settled
        if self._waiting:
            self.shown = self._settled.copy()
            for cloud in self._waiting.values():
                _insert(self.shown, cloud)


def _insert(voxels: VoxelMap, points: PointCloud) -> None:
    voxels.insert(points.xyz, points.rgb, points.confidence)


def seen_points(
    xyz: NDArray[np.float32], rgb: NDArray[np.uint8], confidence: NDArray[np.float32]
) -> PointCloud:
    """Returns the points [M] of one keyframe: each was seen once."""
    return PointCloud(xyz, rgb, confidence, np.broadcast_to(np.int32(1), len(xyz)))
