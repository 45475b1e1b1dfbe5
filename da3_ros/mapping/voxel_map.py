"""The accumulated scene: a bounded hash of voxels with mean position, colour and confidence.

Inserting costs the same however large the map is: keys live in an open-addressing table that NumPy
probes for all new points at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from da3_ros.types import Array

FREE = np.int64(-1)
BITS = 21  # per axis: two million voxels each way
KEEP = 0.9  # share that stays when the map is full, so that eviction is rare
COLUMNS = 8  # offset in the voxel x y z, r g b, confidence, each times weight; the weight


@dataclass(frozen=True, eq=False)
class PointCloud:
    """Points of the scene with what is known about each."""

    xyz: NDArray[np.float32]  # [M, 3]
    rgb: NDArray[np.uint8]  # [M, 3]
    confidence: NDArray[np.float32]  # [M]
    count: NDArray[np.int32]  # [M] observations

    def __len__(self) -> int:
        return len(self.xyz)

    def take(self, index: Array) -> PointCloud:
        """The points at ``index``."""
        return PointCloud(
            self.xyz[index], self.rgb[index], self.confidence[index], self.count[index]
        )


class VoxelMap:
    """Voxels of one edge length, at most ``max_points``; the longest unseen leave first."""

    def __init__(self, voxel: float, max_points: int) -> None:
        self.voxel = voxel
        self.max_points = max_points
        self._clear(1 << 12)

    def __len__(self) -> int:
        return self._size

    @property
    def nbytes(self) -> int:
        """Memory held, bytes."""
        return sum(
            a.nbytes for a in (self._table, self._keys, self._sums, self._count, self._seen)
        )

    def insert(self, xyz: Array, rgb: NDArray[np.uint8], confidence: NDArray[np.float32]) -> None:
        """Add points [M, 3] with colours [M, 3] and confidences [M], weighted by confidence."""
        keys, inside = self._quantize(xyz)
        if not len(keys):
            return
        unique, inverse, hits = np.unique(keys, return_inverse=True, return_counts=True)
        rows = self._rows(unique)
        weight = confidence[inside].astype(np.float64)
        offset = xyz[inside] / self.voxel % 1.0
        values: Array = np.column_stack((offset, rgb[inside], weight, np.ones(len(keys))))
        for column in range(COLUMNS):
            total = np.bincount(inverse, weights=values[:, column] * weight, minlength=len(unique))
            self._sums[rows, column] += total.astype(np.float32)
        self._count[rows] += hits.astype(np.int32)
        self._tick += 1
        self._seen[rows] = self._tick
        if self._size > self.max_points:
            self._evict()

    def cloud(self) -> PointCloud:
        """All voxels, each at the weighted mean of what fell into it."""
        sums = self._sums[: self._size]
        mean = sums[:, :7] / sums[:, 7:]
        cell = self._cells(self._keys[: self._size])
        return PointCloud(
            xyz=((cell + mean[:, :3]) * self.voxel).astype(np.float32),
            rgb=np.clip(np.rint(mean[:, 3:6]), 0, 255).astype(np.uint8),
            confidence=mean[:, 6].astype(np.float32),
            count=self._count[: self._size].copy(),
        )

    def regridded(self, voxel: float) -> VoxelMap:
        """The same points in voxels of another edge length; smaller ones give no new detail."""
        out = VoxelMap(voxel, self.max_points)
        cloud = self.cloud()
        out.insert(cloud.xyz.astype(np.float64), cloud.rgb, cloud.confidence)
        return out

    def _clear(self, capacity: int) -> None:
        self._table = np.full(
            2 * capacity, FREE, dtype=np.int64
        )  # row of the key that hashed here
        self._keys = np.empty(capacity, dtype=np.int64)
        # Offsets in the voxel, not positions, so that float32 sums stay exact far from the origin.
        self._sums = np.zeros((capacity, COLUMNS), dtype=np.float32)
        self._count = np.zeros(capacity, dtype=np.int32)
        self._seen = np.zeros(capacity, dtype=np.int64)
        self._size = 0
        self._tick = 0

    def _quantize(self, xyz: Array) -> tuple[Array, Array]:
        """Packed voxel keys of the points that are finite and inside the map's range."""
        with np.errstate(invalid="ignore"):
            cell = np.floor(xyz / self.voxel)
            inside = np.all(np.abs(cell) < (1 << (BITS - 1)), axis=1)  # False for NaN, Inf
        index = cell[inside].astype(np.int64) + (1 << (BITS - 1))
        return (index[:, 0] << (2 * BITS)) | (index[:, 1] << BITS) | index[:, 2], inside

    @staticmethod
    def _cells(keys: Array) -> Array:
        """Integer cells [M, 3] of packed keys."""
        mask, half = (1 << BITS) - 1, 1 << (BITS - 1)
        axes = (keys >> (2 * BITS), (keys >> BITS) & mask, keys & mask)
        return np.stack(axes, axis=1) - half

    def _rows(self, keys: Array) -> Array:
        """Row of each of the unique ``keys``; new ones get a row."""
        self._reserve(self._size + len(keys))
        rows = np.empty(len(keys), dtype=np.int64)
        slot = self._hash(keys)
        pending = np.arange(len(keys))
        while len(pending):
            row = self._table[slot[pending]]
            free = row == FREE
            self._claim(keys, slot, pending[free])
            row = self._table[slot[pending]]
            found = self._keys[row] == keys[pending]
            rows[pending[found]] = row[found]
            pending = pending[~found]
            slot[pending] = (slot[pending] + 1) % len(self._table)
        return rows

    def _claim(self, keys: Array, slot: Array, new: Array) -> None:
        """Give rows to keys whose slot is free; where several want one slot, the first gets it."""
        _, first = np.unique(slot[new], return_index=True)
        winners = new[np.sort(first)]
        rows = np.arange(self._size, self._size + len(winners))
        self._table[slot[winners]] = rows
        self._keys[rows] = keys[winners]
        self._size += len(winners)

    def _hash(self, keys: Array) -> Array:
        # Fibonacci hashing; the high bits are the well-mixed ones.
        mixed = keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        return ((mixed >> np.uint64(20)) % np.uint64(len(self._table))).astype(np.int64)

    def _reserve(self, needed: int) -> None:
        """Room for ``needed`` rows; doubling keeps the cost per point constant."""
        if needed <= len(self._keys):
            return
        order = np.arange(self._size)
        self._rebuild(order, 1 << int(needed - 1).bit_length())

    def _rebuild(self, order: Array, capacity: int) -> None:
        """Keep the rows ``order`` in arrays of ``capacity``."""
        keys, sums, count, seen = (
            a[order] for a in (self._keys, self._sums, self._count, self._seen)
        )
        tick = self._tick
        self._clear(capacity)
        rows = self._rows(keys)
        self._sums[rows], self._count[rows], self._seen[rows] = sums, count, seen
        self._tick = tick

    def _evict(self) -> None:
        keep = int(KEEP * self.max_points)
        # Stable: of voxels seen last at the same time, the later ones stay.
        order = np.argsort(self._seen[: self._size], kind="stable")[-keep:]
        self._rebuild(np.sort(order), len(self._keys))
