"""Adjusts all keyframes of a map together: bundle adjustment with tracks between keyframes that
see the same surface, also if the camera was elsewhere in between.

Works on features and poses; no network, no images. Poses and lengths are those of ``local``.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.geometry.similarity import Similarity
from da3_ros.refinement.bundle import (
    NETWORK,
    POSITION,
    SIZE,
    Adjusted,
    Bundle,
    Metre,
    Observations,
    PosePriors,
    adjust,
)
from da3_ros.refinement.features import Features
from da3_ros.refinement.measured_poses import (
    KNOWN,
    SETTLED,
    UNKNOWN_METRE,
    are_connected,
    contradicts_rig,
    is_one_frameset,
    measured_motion,
    rig_prior,
    with_metre,
    without_rig_positions,
)
from da3_ros.refinement.starts import epipolar_distance
from da3_ros.refinement.track_noise import PoseNoise
from da3_ros.refinement.tracked_view import NOTHING_MEASURED, MeasuredPose, match
from da3_ros.types import Array

BEFORE = 10  # keyframes of its camera before a keyframe that it is compared with
AROUND = 4  # others near it, at most
NEAR_DEG, NEAR = 35.0, 1.0  # angle of optical axes, and distance over depth, of near keyframes
FEWEST, FEWEST_AROUND = 20, 30  # matches of a pair that count; the latter of one only near
EPIPOLAR_PX, TRIALS = 1.0, 200  # tolerance of matches without poses, and trials
# The same with the present poses, and the share of matches with which these are not doubted.
POSED_PX, POSED_SHARE = 3.0, 0.6
TURN_DEG = 15.0  # largest difference of a pair's rotation by matches from that of its poses
LEAST_VIEWS = 3  # of a track
TRACKS = 250  # of a keyframe, the longest ones
HELD_OUT = 10  # one track of so many only judges the result
TOLERANCES_PX = (16.0, 4.0, 2.0)  # of observations of a point, that narrow
# Reprojection errors that count, from round to round: standard deviations, and pixels at least.
LIMITS = ((20.0, 20.0), (10.0, 8.0), (6.0, 3.0), (5.0, 1.5))
MIN_PX, MAX_PX = 0.1, 1.0  # limits of the standard deviation of a position
RAYLEIGH = 1.1774  # median over the standard deviation of an axis, of distances in a plane
STEPS = 8  # of a round
CONNECTED = 40  # observations of a keyframe whose pose counts: with few, windows know it better
# Standard deviations of poses from keyframe to keyframe, which hold what tracks do not.
LOOSE_ROTATION, LOOSE_POSITION = 0.005, 0.02  # rad; position over distance
LOOSE_DEPTH = 0.003  # the same over depth, at least
RIG_ROTATION, RIG_DEPTH = 0.002, 0.005  # of views of one frameset: rad; position over depth
RIG = PoseNoise(RIG_ROTATION, 0.0)  # the same of a rig whose poses are known
# Keyframes that were adjusted before, so that their distances stay, and their spread over depth.
LEAST_SETTLED, LEAST_SPREAD = 4, 0.05
LEAST_SIGMA = 0.002  # standard deviation of the logarithm of a metre that is found
RIGHT = 0.8  # share of the observations that are right, of tracks that only judge
# Factor on their error, and pixels more, from which on an adjustment is refused.
WORSE, WORSE_PX = 1.05, 0.02
FOCAL_SIGMA = 0.1  # of the logarithm of a guessed focal length


@dataclass(frozen=True, eq=False)
class MapView:
    """A keyframe of the map."""

    id: int
    camera: str
    features: Features
    K: Array  # [3, 3] corner rule, pixels of ``Features.shape``
    T_local_camera: Array  # [4, 4]
    log_depth: Array  # [M] logarithm of the features' depth; NaN: unknown
    guessed_K: bool = False  # whether its camera's focal length is a guess
    measured: MeasuredPose = NOTHING_MEASURED  # of its rig and frameset

    @functools.cached_property
    def depth(self) -> float:
        """Typical depth; NaN: unknown."""
        known = self.log_depth[np.isfinite(self.log_depth)]
        return float(np.exp(np.median(known))) if len(known) else float("nan")

    def rays(self, index: Array) -> Array:
        """Returns the rays [P, 3] of features, z = 1, camera axes."""
        pixel = self.features.pixel[index]
        return np.column_stack((pixel, np.ones(len(pixel)))) @ np.linalg.inv(self.K).T


@dataclass(frozen=True, eq=False)
class AdjustedMap:
    """The keyframes that were adjusted."""

    poses: dict[int, Array]  # [4, 4] in local, by id
    tracks: int
    error_px: float  # typical one of tracks that only judge, after
    error_before_px: float
    metre: Metre | None = None  # in local, by the rig; None: not measured


class MapMatches:
    """The matches of pairs of keyframes that agree with one epipolar geometry. Each pair is
    compared once."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[int, int], NDArray[np.int32]] = {}  # by ids, the older one first

    def keep(self, ids: Iterable[int]) -> None:
        """Forgets the pairs of other keyframes."""
        kept = set(ids)
        self._pairs = {p: m for p, m in self._pairs.items() if kept.issuperset(p)}

    def extend(self, views: Sequence[MapView]) -> None:
        """Compares the pairs of keyframes that may see the same and were not compared."""
        for i, j in pairs_to_compare(views):
            key = views[i].id, views[j].id
            if key not in self._pairs:
                self._pairs[key] = verified_matches(views[i], views[j])
        for view in views:
            view.features.release()

    def of(self, views: Sequence[MapView]) -> list[tuple[int, int, NDArray[np.int32]]]:
        """Returns the matches [P, 2] of all pairs of views, by indices; the nearest in time
        first."""
        at = {v.id: k for k, v in enumerate(views)}
        found = []
        for (a, b), m in self._pairs.items():
            if a in at and b in at:
                i, j = at[a], at[b]
                if len(m) >= (FEWEST if j - i <= BEFORE else FEWEST_AROUND):
                    found.append((i, j, m))
        return sorted(found, key=lambda f: (f[1] - f[0], f[0]))


def pairs_to_compare(views: Sequence[MapView]) -> list[tuple[int, int]]:
    """Returns the indices of pairs of views, the older one first, that may see the same: those
    that follow each other, and those nearby."""
    cameras: dict[str, list[int]] = {}
    pairs: set[tuple[int, int]] = set()
    for k, view in enumerate(views):
        own = cameras.setdefault(view.camera, [])
        pairs.update((i, k) for i in own[-BEFORE:])
        own.append(k)
    T = np.array([v.T_local_camera for v in views]).reshape(-1, 4, 4)
    depth = np.array([v.depth for v in views])
    cosine = np.cos(np.radians(NEAR_DEG))
    for k in range(1, len(views)):
        ahead = T[:k, :3, 2] @ T[k, :3, 2]
        far = np.linalg.norm(T[:k, :3, 3] - T[k, :3, 3], axis=1) / np.minimum(depth[:k], depth[k])
        near = [i for i in np.flatnonzero((ahead > cosine) & (far < NEAR)).tolist()
                if (i, k) not in pairs]  # fmt: skip
        pairs.update((i, k) for i in sorted(near, key=lambda i: (far[i], i))[:AROUND])
    return sorted(pairs)


NO_MATCHES = np.zeros((0, 2), np.int32)


def verified_matches(a: MapView, b: MapView) -> NDArray[np.int32]:
    """Returns the matches [P, 2] of two views, as indices of features, that agree with one
    epipolar geometry whose rotation is about that of their poses; none if too few agree."""
    pairs = match(a.features, b.features)
    if len(pairs) < FEWEST:
        return NO_MATCHES
    here, there = b.features.pixel[pairs[:, 1]], a.features.pixel[pairs[:, 0]]
    agree = epipolar_distance(a, there, b.T_local_camera, b.K, here) < POSED_PX
    if agree.sum() >= max(FEWEST, POSED_SHARE * len(pairs)):
        return np.asarray(pairs[agree], np.int32)
    first, second = a.rays(pairs[:, 0]), b.rays(pairs[:, 1])
    focal = (a.K[0, 0] + b.K[0, 0]) / 2
    try:
        E, mask = cv2.findEssentialMat(
            first[:, :2], second[:, :2], np.eye(3), method=cv2.USAC_MAGSAC, prob=0.999,
            threshold=EPIPOLAR_PX / focal, maxIters=TRIALS,
        )  # fmt: skip
    except cv2.error:
        return NO_MATCHES
    if E is None or E.shape != (3, 3) or int(mask.sum()) < FEWEST:
        return NO_MATCHES
    R1, R2, _ = cv2.decomposeEssentialMat(E)
    R = b.T_local_camera[:3, :3].T @ a.T_local_camera[:3, :3]
    turn = [np.degrees(np.arccos(np.clip((np.trace(R.T @ Q) - 1) / 2, -1, 1))) for Q in (R1, R2)]
    if min(turn) > TURN_DEG:
        return NO_MATCHES
    return np.asarray(pairs[mask.ravel() > 0], np.int32)


def joined_tracks(
    views: Sequence[MapView], matches: Sequence[tuple[int, int, NDArray[np.int32]]]
) -> list[list[tuple[int, int]]]:
    """Returns tracks as lists of (index of the view, of its feature), by view; each has at most
    one feature of a view, and at least ``LEAST_VIEWS``. The longest ones first."""
    first = np.cumsum([0, *(len(v.features) for v in views)])
    view_of = np.repeat(np.arange(len(views)), [len(v.features) for v in views])
    parent = list(range(int(first[-1])))
    members: dict[int, set[int]] = {}

    def root(k: int) -> int:
        while parent[k] != k:
            parent[k] = parent[parent[k]]
            k = parent[k]
        return k

    for i, j, pairs in matches:
        for a, b in (pairs + (first[i], first[j])).tolist():
            ra, rb = root(a), root(b)
            if ra == rb:
                continue
            one = members.get(ra) or {int(view_of[ra])}
            other = members.get(rb) or {int(view_of[rb])}
            if one & other:
                continue
            parent[rb] = ra
            members[ra] = one | other
            members.pop(rb, None)
    tracks: dict[int, list[tuple[int, int]]] = {r: [] for r in members}
    for k in range(len(parent)):
        r = root(k)
        if r in tracks:
            v = int(view_of[k])
            tracks[r].append((v, k - int(first[v])))
    long = [t for t in tracks.values() if len(t) >= LEAST_VIEWS]
    return sorted(long, key=lambda t: (-len(t), t))


def chosen(tracks: list[list[tuple[int, int]]], count: int) -> list[list[tuple[int, int]]]:
    """Returns the longest tracks, so that none of ``count`` views needs more than ``TRACKS``."""
    seen, out = np.zeros(count, int), []
    for track in tracks:
        at = [v for v, _ in track]
        if (seen[at] < TRACKS).any():
            seen[at] += 1
            out.append(track)
    return out


@dataclass(frozen=True, eq=False)
class MapTracks:
    """Observations of tracks, sorted by track. O rows, N tracks."""

    view: Array  # [O]
    track: Array  # [O]
    pixel: Array  # [O, 2]
    feature: Array  # [O] index among the features of all views
    count: int

    @staticmethod
    def of(views: Sequence[MapView], tracks: Sequence[list[tuple[int, int]]]) -> MapTracks:
        first = np.cumsum([0, *(len(v.features) for v in views)])
        rows = [(v, k, first[v] + f) for k, t in enumerate(tracks) for v, f in t]
        view, track, feature = np.array(rows, int).reshape(-1, 3).T
        pixel = np.concatenate([v.features.pixel for v in views])[feature]
        return MapTracks(view, track, pixel, feature, len(tracks))

    def points(self, T: Array, K: Array) -> Array:
        """Returns the points [N, 3] in local nearest to the rays."""
        ray = np.column_stack((self.pixel, np.ones(len(self.pixel))))
        ray = np.einsum("oij,ojk,ok->oi", T[self.view, :3, :3], np.linalg.inv(K)[self.view], ray)
        ray /= np.linalg.norm(ray, axis=1, keepdims=True)
        across = np.eye(3) - ray[:, :, None] * ray[:, None, :] + 1e-6 * np.eye(3)
        centre, weight = T[self.view, :3, 3], np.ones(len(ray))
        starts = np.flatnonzero(np.diff(self.track, prepend=-1))
        for tolerance in (*TOLERANCES_PX, 0.0):
            A = np.add.reduceat(weight[:, None, None] * across, starts)
            b = np.add.reduceat(weight[:, None] * np.einsum("oij,oj->oi", across, centre), starts)
            points = np.asarray(np.linalg.solve(A, b[..., None])[..., 0])
            if tolerance:
                error = self.errors(T, K, points)
                weight = 1 / (1 + (error / tolerance) ** 2) ** 2 + 1e-9
        return points

    def errors(self, T: Array, K: Array, points: Array) -> Array:
        """Returns the distances [O], pixels, of the observed positions from where the points are;
        inf behind a camera."""
        x = np.einsum("oji,oj->oi", T[self.view, :3, :3], points[self.track] - T[self.view, :3, 3])
        ahead = x[:, 2] > 0
        with np.errstate(invalid="ignore", divide="ignore"):
            at = np.einsum("oij,oj->oi", K[self.view], x / x[:, 2:])[:, :2]
        return np.where(ahead, np.linalg.norm(at - self.pixel, axis=1), np.inf)


def adjusted_map(
    views: Sequence[MapView], matches: MapMatches, loops: PosePriors, held: Sequence[int] = (),
    *, by_depth: bool = False, settled: Collection[int] = (), metre: Metre = UNKNOWN_METRE,
) -> AdjustedMap | None:  # fmt: skip
    """Adjusts keyframes together; None if that is not possible, or no better.

    views: in the order of their ids. loops: measured relative poses, by ids. held: ids of those
    that stay; with none, poses and lengths stay as they are on average. Lengths are the distances
    of a rig's cameras if ``metre`` is known well, else distances between keyframes: if
    ``by_depth``, between those of ``settled`` (ids), or depths while these are few.
    """
    if len(views) < LEAST_VIEWS:
        return None
    tracks = chosen(joined_tracks(views, matches.of(views)), len(views))
    judges = MapTracks.of(views, tracks[HELD_OUT // 2 :: HELD_OUT])
    used = MapTracks.of(views, [t for k, t in enumerate(tracks) if k % HELD_OUT != HELD_OUT // 2])
    if used.count < CONNECTED or judges.count < 2:
        return None
    T0 = np.array([v.T_local_camera for v in views])
    K = K0 = np.array([v.K for v in views])
    free = np.array([v.id not in set(held) for v in views])
    if free.all():
        free[0] = False
    focal = _unknown_focal(views)
    known_metre = replace(metre, sigma=KNOWN) if metre.sigma <= SETTLED else UNKNOWN_METRE
    shows_metre = are_connected(
        [v.camera for v in views], [v.measured.frameset for v in views], used.view, used.track
    )
    priors = PosePriors.joined([loose_poses(views), loops.indexed([v.id for v in views])])
    T, pixel, use_rig = T0, MAX_PX, True
    for most, least in LIMITS:
        points = used.points(T, K)
        error = used.errors(T, K, points)
        kept = error < max(most * pixel, least)
        kept &= (np.bincount(used.track[kept], minlength=used.count) >= 2)[used.track]
        if kept.sum() < 2 * CONNECTED:
            return None
        bundle = Bundle(
            T, np.zeros(len(views)), K, points, free, observations(used, kept, pixel),
            np.zeros(len(views)), np.full(len(views), 0.01), priors, focal, (FOCAL_SIGMA,),
        )  # fmt: skip
        solved = adjust(
            with_metre(bundle, known_metre) if use_rig else without_rig_positions(bundle), STEPS
        )
        if solved.bundle.metre_prior is not None and contradicts_rig(solved.bundle):
            use_rig = False
            solved = adjust(without_rig_positions(bundle), STEPS)
        done = solved.bundle
        T, K = done.T_local_camera, done.K
        pixel = float(np.median(used.errors(T, K, done.points)[kept])) / RAYLEIGH
        pixel = min(max(pixel, MIN_PX), MAX_PX)
    seen = np.bincount(used.view[kept], minlength=len(views)) >= CONNECTED
    if not np.isfinite(T).all() or seen.sum() < LEAST_VIEWS:
        return None
    before, after = (typical_error(judges, t, k) for t, k in ((T0, K0), (T, K)))
    if not after < WORSE * before + WORSE_PX:
        return None
    found = solved.metre() if shows_metre else None
    if not len(held):  # they are where they were, on average
        scale = None
        if use_rig and known_metre.sigma == KNOWN and solved.metre() is not None:
            scale = 1.0
        elif by_depth:
            old = seen & np.isin([v.id for v in views], list(settled))
            scale = _scale_by_ways(T0[old], T[old], views)
            if scale is None:
                growth = _depth_growth(views, used, kept, T, done.points)[seen]
                known = growth[np.isfinite(growth)]
                scale = float(np.exp(-np.median(known))) if len(known) else None
        back = Similarity.aligning(T0[seen], T[seen], scale)
        T = np.array([back.pose(pose) for pose in T])
        if found is not None:
            found = replace(found, log=found.log + math.log(back.scale))
    if found is not None:
        # Held keyframes are taken as exact: they add nothing to what windows know.
        least = metre.sigma if len(held) and math.isfinite(metre.sigma) else LEAST_SIGMA
        found = replace(found, sigma=max(_length_sigma(solved), least))
    return AdjustedMap(
        {v.id: T[k] for k, v in enumerate(views) if seen[k]}, used.count, after, before, found
    )


def _length_sigma(solved: Adjusted) -> float:
    """Returns the standard deviation of the logarithm of distances between views, in metres; inf:
    not determined."""
    centre, free = solved.bundle.T_local_camera[:, :3, 3], solved.bundle.free
    apart = centre - centre.mean(0)
    by_views = np.zeros((int(free.sum()), SIZE))
    by_views[:, POSITION] = apart[free] / (apart**2).sum()
    return solved.sigma_in_metres(by_views.ravel())


def typical_error(tracks: MapTracks, T: Array, K: Array) -> float:
    """Returns the mean reprojection error, pixels, of the observations that fit best: others are
    wrong matches."""
    error = np.sort(tracks.errors(T, K, tracks.points(T, K)))
    return float(np.mean(error[: max(1, int(RIGHT * len(error)))]))


def _unknown_focal(views: Sequence[MapView]) -> Array | None:
    """Returns the number of each view's camera [V] if its focal length is a guess, else -1; None
    if all are known."""
    names = sorted({v.camera for v in views if v.guessed_K})
    if not names:
        return None
    return np.array([names.index(v.camera) if v.guessed_K else -1 for v in views])


def observations(tracks: MapTracks, kept: Array, pixel: float) -> Observations:
    """Returns the observations of a mask [O], without depths. pixel: their standard deviation."""
    count = int(kept.sum())
    return Observations(
        tracks.view[kept], tracks.track[kept], tracks.pixel[kept], np.full(count, pixel),
        np.full(count, np.nan), np.ones(count),
    )  # fmt: skip


def loose_poses(views: Sequence[MapView], looser: float = 1.0) -> PosePriors:
    """Returns the present poses from view to view, with large standard deviations, and the known
    ones of a rig's cameras.

    looser: factor on those deviations.
    """
    T = np.array([v.T_local_camera for v in views])
    step = np.linalg.inv(T[:-1]) @ T[1:]
    depth = np.array([v.depth for v in views])
    known = depth[np.isfinite(depth)]
    depth = np.where(np.isfinite(depth), depth, np.median(known) if len(known) else 1.0)[:-1]
    length = np.linalg.norm(step[:, :3, 3], axis=1)
    index = np.arange(len(views))
    rotation = np.full(len(step), looser * LOOSE_ROTATION)
    position = looser * (LOOSE_POSITION * length + LOOSE_DEPTH * depth)
    rigs = []
    for k, (a, b) in enumerate(itertools.pairwise(views)):
        if a.camera == b.camera or not is_one_frameset(a.measured, b.measured):
            continue
        rotation[k], position[k] = RIG_ROTATION, RIG_DEPTH * depth[k]
        T_rig = measured_motion(a.measured, b.measured)
        if T_rig is not None:
            rigs.append(rig_prior(k, k + 1, T_rig, RIG))
            rotation[k] = position[k] = np.inf
    loose = PosePriors.isotropic(index[:-1], index[1:], step, rotation, position, NETWORK)
    return PosePriors.joined([loose, *rigs])


def _scale_by_ways(before: Array, after: Array, views: Sequence[MapView]) -> float | None:
    """Returns the factor by which distances between poses [N, 4, 4] ``after`` become those before;
    None: there are too few poses, or they are too near to each other."""
    if len(before) < LEAST_SETTLED:
        return None
    apart = before[:, :3, 3] - before[:, :3, 3].mean(0)
    spread = math.sqrt(float((apart**2).sum(1).mean()))
    if not spread > LEAST_SPREAD * float(np.nanmedian([v.depth for v in views])):
        return None
    return Similarity.aligning(before, after).scale


def _depth_growth(
    views: Sequence[MapView], tracks: MapTracks, kept: Array, T: Array, points: Array
) -> Array:
    """Returns the logarithms [V] of the depth of points over that of the views' features, median;
    NaN: unknown."""
    x = points[tracks.track] - T[tracks.view, :3, 3]
    z = np.einsum("oi,oi->o", x, T[tracks.view, :3, 2])
    stated = np.concatenate([v.log_depth for v in views])[tracks.feature]
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(kept & (z > 0), np.log(z) - stated, np.nan)
    out = np.full(len(views), np.nan)
    for k in range(len(views)):
        own = ratio[(tracks.view == k) & np.isfinite(ratio)]
        if len(own):
            out[k] = np.median(own)
    return out
