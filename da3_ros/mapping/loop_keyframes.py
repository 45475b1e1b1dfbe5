"""The keyframes that are kept for loop detection, with an index of their descriptors.

If the scene is stored, only the newest ones are in memory; the arrays of the others lie on the
disk. Those of a loaded scene lie in its file, and are read when they are needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

import numpy as np

from da3_ros.geometry.similarity import Similarity
from da3_ros.keyframe_store.array_spill import Arrays, ArraySpill, SpillBusyError
from da3_ros.mapping.descriptor_index import DescriptorIndex
from da3_ros.mapping.map_table import MapTable, OverlapView, ViewRow
from da3_ros.mapping.submap_graph import Absorbed, with_lever_arm
from da3_ros.types import Array

MAX_KEYFRAMES = 300  # keyframes kept in memory, each an image and a thousand numbers
MAX_STORED = 10_000  # keyframes kept in memory and on the disk
OVERHEAD = 2000  # bytes of a keyframe's objects


@dataclass(frozen=True, eq=False)
class PlacedKeyframe:
    """A keyframe where its submap is in the frame of odometry, for the time of one search."""

    keyframe: ViewRow
    T_local_submap: Similarity

    @staticmethod
    def of(keyframe: ViewRow, submaps: MapTable) -> PlacedKeyframe:
        """Returns a keyframe where its submap is now."""
        return PlacedKeyframe(keyframe, submaps.T_local_submap(keyframe.submap))

    @property
    def _T_local_saved(self) -> Similarity:
        T = self.keyframe.T_submap_saved
        return self.T_local_submap if T is None else self.T_local_submap @ T

    @property
    def view(self) -> OverlapView:
        """The keyframe as an overlap view."""
        unit = self._T_local_saved.scale * self.keyframe.depth_factor
        return self.keyframe.placed(self.T_local_camera, unit)

    @property
    def T_local_camera(self) -> Array:
        """The camera's pose [4, 4]."""
        return self._T_local_saved.pose(self.keyframe.T_submap_camera)

    @property
    def centre(self) -> Array:
        """The camera's centre [3]."""
        return np.asarray(self.T_local_camera[:3, 3])

    @property
    def depth(self) -> float:
        """Median depth."""
        k = self.keyframe
        return self._T_local_saved.scale * k.depth_factor * k.typical_depth

    @property
    def variance(self) -> Array:
        """Variance [3] since its submap's first keyframe: log scale, rotation, position."""
        return self.keyframe.variance_in_submap * [1, 1, self.T_local_submap.scale**2]


class LoopKeyframes:
    """The keyframes that are kept for loops, oldest first: ids of rows of the map's table."""

    def __init__(self, table: MapTable, spill: ArraySpill | None = None) -> None:
        """table: its keyframes are dropped. spill: where keyframes go that memory cannot hold;
        None: they are forgotten."""
        self._table, self._spill = table, spill
        table.keyframes.clear()
        self.ids: list[int] = []
        self._size = 0, 0  # bytes of the newest one, and without the arrays
        self._on_disk = 0  # number of the first keyframes, whose arrays lie there, or will soon
        self._moves: deque[tuple[ViewRow, Future[Arrays]]] = deque()  # not complete
        self._descriptors = DescriptorIndex()

    def spill_to(self, spill: ArraySpill) -> None:
        """Sets where keyframes go from now on that memory cannot hold."""
        self._spill = spill

    def restore(self, keyframes: Sequence[ViewRow]) -> None:
        """Takes over the keyframes of a loaded scene, whose arrays are on the disk; this has none
        yet."""
        for one in keyframes[-MAX_STORED:]:
            self._table.keyframes[one.view.id] = one
            self.ids.append(one.view.id)
        self._on_disk = len(self.ids)
        if self.ids:
            self._note_size(self[-1])
        self._descriptors.restore(self._all_descriptors())

    def _all_descriptors(self) -> list[Array]:
        return [one.descriptor for one in self]

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[ViewRow]:
        return iter([self._table.keyframes[id] for id in self.ids])

    def __getitem__(self, number: int) -> ViewRow:
        return self._table.keyframes[self.ids[number]]

    def __contains__(self, id: int) -> bool:
        return id in self._table.keyframes

    @property
    def nbytes(self) -> int:
        """Memory held, bytes, by the newest keyframe: all take about the same."""
        in_memory, each = self._size
        return (len(self) - self._on_disk) * in_memory + self._on_disk * each

    def add_keyframe(self, keyframe: ViewRow, max_bytes: int, *, keep_all: bool = False) -> None:
        """Adds the newest keyframe; moves others to the disk, or forgets them, so that all take
        at most ``max_bytes`` (0: no limit).

        keep_all: the others are kept as they are; the caller removes those that it has added.
        """
        self._finish_moves()
        keyframe = keyframe.with_fewer_pixels()
        self._table.keyframes[keyframe.view.id] = keyframe
        self.ids.append(keyframe.view.id)
        self._note_size(keyframe)
        self._descriptors.add(keyframe.descriptor, self._all_descriptors, fixed=keep_all)
        if keep_all:
            return
        while (count := len(self)) > 2 and (
            count - self._on_disk > MAX_KEYFRAMES or 0 < max_bytes < self.nbytes
        ):
            try:
                moved = self._move_to_disk()
            except SpillBusyError:  # memory holds more until the disk has time
                break
            if not moved:  # of those in memory; of all, if what is left of the others fills it
                self._forget_most_similar(self._on_disk if self._on_disk + 2 < len(self) else 0)
        if len(self) > MAX_STORED:
            self._forget_most_similar()

    def _note_size(self, keyframe: ViewRow) -> None:
        each = keyframe.descriptor.nbytes + OVERHEAD
        self._size = each + sum(part.nbytes for part in keyframe.arrays), each

    def remove(self, id: int) -> None:
        """Forgets a keyframe, by the id of its view."""
        number = self.ids.index(id)
        del self._table.keyframes[self.ids.pop(number)]
        self._on_disk -= number < self._on_disk
        self._descriptors.remove(number)

    def change(self, changed: Callable[[ViewRow], ViewRow]) -> None:
        """Replaces each keyframe by what ``changed`` returns, with equal arrays."""
        for one in list(self):
            self._table.keyframes[one.view.id] = changed(one)

    def similarity(self, id: int) -> Array:
        """Returns the cosines [M] of each descriptor with that of a keyframe, by its view's id."""
        return self._descriptors.like(self.ids.index(id))

    def _forget_most_similar(self, first: int = 0) -> None:
        """Forgets the newer one of the two most similar consecutive keyframes, from ``first`` on;
        not the newest of all."""
        first = min(first, len(self) - 3)
        most = int(np.argmax(self._descriptors.neighbours()[first:-1]))
        self.remove(self.ids[first + most + 1])

    def _move_to_disk(self) -> bool:
        """Moves the oldest keyframe in memory to the disk, if that is possible; the two newest
        ones stay. Raises SpillBusyError."""
        if self._spill is None or self._on_disk + 2 >= len(self):
            return False
        one = self[self._on_disk]
        try:
            arrays = self._spill.offer(one.arrays)
        except OSError:  # points go there too: they warn
            return False
        self._moves.append((one, arrays))
        self._on_disk += 1
        self._finish_moves()
        return True

    def _finish_moves(self) -> None:
        """Replaces the arrays that are written; keyframes that could not be are forgotten."""
        while self._moves and self._moves[0][1].done():
            moved, arrays = self._moves.popleft()
            now = self._table.keyframes.get(moved.view.id)
            if now is None:  # it was forgotten
                continue
            if arrays.exception() is not None:
                self.remove(moved.view.id)
            else:
                self._table.keyframes[now.view.id] = now.with_arrays(arrays.result())


def numbered(keyframes: Sequence[ViewRow]) -> list[ViewRow]:
    """Returns keyframes of another session with ids that no view of this one has: below 0."""
    return [replace(k, view=replace(k.view, id=-1 - n)) for n, k in enumerate(keyframes)]


def merged_keyframe(placed: PlacedKeyframe, absorbed: Absorbed) -> ViewRow:
    """Returns the keyframe with its variance relative to the node that its submap is in now."""
    if absorbed.variance is None or not absorbed.first <= placed.keyframe.submap <= absorbed.last:
        return placed.keyframe
    arm = float(np.linalg.norm(absorbed.at - placed.centre))
    more = with_lever_arm(absorbed.variance, arm) / [1, 1, placed.T_local_submap.scale**2]
    return replace(placed.keyframe, variance_in_submap=placed.keyframe.variance_in_submap + more)
