"""Adjusts the map's newest keyframes together, between windows: at once, or in a thread.

What is found becomes a correction of the map, as a loop does: each submap moves as its keyframes
do on average.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np

from da3_ros.geometry.lens import Lens
from da3_ros.geometry.poses import between, mean_rotation
from da3_ros.geometry.similarity import IDENTITY, Similarity, orthonormal
from da3_ros.mapping.following import correction_to
from da3_ros.mapping.frames import PoseInSubmap
from da3_ros.mapping.graph_solution import Correction
from da3_ros.mapping.map_table import MapListener, MapTable
from da3_ros.mapping.pose_graph import Edge
from da3_ros.mapping.submaps import relative_pose
from da3_ros.refinement.bundle import NETWORK, Metre, PosePriors
from da3_ros.refinement.features import Features
from da3_ros.refinement.lens_calibration import FEWEST_VIEWS, LensEstimate, measured_lens
from da3_ros.refinement.map_bundle import AdjustedMap, MapMatches, MapView, adjusted_map
from da3_ros.refinement.measured_poses import UNKNOWN_METRE
from da3_ros.refinement.tracked_view import MeasuredPose, TrackedView
from da3_ros.types import Array

log = logging.getLogger(__name__)

MOST = 160  # newest keyframes that are adjusted after a loop, and at the end
# Newest frames that are put between their keyframes; older ones move with their submaps.
MOST_FRAMES = 4000
EVERY, NEWEST = 4, 24  # new keyframes from one adjustment to the next, and those that it has
FEWEST = 3  # keyframes that are adjusted, and that hold them
AROUND = 6  # keyframes that show by how much lengths of a submap change, at least
LEAST_SPREAD = 0.05  # of their positions over depth
MAX_SCALE = 3.0  # factor on lengths of a submap; more is a fault
# Keyframes of a camera with which its calibration is checked: so many times those of the last
# check, and at most.
MORE, MOST_CHECKED = 1.5, 60
MOST_LENSES = 3  # corrections of a camera
REPORTED = 10  # failures that are logged; all are counted


@dataclass(frozen=True, eq=False)
class _MapKeyframe:
    """A keyframe, whose pose is in the map's path."""

    id: int
    camera: str
    stamp_ns: int
    features: Features
    K: Array  # [3, 3] corner rule, pixels of ``Features.shape``
    log_depth: Array  # [M] logarithm of the features' depth, in the unit of its submap
    own_K: bool  # whether its camera has no calibration
    measured: MeasuredPose
    submap: int  # when it was new

    def seen_by(self, lens: Lens) -> _MapKeyframe:
        """Returns the keyframe as if its lens were a pinhole camera, with K of that."""
        features = replace(self.features, pixel=lens.undistorted(self.K, self.features.pixel))
        return replace(self, features=features, K=lens.K(self.K))


@dataclass(frozen=True, eq=False)
class Adjustment:
    """What keyframes say of the map."""

    correction: Correction  # moves submaps as their keyframes move on average
    frames: list[PoseInSubmap]  # after that, poses of frames in their submaps
    metre: Metre | None = None  # in the frame of odometry, by the rig; None: not measured


@dataclass(frozen=True, eq=False)
class _AdjustmentJob:
    """Keyframes as they are now, in the frame of odometry."""

    views: list[MapView]
    matches: MapMatches  # of theirs; more are added
    stamps_ns: Array  # [V]
    submaps: Array  # [V] of the views
    T_map_submap: dict[int, Similarity]  # of all submaps
    movable: list[int]  # those of the views' component, oldest first
    T_map_local: Similarity
    corrections: int  # number before
    held: list[int]  # ids of views that stay
    loops: PosePriors
    rigid: bool  # whether submaps keep their size
    # Whether depths stay as they are on average, or distances. These stay too once depth was
    # measured by them: between keyframes that are settled.
    by_depth: bool
    metre: Metre = UNKNOWN_METRE  # by the rig, as windows know it
    chain: int = 0  # of the newest view
    settled: frozenset[int] = frozenset()  # ids of keyframes
    # By camera, keyframes that show whether its calibration is right.
    checked: dict[str, list[MapView]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _AdjustmentResult:
    map: AdjustedMap | None
    lenses: dict[str, LensEstimate]  # by camera, where its calibration is wrong


class MapAdjustment(MapListener):
    """Owns the features of the newest keyframes. Not thread-safe."""

    def __init__(self, table: MapTable, counters: Counter[str]) -> None:
        self._table, self._counters = table, counters
        self.waits = True  # for each job, so that a recording always gives the same map
        self._thread: ThreadPoolExecutor | None = None
        self._check: dict[str, int] = {}  # by camera, keyframes of the next check
        self._corrected: Counter[str] = Counter()  # by camera
        self._found: dict[str, LensEstimate] = {}  # by camera; not taken over yet
        self._since: dict[str, int] = {}  # by camera, first view by its present calibration
        table.listeners.append(self)
        self.begin(0)

    def begin(self, first: int) -> None:
        """Begins in a map whose submaps before ``first`` are loaded: they stay, and so does what
        is joined to them."""
        self._first = first
        self._dropped = -1  # newest submap of those keyframes that were forgotten; -1: none
        self._keyframes: list[_MapKeyframe] = []
        self.forget_features()

    def forget_features(self) -> None:
        """Forgets all keyframes: they stay where they are in the map."""
        self._drop(len(self._keyframes))
        self._newest: dict[str, _MapKeyframe] = {}  # view of each camera
        self._all = False  # whether the next adjustment is of all keyframes
        self._matches = MapMatches()
        self._settled: frozenset[int] = frozenset()  # ids of keyframes that were adjusted
        self._new = 0  # keyframes since the last adjustment
        self._fresh = False  # whether there was a frame since then
        self._chain = 0  # of the newest view
        self._running: tuple[_AdjustmentJob, Future[_AdjustmentResult]] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to forget. That loops were closed counts too: else it would
        cause an adjustment later, of other keyframes."""
        return not (self._keyframes or self._newest or self._all)

    def _drop(self, count: int) -> None:
        """Forgets the oldest keyframes."""
        if count > 0:
            self._dropped = max(self._dropped, *(k.submap for k in self._keyframes[:count]))
            del self._keyframes[:count]

    def on_clear(self) -> None:
        """The map begins anew."""
        self.begin(0)

    def on_correction(self, correction: Correction, _before: Mapping[int, Similarity]) -> None:
        """Adjusts all soon after a loop: keyframes that it brought together see the same."""
        self._all |= bool(correction.loops)

    def add(
        self, view: TrackedView, stamp_ns: int, submap: int, *, keyframe: bool, chain: int = 0
    ) -> None:
        """Adds a view that is in the map: a keyframe, or one that counts until its camera has
        another one. chain: number of its chain, which has a unit of its own."""
        if not np.isfinite(view.log_depth).any():
            return
        unit = self._table.T_local_submap(submap).scale
        depth = view.log_depth + (view.log_scale - math.log(unit))
        one = _MapKeyframe(
            view.id, view.camera, stamp_ns, view.features, view.K, depth, view.own_K,
            view.measured, submap,
        )  # fmt: skip
        self._fresh, self._chain = True, chain
        if keyframe:
            self._new += 1
            self._keyframes += [k for k in self._newest.values() if self._is_beside(k, one)]
        elif self._keyframes and _are_one_frameset(self._keyframes[-1], one):
            keyframe = True
        if self._table.path.pose_of(stamp_ns, view.camera, submap) is not None:
            self._newest[view.camera] = one  # else its camera stands
        if keyframe:
            self._keyframes.append(one)
            self._drop(len(self._keyframes) - MOST)

    def _is_beside(self, other: _MapKeyframe, keyframe: _MapKeyframe) -> bool:
        """Whether another camera took a view with a keyframe that is none: a rig's keyframes
        have all views, so that its shape holds them together."""
        known = {k.id for k in self._keyframes[-len(self._newest) :]}
        return _are_one_frameset(other, keyframe) and other.id not in known

    def take_lenses(self) -> dict[str, LensEstimate]:
        """Returns the lenses of cameras whose calibration is wrong, once."""
        found, self._found = self._found, {}
        return found

    def recalibrate(self, camera: str, first: int) -> None:
        """Notes that a camera has another calibration from view ``first`` on: what earlier
        keyframes show of the lens is of the one before."""
        self._since[camera] = first
        self._found.pop(camera, None)
        self._check.pop(camera, None)
        self._settled = frozenset()  # their distances may have the error of the one before
        del self._corrected[camera]

    def _is_by_present(self, k: _MapKeyframe) -> bool:
        """Whether a keyframe was rectified by the present calibration of its camera."""
        return k.id >= self._since.get(k.camera, 0)

    def correct(self, camera: str, lens: Lens) -> None:
        """Takes over the lens of a camera, by which later views will be rectified."""
        self._keyframes = [
            k.seen_by(lens) if k.camera == camera and self._is_by_present(k) else k
            for k in self._keyframes
        ]
        if camera in self._newest and self._is_by_present(self._newest[camera]):
            id = self._newest[camera].id
            own = (k for k in self._keyframes if k.id == id)
            self._newest[camera] = next(own, None) or self._newest[camera].seen_by(lens)
        self._corrected[camera] += 1
        self._check.pop(camera, None)
        self._settled = frozenset()  # their distances had the error of the lens
        self._all = True

    def end_window(
        self, loops: Sequence[Edge], *, rigid: bool, by_depth: bool, ends: bool = False,
        metre: Metre = UNKNOWN_METRE, chain: int = 0, check_lenses: bool = True,
    ) -> Adjustment | None:  # fmt: skip
        """Goes on after a window; returns the correction that was found.

        loops: edges of the graph of submaps. rigid: whether submaps keep their size. by_depth:
        whether depths stay as they are on average, or distances. ends: no keyframe follows.
        metre: in the frame of odometry, by the rig; of this chain, by its number. check_lenses:
        whether calibrations are checked.
        """
        found = self._collect(chain, wait=ends)
        if found is not None or self._running is not None or self._found:
            return found  # a lens is taken over first: a job would be of keyframes without it
        if self._new >= EVERY or self._all or (ends and self._fresh):
            checked = self._to_check() if check_lenses else []
            job = self._job(loops, MOST if self._all or ends else NEWEST, checked)
            self._new, self._fresh, self._all = 0, False, False
            if job is not None:
                self._start(
                    replace(
                        job,
                        rigid=rigid,
                        by_depth=by_depth,
                        chain=self._chain,
                        metre=metre if chain == self._chain else UNKNOWN_METRE,
                    )
                )
        return self._collect(chain, wait=ends)

    def _job(
        self, loops: Sequence[Edge], most: int, checked: Sequence[str]
    ) -> _AdjustmentJob | None:
        table = self._table
        every = {k.id: k for k in (*self._keyframes, *self._newest.values())}
        self._matches.keep(every)
        keyframes = [every[id] for id in sorted(every)]
        rows = table.path.rows_of([(k.stamp_ns, k.camera) for k in keyframes])
        newest = table.submaps[max(table.submaps)]
        movable = {s.id for s in table.submaps.values() if s.component == newest.component}
        if min(movable) < self._first:
            return None  # joined to a loaded scene, which stays as it is
        placed = [(k, row) for k, row in zip(keyframes, rows, strict=True)
                  if row is not None and row[0] in movable]  # fmt: skip
        older = len(placed) > most or self._dropped >= min(movable)
        by_camera = {
            camera: [
                self._view(k, *at) for k, at in placed
                if k.camera == camera and self._is_by_present(k)
            ]
            for camera in checked
        }  # fmt: skip
        placed = placed[-most:]
        if len(placed) < FEWEST:
            return None
        views = [self._view(k, submap, T) for k, (submap, T) in placed]
        submaps = [submap for _, (submap, _) in placed]
        stamps = [k.stamp_ns for k, _ in placed]
        oldest = min(submaps)
        held = []
        if older or min(movable) < oldest:
            first = max(FEWEST, submaps.count(oldest))
            held = [v.id for v in views[: min(first, len(views) - 1)]]
        at = {id: table.T_local_submap(id) for id in sorted(movable) if id >= oldest}
        return _AdjustmentJob(
            views, self._matches, np.array(stamps), np.array(submaps),
            {id: s.T_map_submap for id, s in table.submaps.items()}, sorted(movable),
            table.T_map_local, table.corrections, held,
            _loop_priors(views, submaps, loops, at), rigid=False, by_depth=True,
            settled=self._settled & every.keys(),
            checked={camera: own[-MOST_CHECKED:] for camera, own in by_camera.items()},
        )  # fmt: skip

    def _view(self, k: _MapKeyframe, submap: int, T_submap_camera: Array) -> MapView:
        S = self._table.T_local_submap(submap)
        return MapView(
            k.id, k.camera, k.features, self._newest[k.camera].K if k.own_K else k.K,
            S.pose(T_submap_camera), math.log(S.scale) + k.log_depth, k.own_K, k.measured,
        )  # fmt: skip

    def _to_check(self) -> list[str]:
        """Returns the cameras whose calibration is checked now: from time to time, while there
        are more and more keyframes."""
        counts = Counter(
            k.camera for k in self._keyframes if not k.own_K and self._is_by_present(k)
        )
        due = [
            camera for camera, count in sorted(counts.items())
            if count >= self._check.get(camera, FEWEST_VIEWS) <= MOST_CHECKED
            and self._corrected[camera] < MOST_LENSES
        ]  # fmt: skip
        self._check |= {camera: math.ceil(MORE * counts[camera]) for camera in due}
        return due

    def _start(self, job: _AdjustmentJob) -> None:
        if self.waits:
            done = Future[_AdjustmentResult]()
            done.set_result(self._run(job))
            self._running = job, done
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "da3-map")
        self._running = job, self._thread.submit(self._run, job)

    def _run(self, job: _AdjustmentJob) -> _AdjustmentResult:
        lenses = self._checked_lenses(job)
        try:
            job.matches.extend(job.views)
            done = adjusted_map(
                job.views, job.matches, job.loops, job.held, by_depth=job.by_depth,
                settled=job.settled, metre=job.metre,
            )  # fmt: skip
            return _AdjustmentResult(done, lenses)
        except Exception as error:  # the map stays as it is
            self._report_failure("the map is not adjusted", error)
            return _AdjustmentResult(None, lenses)

    def _checked_lenses(self, job: _AdjustmentJob) -> dict[str, LensEstimate]:
        lenses = {}
        for camera, views in job.checked.items():
            try:
                job.matches.extend(views)
                found = measured_lens(views, job.matches)
            except Exception as error:  # the camera_info stays, and the map is adjusted
                self._report_failure(f"the camera_info of {camera} is not checked", error)
                continue
            if found is not None:
                lenses[camera] = found
        return lenses

    def _report_failure(self, what: str, error: Exception) -> None:
        self._counters["map_adjustments_failed"] += 1
        if self._counters["map_adjustments_failed"] <= REPORTED:
            log.error("%s: %s: %s", what, type(error).__name__, error, exc_info=error)

    def _collect(self, chain: int, *, wait: bool = False) -> Adjustment | None:
        wait |= self.waits
        if self._running is None or not (wait or self._running[1].done()):
            return None
        (job, future), self._running = self._running, None
        self._found |= {
            camera: lens for camera, lens in future.result().lenses.items()
            if job.checked[camera][0].id >= self._since.get(camera, 0)
        }  # fmt: skip
        done = future.result().map
        if done is None:
            self._counters["map_adjustments_refused"] += 1
            return None
        table = self._table
        if job.corrections != table.corrections or not job.T_map_local.is_same(table.T_map_local):
            self._all = True  # again: the map has changed in the meantime
            return None
        frames = table.path.frames_of(job.movable, MOST_FRAMES)
        found = adjustment_of(job, done, frames)
        if found is not None and job.chain != chain:  # odometry has another unit now
            found = replace(found, metre=None)
        # Not if another lens was taken over in the meantime.
        if found is not None and job.settled <= self._settled:
            self._settled = job.settled | done.poses.keys()
        self._counters["map_adjustments" if found else "map_adjustments_refused"] += 1
        return found


def _are_one_frameset(a: _MapKeyframe, b: _MapKeyframe) -> bool:
    return a.camera != b.camera and a.measured.frameset == b.measured.frameset >= 0


def _loop_priors(
    views: Sequence[MapView],
    submaps: Sequence[int],
    loops: Sequence[Edge],
    T_local_submap: Mapping[int, Similarity],
) -> PosePriors:
    """Returns what loops have measured, as relative poses of one view of each node."""
    out = [PosePriors.none()]
    for e in loops:
        if not e.loop or e.first not in T_local_submap or e.second not in T_local_submap:
            continue
        ends = [next((v for v, s in zip(views, submaps, strict=True) if s == end), None)
                for end in (e.first, e.second)]  # fmt: skip
        a, b = ends
        if a is None or b is None:
            continue
        A, B = T_local_submap[e.first], T_local_submap[e.second]
        drift = A @ e.measured @ B.inverse()
        T = np.linalg.inv(a.T_local_camera) @ drift.pose(b.T_local_camera)
        arm = float(np.linalg.norm(b.T_local_camera[:3, 3] - B.t))
        position = math.hypot(e.sigma[2] * A.scale, arm * e.sigma[1], arm * e.sigma[0])
        one = np.ones(1)
        out.append(PosePriors.isotropic(
            np.array([a.id]), np.array([b.id]), T[None], e.sigma[1] * one, position * one, NETWORK
        ))  # fmt: skip
    return PosePriors.joined(out)


def adjustment_of(
    job: _AdjustmentJob, done: AdjustedMap, frames: Sequence[PoseInSubmap]
) -> Adjustment | None:
    """Returns what moves the map as its keyframes have moved; None if that is not credible.

    The newest keyframe stays in the frame of odometry, and the first one in the map. frames:
    of the map's path, in the submaps of the job.
    """
    used = np.array([v.id in done.poses for v in job.views])
    views = [v for v in job.views if v.id in done.poses]
    submaps, stamps = job.submaps[used], job.stamps_ns[used]
    before = np.array([v.T_local_camera for v in views])
    after = np.array([done.poses[v.id] for v in views])
    depth = np.array([v.depth for v in views])
    mine = [id for id in job.movable if id >= int(job.submaps.min())]
    moves: dict[int, Similarity] = {}
    for id in mine:
        own = submaps == id
        if own.any():
            scale = moves[max(moves)].scale if moves else 1.0
            scale = 1.0 if job.rigid else _growth(before, after, depth, own, scale)
            if not 1 / MAX_SCALE < scale < MAX_SCALE:
                return None
            moves[id] = Similarity.aligning(after[own], before[own], scale)
    if job.held:  # the first one has older keyframes, which stay
        moves[min(moves)] = IDENTITY
    last = moves[min(moves)]
    for id in mine:
        last = moves.setdefault(id, last)
    # The newest keyframe stays, so that odometry goes on from where it is.
    newest, T = max(job.T_map_submap), job.T_map_local
    by_newest = Similarity.between(after[-1], before[-1], moves[newest].scale)
    to_local = by_newest.inverse()
    T_map_local = _with_first_kept(T, before[0], to_local.pose(after[0]), by_newest.scale)
    local = {id: T.inverse() @ job.T_map_submap[id] for id in mine}
    there = {id: to_local @ moves[id] @ S if id != newest else S for id, S in local.items()}
    in_map = {id: T_map_local @ S for id, S in there.items()}
    correction = correction_to(job.T_map_submap, {**job.T_map_submap, **in_map}, T, adjusted=mine)
    scales = np.array([moves[id].scale for id in submaps.tolist()]) / by_newest.scale
    moved = _Motion(
        stamps, [v.camera for v in views], before,
        np.array([to_local.pose(pose) for pose in after]), scales,
    )  # fmt: skip
    mine_frames = [f for f in frames if f.submap in moves]
    poses = moved.poses(
        np.array([f.stamp_ns for f in mine_frames]),
        [f.camera for f in mine_frames],
        np.array([local[f.submap].pose(f.T_submap_camera) for f in mine_frames]),
    )
    moved_frames = [
        replace(f, T_submap_camera=relative_pose(there[f.submap], T))
        for f, T in zip(mine_frames, poses, strict=True)
    ]
    metre = done.metre
    if metre is not None:
        metre = replace(metre, log=metre.log - math.log(by_newest.scale))
    return Adjustment(correction, moved_frames, metre)


def _with_first_kept(T: Similarity, before: Array, after: Array, scale: float) -> Similarity:
    """Returns the frame of odometry in the map, ``T`` until now, if a keyframe moves in it from a
    pose [4, 4] to another one and keeps its pose in the map.

    scale: factor on the lengths of odometry in the map.
    """
    R = orthonormal(T.R @ before[:3, :3] @ after[:3, :3].T)
    size = T.scale * scale
    return Similarity(size, R, T.points(before[:3, 3]) - size * R @ after[:3, 3])


@dataclass(frozen=True, eq=False)
class _Motion:
    """How keyframes move in the frame of odometry."""

    stamps_ns: Array  # [V] ascending
    cameras: list[str]
    before: Array  # [V, 4, 4]
    after: Array  # [V, 4, 4]
    scale: Array  # [V] factor on lengths

    def poses(self, stamps_ns: Array, cameras: Sequence[str], T: Array) -> Array:
        """Returns where frames at ``T`` [F, 4, 4] are after that: keyframes where they are
        themselves, others between their neighbours in time as they were before."""
        k = np.searchsorted(self.stamps_ns, stamps_ns)
        i, j = np.maximum(k - 1, 0), np.minimum(k, len(self.stamps_ns) - 1)
        span = self.stamps_ns[j] - self.stamps_ns[i]
        share = (stamps_ns - self.stamps_ns[i]) / np.maximum(span, 1)
        share = np.where(span > 0, np.clip(share, 0.0, 1.0), 0.0)
        out = between(self._with(i, T), self._with(j, T), share)
        own = zip(self.stamps_ns.tolist(), self.cameras, strict=True)
        at = {key: n for n, key in enumerate(own)}
        for n, key in enumerate(zip(stamps_ns.tolist(), cameras, strict=True)):
            if key in at:
                out[n] = self.after[at[key]]
        return out

    def _with(self, k: Array, T: Array) -> Array:
        """Returns poses [F, 4, 4] that move with keyframes ``k`` [F]."""
        R = self.after[k, :3, :3] @ self.before[k, :3, :3].transpose(0, 2, 1)
        out = T.copy()
        out[:, :3, :3] = R @ T[:, :3, :3]
        arm = np.einsum("fij,fj->fi", R, T[:, :3, 3] - self.before[k, :3, 3])
        out[:, :3, 3] = self.after[k, :3, 3] + self.scale[k, None] * arm
        return out


def _growth(before: Array, after: Array, depth: Array, own: Array, scale: float) -> float:
    """Returns by what factor distances between views ``own`` [V] and those around them have grown;
    ``scale`` if they are too near to each other to show it."""
    index = np.arange(len(own))
    middle = float(index[own].mean())
    near = np.argsort(np.abs(index - middle), kind="stable")[: max(AROUND, int(own.sum()))]
    a, b = (T[near, :3, 3] - T[near, :3, 3].mean(0) for T in (before, after))
    power, typical = float((a**2).sum()), float(np.median(depth[near]))
    if not math.sqrt(power / len(near)) > LEAST_SPREAD * typical:
        return scale
    R = mean_rotation(after[own], before[own])
    return float((b * (a @ R.T)).sum()) / power
