"""Places a view among views whose poses are known, by the tracks that it shares with them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from da3_ros.refinement.bundle import SIZE, PosePriors
from da3_ros.refinement.sliding_graph import SlidingGraph, ViewErrors
from da3_ros.refinement.solver_limits import SolverLimits
from da3_ros.refinement.tracked_view import TrackedView
from da3_ros.types import Array, PlacedView

MIN_TRACKS = 20  # that the view shares with the others
# Standard deviations of the other views: log scale; rotation, rad; position over depth.
HELD_SIGMA = (0.02, 0.0005, 0.0005)
MAX_SIGMA = 0.02  # of its position over depth; more is no measurement


def place_among(
    view: TrackedView, others: Sequence[TrackedView], limits: SolverLimits,
    depth_noise: float = 0.0,
) -> PlacedView | None:  # fmt: skip
    """Returns the pose of a view among others, whose poses in local are held; None: its tracks do
    not determine it.

    The view's own pose is the start; it changes, and so do the tracks of all these views.
    depth_noise: usual standard deviation of log depth, if it is larger than that assumed at first.
    """
    graph = SlidingGraph(limits.tracks, limits.steps, free=1)
    graph.noise.depth = max(graph.noise.depth, depth_noise)
    for other in others:
        other.is_known = True
        graph.add(other, list(graph.views))
    graph.add(view, list(graph.views))
    try:
        done = graph.refine([view.id], PosePriors.none())
    except np.linalg.LinAlgError:
        return None
    if done is None or done.errors is None or done.ids != [view.id]:
        return None
    variance = _variance(done.errors, len(done.held), done.depth)
    sigma = np.sqrt([variance[0], variance[1:4].mean(), variance[4:].mean()])
    seen = np.concatenate([o.track for o in others])
    tracks = int(np.isin(view.track[view.track >= 0], seen).sum())
    if tracks < MIN_TRACKS or not sigma[2] < MAX_SIGMA * done.depth:
        return None
    return PlacedView(view.T_local_camera, view.log_scale, sigma, tracks)


def _variance(errors: ViewErrors, held: int, depth: float) -> Array:
    """Returns the variances [7] of the newest view: by its tracks, and by what ``held`` views may
    have wrong, each by itself."""
    of_held = np.repeat(HELD_SIGMA, (1, 3, 3)) * np.repeat((1.0, depth), (4, 3))
    by_held = errors.by_held[-SIZE:] * np.tile(of_held, held)
    return np.asarray(np.diag(errors.covariance)[-SIZE:] + (by_held**2).sum(axis=1))
