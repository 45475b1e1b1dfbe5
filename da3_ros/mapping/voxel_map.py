"""A voxel hash with mean position, colour and confidence, and the point cloud made of it.

The cost of inserting does not depend on the number of voxels: keys are in an open-addressing table
that NumPy probes for all new points at once. A key is 63 mixed bits of a cell's three indices:
among ten million voxels, two share a key with a probability of 5e-6. ``submap_points`` limits the
number of points.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from da3_ros.types import Array

FREE = np.int64(-1)
MAX_CELLS = 2**31 - 1  # in each direction; two hundred kilometres with voxels of 0.1 mm
COLUMNS = 8  # offset in the voxel x y z, r g b, confidence, each times weight; the weight


@dataclass(frozen=True, eq=False)
class PointCloud:
    """Points with colour, confidence and number of observations."""

    xyz: NDArray[np.float32]  # [M, 3]
    rgb: NDArray[np.uint8]  # [M, 3]
    confidence: NDArray[np.floating]  # [M] float16 in closed submaps, else float32
    count: NDArray[np.integer]  # [M] observations; uint16 in closed submaps, at most 65535

    def __len__(self) -> int:
        return len(self.xyz)

    @property
    def nbytes(self) -> int:
        """Memory held, bytes."""
        return self.xyz.nbytes + self.rgb.nbytes + self.confidence.nbytes + self.count.nbytes

    def take(self, index: Array | slice) -> PointCloud:
        """Returns the points at ``index``; views of the same memory for a slice."""
        return PointCloud(
            self.xyz[index], self.rgb[index], self.confidence[index], self.count[index]
        )


@dataclass(frozen=True, eq=False)
class VoxelSums:
    """Points added up by voxel: what a keyframe adds to a ``VoxelMap``."""

    voxel: float  # edge length
    keys: NDArray[np.int64]  # [V] unique
    cells: NDArray[np.int32]  # [V, 3]
    sums: NDArray[np.float32]  # [V, COLUMNS]
    count: NDArray[np.int32]  # [V] observations

    @staticmethod
    def of(points: PointCloud, voxel: float) -> VoxelSums:
        """Adds points up, weighted by confidence; those outside a map's range are left out."""
        cells, inside = _cells(points.xyz, voxel)
        keys, first, inverse = np.unique(_keys(cells), return_index=True, return_inverse=True)
        seen = points.count[inside].astype(np.float64)
        certain = points.confidence[inside].astype(np.float64)
        offset = points.xyz[inside] / voxel % 1.0
        columns = (*offset.T, *points.rgb[inside].T, certain, np.ones(len(certain)))
        sums = np.empty((len(keys), COLUMNS), np.float32)
        for n, values in enumerate(columns):
            weighted = values * certain * seen
            sums[:, n] = np.bincount(inverse, weights=weighted, minlength=len(keys))
        count = np.bincount(inverse, weights=seen, minlength=len(keys)).astype(np.int32)
        return VoxelSums(voxel, keys, cells[first].astype(np.int32), sums, count)

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def nbytes(self) -> int:
        """Memory held, bytes."""
        return sum(a.nbytes for a in (self.keys, self.cells, self.sums, self.count))

    def cloud(self) -> PointCloud:
        """Returns the weighted mean of each voxel's points."""
        mean = self.sums[:, :7] / self.sums[:, 7:]
        return PointCloud(
            xyz=((self.cells + mean[:, :3]) * self.voxel).astype(np.float32),
            rgb=np.clip(np.rint(mean[:, 3:6]), 0, 255).astype(np.uint8),
            confidence=mean[:, 6].astype(np.float32),
            count=self.count,
        )

    def outside(self, keys: NDArray[np.int64], voxel: float) -> VoxelSums:
        """Returns the voxels that are, or whose mean point is, in none of those with these
        ``keys`` and this edge length."""
        own = self.keys if voxel == self.voxel else voxel_keys(self.cloud().xyz, voxel)
        return self.where(np.isin(own, keys, invert=True))

    def where(self, chosen: NDArray[np.bool_]) -> VoxelSums:
        """Returns the voxels of a mask [V]."""
        return VoxelSums(
            self.voxel, self.keys[chosen], self.cells[chosen], self.sums[chosen],
            self.count[chosen],
        )  # fmt: skip

    def regridded(self, voxel: float) -> VoxelSums:
        """Returns the mean points, added up in voxels of this edge length."""
        return self if voxel == self.voxel else VoxelSums.of(self.cloud(), voxel)


class VoxelMap:
    """Voxels of one edge length, in the order of their first observation.

    Another thread may read ``len`` and ``nbytes``.
    """

    def __init__(self, voxel: float) -> None:
        self.voxel = voxel
        self.revision = 0  # changes with every change of the points
        self._voxels = 0
        self._clear(1 << 12)

    def __len__(self) -> int:
        return self._voxels

    @property
    def nbytes(self) -> int:
        """Memory held, bytes."""
        arrays = (self._table, self._keys, self._cells, self._sums, self._count)
        return sum(a.nbytes for a in arrays)

    def insert(
        self,
        xyz: Array,
        rgb: NDArray[np.uint8],
        confidence: Array,
        count: Array | None = None,
    ) -> None:
        """Adds points [M, 3] with colours [M, 3] and confidences [M], weighted by confidence.

        ``count`` [M]: number of observations that each point is the mean of; by default one.
        """
        seen = np.broadcast_to(np.int32(1), len(xyz)) if count is None else count
        self.add(VoxelSums.of(PointCloud(xyz, rgb, confidence, seen), self.voxel))

    def add(self, points: VoxelSums) -> None:
        """Adds points that were added up by this map's voxels."""
        rows = self._rows(points.keys)
        self.revision += 1
        new = int((self._count[rows] == 0).sum())
        self._cells[rows] = points.cells
        self._sums[rows] += points.sums
        self._count[rows] += points.count
        self._voxels += new

    def subtract(self, points: VoxelSums) -> None:
        """Takes away what was added before, but for rounding; removed voxels are left out."""
        rows = self._rows(points.keys)
        self._sums[rows] -= points.sums
        self._count[rows] -= points.count
        self._make_empty(rows[self._count[rows] == 0])

    def cloud(self, chosen: slice = slice(None)) -> PointCloud:
        """Returns all voxels, or ``chosen`` of them, each at the weighted mean of its points."""
        return self._at(self._full()[chosen]).cloud()

    def positions(self) -> NDArray[np.float32]:
        """Returns the positions [M, 3] of all voxels' points, as in ``cloud``."""
        rows = self._full()
        offset = self._sums[rows, :3] / self._sums[rows, 7:]
        return ((self._cells[rows] + offset) * self.voxel).astype(np.float32)

    def remove(self, chosen: Array) -> None:
        """Empties voxels by their indices [K] in ``cloud``; observations may fill them again."""
        self._make_empty(self._full()[chosen])

    def keys(self, chosen: Array) -> NDArray[np.int64]:
        """Returns the keys [K] of voxels by their indices in ``cloud``."""
        return np.asarray(self._keys[self._full()[chosen]])

    def _at(self, rows: Array) -> VoxelSums:
        return VoxelSums(
            self.voxel, self._keys[rows], self._cells[rows], self._sums[rows], self._count[rows]
        )

    def _make_empty(self, rows: Array) -> None:
        self.revision += 1
        self._sums[rows], self._count[rows] = 0, 0
        self._voxels -= len(rows)

    def _full(self) -> Array:
        """Returns the rows of voxels that have points."""
        return np.flatnonzero(self._count[: self._size])

    def _clear(self, capacity: int) -> None:
        self._table = np.full(
            2 * capacity, FREE, dtype=np.int64
        )  # row of the key that hashed here
        self._keys = np.empty(capacity, dtype=np.int64)
        self._cells = np.empty((capacity, 3), dtype=np.int32)
        # Offsets in the voxel, not positions, so that float32 sums stay exact far from the origin.
        self._sums = np.zeros((capacity, COLUMNS), dtype=np.float32)
        self._count = np.zeros(capacity, dtype=np.int32)
        self._size = 0  # rows, also of removed voxels

    def _rows(self, keys: Array) -> Array:
        """Returns the row of each of the unique ``keys``; new keys get a row."""
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
        """Gives rows to keys whose slot is free; of several keys with one slot, one gets it."""
        wanted = slot[new]
        self._table[wanted] = -2 - new  # the last one to write wins: NumPy's order, repeatable
        winners = new[self._table[wanted] == -2 - new]
        rows = np.arange(self._size, self._size + len(winners))
        self._table[slot[winners]] = rows
        self._keys[rows] = keys[winners]
        self._size += len(winners)

    def _hash(self, keys: Array) -> Array:
        return keys % len(self._table)

    def _reserve(self, needed: int) -> None:
        """Makes room for ``needed`` rows; forgets those of removed voxels where there is none.
        Doubling keeps the cost per point constant."""
        if needed <= len(self._keys):
            return
        old, removed = self._at(self._full()), self._size - self._voxels
        # A quarter more than is needed now, so that removed voxels do not make this frequent.
        self._clear(1 << int((needed - removed) * 5 // 4 - 1).bit_length())
        rows = self._rows(old.keys)
        self._cells[rows], self._sums[rows], self._count[rows] = old.cells, old.sums, old.count


def voxel_keys(xyz: Array, voxel: float) -> NDArray[np.int64]:
    """Returns the key [M] of each point's voxel, as ``VoxelMap.keys``; -1 outside a map's
    range."""
    cells, inside = _cells(xyz, voxel)
    out = np.full(len(xyz), FREE)
    out[inside] = _keys(cells)
    return out


def voxel_hash(xyz: Array, voxel: float) -> Array:
    """Returns a hash [M] of each point's voxel; 0 outside a map's range."""
    cells, inside = _cells(xyz, voxel)
    out = np.zeros(len(xyz), np.int64)
    # Other bits than the table's slots: voxels chosen by this hash still spread over a table.
    out[inside] = _keys(cells) >> 32
    return out


def _cells(xyz: Array, voxel: float) -> tuple[Array, Array]:
    """Returns the cells [K, 3] of finite points in a map's range, and the mask of these [M]."""
    with np.errstate(invalid="ignore"):
        cell = np.floor(xyz / voxel)
        inside = np.all(np.abs(cell) <= MAX_CELLS, axis=1)  # False for NaN, Inf
    return cell[inside].astype(np.int64), inside


def _keys(cells: Array) -> Array:
    """Returns the keys [K], 63 mixed bits, of cells [K, 3]."""
    x, y, z = cells.T
    return mixed(mixed(mixed(x) + y) + z)


def mixed(keys: Array) -> Array:
    """Returns 63 mixed bits [M] of keys [M]: each bit of a key affects all of them.

    The finaliser of SplitMix64. A product alone is not enough: its low bits do not depend on the
    key's high bits, which hold x, so that a wall along x would get only a few slots.
    """
    x = keys.astype(np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)
