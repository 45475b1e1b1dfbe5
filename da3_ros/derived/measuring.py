"""Which keyframes of a growing map are measured, and when.

The newest keyframes of each camera are kept, with images and depth. One is searched
(`plane_sweep`) when keyframes of its camera after it are there too, so that neighbours lie on both
sides of it, or when none comes for a while; what its neighbours confirm is known at once, and
again when these were searched too. Then its depth stays. Poses are asked for when they are needed:
they belong to the map.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.derived.dense_depth import (
    MOST,
    Search,
    choose_neighbours,
    confirmed_depth,
    search_depth,
)
from da3_ros.derived.plane_sweep import SweepView, grey_of, sweep_bytes
from da3_ros.derived.range_depth import observed, with_returns
from da3_ros.geometry.projection import resize_K
from da3_ros.geometry.return_blocks import WRONG, Blocks, blocks_of, judged
from da3_ros.types import Array, DenseDepth, FloatImage, Image

KEPT = 15  # newest keyframes of a camera
MOST_KEPT = 2 * KEPT  # of each camera, while a job runs
LATER = 2  # keyframes of its camera after which one is searched
# After which those beside it were searched, and the map's keyframes were adjusted with as many on
# both sides of it: its depth stays.
LAST = 8
# Keyframes of any camera after which none of its own is expected; with many cameras, more.
PASSED = 64
IDLE = 3  # windows without a keyframe after which one is searched anyway: none may come
SEARCHES = 3  # of a keyframe, at most
FEW, MORE = 4, 2  # neighbours: with less, it is searched again when there are so many more
MOVED_PX = 0.25  # by which poses move a point in neighbours since a search: it is searched again
STALE_PX = 0.5  # the same, of a search that confirms nothing where there are others
LEAST = 2  # neighbours
SMOOTH, SMOOTH_DEPTH = 0.04, 0.1  # largest steps of log correction and depth of one surface
FEWEST_BLOCKS = 20  # of returns, that tell whether these fit the depth


@dataclass(frozen=True)
class MeasuringLoad:
    """How many keyframes are measured at once, for a memory plan."""

    most_side: int = 0  # as of ``DepthMeasurement``
    maps: int = 1  # with a ``DepthMeasurement`` each
    cameras: int = 1  # of each map

    def search_bytes(self, size: tuple[int, int]) -> int:
        """Returns the predicted peak memory of searches in images of a size (width, height)."""
        return self.maps * sweep_bytes(self._compared(size), MOST)

    def kept_bytes(self, size: tuple[int, int]) -> int:
        """Returns the memory, on the host, of the keyframes that are kept."""
        width, height = self._compared(size)
        kept = 11 * size[0] * size[1]  # image, depth and confidence
        kept += (5 + 2 * MOST + 7 * ((width, height) != size)) * width * height
        measured = 9 * size[0] * size[1]  # until it stays
        # Up to twice as much behind a slow job.
        return self.maps * self.cameras * (KEPT * kept + LAST * measured)

    def _compared(self, size: tuple[int, int]) -> tuple[int, int]:
        """Returns the size of the images that are compared."""
        scale = min(1.0, self.most_side / max(size)) if self.most_side else 1.0
        return round(scale * size[0]), round(scale * size[1])


@dataclass(frozen=True, eq=False)
class Measurable:
    """A keyframe whose depth may be measured."""

    id: int
    chain: int
    submap: int
    camera: str
    stamp_ns: int
    image: Image  # [h, w, 3] RGB
    K: Array  # [3, 3] corner rule
    depth: FloatImage  # [h, w] z-depth in the unit of its submap; NaN unknown, +Inf sky
    confidence: FloatImage  # [h, w]
    returns: FloatImage | None = None  # [N, 3] of range sensors, camera's axes, metres
    by_images: bool = True  # whether its pose is good enough to compare images by it

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Pixels [h, w] that show the scene: not masked, and with a source in the image."""
        return np.asarray(~np.isnan(self.depth))

    @property
    def known(self) -> NDArray[np.bool_]:
        """Pixels [h, w] with depth."""
        return np.isfinite(self.depth) & (self.depth > 0)

    @property
    def shown(self) -> NDArray[np.bool_] | None:
        """``valid`` for a ``SweepView``; None: all pixels."""
        valid = self.valid
        return None if valid.all() else valid


@dataclass(frozen=True, eq=False)
class Searched:
    """What the search of a keyframe has found."""

    neighbours: tuple[int, ...]  # ids
    search: Search  # unit of the submap
    T_neighbour_view: Array  # [N, 4, 4] as they were; translations over the view's median depth


@dataclass(frozen=True, eq=False)
class Measured:
    """The measured depth of a keyframe, unit of its submap."""

    keyframe: Measurable
    dense: DenseDepth | None  # None: nothing is measured
    stays: bool  # whether it was the last time
    found: int = 0  # pixels in which the search decided depth, confirmed or not
    is_withdrawn: bool = False  # nothing is measured any more, and something was before
    is_settled: bool = False  # whether it changes only if more keyframes come


@dataclass(frozen=True, eq=False)
class JobResult:
    """What a job has found."""

    searches: Mapping[int, Searched]
    measured: Sequence[Measured]
    left_out: Sequence[int] = ()  # ids of keyframes that were to be searched, and are still
    failed: Mapping[int, Exception] = field(default_factory=dict)  # by id of the keyframe
    device_error: Exception | None = None  # after which the CPU has searched
    returns_contradict: bool = False  # returns of range sensors do not fit the depth: none is used


Pose = tuple[Array, float]  # [4, 4] in odometry; units of odometry per unit of the submap
Poses = Callable[[Measurable], Pose | None]  # None: it is not known any more


@dataclass(eq=False)
class _Kept:
    keyframe: Measurable
    compared: Measurable  # itself, or smaller
    median: float  # depth, unit of the submap; 0 without any
    later: int = 0  # keyframes of its chain and camera that came after it
    passed: int = 0  # of any camera
    searches: int = 0
    searched_at: int = -1  # ``later`` at the newest search
    search: Searched | None = None
    measured: Measured | None = None  # the last time, until it stays; None: no pixel
    stays: bool = False
    is_dropped: bool = False  # no time for it


class DepthMeasurement:
    """The keyframes that are or will be measured. Not thread-safe; a job may run in a thread."""

    def __init__(self, most_side: int = 0) -> None:
        """most_side: longest side of images that are compared, pixels; 0: any."""
        self._most_side = most_side
        self._entries: dict[int, _Kept] = {}  # oldest first
        self._chain = 0
        self._idle = 0  # windows since the newest keyframe
        self._searches = Counter[str]()  # by camera: those of a rig take turns

    @property
    def nbytes(self) -> int:
        """Memory held, bytes."""
        arrays: list[Array | None] = []
        for e in self._entries.values():
            k, c, s = e.keyframe, e.compared, e.search
            arrays += [k.image, k.depth, k.confidence, k.returns]
            arrays += [] if c is k else [c.image, c.depth]
            arrays += [] if s is None else [s.search.depth, s.search.decided, s.search.disparity]
            dense = None if e.measured is None else e.measured.dense
            arrays += [] if dense is None else [dense.depth, dense.sigma, dense.measured]
        return sum(a.nbytes for a in arrays if a is not None)

    @property
    def unfinished(self) -> int:
        """Number of keyframes whose depth may still change. Thread-safe."""
        return sum(not e.stays for e in list(self._entries.values()))

    @property
    def is_empty(self) -> bool:
        """Whether no keyframe is kept."""
        return not self._entries

    def add_keyframe(self, keyframe: Measurable) -> None:
        """Adds the newest keyframe."""
        self._chain, self._idle = keyframe.chain, 0
        for entry in self._entries.values():
            entry.passed += 1
            if entry.keyframe.chain == self._chain:
                entry.later += entry.keyframe.camera == keyframe.camera
        compared = _reduced(keyframe, self._most_side)
        known = compared.depth[compared.known]
        median = float(np.median(known)) if known.size else 0.0
        self._entries[keyframe.id] = _Kept(keyframe, compared, median)

    def end_window(self) -> None:
        """Notes that a window has ended; without keyframes, the waiting ones are searched."""
        self._idle += 1

    def begin_pause(self) -> int:
        """Notes that no keyframe is expected for now, so that the waiting ones are searched, also
        those that were dropped; returns how many these are."""
        self._idle = max(self._idle, IDLE)
        dropped = [e for e in self._entries.values() if e.is_dropped and not e.stays]
        for entry in dropped:
            entry.is_dropped = False
        return len(dropped)

    def drop_waiting(self, most: int, *, ends: bool = False) -> int:
        """Keeps each camera's newest ``most`` of the keyframes that wait for their first search;
        returns how many are never searched therefore. ends: whether no more keyframes come."""
        kept, dropped = Counter[str](), 0
        for entry in reversed(self._entries.values()):
            if entry.search is None and self._is_ready(entry, ends):
                kept[entry.keyframe.camera] += 1
                entry.is_dropped = kept[entry.keyframe.camera] > most
                dropped += entry.is_dropped
        return dropped

    def job(
        self, poses: Poses, *, ends: bool = False, again: bool = True, most: int | None = None,
        metres: float = math.nan, settles: bool = False,
    ) -> MeasureJob | None:  # fmt: skip
        """Returns what is to be done now, the newest keyframe of each camera first; None: nothing.

        metres: per unit of odometry; NaN: unknown, and returns do not count. ends: whether no more
        keyframes come. again: whether there is time to search keyframes again. most: searches, but
        one of each camera and one that is repeated; the others are left to a later job. settles:
        whether all that were searched are decided on again.
        """
        known = {id: pose for id, e in self._entries.items() if (pose := poses(e.keyframe))}
        wanted, rank = {}, Counter[tuple[str, bool]]()
        order: dict[int, tuple[bool, int, int]] = {}
        for entry in reversed(self._entries.values()):
            if self._is_ready(entry, ends) and (again or entry.search is None):
                ids = self._neighbours(entry, known)
                if len(ids) >= LEAST and self._is_due(entry, ids, known):
                    wanted[entry.keyframe.id] = ids
                    kind = entry.keyframe.camera, entry.search is not None
                    order[entry.keyframe.id] = kind[1], rank[kind], self._searches[kind[0]]
                    rank[kind] += 1
        ordered = sorted(wanted, key=order.__getitem__)  # first searches first
        if most is not None:  # the first of each camera are in front
            most = max(most, sum(order[id][:2] == (False, 0) for id in ordered))
        due = {id: wanted[id] for id in self._chosen(ordered, most)}
        waiting = {
            id for id in ordered if id not in due
            and (self._entries[id].search is None or self._may_wait(self._entries[id]))
        }  # fmt: skip
        last = [
            e for e in self._entries.values()
            if self._is_last(e, ends) and e.keyframe.id not in waiting
        ]  # fmt: skip
        settled = [
            id for id, e in self._entries.items()
            if settles and e.search is not None and not e.stays
        ]  # fmt: skip
        if not (due or last or settled):
            return None
        for id in due:
            self._entries[id].searched_at = self._entries[id].later
        placed = {
            id: _ComparedKeyframe(e.compared, e.median, *known[id])
            for id, e in self._entries.items() if id in known
        }  # fmt: skip
        last_ids = [e.keyframe.id for e in last]
        found = {id: e.search for id, e in self._entries.items() if e.search and id in known}
        measured = frozenset(id for id, e in self._entries.items() if e.measured is not None)
        return MeasureJob(
            {id: e.keyframe for id, e in self._entries.items()}, placed, found, due, last_ids,
            measured, metres, settled,
        )  # fmt: skip

    def _chosen(self, ordered: Sequence[int], most: int | None) -> Sequence[int]:
        """Returns those of the keyframes that a job searches: the first ``most``, and the oldest
        that is to be searched again, which else would never have its turn beside many cameras."""
        chosen = ordered[:most]
        again = [id for id in ordered if self._entries[id].search is not None]
        return chosen if set(chosen) & set(again) else [*chosen, *again[-1:]]

    def take(self, result: JobResult) -> None:
        """Takes over what a job has found; forgets keyframes that no other needs."""
        entries = self._entries
        for id in result.searches.keys() & entries.keys():
            entries[id].search = result.searches[id]
            entries[id].searches += 1
            self._searches[entries[id].keyframe.camera] += 1
        for id in set(result.left_out) & entries.keys():
            entries[id].searched_at = -1
        for id in (result.failed.keys() - result.searches.keys()) & entries.keys():
            entries[id].searches += 1
        for one in result.measured:
            if one.keyframe.id in entries:
                entry = entries[one.keyframe.id]
                entry.stays |= one.stays
                entry.measured = None if one.dense is None or entry.stays else one
        for id, entry in list(entries.items()):
            is_old = entry.later >= KEPT or entry.keyframe.chain != self._chain
            if entry.stays and (is_old or self._is_passed(entry)):
                del entries[id]

    def forget_late(self) -> tuple[list[Measured], int]:
        """Forgets the oldest keyframes, for which a job takes too long: memory must stay bounded.

        Returns that their depth stays as it is, and how many are never searched therefore.
        """
        entries = list(self._entries.values())
        most = MOST_KEPT * len({e.keyframe.camera for e in entries})
        late = [e for e in entries[: max(0, len(entries) - most)] if not e.stays]
        for entry in entries[: max(0, len(entries) - most)]:
            del self._entries[entry.keyframe.id]
        skipped = sum(e.search is None and not e.is_dropped for e in late)
        return [
            Measured(e.keyframe, None, stays=True) if e.measured is None
            else replace(e.measured, stays=True, is_withdrawn=False) for e in late
        ], skipped  # fmt: skip

    def __contains__(self, id: int) -> bool:
        """Whether a keyframe is kept, by its id."""
        return id in self._entries

    def _is_ready(self, entry: _Kept, ends: bool) -> bool:
        """Whether a keyframe may be searched, if there is a reason to."""
        if entry.is_dropped or entry.stays or entry.searches >= SEARCHES:
            return False
        return ends or entry.later >= LATER or self._idle >= IDLE or self._has_ended(entry)

    def _is_due(self, entry: _Kept, ids: Sequence[int], poses: Mapping[int, Pose]) -> bool:
        """Whether a keyframe with these neighbours is to be searched, for the first time or
        again."""
        search = entry.search
        if search is None:
            has_failed = entry.searches > 0 and entry.searched_at == entry.later
            return not has_failed
        if entry.searched_at < LATER <= entry.later or self._has_moved(entry, search, poses):
            return True  # the first time, with neighbours on one side
        return len(search.neighbours) < FEW and len(ids) >= len(search.neighbours) + MORE

    def _has_moved(self, entry: _Kept, search: Searched, poses: Mapping[int, Pose]) -> bool:
        """Whether the poses by which a keyframe was searched were not good: others are known."""
        T_view, unit = poses[entry.keyframe.id]
        moved = _moved_px(
            search, entry.compared, lambda j: poses[j][0] if j in poses else None,
            T_view, unit * entry.median,
        )  # fmt: skip
        return moved > MOVED_PX

    def _neighbours(self, entry: _Kept, poses: Mapping[int, Pose]) -> tuple[int, ...]:
        """Returns the ids of a keyframe's neighbours, best first."""
        one = entry.compared
        if one.id not in poses or not one.by_images:
            return ()
        ids = [
            id for id, e in self._entries.items()
            if id in poses and e.compared.chain == one.chain and e.compared.by_images
        ]  # fmt: skip
        T = np.array([poses[id][0] for id in ids])
        K = np.array([self._entries[id].compared.K for id in ids])
        medians = [poses[id][1] * self._entries[id].median for id in ids]
        shapes = [self._entries[id].compared.depth.shape for id in ids]
        cameras = [self._entries[id].compared.camera for id in ids]
        near = choose_neighbours(T, K, medians, shapes, cameras, ids.index(one.id))
        return tuple(ids[k] for k in near)

    def _is_last(self, entry: _Kept, ends: bool) -> bool:
        """Whether a keyframe's depth stays from now on."""
        return not entry.stays and (ends or entry.later >= LAST or self._has_ended(entry))

    def _has_ended(self, entry: _Kept) -> bool:
        """Whether no more keyframes are expected beside one."""
        return entry.keyframe.chain != self._chain or self._is_passed(entry)

    def _may_wait(self, entry: _Kept) -> bool:
        """Whether a keyframe may wait for another search: not for ever."""
        return entry.later < KEPT and not self._has_ended(entry)

    def _is_passed(self, entry: _Kept) -> bool:
        cameras = len({e.keyframe.camera for e in self._entries.values()})
        return entry.passed >= max(PASSED, 2 * KEPT * cameras)


@dataclass(frozen=True, eq=False)
class _ComparedKeyframe:
    """A keyframe at its pose, as others are compared with it."""

    keyframe: Measurable  # or a smaller one
    submap_median: float  # depth, unit of the submap; 0 without any
    T_local_camera: Array  # [4, 4]
    unit: float  # of odometry, per unit of the submap

    @functools.cached_property
    def view(self) -> SweepView:
        """Its image, in odometry. Made when it is asked for: by the thread that searches."""
        one = self.keyframe
        return SweepView(grey_of(one.image), one.K, self.T_local_camera, one.shown)

    @property
    def depth(self) -> FloatImage:
        """Depth [h, w] in the unit of odometry."""
        return self.keyframe.depth * np.float32(self.unit)

    @property
    def median(self) -> float:
        """Median depth in the unit of odometry."""
        return self.unit * self.submap_median


def _relative(T_neighbour: Array, T_view: Array, median: float) -> Array:
    """Returns ``T_neighbour_view`` [4, 4] of poses in one frame; its translation over a depth."""
    T = np.linalg.inv(T_neighbour) @ T_view
    T[:3, 3] /= median
    return T


def moved_px(keyframe: Measurable, before: Array, after: Array) -> float:
    """Returns how far the projection of a keyframe's pixels into a neighbour has moved, in pixels,
    the median over the image.

    before, after: ``T_neighbour_view`` [4, 4], the unit of length is the depth of the pixels.
    """
    height, width = keyframe.depth.shape
    v, u = np.mgrid[0:height:8j, 0:width:8j]
    pixels = np.stack([u.ravel(), v.ravel(), np.ones(64)])
    rays = np.linalg.inv(keyframe.K) @ pixels
    a, b = (keyframe.K @ (T[:3, :3] @ rays + T[:3, 3:]) for T in (before, after))
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.median(np.linalg.norm(a[:2] / a[2] - b[:2] / b[2], axis=0)))


def _moved_px(
    one: Searched, keyframe: Measurable, pose_of: Callable[[int], Array | None],
    T_view: Array, median: float,
) -> float:  # fmt: skip
    """Returns by how many pixels poses have moved since a keyframe's search: the median over its
    neighbours that are known; 0 without any.

    pose_of: a neighbour's pose [4, 4] by its id, None if it is not known. T_view: the keyframe's.
    median: its median depth in their unit.
    """
    pixels = [
        moved_px(keyframe, before, _relative(T, T_view, median))
        for j, before in zip(one.neighbours, one.T_neighbour_view, strict=True)
        if (T := pose_of(j)) is not None
    ]
    return float(np.median(pixels)) if pixels else 0.0


@dataclass(frozen=True, eq=False)
class MeasureJob:
    """Searches, and depth that is decided on after them. Owns what it reads: it may run in a
    thread."""

    keyframes: Mapping[int, Measurable]
    placed: Mapping[int, _ComparedKeyframe]
    found: Mapping[int, Searched]  # earlier searches
    due: Mapping[int, tuple[int, ...]]  # neighbours of the keyframes to be searched
    last: Sequence[int]  # ids of keyframes whose depth stays
    measured: Collection[int]  # ids of those with measured pixels so far
    metres: float = math.nan  # per unit of odometry; NaN: unknown
    settled: Sequence[int] = ()  # ids of keyframes that are decided on without a search

    @property
    def decided(self) -> list[int]:
        """Ids of the keyframes whose depth the job may change."""
        return sorted({*self.due, *self.last, *self.settled})

    def failed(self, error: Exception) -> JobResult:
        """Returns the result of a job of which nothing is known but its error."""
        measured = [self._unmeasured(id, stays=True) for id in self.last]
        return JobResult({}, measured, failed=dict.fromkeys(self.decided, error))

    def run(self, device: str = "cpu", stopping: Callable[[], bool] = lambda: False) -> JobResult:
        """Returns what the images say; a keyframe that fails is not measured. If the device fails,
        the CPU searches.

        stopping: whether to leave out what is not searched yet; asked before each search.
        """
        searches: dict[int, Searched] = {}
        failed: dict[int, Exception] = {}
        device_error: Exception | None = None
        for id, ids in self.due.items():
            if stopping():
                break
            try:
                if device != "cpu" and device_error is None:
                    try:
                        searches[id] = self._search(id, ids, device)
                        continue
                    except RuntimeError as error:  # torch's own, as of memory
                        why = error
                    searches[id] = self._search(id, ids, "cpu")
                    device_error = why  # the keyframe was not at fault
                else:
                    searches[id] = self._search(id, ids, "cpu")
            except Exception as error:  # the others are still measured
                failed[id] = error
        left_out = {id for id in self.due if id not in searches and id not in failed}
        found, measured = {**self.found, **searches}, []
        for id in sorted({*searches, *self.last, *self.settled} - left_out):
            try:
                one = self._measure(id, found)
                measured.append(replace(one, is_settled=id in self.settled))
            except Exception as error:
                failed[id] = error
                measured.append(self._unmeasured(id, id in self.last))
        return JobResult(
            searches, measured, sorted(left_out), failed, device_error,
            returns_contradict=math.isfinite(self.metres) and not self._returns_fit,
        )  # fmt: skip

    @functools.cached_property
    def _returns_fit(self) -> bool:
        """Whether the returns of all keyframes together follow their depth, so that the sensor may
        be mounted as declared; also if they are too few to tell."""
        blocks = [
            blocks_of(k.returns, k.K, k.depth)
            for k in self.keyframes.values() if k.returns is not None
        ]  # fmt: skip
        # Each depth has a unit of its own.
        blocks = [replace(b, logs=b.logs - np.median(b.logs)) for b in blocks if len(b)]
        if sum(map(len, blocks)) < FEWEST_BLOCKS:
            return True
        everything = Blocks.joined(blocks)
        return judged(everything.logs, everything.distances) != WRONG

    def _unmeasured(self, id: int, stays: bool, found: int = 0) -> Measured:
        return Measured(self.keyframes[id], None, stays, found, id in self.measured)

    def _search(self, id: int, ids: tuple[int, ...], device: str) -> Searched:
        one, views = self.placed[id], [self.placed[j].view for j in ids]
        T = [_relative(v.T_frame_camera, one.view.T_frame_camera, one.median) for v in views]
        search = search_depth(one.view, views, one.depth, device).scaled(1 / one.unit)
        return Searched(ids, search, np.array(T))

    def _is_stale(self, id: int, search: Searched) -> bool:
        """Whether poses have moved so far since a keyframe's search that what it has found lies
        elsewhere."""
        one = self.placed[id]

        def pose_of(j: int) -> Array | None:
            return self.placed[j].T_local_camera if j in self.placed else None

        moved = _moved_px(search, one.keyframe, pose_of, one.T_local_camera, one.median)
        return moved > STALE_PX

    def _measure(self, id: int, found: Mapping[int, Searched]) -> Measured:
        """Returns the depth of a keyframe by images, and by the returns of range sensors."""
        one = self._by_images(id, found)
        keyframe, metres = one.keyframe, self.metres
        if keyframe.returns is None or not math.isfinite(metres) or id not in self.placed:
            return one
        if not self._returns_fit:
            return one
        metres *= self.placed[id].unit
        returns = observed(keyframe.returns, keyframe.K, keyframe.depth, metres)
        dense, pixels = with_returns(keyframe.depth, one.dense, returns)
        if dense is None:
            return one
        return replace(one, dense=dense, found=one.found + pixels, is_withdrawn=False)

    def _by_images(self, id: int, found: Mapping[int, Searched]) -> Measured:
        keyframe, own, stays = self.keyframes[id], found.get(id), id in self.last
        if own is None or id not in self.placed:
            return self._unmeasured(id, stays)
        one = self.placed[id]
        there = [(n, j) for n, j in enumerate(own.neighbours) if j in found and j in self.placed]
        fresh = [(n, j) for n, j in there if not self._is_stale(j, found[j])]
        neighbours = {
            n: (self.placed[j].view, found[j].search.scaled(self.placed[j].unit))
            for n, j in (fresh if len(fresh) >= LEAST else there)
        }
        dense = confirmed_depth(one.view, one.depth, own.search.scaled(one.unit), neighbours)
        pixels = int(own.search.decided.sum())
        if not dense.measured.any():
            return self._unmeasured(id, stays, pixels)
        dense = replace(dense, depth=dense.depth / np.float32(one.unit))
        if one.keyframe is not keyframe:
            before = max(1, int(dense.measured.sum()))
            dense = _enlarged(dense, one.keyframe, keyframe)
            # As many for each measured one as in the smaller image.
            pixels = round(pixels * int(dense.measured.sum()) / before)
        return Measured(keyframe, dense, stays, pixels)


def _reduced(keyframe: Measurable, most_side: int) -> Measurable:
    """Returns a keyframe with images whose sides are at most ``most_side``; 0: any."""
    height, width = keyframe.depth.shape
    if not 0 < most_side < max(height, width):
        return keyframe
    scale = most_side / max(height, width)
    size = max(1, round(scale * width)), max(1, round(scale * height))
    image = np.asarray(cv2.resize(keyframe.image, size, interpolation=cv2.INTER_AREA), np.uint8)
    depth = cv2.resize(keyframe.depth, size, interpolation=cv2.INTER_NEAREST_EXACT)
    K = resize_K(keyframe.K, (width, height), size)
    return replace(keyframe, image=image, depth=np.asarray(depth, np.float32), K=K)


def _enlarged(dense: DenseDepth, small: Measurable, keyframe: Measurable) -> DenseDepth:
    """Returns the depth of a keyframe with the correction that a smaller image of it got.

    Nothing is measured beside an edge of depth or of the correction: the smaller image does not
    show between which pixels it lies.
    """
    height, width = keyframe.depth.shape

    def enlarged(values: Array, interpolation: int = cv2.INTER_NEAREST_EXACT) -> Array:
        return cv2.resize(values, (width, height), interpolation=interpolation)

    log = np.log(np.where(small.known, dense.depth / np.where(small.known, small.depth, 1), 1))
    found = np.log(np.where(small.known, dense.depth, 1))
    edge = (_spread(log) > SMOOTH) | (_spread(found) > SMOOTH_DEPTH) | ~_inner(small.known)
    smooth = enlarged(log, cv2.INTER_LINEAR)
    log = np.where(enlarged(edge.astype(np.uint8)) > 0, enlarged(log), smooth)
    known = keyframe.known
    depth = np.where(known, keyframe.depth * np.exp(log), keyframe.depth)
    sigma = np.where(known, enlarged(dense.sigma), np.float32(np.nan))
    # What is too thin for the smaller image was not compared.
    there = np.where(known, keyframe.depth, 1) / enlarged(np.where(small.known, small.depth, 1))
    known &= np.abs(np.log(there)) < SMOOTH_DEPTH
    measured = (enlarged((dense.measured & ~edge).astype(np.uint8)) > 0) & known
    return DenseDepth(depth.astype(np.float32), sigma.astype(np.float32), measured)


def _spread(values: Array) -> Array:
    """Returns the largest difference [h, w] in windows of 3x3 pixels."""
    window = np.ones((3, 3), np.uint8)
    values = values.astype(np.float32)
    return np.asarray(cv2.dilate(values, window) - cv2.erode(values, window))


def _inner(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Returns whether all of a pixel's 3x3 neighbours are in ``mask`` [h, w]."""
    return np.asarray(cv2.erode(mask.astype(np.uint8), np.ones((3, 3), np.uint8)) > 0)
