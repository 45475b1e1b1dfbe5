"""Chooses the keyframes that may show the location of a new one, the most similar first."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation

from da3_ros.geometry.poses import invert_pose
from da3_ros.geometry.projection import backproject, project
from da3_ros.geometry.similarity import IDENTITY, Similarity
from da3_ros.mapping.alignment import Alignment, WindowAligner
from da3_ros.mapping.loop_keyframes import LoopKeyframes, PlacedKeyframe
from da3_ros.mapping.map_table import MapTable, OverlapView, ViewRow
from da3_ros.mapping.pose_hint import PoseHint
from da3_ros.mapping.resizing import Cut
from da3_ros.mapping.submap_graph import SubmapGraph
from da3_ros.types import Array, FloatImage, PlacedView, RefinedLoop, Window, WindowEstimate

MIN_SUBMAPS_APART = 3  # submaps between the keyframes of a loop; nearer ones share windows
MAX_CANDIDATES = 5  # most similar keyframes that are considered
MOST_MATCHED = 128  # most similar keyframes whose images are matched
MIN_SIMILARITY = 0.35  # cosine of whitened descriptors of a candidate
MAX_DISTANCE = 1.0  # distance over depth at which two keyframes can see the same surface
MAX_ROTATION_DEG = 60.0  # rotation at which they can


# Of a new keyframe and others: those that show the same location, the most certain first; and
# whether all were compared, else the others are next time.
Matching = Callable[[ViewRow, Sequence[ViewRow]], tuple[list[ViewRow], bool]]


# Of a new view, where it may be, and views whose poses are known: where tracks place it among
# these; None: they do not.
Placing = Callable[[OverlapView, Sequence[OverlapView]], PlacedView | None]


class LoopCandidates:
    """The search for candidates: of the newest keyframe, or of another that is asked for."""

    def __init__(self, keyframes: LoopKeyframes, graph: SubmapGraph, submaps: MapTable) -> None:
        self._keyframes, self._graph, self._submaps = keyframes, graph, submaps
        self._active = False  # whether there may be a candidate
        self._compared: set[int] = set()  # submaps that the new keyframe was compared with
        self._tied_by = -1  # id of the newest keyframe with a loop in the graph
        # Submaps of a read-only map in which locations are looked for; None: in all keyframes.
        self.searched: frozenset[int] | None = None
        self._from: tuple[int, Callable[[int], bool]] | None = None  # see ``look_from``

    def restart(self) -> None:
        """Searches anew: there is a new keyframe, or keyframes have moved."""
        self._active = len(self._keyframes) > 0
        self._compared.clear()

    def wait(self) -> None:
        """Searches nothing before ``restart``."""
        self._active = False

    def note_loop(self, new: int) -> None:
        """Notes a loop of the keyframe ``new``, by its view's id, that is in the graph."""
        self._tied_by = new

    def limit_to(self, submaps: frozenset[int] | None) -> None:
        """Searches in the keyframes of these submaps only; None: in all."""
        self.searched = submaps

    @property
    def is_asked(self) -> bool:
        """Whether ``look_from`` named a keyframe."""
        return self._from is not None

    def look_from(self, view_id: int, among: Callable[[int], bool]) -> bool:
        """Compares a keyframe, by its view's id, instead of the newest one, with those of submaps
        that ``among`` allows, similar or not, tied or not; False: it was forgotten."""
        self._from = view_id, among
        self.restart()
        return view_id in self._keyframes

    @property
    def new(self) -> ViewRow:
        """The keyframe that is compared: the newest one, unless ``look_from`` named another."""
        if self._from is None:
            return self._keyframes[-1]
        return next(k for k in self._keyframes if k.view.id == self._from[0])

    def next(self, hint: PoseHint | None, matching: Matching | None = None) -> ViewRow | None:
        """Returns the keyframe to compare the new one with; None if there is none.

        hint: where the camera may be, in ``local``: keyframes there need not look similar.
        matching: finds keyframes by their images, which come first.
        """
        if not self._active and hint is None:
            return None
        new = self.new
        least = MIN_SIMILARITY if hint is None and self._from is None else 0.0
        best, complete = self._best(new, least, self._allowed(new, hint), matching)
        # Where the new one's chain was joined to others may be wrong: keyframes that it would then
        # see come last.
        for untied in (None, new.submap):
            for old in best:
                if old.submap not in self._compared and self._can_overlap(old, new, untied):
                    self._compared.add(old.submap)
                    return old
        if hint is None:
            self._active = not complete  # else until there is a new keyframe
        return None

    def _best(
        self, new: ViewRow, least: float, allowed: Callable[[ViewRow], bool],
        matching: Matching | None,
    ) -> tuple[list[ViewRow], bool]:  # fmt: skip
        """Returns the best candidates: those whose images match, then those whose descriptors are
        more similar than ``least``; and whether these are all."""
        similarity = self._keyframes.similarity(new.view.id)
        order = np.argsort(-similarity, kind="stable")
        similar = (self._keyframes[i] for i in order if similarity[i] > least)
        best = list(itertools.islice(filter(allowed, similar), MAX_CANDIDATES))
        if matching is None:
            return best, True
        some = filter(allowed, (self._keyframes[i] for i in order[:MOST_MATCHED]))
        matched, complete = matching(new, list(some))
        return [*matched[:MAX_CANDIDATES], *best], complete

    def _allowed(self, new: ViewRow, hint: PoseHint | None) -> Callable[[ViewRow], bool]:
        """Returns what tells whether a keyframe may be compared, however similar it is."""
        graph, newest = self._graph, self._graph.index(new.submap)
        tied = graph.loop_partners(new.submap) if self._from is None else set()

        def allowed(old: ViewRow) -> bool:
            if self.searched is not None and old.submap not in self.searched:
                return False
            if self._from is not None and not self._from[1](old.submap):
                return False
            at = graph.index(old.submap)
            near = newest - at < MIN_SUBMAPS_APART
            known = at in tied or (near and graph.in_one_chain(old.submap, new.submap))
            if known and not self._is_join(at in tied, old, new):
                return False
            there = PlacedKeyframe.of(old, self._submaps)
            return hint is None or hint.allows(there.centre, MAX_DISTANCE * there.depth)

        return allowed

    def _is_join(self, tied: bool, old: ViewRow, new: ViewRow) -> bool:
        """Whether two keyframes whose submaps loops tie are of chains that only loops join: each
        new keyframe may confirm that, or contradict it."""
        one_chain = self._graph.in_one_chain(old.submap, new.submap)
        return tied and not one_chain and new.view.id != self._tied_by

    def _can_overlap(self, old: ViewRow, new: ViewRow, untied: int | None) -> bool:
        """True if two keyframes can see the same surface, given the possible drift. untied: see
        ``SubmapGraph.drift_variance``."""
        if cut_to(old, new) is None:
            return False
        there, here = (PlacedKeyframe.of(k, self._submaps) for k in (old, new))
        drift = np.sqrt(drift_between(self._graph, there, here, untied))
        away = float(np.linalg.norm(there.centre - here.centre))
        R = there.T_local_camera[:3, :3].T @ here.T_local_camera[:3, :3]
        rotation = Rotation.from_matrix(R).magnitude()
        near = away - SIGMAS * math.sqrt(3) * drift[2] < MAX_DISTANCE * there.depth
        most = math.radians(MAX_ROTATION_DEG)
        return near and rotation - SIGMAS * math.sqrt(3) * drift[1] < most


# The drift of windows that are aligned one after the other.


class DriftModel:
    """Variance that the alignments of windows add up to along the path, kept as sums.

    The memory does not grow with the number of windows.
    """

    def __init__(self) -> None:
        self._own = np.zeros(3)
        self._arms = 0.0  # total variance of scales and rotations
        self._middle = np.zeros(3)  # mean of their positions, weighted by variance
        self._spread = 0.0  # weighted sum of squared distances from the mean

    def add(self, variance: Array, camera: Array) -> None:
        """Adds a window's variance [3] (log scale, rotation, position) at its camera [3]."""
        self._own = self._own + variance
        weight = float(variance[0] + variance[1])
        if not weight > 0:
            return
        self._arms += weight
        offset = camera - self._middle
        self._middle = self._middle + weight / self._arms * offset
        self._spread += weight * float(offset @ (camera - self._middle))

    def rescale(self, factor: float, about: Array) -> None:
        """Takes over that lengths are ``factor`` times what they were, seen from the point
        ``about`` [3]."""
        self._own = self._own * [1, 1, factor**2]
        self._middle = about + factor * (self._middle - about)
        self._spread *= factor**2

    def variance_at(self, point: Array) -> Array:
        """Returns the variance [3] at a point: rotation and scale errors move distant points."""
        by_arms = self._spread + self._arms * float(((self._middle - point) ** 2).sum())
        return np.asarray(self._own + [0, 0, by_arms])


# Measures a loop in the geometry of a window that sees two visits of a location.

# Of a true loop: share of points that both sides see, and share of those that agree.
MIN_VISIBLE, MIN_AGREEING = 0.15, 0.6
# The same of stored depth, which is better than that of one window; and the largest factor, as a
# logarithm, by which the depth of a chain may be off.
MIN_AGREEING_STORED, MOST_FACTOR = 0.8, 0.25
DEPTH_TOLERANCE = 0.1  # relative depth difference of points that agree
# Of log depth, of all views of a chain in common, against their poses: the size that a loop shows
# is that of its depth. Two loops that are apart show the size better.
DEPTH_SIGMA = 0.06
NOISE_FACTOR = 2.0  # noise between views of two visits over noise within one window
SIGMAS = 4.0
# Of the length of a vector of three numbers: as unlikely as ``SIGMAS`` of one number.
SIGMAS_OF_THREE = 4.7


@dataclass(frozen=True, eq=False)
class Loop:
    """An old and a new keyframe, by the ids of their views, that one window has seen together: a
    measurement of the new one's submap in the frame and unit of the old one's."""

    old: int
    new: int
    T_old_new: Similarity
    variance: Array  # [3] of log scale, rotation and position of the new camera, in its submap
    # Ids of all views that were compared, of the old one's side and of the new one's.
    old_side: frozenset[int] = frozenset()
    new_side: frozenset[int] = frozenset()

    def is_apart(self, other: Loop) -> bool:
        """Whether it shares no view with another loop, so that both do not repeat one error."""
        return not (self.old_side & other.old_side or self.new_side & other.new_side)

    def drift(self, T_local_old: Similarity, T_local_new: Similarity) -> Similarity:
        """Returns what maps, in the frame of odometry, the surroundings of the new keyframe to
        where the old one measures them; given the poses of both submaps."""
        return T_local_old @ self.T_old_new @ T_local_new.inverse()


def sharing_no_view(loops: Iterable[Loop]) -> list[Loop]:
    """Returns those loops that share no view with an earlier one that is returned."""
    out: list[Loop] = []
    for loop in loops:
        if all(one.is_apart(loop) for one in out):
            out.append(loop)
    return out


def placed_ends(loop: Loop, table: MapTable) -> tuple[PlacedKeyframe, PlacedKeyframe]:
    """Returns both keyframes of a loop where they are now. Raises KeyError."""
    old, new = (PlacedKeyframe.of(table.keyframes[id], table) for id in (loop.old, loop.new))
    return old, new


def measured_loop(
    old: PlacedKeyframe,
    new: PlacedKeyframe,
    views: Sequence[OverlapView],
    split: int,
    seen: RefinedLoop,
    aligner: WindowAligner,
) -> Loop | None:
    """Returns the loop that the estimate of a window measures; None if either side does not fit.

    views: of the window. split: index of the first one of the new side. aligner: the stream's, for
    the noise of views within a window; it is not changed.
    """
    estimate, fits = seen.estimate, []
    for indices in (range(split), range(split, len(views))):
        own = copy.deepcopy(aligner)  # the stream's own must not learn from it
        own.forget_unit()
        fit = own.align([views[i] for i in indices], estimate, indices)
        if fit is None or not fit.accepted:
            return None
        fits.append(fit)
    drift = fits[0].T_local_window @ fits[1].T_local_window.inverse()
    variance = NOISE_FACTOR**2 * sum(fit_variance(f, estimate, split) for f in fits)
    variance = variance + seen.variance * [1, 1, fits[0].T_local_window.scale ** 2]
    T_old_new = old.T_local_submap.inverse() @ drift @ new.T_local_submap
    variance = np.asarray(variance) / [1, 1, new.T_local_submap.scale**2]
    ids = [one.view.id for one in views]
    return Loop(
        old.keyframe.view.id, new.keyframe.view.id, T_old_new, variance,
        frozenset(ids[:split]), frozenset(ids[split:]),
    )  # fmt: skip


def loop_by_tracks(
    loop: Loop, old: PlacedKeyframe, new: PlacedKeyframe, around: Sequence[PlacedKeyframe],
    spread: Array, placing: Placing, *, same_surface: bool,
) -> Loop | None:  # fmt: skip
    """Returns a measured loop with the new keyframe where ``placing`` puts it among old ones, as
    the map knows these; None: it cannot be placed, or sees another surface there.

    spread: variance [3] of the old ones, see ``drift_around``. same_surface: known already.

    A window knows less: its network says how its views lie to each other, and how large it is.
    """
    drift = loop.drift(old.T_local_submap, new.T_local_submap)
    view = new.view
    start = replace(
        view, T_local_camera=drift.pose(view.T_local_camera), depth=drift.scale * view.depth
    )
    others = [one.view for one in around]
    found = placing(start, others)
    if found is None:
        return None
    factor = math.exp(found.log_scale)
    placed = replace(start, T_local_camera=found.T_local_camera, depth=factor * start.depth)
    if not (same_surface or any(depths_agree(placed, other) for other in others)):
        return None
    scale = drift.scale * factor
    drift = Similarity.between(found.T_local_camera, view.T_local_camera, scale)
    T_old_new = old.T_local_submap.inverse() @ drift @ new.T_local_submap
    variance = (found.sigma**2 + spread) / [1, 1, new.T_local_submap.scale**2]
    variance[0] += DEPTH_SIGMA**2
    return replace(loop, T_old_new=T_old_new, variance=variance)


def fit_variance(fit: Alignment, estimate: WindowEstimate, index: int) -> Array:
    """Returns the variance [3] of an alignment at the camera of view ``index``."""
    assert fit.covariance is not None
    assert fit.pivot is not None
    spread = np.diag(fit.covariance)
    arm = estimate.T_window_camera[index, :3, 3] - fit.pivot
    model = DriftModel()
    model.add(np.array([spread[0], spread[1:4].mean(), spread[4:].mean()]), np.zeros(3))
    return model.variance_at(fit.T_local_window.scale * arm)


def within_sigmas(
    a: Similarity, b: Similarity, point: Array, variance: Array, *, strict: bool = False
) -> bool:
    """True if two similarities differ at a point by no more than the variance [3] explains.

    strict: the length of a vector counts, else the root mean square of its three numbers.
    """
    residual = np.array([
        abs(math.log(a.scale / b.scale)),
        float(Rotation.from_matrix(a.R.T @ b.R).magnitude()),
        float(np.linalg.norm(a.points(point) - b.points(point))),
    ])  # fmt: skip
    of_three = SIGMAS_OF_THREE if strict else SIGMAS * math.sqrt(3)
    return bool((residual <= np.array([SIGMAS, of_three, of_three]) * np.sqrt(variance)).all())


def see_same_surface(estimate: WindowEstimate, source: int, target: int) -> bool:
    """True if the source view sees enough surfaces of the target view, at the same depth."""
    depth, other = estimate.depth[source], estimate.depth[target]
    points = backproject(depth, estimate.K[source]).reshape(-1, 3)
    points = points[np.isfinite(points).all(axis=1)].astype(np.float64)
    if not len(points):
        return False
    T = invert_pose(estimate.T_window_camera[target]) @ estimate.T_window_camera[source]
    there = points @ T[:3, :3].T + T[:3, 3]
    inside, seen = visible_depths(there, estimate.K[target], other)
    agree = np.abs(np.log(seen / there[inside, 2])) < DEPTH_TOLERANCE
    return bool(inside.mean() > MIN_VISIBLE and agree.mean() > MIN_AGREEING)


def depths_agree(view: OverlapView, other: OverlapView) -> bool:
    """True if a view sees enough surfaces of another one by the depth of both, up to one factor.

    Two rooms with one picture on the wall share its features, and not what is beside it.
    """
    if not len(view.depth) or not len(other.depth):
        return False
    T = invert_pose(other.T_local_camera) @ view.T_local_camera
    points = view.depth[:, None] * view.rays() @ T[:3, :3].T + T[:3, 3]
    height, width = other.view.image.shape[:2]
    with np.errstate(invalid="ignore", divide="ignore"):
        pixel = project(points, other.K)
        inside = (points[:, 2] > 0) & ((pixel > 0) & (pixel < (width, height))).all(axis=1)
    if not inside.mean() > MIN_VISIBLE:
        return False
    row, column = np.divmod(other.pixels, width)
    nearest = cKDTree(np.column_stack((column, row)) + 0.5).query(pixel[inside])[1]
    ratio = np.log(other.depth[nearest] / points[inside, 2])
    factor = np.clip(np.median(ratio), -MOST_FACTOR, MOST_FACTOR)
    return bool((np.abs(ratio - factor) < DEPTH_TOLERANCE).mean() > MIN_AGREEING_STORED)


def visible_depths(points: Array, K: Array, depth: FloatImage) -> tuple[Array, Array]:
    """Returns which camera points [M, 3] project into a depth image, and its depth there."""
    height, width = depth.shape
    with np.errstate(invalid="ignore", divide="ignore"):
        column, row = np.floor(project(points, K)).T
    inside = (points[:, 2] > 0) & (column >= 0) & (column < width) & (row >= 0) & (row < height)
    seen = np.full(len(points), np.nan)
    seen[inside] = depth[row[inside].astype(int), column[inside].astype(int)]
    inside &= np.isfinite(seen) & (seen > 0)
    return inside, seen[inside]


# Whether a measured loop is possible, and whether two loops measure the same.
#
# By the drift between keyframes along the graph of submaps.

SAME_LOCATION = 0.25  # drift variance within a location over that between the sides of a loop


def drift_between(
    graph: SubmapGraph, old: PlacedKeyframe, new: PlacedKeyframe, untied: int | None = None
) -> Array:
    """Returns the variance [3] of the new keyframe relative to the old one, along the most certain
    path. untied: see ``SubmapGraph.drift_variance``."""
    first, second = (graph.index(p.keyframe.submap) for p in (old, new))
    drift = graph.drift_variance(first, second, new.centre, untied)
    return np.asarray(old.variance + new.variance + drift)


def drift_around(
    graph: SubmapGraph, old: PlacedKeyframe, around: Sequence[PlacedKeyframe]
) -> Array:
    """Returns the mean variance [3] of keyframes of one chain relative to one of them: what the
    map has wrong among them, all in one direction."""

    def relative(other: PlacedKeyframe) -> Array:
        first, last = sorted((old, other), key=lambda one: one.keyframe.submap)
        a, b = (graph.index(one.keyframe.submap) for one in (first, last))
        between = graph.drift_variance(a, b, last.centre)
        return np.asarray(np.abs(between + last.variance - first.variance))

    return np.asarray(np.mean([relative(one) for one in around], axis=0))


class LoopAgreement:
    """Compares loops with the drift between their submaps."""

    def __init__(self, graph: SubmapGraph, submaps: MapTable) -> None:
        self._graph, self._submaps = graph, submaps

    def is_possible(self, loop: Loop, *, strict: bool = False) -> bool:
        """True if the drift that a loop measures is possible. strict: see ``within_sigmas``."""
        old, new, drift, variance = self._placed(loop)
        possible = drift_between(self._graph, old, new) + variance
        return within_sigmas(drift, IDENTITY, new.centre, possible, strict=strict)

    def agree(
        self, first: Loop, second: Loop, untied: int | None = None, *, strict: bool = False
    ) -> bool:
        """True if two loops of different keyframes are of one location and measure the same
        drift. untied: a submap whose chain is not taken to be where it was joined. strict: see
        ``within_sigmas``."""
        return self._compare(first, second, untied, strict) is True

    def contradict(self, first: Loop, second: Loop, *, strict: bool = False) -> bool:
        """True if two loops are of one location and measure different drifts."""
        return self._compare(first, second, None, strict) is False

    def _compare(
        self, first: Loop, second: Loop, untied: int | None, strict: bool
    ) -> bool | None:  # fmt: skip
        """Returns whether two loops measure the same drift; None: not of one location."""
        old, new, drift, variance = self._placed(first)
        other_old, other_new, other_drift, other_variance = self._placed(second)
        apart = drift_between(self._graph, new, other_new, untied)
        apart = apart + drift_between(self._graph, old, other_old, untied)
        between = drift_between(self._graph, other_old, other_new, untied)
        if not apart[2] < SAME_LOCATION * between[2]:
            return None
        point = other_new.centre
        square = float(((new.centre - point) ** 2).sum())
        moved = variance + [0, 0, square * (variance[0] + variance[1])]
        possible = moved + other_variance + apart
        return within_sigmas(drift, other_drift, point, possible, strict=strict)

    def _placed(self, loop: Loop) -> tuple[PlacedKeyframe, PlacedKeyframe, Similarity, Array]:
        """Returns both keyframes, the drift and its variance [3], in the frame of odometry."""
        old, new = placed_ends(loop, self._submaps)
        drift = loop.drift(old.T_local_submap, new.T_local_submap)
        return old, new, drift, loop.variance * [1, 1, new.T_local_submap.scale**2]


# The window that verifies a loop: two keyframes with their neighbours, in one image size.

VIEWS_PER_SIDE = 3  # views of each side in the window that verifies a loop
AROUND = 8  # old keyframes among which tracks place a new one


def loop_window(
    keyframes: LoopKeyframes, graph: SubmapGraph, old: ViewRow, new: ViewRow, id: int,
    each: int,
) -> tuple[Window, list[ViewRow], int]:  # fmt: skip
    """Returns a window of an old and a new keyframe and their neighbours, its views' keyframes,
    and the index of the first one of the new side.

    All images have the size of the new one. each: most views per side. Raises OSError.
    """
    each = min(VIEWS_PER_SIDE, each)
    first = [_in_size_of(new, one) for one in _neighbours(keyframes, graph, old, new, each)]
    second = [_in_size_of(new, one) for one in _neighbours(keyframes, graph, new, new, each)]
    views = tuple(one.view for one in first + second)
    return Window(id, views, 0), first + second, len(first)


def cut_to(old: ViewRow, new: ViewRow) -> Cut | None:
    """Returns the cut from a keyframe's image to one of the size of another's; None: too little
    would remain."""
    cut = Cut.of(old.view.image.shape, new.view.image.shape)
    return cut if cut is not None and cut.fits(old) else None


def _neighbours(
    keyframes: LoopKeyframes, graph: SubmapGraph, keyframe: ViewRow, new: ViewRow,
    most: int,
) -> list[ViewRow]:  # fmt: skip
    """Returns a keyframe first, then the kept ones nearest to it in time, at most ``most``, whose
    images can have the size of the new one's."""
    at = keyframes.ids.index(keyframe.view.id)
    found = [keyframe]
    for away in range(1, len(keyframes)):
        around = [keyframes[i] for i in (at - away, at + away) if 0 <= i < len(keyframes)]
        near = [one for one in around if abs(one.submap - keyframe.submap) <= 1]
        if not near or len(found) >= most:
            break
        found += [
            one
            for one in near
            if graph.in_one_chain(keyframe.submap, one.submap) and cut_to(one, new)
        ]
    return found[:most]


def keyframes_around(
    keyframes: LoopKeyframes, graph: SubmapGraph, old: ViewRow, new: ViewRow
) -> list[ViewRow]:
    """Returns an old keyframe and those nearest to it in time, with their arrays. Raises
    OSError."""
    return [one.loaded() for one in _neighbours(keyframes, graph, old, new, AROUND)]


def _in_size_of(new: ViewRow, keyframe: ViewRow) -> ViewRow:
    """Returns a keyframe with its arrays, and with an image of the size of another's. Raises
    OSError."""
    keyframe, cut = keyframe.loaded(), cut_to(keyframe, new)
    if keyframe.view.image.shape == new.view.image.shape:
        return keyframe
    assert cut is not None
    return cut.row(keyframe)
