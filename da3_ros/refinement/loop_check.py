"""Checks by features whether views show one location: they must share tracks of one geometry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.geometry.similarity import IDENTITY, Similarity
from da3_ros.refinement.bundle import SIZE
from da3_ros.refinement.features import Features
from da3_ros.refinement.refiner import (
    MAX_DEPTH_ERROR,
    CameraImage,
    RefinedWindow,
    WindowRefiner,
    means_something,
)
from da3_ros.refinement.sliding_graph import deviation
from da3_ros.refinement.solver_limits import SolverLimits
from da3_ros.refinement.starts import EPIPOLAR_TOLERANCE, FEWEST
from da3_ros.refinement.tracked_view import TrackedView, match
from da3_ros.types import Array, RefinedLoop, Window, WindowEstimate

MIN_SHARED_TRACKS = 20  # tracks that views of both visits see
# A view with few features shows mostly what is known: so many of its features, and so large a
# share of those that it and known views have, match at least two known views. What covers a part
# of the image, as a hand, has features that match none, or hides those that would.
FEW_FEATURES, FEWEST_KNOWN, MOSTLY_KNOWN = 100, 15, 0.33


def refined_loop(
    window: Window, split: int, estimate: WindowEstimate, limits: SolverLimits, depth_noise: float
) -> RefinedLoop | None:
    """Returns the estimate of a window of two visits with poses that tracks determine.

    split: index of the first view of the second visit. depth_noise: usual standard deviation of
    log depth. None if too few tracks connect both visits: then the network's word is not enough.
    """
    views = range(len(window.views))
    joined = joined_by_tracks(
        window, [(views[:split], views[split:])], estimate, limits, depth_noise
    )
    if joined is None or joined.views.errors is None:
        return None
    at = SIZE * joined.views.ids.index(window.views[split].id)  # the first view is held
    own = np.diag(joined.views.errors.covariance)[at : at + SIZE]
    square = joined.T_local_window.scale**-2  # from local to the window's unit
    variance = np.array([0.0, own[1:4].mean(), own[4:].mean() * square])
    return RefinedLoop(joined.estimate, variance)


def shows_known(features: Features, K: Array | None, others: Sequence[TrackedView]) -> bool:
    """Returns whether a new view shows what another one does: whether enough of their matches have
    one epipolar geometry. No pose is needed.

    K: [3, 3] corner rule, pixels of ``Features.shape``; None: that of the other view.
    """
    return any(len(found) >= MIN_SHARED_TRACKS for found in _known(features, K, others))


def shows_mostly_known(
    features: Features, log_depth: Array, K: Array | None, others: Sequence[TrackedView]
) -> bool:
    """Returns whether most of what a new view with few features shows is in two other views too,
    and whether its predicted depth there is theirs up to one factor.

    log_depth: [M] at the features; NaN: unknown. K: as in ``shows_known``.
    """
    count = len(features)
    if not others or count > FEW_FEATURES:
        return False
    views = np.zeros(count, int)
    for other, pairs in zip(others, _known(features, K, others), strict=True):
        ratio = log_depth[pairs[:, 0]] - other.log_depth[pairs[:, 1]]
        ratio = ratio[np.isfinite(ratio)]
        if len(ratio) >= FEWEST and deviation(ratio) < MAX_DEPTH_ERROR:
            views[pairs[:, 0]] += 1
    usual = float(np.median([len(other.features) for other in others]))
    enough = max(FEWEST_KNOWN, MOSTLY_KNOWN * max(count, usual))
    return int((views >= 2).sum()) >= enough


def _known(
    features: Features, K: Array | None, others: Sequence[TrackedView]
) -> Iterator[NDArray[np.int64]]:
    """Yields the matches [P, 2] with each other view that have one geometry."""
    for other in others:
        pairs = match(features, other.features)
        own = other.K if K is None else K
        here, there = features.pixel[pairs[:, 0]], other.features.pixel[pairs[:, 1]]
        yield pairs[of_one_geometry(there, other.K, here, own)]


def of_one_geometry(
    first: Array, K_first: Array, second: Array, K_second: Array
) -> NDArray[np.bool_]:
    """Returns which matched positions [P, 2] agree with one essential matrix: a mask [P]."""
    none = np.zeros(len(first), bool)
    if len(first) < FEWEST:
        return none
    try:
        E, mask = cv2.findEssentialMat(
            _normalized(first, K_first), _normalized(second, K_second), np.eye(3),
            method=cv2.USAC_MAGSAC, prob=0.999, threshold=EPIPOLAR_TOLERANCE / K_second[0, 0],
        )  # fmt: skip
    except cv2.error:
        return none
    return none if E is None else np.asarray(mask.ravel() > 0)


def _normalized(pixel: Array, K: Array) -> Array:
    """Returns positions [P, 2] in the image plane at distance 1."""
    return np.asarray((pixel - K[:2, 2]) / K[[0, 1], [0, 1]])


def joined_views(
    refiner: WindowRefiner, window: Window, images: Sequence[CameraImage], doubted: Sequence[int],
    estimate: WindowEstimate, S: Similarity,
) -> set[int]:  # fmt: skip
    """Refines a window as ``WindowRefiner.refine`` does; returns which of its ``doubted`` new
    views, by index, share enough tracks of features with the others, and have the depth of these.
    """
    usual = refiner.graph.noise.depth
    if refiner.refine(window, images, estimate, S) is None:
        return set()
    views = refiner.graph.views
    ids = {i: window.views[i].id for i in doubted}
    # Doubted views do not vouch for each other.
    known = np.concatenate([v.track for id, v in views.items() if id not in ids.values()])
    return {
        i
        for i, id in ids.items()
        if (np.intersect1d(views[id].track, known) >= 0).sum() >= MIN_SHARED_TRACKS
        and means_something(refiner.graph.depth_error([id]), usual)
    }


def joined_by_tracks(
    window: Window, sides: Sequence[tuple[Sequence[int], Sequence[int]]], estimate: WindowEstimate,
    limits: SolverLimits, depth_noise: float,
) -> RefinedWindow | None:  # fmt: skip
    """Returns a window, all of whose views are new, with poses that tracks determine.

    sides: pairs of sets of views, by index. ``depth_means_something`` is that of the second sets:
    the first ones were judged before. depth_noise: usual standard deviation of log depth. None if
    too few tracks connect both sets of a pair.
    """
    refiner = WindowRefiner(limits, direct=False)  # tracks alone show that two visits meet
    noise = refiner.graph.noise
    usual = noise.depth = max(noise.depth, depth_noise)  # where it usually means nothing
    images = [CameraImage(view.image, view.valid) for view in window.views]
    refined = refiner.refine(replace(window, new=len(images)), images, estimate, IDENTITY)
    if refined is None:
        return None
    tracks = [refiner.graph.views[view.id].track for view in window.views]
    for pair in sides:
        first, second = (np.concatenate([tracks[i] for i in side]) for side in pair)
        if (np.intersect1d(first, second) >= 0).sum() < MIN_SHARED_TRACKS:
            return None
    judged = [window.views[i].id for _, second in sides for i in second]
    something = means_something(refiner.graph.depth_error(judged), usual)
    return replace(refined, depth_means_something=something)
