"""How many metres a window's unit has, by known poses: from baselines and from depths."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import cv2
import numpy as np

from da3_ros.geometry.poses import invert_pose
from da3_ros.geometry.projection import backproject, project
from da3_ros.types import Array, Prediction, ScaleMeasurement

SHORTEST_M = 0.1  # way within a window below which it carries no scale (network/conditioning.py)


POINTS = 600  # pixels of a pair of views that are compared


TRIALS = np.linspace(-0.25, 0.25, 51)  # logarithms of the factors that are tried on the baselines'


CLIP = 0.1  # relative disagreement of two depths that counts as any other


FLOOR = 0.003


def fit_unit(T_prior_camera: Array, prediction: Prediction) -> ScaleMeasurement:
    """Metres per network unit of one window, from its baselines and its depths.

    The network does not promise the unit of the poses that it was given. The ratios of all long
    baselines give one answer. The depths give another, for which no pose of the network is needed:
    seen from the prior's poses, the surfaces of two views must coincide. NaN where neither can.
    """
    answers = [a for a in (_by_baselines(T_prior_camera, prediction),) if a is not None]
    if not answers:
        return ScaleMeasurement(math.nan, math.nan)
    depths = _by_depths(T_prior_camera, prediction, answers[0].value)
    if depths is not None:
        answers.append(depths)
    logs = np.log([a.value for a in answers])
    weights = 1 / np.square([a.sigma for a in answers])
    mean = float((weights * logs).sum() / weights.sum())
    # Two answers that disagree by more than they admit are both less sure.
    excess = float((weights * (logs - mean) ** 2).sum()) / max(1, len(logs) - 1)
    return ScaleMeasurement(math.exp(mean), math.sqrt(max(1.0, excess) / weights.sum()))


def _by_baselines(T_prior: Array, prediction: Prediction) -> ScaleMeasurement | None:
    first, second = np.triu_indices(len(T_prior), 1)
    theirs, ours = (
        np.linalg.norm(T[first, :3, 3] - T[second, :3, 3], axis=1)
        for T in (T_prior, prediction.T_window_camera)
    )
    moved = (theirs > 0.1 * theirs.max()) & (ours > 0.1 * ours.max())
    long = moved & (theirs > max(SHORTEST_M, 0.3 * theirs.max()))
    # Long baselines share their motions: how sure they are, the single motions say.
    single = moved & (second == first + 1)
    count = int(single.sum())
    if count < 3 or long.sum() < 2:
        return None
    logs = np.log(theirs[moved] / ours[moved])
    spread = float(np.std(logs[single[moved]], ddof=1)) / math.sqrt(count)
    few = math.sqrt((count - 1) / max(count - 3, 0.5))
    return ScaleMeasurement(
        math.exp(float(np.median(logs[long[moved]]))), math.hypot(spread * few, FLOOR)
    )


def _by_depths(T_prior: Array, prediction: Prediction, start: float) -> ScaleMeasurement | None:
    """The factor, near ``start``, with which depths agree best between the prior's poses."""
    seen = [i for i, depth in enumerate(prediction.depth) if np.isfinite(depth).any()]
    logs = where_depths_agree(T_prior, prediction, list(itertools.pairwise(seen)), start, TRIALS)
    if len(logs) < 2:
        return None
    sigma = float(np.std(logs, ddof=1)) / math.sqrt(len(logs)) * math.sqrt(3)
    return ScaleMeasurement(start * math.exp(float(np.median(logs))), math.hypot(sigma, FLOOR))


def where_depths_agree(
    T_prior: Array,
    prediction: Prediction,
    pairs: Sequence[tuple[int, int]],
    start: float,
    trials: Array,
) -> Array:
    """Logarithms of the unit (metres) over ``start`` at which both depths of a pair coincide.

    One for each pair of views that says anything within ``trials`` [F], evenly spaced.
    """
    factors = start * np.exp(trials)
    found = []
    for i, j in pairs:
        cost = _disagreement(T_prior, prediction, i, j, factors)
        best = None if cost is None else _lowest(cost, trials)
        if best is not None:
            found.append(best)
    return np.array(found)


def _disagreement(
    T_prior: Array, prediction: Prediction, i: int, j: int, factors: Array
) -> Array | None:
    """Mean clipped difference [F] of the depths of views i and j for each unit; None: too few."""
    depth, other = prediction.depth[i], prediction.depth[j]
    points = backproject(depth, prediction.K[i]).reshape(-1, 3)
    points = points[np.isfinite(points).all(axis=1)]
    points = points[:: max(1, len(points) // POINTS)].astype(np.float64)
    T = invert_pose(T_prior[j]) @ T_prior[i]
    moved = factors[:, None, None] * (points @ T[:3, :3].T) + T[:3, 3]
    pixels = project(moved, prediction.K[j]).astype(np.float32)
    there = cv2.remap(
        other, pixels[..., 0] - 0.5, pixels[..., 1] - 0.5, cv2.INTER_NEAREST,
        borderMode=cv2.BORDER_CONSTANT, borderValue=float("nan"),
    )  # fmt: skip
    with np.errstate(invalid="ignore", divide="ignore"):
        off = np.abs(np.log(moved[..., 2] / (factors[:, None] * there)))
    valid = np.isfinite(off).all(axis=0)
    if valid.sum() < POINTS // 10:
        return None
    return np.minimum(off[:, valid], CLIP).mean(axis=1)


def _lowest(cost: Array, trials: Array) -> float | None:
    """Where the cost over ``trials`` is lowest, by a parabola; None at an end, or where flat."""
    k = int(np.argmin(cost))
    if k in (0, len(cost) - 1) or cost.min() > 0.8 * cost.max():
        return None
    a, b, c = cost[k - 1], cost[k], cost[k + 1]
    bend = a - 2 * b + c
    shift = 0.5 * (a - c) / bend if bend > 0 else 0.0
    return float(trials[k] + shift * (trials[1] - trials[0]))
