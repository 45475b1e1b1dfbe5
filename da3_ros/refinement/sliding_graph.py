"""A sliding graph of views that share tracks: refines the newest views against older ones.

Tracks live across windows. The newest views are free; older ones are held, so that the frame of
reference and its unit stay. Lengths are in the unit of local.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from da3_ros.refinement.bundle import (
    POSITION,
    RIG,
    ROTATION,
    SCALE,
    SIZE,
    Adjusted,
    Bundle,
    Metre,
    Observations,
    PosePriors,
    adjust,
)
from da3_ros.refinement.edge_points import EdgePoints
from da3_ros.refinement.few_tracks import (
    align_directly,
    has_few_tracks,
)
from da3_ros.refinement.measured_poses import (
    SETTLED,
    UNKNOWN_METRE,
    are_connected,
    contradicts_rig,
    with_metre,
    without_rig_positions,
)
from da3_ros.refinement.starts import start_pose
from da3_ros.refinement.track_noise import TrackNoise
from da3_ros.refinement.tracked_view import (
    UNPLACED,
    Matches,
    TrackedView,
    TrackPoints,
    extend_tracks,
    match,
)
from da3_ros.types import Array

FREE, HELD = 4, 8  # most views that are adjusted, and most older ones that hold them
FEWEST_TRACKS = 12  # of a view that is adjusted
PATCHES = 15.0  # independent measurements in the predicted depths of all views together
RAY_SIGMA = 0.003  # rad; weighs rays against predicted depths where a track begins
MIN_OUTLIER_PX, OUTLIER = 2.5, 5.0  # limit of a reprojection error: pixels, standard deviations
MIN_PARALLAX = 0.02  # rad; a view with less, at its upper quartile, gets no depth from tracks
POSITION_SIGMA = 0.001  # standard deviation of a camera's position, over depth
OTHER_FOCAL = 0.01  # relative difference of focal lengths with which points must be found anew
MAX_LOG_SCALE = 3.0  # of a view; more is a fault
MAX_EXTENT = 100.0  # distance between cameras of a bundle over its depth; more is a fault
LAST_STEPS = 4  # after outliers are removed
MOST_CONTRADICTIONS = 10  # windows in a row after which a metre is not believed any more
MOST_OPEN = 40  # windows of a chain in which all views move, while the metre is not known well
# Standard deviation of the metre's logarithm from window to window, and by one without tracks.
METRE_DRIFT, UNREFINED_DRIFT = 0.003, 0.02
NEWEST = 2  # views before a new one that must match it, for its matches to count fully
CONTRADICTION = 1.5  # factor on the assumed noise of depth from which on a bundle is solved again


@dataclass(frozen=True, eq=False)
class ViewErrors:
    """How errors come into F adjusted views that H views hold.

    Errors of a view: log scale; rotation, rad, and position in the axes of local.
    """

    covariance: Array  # [7 F, 7 F] by features, depths and priors, with the held views exact
    by_held: Array  # [7 F, 7 H] derivatives by the errors of the held views
    by_network: Array  # [7 F, 7 F] derivatives by what depths and priors have wrong in common


@dataclass(frozen=True, eq=False)
class RefinedViews:
    """Result of one window."""

    ids: list[int]  # [F] the views that were adjusted, oldest first
    held: list[int]  # the views that held them
    poses: dict[int, Array]  # [4, 4] in local of all these views
    depth: float  # typical depth, units of local
    errors: ViewErrors | None  # None: not determined
    tracks: int
    reprojection_px: float  # root mean square over the observations, pixels of ``Features.shape``
    metre: Metre | None = None  # by the rig; None: not measured
    # Whether the rig is declared wrongly, or may soon show the metre: then nothing else does.
    metre_is_open: bool = False

    @property
    def metre_is_known(self) -> bool:
        """Whether the rig shows the metre well."""
        return self.metre is not None and self.metre.sigma <= SETTLED

    @property
    def newest_covariance(self) -> Array | None:
        """The part [7, 7] of the newest view."""
        return None if self.errors is None else self.errors.covariance[-SIZE:, -SIZE:]


@dataclass(frozen=True, eq=False)
class GraphBackup:
    """What windows change in a graph."""

    # By id: the view; pose, scale, K, tracks, edge points.
    views: dict[int, tuple[TrackedView, Array, float, Array, Array, EdgePoints]]
    points: TrackPoints
    noise: TrackNoise
    metre: Metre


class SlidingGraph:
    """The views of a chain that share tracks."""

    def __init__(self, max_tracks: int, max_steps: int, free: int = FREE) -> None:
        """max_tracks: of a bundle; more cost time and add little. free: most views that are
        adjusted if fewer are new."""
        self.max_tracks, self.max_steps, self.free = max_tracks, max_steps, free
        self.views: dict[int, TrackedView] = {}  # oldest first
        self.points = TrackPoints()
        self.noise = TrackNoise()
        self.metre = UNKNOWN_METRE  # by the rig, in local
        self.rig_contradicted = False  # by the tracks of the newest window
        self._has_rig = False  # whether a rig's positions count in it
        self._measured = False  # whether tracks have measured the metre, not only the network
        self._contradictions = 0  # windows in a row
        self._open = MOST_OPEN  # windows that may still look for the metre with all views free
        self._corrections = 0

    def saved(self) -> GraphBackup:
        """Returns the graph as it is, for ``restore``."""
        views = {
            i: (v, v.T_local_camera, v.log_scale, v.K, v.track.copy(), v.edges.copy())
            for i, v in self.views.items()
        }
        return GraphBackup(views, copy.copy(self.points), copy.deepcopy(self.noise), self.metre)

    def restore(self, saved: GraphBackup) -> None:
        """Returns to a saved graph."""
        self.views = {}
        for i, (view, T, s, K, track, edges) in saved.views.items():
            view.T_local_camera, view.log_scale, view.K = T, s, K
            view.track, view.edges = track, edges
            self.views[i] = view
        self.points, self.noise, self.metre = saved.points, saved.noise, saved.metre

    def restart(self) -> None:
        """Forgets views and tracks; keeps what is known about noise. Ids of tracks go on: stored
        ones stay those of one point."""
        self.views, self.points = {}, self.points.without_positions()
        self.forget_metre()

    def take_metre(self, metre: Metre) -> None:
        """Takes over the length of a metre in local, as the map knows it; not after windows have
        forgotten theirs, because what the map knows is of before."""
        if math.isfinite(self.metre.sigma):
            self.metre = metre

    def age_metre(self) -> None:
        """Takes over that a window was not refined: its unit is the network's word."""
        self.metre = replace(self.metre, sigma=math.hypot(self.metre.sigma, UNREFINED_DRIFT))

    def note_rig(self, *, contradicted: bool) -> None:
        """Notes whether the tracks of a window contradict the rig. After some in a row, the metre
        may be what is wrong."""
        self.rig_contradicted = contradicted
        self._contradictions = self._contradictions + 1 if contradicted else 0
        if self.gave_up_metre:
            self.metre, self._measured = UNKNOWN_METRE, False

    @property
    def gave_up_metre(self) -> bool:
        """Whether the newest window contradicts the rig, after too many others."""
        return self.rig_contradicted and self._contradictions >= MOST_CONTRADICTIONS

    def forget_metre(self) -> None:
        """Forgets the metre: lengths in local have changed."""
        self.metre, self._open, self._measured = UNKNOWN_METRE, MOST_OPEN, False

    @property
    def knows_metre(self) -> bool:
        """Whether tracks have measured the metre well."""
        return self._measured and self.metre.sigma <= SETTLED

    def keep(self, ids: Collection[int]) -> None:
        """Forgets all views but these."""
        self.views = {i: v for i, v in self.views.items() if i in ids}
        self.points.keep(self.views.values())

    def end_window(self, units: Mapping[int, float]) -> None:
        """Forgets all views but these, and their poses. units: length in local of the unit of each
        view's submap, by id."""
        self.keep(units)
        for id, view in self.views.items():
            if view.is_placed:
                view.unit, view.T_local_camera = units[id], UNPLACED

    def place(self, at: Mapping[int, tuple[Array, float]], corrections: int) -> None:
        """Places the views for one window, and forgets all but these.

        at: pose [4, 4] in local, and unit as in ``end_window``, by id. corrections: number so far;
        if it has changed, the points of tracks are found again from the views.
        """
        if any(view.is_placed for view in self.views.values()):
            self.restart()  # the last window did not end: nobody knows in which units they are
        self.views = {i: v for i, v in self.views.items() if i in at}
        for id, view in self.views.items():
            T, unit = at[id]
            grown = math.log(unit / view.unit)
            view.log_depth, view.grown = view.log_depth + grown, view.grown + grown
            view.T_local_camera, view.unit = T, unit
        if corrections != self._corrections:
            self._corrections, self.points = corrections, self.points.without_positions()

    def set_guessed_K(self, view: TrackedView) -> None:
        """Gives earlier views of a camera without calibration the K of its newest one."""
        size = view.features.shape[::-1]
        for other in self.views.values():
            if other.own_K and other.camera == view.camera and other.features.shape[::-1] == size:
                if abs(other.K[0, 0] / view.K[0, 0] - 1) > OTHER_FOCAL:
                    self.points = self.points.without_positions()
                other.K = view.K

    def add(self, view: TrackedView, shared: Sequence[int]) -> int:
        """Adds a view: matches it to ``shared`` ones, sets its start pose, extends tracks.

        Returns the number of its features with a track.
        """
        for id, other in self.views.items():
            if id not in shared:
                other.features.release()
        known = sorted((self.views[i] for i in shared if i in self.views), key=lambda v: v.id)
        found = [Matches(v, match(view.features, v.features)) for v in known]
        found = [m for m in found if len(m.pairs)]
        if found:
            good = start_pose(view, found, _newest(known, view), self.points, self.noise)
            extend_tracks(view, found, good, self.points)
        if has_few_tracks(view, self.max_tracks):
            align_directly(view, known, self.points, self.noise)
        self.views[view.id] = view
        return int((view.track >= 0).sum())

    def refine(self, new: Sequence[int], priors: PosePriors) -> RefinedViews | None:
        """Adjusts the newest views; None, and no pose is changed, if the views ``new`` have too
        few tracks.

        One of several new views is enough: the others follow it by ``priors``, relative poses by
        view id. Raises LinAlgError if the solution diverges.
        """
        rig = priors.source == RIG
        self._has_rig, self.rig_contradicted = bool(priors.root[rig, 3:].any()), False
        used, free = self._chosen(new)
        views, priors = [self.views[i] for i in used], priors.indexed(used)
        mine = np.array([k for k, i in enumerate(used) if i in new and free[k]], int)
        gathered = gather(views, free, self.max_tracks, mine)
        if gathered is None:
            return None
        ids, observations = gathered
        free = _without_loose(free, observations, priors)
        mine = mine[free[mine]]
        seen = np.bincount(observations.view, minlength=len(views))
        free &= seen >= FEWEST_TRACKS
        if not free[mine].any():
            return None
        free[mine] = True
        bundle = with_metre(self.bundle(views, free, ids, observations, priors), self.metre)
        done, bad = self._solve(bundle)
        connected = self._has_rig and self._are_connected(views, done.bundle.free)
        if bundle.metre_prior is not None:
            self.note_rig(contradicted=contradicts_rig(done.bundle))
            if self.rig_contradicted:
                done, bad = self._solve(without_rig_positions(bundle))
        if not done.bundle.free[mine].all():
            return None
        if not is_sane(done.bundle):
            raise np.linalg.LinAlgError("the solution diverged")
        self._apply(views, ids, observations, done, bad)
        self.noise.add(done, seen, [used.index(i) for i in new if i in used])
        found = done.metre()
        if found is not None:
            self.metre = replace(found, sigma=math.hypot(found.sigma, METRE_DRIFT))
            self._measured |= connected
        return RefinedViews(
            [i for i, f in zip(used, done.bundle.free, strict=True) if f],
            [i for i, f in zip(used, done.bundle.free, strict=True) if not f],
            {i: self.views[i].T_local_camera for i in used},
            float(np.exp(np.median(done.bundle.typical_log_depth()))),
            _errors_in_local(done),
            len(ids),
            float(np.sqrt(np.mean(np.minimum(done.reprojection, 10.0) ** 2))),
            # Where no tracks connect the cameras, the network's poses say how far they are apart:
            # that holds them together, but is no measurement.
            found if connected else None,
            self.rig_contradicted or (connected and self._metre_is_open()),
        )

    def residuals(self, id: int) -> tuple[Array, Array, Array]:
        """Returns of a view's features with a point: indices [M], the logarithm of the point's
        depth less that of the scaled prediction [M], and its standard deviation [M].

        None of a view that others see from nearly the same position: noise would be its baseline.
        """
        view = self.views[id]
        index, residual, points = self._depths(id)
        parallax = self._parallax(view, view.track[index], points)
        if not len(parallax) or np.quantile(parallax, 0.75) < MIN_PARALLAX:
            return index[:0], residual[:0], parallax[:0]
        angle = math.hypot(self.noise.pixel / view.K[0, 0], POSITION_SIGMA)
        return index, residual, np.hypot(angle / np.maximum(parallax, 1e-4), 0.01)

    def depth_error(self, ids: Sequence[int]) -> float:
        """Returns the largest robust deviation of these views' log depth from that of their
        points, after one scale per view; NaN: unknown."""
        residuals = [self._depths(i)[1] for i in ids]
        found = np.array([deviation(r) for r in residuals if len(r) >= FEWEST_TRACKS])
        known = found[np.isfinite(found)]
        return float(np.max(known)) if len(known) else float("nan")

    def _depths(self, id: int) -> tuple[Array, Array, Array]:
        """Returns of a view's features with a point and a predicted depth: indices [M], residual
        log depths [M], and points [M, 3]; a NaN in place of no residual."""
        view = self.views[id]
        index = np.flatnonzero(view.track >= 0)
        points = self.points.of(view.track[index])
        T = view.T_local_camera
        z = ((points - T[:3, 3]) @ T[:3, :3])[:, 2]
        with np.errstate(invalid="ignore", divide="ignore"):
            residual = np.where(z > 0, np.log(z), np.nan) - view.log_depth[index] - view.log_scale
        known = np.isfinite(residual)
        if not known.any():
            return index[:0], np.full(1, np.nan), points[:0]
        return index[known], residual[known], points[known]

    def _parallax(self, view: TrackedView, tracks: Array, points: Array) -> Array:
        """Returns the largest angles [M] between a view's rays to points and those of others."""
        own = points - view.T_local_camera[:3, 3]
        own /= np.linalg.norm(own, axis=1, keepdims=True)
        largest = np.zeros(len(tracks))
        if not len(tracks):
            return largest
        views = list(self.views.values())
        order, track = np.argsort(tracks), np.concatenate([v.track for v in views])
        at = order[np.minimum(np.searchsorted(tracks, track, sorter=order), len(tracks) - 1)]
        seen = tracks[at] == track
        at, by = at[seen], np.repeat(np.arange(len(views)), [len(v.track) for v in views])[seen]
        ray = points[at] - np.array([v.T_local_camera[:3, 3] for v in views])[by]
        ray /= np.linalg.norm(ray, axis=1, keepdims=True) + 1e-300
        np.maximum.at(largest, at, np.linalg.norm(np.cross(own[at], ray), axis=1))
        return largest

    def _chosen(self, new: Sequence[int]) -> tuple[list[int], Array]:
        """Returns the views to adjust and to hold, oldest first, and the mask of the former."""
        ids = list(self.views)
        count = self.free
        if self._metre_is_open():
            count, self._open = len(ids), self._open - 1
        free = set(ids[max(1, len(ids) - count) :]) | (set(new) - {ids[0]})
        free = {i for i in free if not self.views[i].is_known}
        tracks = np.concatenate([
            np.zeros(0, int), *(t for i in free for t in self.views[i].tracks)
        ])  # fmt: skip
        tracks = np.unique(tracks[tracks >= 0])
        held = [i for i in ids if i not in free]
        common = {
            i: sum(int(np.isin(t, tracks).sum()) for t in self.views[i].tracks) for i in held
        }
        enough = [i for i in held if common[i] >= FEWEST_TRACKS]
        best = self._in_turn(sorted(enough, key=lambda i: (-common[i], i)))[:HELD] or held[-1:]
        used = [i for i in ids if i in free or i in best]
        return used, np.array([i in free for i in used])

    def _metre_is_open(self) -> bool:
        """Whether a rig could show the metre, and has not yet: then older views of the rig, held
        where the network has put them, would say how far its cameras are apart."""
        return self._has_rig and self._open > 0 and self.metre.sigma > SETTLED

    @staticmethod
    def _are_connected(views: Sequence[TrackedView], free: Array) -> bool:
        """Whether tracks connect several cameras in framesets of which some view is ``free`` [V]:
        held ones measure nothing. See ``are_connected``."""
        moves = {v.measured.frameset for v, f in zip(views, free, strict=True) if f}
        views = [v for v in views if v.measured.frameset in moves]
        if not views or all(v.camera == views[0].camera for v in views):
            return False
        view = np.repeat(np.arange(len(views)), [len(v.track) for v in views])
        track = np.concatenate([v.track for v in views])
        seen = track >= 0
        cameras, framesets = [v.camera for v in views], [v.measured.frameset for v in views]
        return are_connected(cameras, framesets, view[seen], track[seen])

    def _in_turn(self, ids: Sequence[int]) -> list[int]:
        """Returns views ordered by camera in turn: those of a rig may look apart, and a camera
        without held views would not be held by the others' tracks."""
        rank: Counter[str] = Counter()
        turns = []
        for id in ids:
            camera = self.views[id].camera
            turns.append((rank[camera], id))
            rank[camera] += 1
        return [id for _, id in sorted(turns, key=lambda turn: turn[0])]

    def bundle(
        self, views: list[TrackedView], free: Array, ids: Array, o: Observations, poses: PosePriors
    ) -> Bundle:
        """Returns the bundle of views, of which ``free`` [V] may move, and of tracks ``ids`` [N]
        with their observations, without standard deviations."""
        T = np.array([v.T_local_camera for v in views])
        K = np.array([v.K for v in views])
        s = np.array([v.log_scale for v in views])
        return Bundle(
            T, s, K, self._start_points(ids, o, T, K, s), free, o,
            np.zeros(len(views)), np.full(len(views), self.noise.scale), poses,
        )  # fmt: skip

    def _start_points(self, ids: Array, o: Observations, T: Array, K: Array, s: Array) -> Array:
        """Returns start positions [N, 3] of tracks: the known ones, else where rays meet, near
        the predicted depths."""
        ray = np.column_stack((o.pixel, np.ones(len(o.view))))
        ray = np.einsum("oij,ojk,ok->oi", T[o.view, :3, :3], np.linalg.inv(K)[o.view], ray)
        known = np.isfinite(o.log_depth)
        typical = float(np.median((o.log_depth + s[o.view])[known])) if known.any() else 0.0
        depth = np.exp(np.where(known, o.log_depth + s[o.view], typical))
        centre = T[o.view, :3, 3]
        unit = ray / np.linalg.norm(ray, axis=1, keepdims=True)
        far = np.linalg.norm(depth[:, None] * ray, axis=1)
        across = (1 / (RAY_SIGMA * far) ** 2)[:, None, None] * (
            np.eye(3) - unit[:, :, None] * unit[:, None, :]
        )
        weight = 1 / (self.noise.depth * far) ** 2
        A = across + weight[:, None, None] * np.eye(3)
        b = np.einsum("oij,oj->oi", across, centre)
        b += weight[:, None] * (centre + depth[:, None] * ray)
        starts = np.flatnonzero(np.diff(o.point, prepend=-1))
        met = np.linalg.solve(np.add.reduceat(A, starts), np.add.reduceat(b, starts)[..., None])
        before = self.points.of(ids)
        return np.where(np.isfinite(before), before, met[..., 0])

    def _solve(self, bundle: Bundle) -> tuple[Adjusted, Array]:
        """Returns the solution without outliers, and the mask [O] of outliers.

        If predicted depths contradict the tracks, they are weighed by that, and all is solved
        again.
        """
        done = adjust(self._weighted(bundle, self.noise.depth), self.max_steps)
        found = done.depth_sigma()
        if found > CONTRADICTION * self.noise.depth:
            done = adjust(self._weighted(done.bundle, found), self.max_steps)
        bad = ~(done.reprojection < max(MIN_OUTLIER_PX, OUTLIER * self.noise.pixel))
        o = done.bundle.observations
        enough = np.bincount(o.point[~bad], minlength=len(bundle.points)) >= 2
        kept = ~bad & enough[o.point]
        if bad.any() and kept.sum() > 2 * FEWEST_TRACKS:
            count = len(bundle.free)
            seen = np.bincount(o.view[kept], minlength=count) >= FEWEST_TRACKS // 2
            seen |= np.bincount(o.view, minlength=count) < FEWEST_TRACKS  # others hold them
            rest = replace(done.bundle, observations=o.where(kept), free=bundle.free & seen)
            done = adjust(rest, LAST_STEPS)
        return done, bad

    def _weighted(self, bundle: Bundle, depth_sigma: float) -> Bundle:
        """Returns the bundle with standard deviations.

        The errors of a view's depths are one smooth function, and are alike in all views.
        """
        o = bundle.observations
        per_view = np.bincount(o.view, minlength=len(bundle.free))[o.view]
        factor = np.sqrt(np.maximum(1.0, per_view * len(bundle.free) / PATCHES))
        pixel = np.full(len(o.view), self.noise.pixel)
        o = replace(o, sigma=pixel, depth_sigma=depth_sigma * factor)
        return replace(bundle, observations=o)

    def _apply(
        self, views: list[TrackedView], ids: Array, o: Observations, done: Adjusted, bad: Array
    ) -> None:
        """Takes over the solution; outliers leave their tracks."""
        b = done.bundle
        for at in np.flatnonzero(bad):
            for track in views[o.view[at]].tracks:
                track[track == ids[o.point[at]]] = -1
        self.take_over(views, ids, b)

    def take_over(self, views: list[TrackedView], ids: Array, solved: Bundle) -> None:
        """Takes over poses, scales and points of a solved bundle of views and tracks ``ids``."""
        for k, view in enumerate(views):
            view.T_local_camera, view.log_scale = (
                solved.T_local_camera[k],
                float(solved.log_scale[k]),
            )
        self.points.set(ids, solved.points)


def _without_loose(free: Array, o: Observations, priors: PosePriors) -> Array:
    """Returns the mask [V] of the views that may move.

    Of a group of views that neither tracks nor priors connect to a held view, the oldest is held
    too: nothing else would keep the group's pose and unit.
    """
    free, connected = free.copy(), ~free
    pairs = [*zip(priors.first.tolist(), priors.second.tolist(), strict=True)]
    while not connected.all():
        known = np.bincount(o.point, weights=connected[o.view]) > 0
        common = np.bincount(o.view, weights=known[o.point], minlength=len(free))
        near = common >= FEWEST_TRACKS
        for a, b in pairs:
            near[a], near[b] = near[a] or connected[b], near[b] or connected[a]
        near &= ~connected
        if not near.any():
            near[np.flatnonzero(~connected)[0]] = True
            free &= ~near
        connected |= near
    return free


def _errors_in_local(done: Adjusted) -> ViewErrors | None:
    """Returns the errors of a solution's free views, by those of its held ones."""
    covariance = done.covariance()
    if covariance is None:
        return None
    R, free = done.bundle.T_local_camera[:, :3, :3], done.bundle.free
    own, of_held = _axes_of_errors(R[free]), _axes_of_errors(R[~free])
    return ViewErrors(
        own @ covariance @ own.T, own @ done.by_held() @ of_held.T, own @ done.by_network() @ own.T
    )


def _axes_of_errors(R: Array) -> Array:
    """Returns the orthogonal matrix [7 V, 7 V] from a bundle's errors of views with rotations
    [V, 3, 3] to those of ``ViewErrors``."""
    axes = np.zeros((len(R), SIZE, len(R), SIZE))
    for k in range(len(R)):
        axes[k, 0, k, SCALE] = 1.0
        axes[k, 1:4, k, ROTATION] = R[k]
        axes[k, 4:, k, POSITION] = np.eye(3)
    return axes.reshape(SIZE * len(R), SIZE * len(R))


def _newest(known: Sequence[TrackedView], view: TrackedView) -> set[int]:
    """Returns the ids of the newest views, and of the newest ones of the view's own camera, that
    have features; a dark or covered one cannot match."""
    seen = [v for v in known if len(v.features) >= FEWEST_TRACKS]
    own = [v for v in seen if v.camera == view.camera]
    return {v.id for v in (*seen[-NEWEST:], *own[-NEWEST:])}


def _best_tracks(useful: Array, count: Array, of_new: list[Array], most: int) -> Array:
    """Returns the mask [N] of at most ``most`` useful tracks: those of the new views first, an
    equal share of each, then the longest ones.

    count: [N] views of a track. of_new: by new view, indices of its tracks.
    """
    by_length = np.argsort(-count, kind="stable")
    chosen = np.zeros_like(useful)
    for tracks in of_new:
        mine = np.zeros_like(useful)
        mine[tracks] = True
        chosen[by_length[(mine & useful)[by_length]][: most // len(of_new)]] = True
    rest = by_length[(useful & ~chosen)[by_length]]
    chosen[rest[: most - int(chosen.sum())]] = True
    return chosen


def deviation(values: Array) -> float:
    """Returns the robust standard deviation of values [N]."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))


def is_sane(bundle: Bundle) -> bool:
    """True if all poses and scales are numbers, and no camera has left its scene."""
    T, s = bundle.T_local_camera, bundle.log_scale
    if not (np.isfinite(T).all() and np.isfinite(s).all() and np.abs(s).max() < MAX_LOG_SCALE):
        return False
    reach = float(np.exp(np.median(bundle.typical_log_depth())))
    extent = np.abs(T[:, :3, 3] - T[0, :3, 3]).max()
    return bool(extent < MAX_EXTENT * reach)


def gather(
    views: list[TrackedView], free: Array, most: int, new: Array, *, with_edges: bool = True
) -> tuple[Array, Observations] | None:
    """Returns the ids [N], ascending, of at most ``most`` tracks that a free view and another view
    see, and their observations; None: too few. with_edges: whether edge points count."""
    view = np.concatenate([np.full(len(t), k) for k, v in enumerate(views) for t in v.tracks])
    track = np.concatenate([t for v in views for t in v.tracks])
    counts = track >= 0
    if not with_edges:
        counts &= np.concatenate([
            np.full(len(t), k == 0) for v in views for k, t in enumerate(v.tracks)
        ])  # fmt: skip
    some = np.flatnonzero(counts)
    if not len(some):
        return None
    _, point, count = np.unique(track[some], return_inverse=True, return_counts=True)
    moves = np.bincount(point, weights=free[view[some]]) > 0
    useful = (count >= 2) & moves
    if useful.sum() > most:
        useful = _best_tracks(useful, count, [point[view[some] == k] for k in new], most)
    some = some[useful[point]]
    ids, point = np.unique(track[some], return_inverse=True)
    if len(ids) < FEWEST_TRACKS:
        return None
    order = np.lexsort((view[some], point))
    some, point = some[order], point[order]
    pixel = np.concatenate([p for v in views for p in (v.features.pixel, _edge_pixel(v))])[some]
    log_depth = np.concatenate([
        d for v in views for d in (v.log_depth, v.edges.log_depth + v.grown)
    ])[some]  # fmt: skip
    normal = np.concatenate([
        n for v in views for n in (np.full((len(v.track), 2), np.nan), v.edges.normal)
    ])[some]  # fmt: skip
    # The oldest view says which point of the edge it is; others see only its edge.
    normal[np.diff(point, prepend=-1) > 0] = np.nan
    ones = np.ones(len(some))
    return ids, Observations(
        view[some], point, pixel, ones, log_depth, ones,
        normal if np.isfinite(normal).any() else None,
    )  # fmt: skip


def _edge_pixel(view: TrackedView) -> Array:
    """Returns the positions [E, 2] of edge points, pixels of ``Features.shape``."""
    if view.image is None:
        return np.zeros((0, 2))
    size, small = view.features.shape[::-1], view.image.grey.shape[::-1]
    return np.asarray(view.edges.pixel * (size[0] / small[0], size[1] / small[1]))
