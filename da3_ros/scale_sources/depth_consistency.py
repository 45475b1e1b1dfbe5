"""Metres per network unit of a window by known poses: from baselines and from depths."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import cv2
import numpy as np

from da3_ros.geometry.poses import invert_pose
from da3_ros.geometry.projection import backproject, project
from da3_ros.types import Array, ScaleMeasurement, WindowEstimate

# Cosine between both directions of motion, below which one of them is wrong (as odometry.py).
MIN_COSINE = 0.8
SHORTEST_M = 0.1  # motion within a window that carries a scale (network/conditioning.py)
POINTS = 600  # pixels of a pair of views that are compared
TRIALS = np.linspace(-0.25, 0.25, 51)  # log factors tried on the scale from baselines
CLIP = 0.1  # limit of the relative difference of two depths
FLOOR = 0.003  # smallest relative standard deviation


def fit_unit(T_prior_camera: Array, estimate: WindowEstimate) -> ScaleMeasurement:
    """Returns metres per network unit of one window, from its baselines and its depths.

    The network need not keep the unit of the poses that it gets. The ratios of all long baselines
    give one estimate. The depths give another one, without any pose of the network: placed by the
    prior's poses, the surfaces of two views must coincide. NaN if neither can be estimated.
    """
    answers = [a for a in (_by_baselines(T_prior_camera, estimate),) if a is not None]
    if not answers:
        return ScaleMeasurement(math.nan, math.nan)
    depths = _by_depths(T_prior_camera, estimate, answers[0].value)
    if depths is not None:
        answers.append(depths)
    logs = np.log([a.value for a in answers])
    weights = 1 / np.square([a.sigma for a in answers])
    mean = float((weights * logs).sum() / weights.sum())
    # If both disagree by more than their standard deviations, both are less certain.
    excess = float((weights * (logs - mean) ** 2).sum()) / max(1, len(logs) - 1)
    return ScaleMeasurement(math.exp(mean), math.sqrt(max(1.0, excess) / weights.sum()))


def _by_baselines(T_prior: Array, estimate: WindowEstimate) -> ScaleMeasurement | None:
    first, second = np.triu_indices(len(T_prior), 1)
    motions = [
        np.einsum("nji,nj->ni", T[first, :3, :3], T[second, :3, 3] - T[first, :3, 3])
        for T in (T_prior, estimate.T_window_camera)
    ]  # in the first camera's axes, which both share
    prior_lengths, network_lengths = (np.linalg.norm(motion, axis=1) for motion in motions)
    moved = (prior_lengths > 0.1 * prior_lengths.max()) & (
        network_lengths > 0.1 * network_lengths.max()
    )
    long_baselines = moved & (prior_lengths > max(SHORTEST_M, 0.3 * prior_lengths.max()))
    # Long baselines share motions, so that only single motions give independent errors.
    single = moved & (second == first + 1)
    count = int(single.sum())
    if count < 3 or long_baselines.sum() < 2:
        return None
    cosines = (motions[0] * motions[1]).sum(axis=1)[long_baselines] / (
        prior_lengths[long_baselines] * network_lengths[long_baselines]
    )
    if np.median(cosines) < MIN_COSINE:
        return None  # the network sees no such motion: wheels that spin while the camera stands
    logs = np.log(prior_lengths[moved] / network_lengths[moved])
    spread = float(np.std(logs[single[moved]], ddof=1)) / math.sqrt(count)
    few = math.sqrt((count - 1) / max(count - 3, 0.5))
    return ScaleMeasurement(
        math.exp(float(np.median(logs[long_baselines[moved]]))), math.hypot(spread * few, FLOOR)
    )


def _by_depths(T_prior: Array, estimate: WindowEstimate, start: float) -> ScaleMeasurement | None:
    """Returns the scale, near ``start``, at which depths agree best between the prior's poses."""
    seen = [i for i, depth in enumerate(estimate.depth) if np.isfinite(depth).any()]
    logs = where_depths_agree(T_prior, estimate, list(itertools.pairwise(seen)), start, TRIALS)
    if len(logs) < 2:
        return None
    sigma = float(np.std(logs, ddof=1)) / math.sqrt(len(logs)) * math.sqrt(3)
    return ScaleMeasurement(start * math.exp(float(np.median(logs))), math.hypot(sigma, FLOOR))


def where_depths_agree(
    T_prior: Array,
    estimate: WindowEstimate,
    pairs: Sequence[tuple[int, int]],
    start: float,
    trials: Array,
) -> Array:
    """Returns logarithms of the scale over ``start`` at which both depths of a pair coincide.

    One for each pair of views with a minimum within ``trials`` [F] (log factors, evenly spaced).
    """
    factors = start * np.exp(trials)
    found = []
    for i, j in pairs:
        cost = _disagreement(T_prior, estimate, i, j, factors)
        best = None if cost is None else _lowest(cost, trials)
        if best is not None:
            found.append(best)
    return np.array(found)


def _disagreement(
    T_prior: Array, estimate: WindowEstimate, i: int, j: int, factors: Array
) -> Array | None:
    """Returns the mean clipped difference [F] of the depths of views i and j at each factor; None
    for too few points."""
    depth, other = estimate.depth[i], estimate.depth[j]
    points = backproject(depth, estimate.K[i]).reshape(-1, 3)
    points = points[np.isfinite(points).all(axis=1)]
    points = points[:: max(1, len(points) // POINTS)].astype(np.float64)
    T = invert_pose(T_prior[j]) @ T_prior[i]
    moved = factors[:, None, None] * (points @ T[:3, :3].T) + T[:3, 3]
    pixels = project(moved, estimate.K[j]).astype(np.float32)
    there = cv2.remap(
        other, pixels[..., 0] - 0.5, pixels[..., 1] - 0.5, cv2.INTER_NEAREST,
        borderMode=cv2.BORDER_CONSTANT, borderValue=float("nan"),
    )  # fmt: skip
    with np.errstate(invalid="ignore", divide="ignore"):
        difference = np.abs(np.log(moved[..., 2] / (factors[:, None] * there)))
    valid = np.isfinite(difference).all(axis=0)
    if valid.sum() < POINTS // 10:
        return None
    return np.minimum(difference[:, valid], CLIP).mean(axis=1)


def _lowest(cost: Array, trials: Array) -> float | None:
    """Returns the trial of least cost, by a parabola; None at an end, or for a flat cost."""
    k = int(np.argmin(cost))
    if k in (0, len(cost) - 1) or cost.min() > 0.8 * cost.max():
        return None
    a, b, c = cost[k - 1], cost[k], cost[k + 1]
    bend = a - 2 * b + c
    shift = 0.5 * (a - c) / bend if bend > 0 else 0.0
    return float(trials[k] + shift * (trials[1] - trials[0]))
