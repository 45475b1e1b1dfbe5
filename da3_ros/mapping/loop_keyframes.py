"""The keyframes that are kept for loop detection, with an index of their descriptors.

If the scene is stored, only the newest ones are in memory; the arrays of the others lie on the
disk. Those of a loaded scene lie in its file, and are read when they are needed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from da3_ros.geometry.similarity import Similarity
from da3_ros.keyframe_store.array_spill import Arrays, ArraySpill, SpillBusyError
from da3_ros.mapping.descriptor_index import DescriptorIndex
from da3_ros.mapping.map_table import MapTable
from da3_ros.mapping.shared_view import SharedView, ViewRow, sample
from da3_ros.mapping.submap_graph import Absorbed, with_lever_arm
from da3_ros.types import Array

MAX_KEYFRAMES = 300  # keyframes kept in memory, each an image and a thousand numbers
MAX_STORED = 10_000  # keyframes kept in memory and on the disk
SAMPLES = 1024  # pixels of each keyframe that keep their depth
OVERHEAD = 2000  # bytes of a keyframe's objects


class KeyframeFile(Protocol):
    """A file with the keyframes of a saved scene."""

    def arrays(self, index: int) -> tuple[Arrays, NDArray[np.bool_] | None]:
        """Returns the arrays of a keyframe, as ``LoopKeyframe.arrays``, and the valid pixels of
        its image, if not all are. Raises OSError."""
        ...


@dataclass(frozen=True, eq=False)
class LoopKeyframe:
    """A keyframe kept for loop detection, in the frame and unit of its submap: corrections leave
    it as it is. Its arrays may be on the disk."""

    row: ViewRow  # in a frame that ``T_submap_ref`` maps to that of the submap
    descriptor: Array  # [D]
    submap: int
    own: Array  # [3] variance since its submap's first keyframe: log scale, rotation, position
    typical_depth: float  # median, in the unit of ``row``
    T_submap_ref: Similarity | None = None  # None: it is that of the submap
    # Of a loaded scene: the file that holds its arrays, and its number there. Until it is
    # ``loaded``, its image is black and it has no samples.
    file: KeyframeFile | None = None
    index: int = -1

    @property
    def id(self) -> int:
        """The id of its view."""
        return self.row.view.id

    def loaded(self) -> LoopKeyframe:
        """Returns the keyframe with its arrays. Raises OSError."""
        if self.file is None:
            return self
        arrays, valid = self.file.arrays(self.index)
        out = self.with_arrays(arrays)
        view = replace(out.row.view, valid=valid)
        return replace(out, row=replace(out.row, view=view))

    @property
    def nbytes(self) -> int:
        """Memory held, bytes, unless its arrays are on the disk."""
        return sum(part.nbytes for part in (*self.arrays, self.descriptor)) + OVERHEAD

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays that may lie on the disk."""
        a = self.row
        return a.view.image, a.pixels, a.depth, a.confidence

    def with_arrays(self, arrays: Sequence[Array]) -> LoopKeyframe:
        """Returns the keyframe with the ``arrays`` that are its own."""
        image, pixels, depth, confidence = arrays
        view = replace(self.row.view, image=image)
        row = replace(self.row, view=view, pixels=pixels, depth=depth, confidence=confidence)
        return replace(self, row=row, file=None)

    def placed(self, submaps: MapTable) -> PlacedKeyframe:
        """Returns the keyframe where its submap is now."""
        return PlacedKeyframe(self, submaps.T_local_submap(self.submap))


@dataclass(frozen=True, eq=False)
class PlacedKeyframe:
    """A keyframe where its submap is in the frame of odometry, for the time of one search."""

    keyframe: LoopKeyframe
    T_local_submap: Similarity

    @property
    def submap(self) -> int:
        """Its submap."""
        return self.keyframe.submap

    @property
    def _T_local_ref(self) -> Similarity:
        T = self.keyframe.T_submap_ref
        return self.T_local_submap if T is None else self.T_local_submap @ T

    @property
    def view(self) -> SharedView:
        """The keyframe as a shared view in the frame of odometry."""
        return self.keyframe.row.placed(self._T_local_ref)

    @property
    def T_local_camera(self) -> Array:
        """The camera's pose [4, 4]."""
        return self._T_local_ref.pose(self.keyframe.row.T_submap_camera)

    @property
    def centre(self) -> Array:
        """The camera's centre [3]."""
        return np.asarray(self.T_local_camera[:3, 3])

    @property
    def depth(self) -> float:
        """Median depth."""
        return self._T_local_ref.scale * self.keyframe.typical_depth

    @property
    def variance(self) -> Array:
        """Variance [3] since its submap's first keyframe: log scale, rotation, position."""
        return self.keyframe.own * [1, 1, self.T_local_submap.scale**2]


class LoopKeyframes:
    """The kept keyframes, oldest first."""

    def __init__(self, spill: ArraySpill | None = None) -> None:
        """spill: where keyframes go that memory cannot hold; None: they are forgotten."""
        self._spill = spill
        self._all: list[LoopKeyframe] = []
        self._on_disk = 0  # number of the first keyframes, whose arrays lie there, or will soon
        self._moves: deque[tuple[LoopKeyframe, Future[Arrays]]] = deque()  # not complete
        self._descriptors = DescriptorIndex()

    def spill_to(self, spill: ArraySpill) -> None:
        """Sets where keyframes go from now on that memory cannot hold."""
        self._spill = spill

    def restore(self, keyframes: Sequence[LoopKeyframe]) -> None:
        """Takes over the keyframes of a loaded scene, whose arrays are on the disk; this has none
        yet."""
        self._all = list(keyframes[-MAX_STORED:])
        self._on_disk = len(self._all)
        self._descriptors.restore(self._all_descriptors())

    def _all_descriptors(self) -> list[Array]:
        return [one.descriptor for one in self._all]

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[LoopKeyframe]:
        return iter(self._all)

    def __getitem__(self, index: int) -> LoopKeyframe:
        return self._all[index]

    def index(self, keyframe: LoopKeyframe) -> int:
        """Returns the number of a keyframe. Raises ValueError."""
        # Submaps never go back. ``list.index`` would compare thousands of objects.
        first = bisect_left(self._all, keyframe.submap, key=lambda one: one.submap)
        for number in range(first, len(self._all)):
            if self._all[number] is keyframe:
                return number
        raise ValueError("no such keyframe")

    @property
    def nbytes(self) -> int:
        """Memory held, bytes, by the newest keyframe: all take about the same."""
        if not self._all:
            return 0
        newest = self._all[-1]
        on_disk = self._on_disk * (newest.descriptor.nbytes + OVERHEAD)
        return (len(self._all) - self._on_disk) * newest.nbytes + on_disk

    def add(self, keyframe: LoopKeyframe, max_bytes: int, *, keep_all: bool = False) -> None:
        """Adds the newest keyframe; moves others to the disk, or forgets them, so that all take
        at most ``max_bytes`` (0: no limit).

        keep_all: the others are kept as they are; the caller removes those that it has added.
        """
        self._finish_moves()
        self._all.append(keyframe)
        self._descriptors.add(keyframe.descriptor, self._all_descriptors, fixed=keep_all)
        if keep_all:
            return
        while (count := len(self._all)) > 2 and (
            count - self._on_disk > MAX_KEYFRAMES or 0 < max_bytes < self.nbytes
        ):
            try:
                moved = self._move_to_disk()
            except SpillBusyError:  # memory holds more until the disk has time
                break
            if not moved:
                self._forget_most_similar(self._on_disk)
        if len(self._all) > MAX_STORED:
            self._forget_most_similar()

    def remove(self, index: int) -> None:
        """Forgets a keyframe."""
        del self._all[index]
        self._on_disk -= index < self._on_disk
        self._descriptors.remove(index)

    def change(self, changed: Callable[[LoopKeyframe], LoopKeyframe]) -> None:
        """Replaces each keyframe by what ``changed`` returns, with equal arrays."""
        self._all = [changed(one) for one in self._all]

    def similarity(self, index: int = -1) -> Array:
        """Returns the cosines [M] of each descriptor with that at ``index``."""
        return self._descriptors.like(index)

    def _forget_most_similar(self, first: int = 0) -> None:
        """Forgets the newer one of the two most similar consecutive keyframes, from ``first`` on;
        not the newest of all."""
        first = min(first, len(self._all) - 3)
        self.remove(first + int(np.argmax(self._descriptors.neighbours()[first:-1])) + 1)

    def _move_to_disk(self) -> bool:
        """Moves the oldest keyframe in memory to the disk, if that is possible; the two newest
        ones stay. Raises SpillBusyError."""
        if self._spill is None or self._on_disk + 2 >= len(self._all):
            return False
        one = self._all[self._on_disk]
        try:
            self._moves.append((one, self._spill.offer(one.arrays)))
        except OSError:  # points go there too: they warn
            return False
        self._on_disk += 1
        self._finish_moves()
        return True

    def _finish_moves(self) -> None:
        """Replaces the arrays that are written; keyframes that could not be are forgotten."""
        while self._moves and self._moves[0][1].done():
            moved, arrays = self._moves.popleft()
            for i in range(min(self._on_disk, len(self._all)) - 1, -1, -1):
                one = self._all[i]
                if any(a is not b for a, b in zip(one.arrays, moved.arrays, strict=True)):
                    continue
                if arrays.exception() is None:
                    self._all[i] = one.with_arrays(arrays.result())
                else:
                    self.remove(i)
                break


def merged_keyframe(placed: PlacedKeyframe, absorbed: Absorbed) -> LoopKeyframe:
    """Returns the keyframe with its variance relative to the node that its submap is in now."""
    if absorbed.variance is None or not absorbed.first <= placed.submap <= absorbed.last:
        return placed.keyframe
    arm = float(np.linalg.norm(absorbed.at - placed.centre))
    more = with_lever_arm(absorbed.variance, arm) / [1, 1, placed.T_local_submap.scale**2]
    return replace(placed.keyframe, own=placed.keyframe.own + more)


def with_fewer_pixels(row: ViewRow) -> ViewRow:
    """Returns the view with fewer pixels: many keyframes are kept for a long time."""
    keep = sample(np.ones(len(row.pixels), bool), SAMPLES)
    return replace(
        row, pixels=row.pixels[keep], depth=row.depth[keep], confidence=row.confidence[keep]
    )
