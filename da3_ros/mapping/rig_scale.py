"""Metres per network unit of one window, from cameras whose distances are known.

Views of one instant stand where the rig holds them, so that every pair of them is a baseline of
known length and direction. The network's error of a camera's place is about the same for near and
far cameras, and grows with the depth: a baseline that is short beside the depth says nothing.

Baselines alone would believe a network whose places are all too near to each other. So the depths
are asked too: seen from where the rig holds the cameras, their surfaces must coincide.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.spatial.transform import Rotation

from da3_ros.geometry.poses import invert_pose
from da3_ros.mapping.depth_consistency import where_depths_agree
from da3_ros.types import Array, Prediction, ScaleMeasurement, View, Window

log = logging.getLogger(__name__)

SHORTEST = 0.02  # baseline over depth, below which it drowns in the network's error
TURNED_DEG = 15.0  # between the rig's and the network's rotation, beyond which one is wrong
ALONG = 0.8  # cosine between the rig's and the network's baselines, below which one is wrong
FEWEST = 2  # pairs: one has nothing to be judged by
OUTLIER = 3.0  # standard deviations
FLOOR = 0.003
TRIALS = np.linspace(-0.6, 0.6, 121)  # logarithms of the factors that depths are tried with
BY_DEPTHS = 0.05  # what one window's depths know the unit by, at best
NOTHING = ScaleMeasurement(math.nan, math.nan)


@dataclass(frozen=True, eq=False)
class _Pair:
    """Two views of one instant, seen from the first one's axes."""

    known: Array  # [3] metres
    seen: Array  # [3] network units
    turned_deg: float  # between both rotations


def fit_rig(window: Window, prediction: Prediction) -> tuple[ScaleMeasurement, str]:
    """The window's measure (NaN if there is none) and, where something is wrong, a line on it.

    The network's baselines are laid along the rig's: noise across does not lengthen them, and it
    says how large the noise along them is.
    """
    pairs = list(_pairs(window, prediction))
    if len(pairs) < FEWEST:
        return NOTHING, ""
    turned = float(np.median([p.turned_deg for p in pairs]))
    if turned > TURNED_DEG:
        return NOTHING, (
            f"the network sees the cameras turned by {turned:.0f} degrees against each other as "
            "the rig is said to be: check rig.poses or the transforms (optical frames, z forward)"
        )
    known, seen = (np.stack([getattr(p, name) for p in pairs]) for name in ("known", "seen"))
    if not known.any():
        return NOTHING, "all cameras of the rig are said to be in one place: it has no scale"
    fault = _too_short(known, seen, prediction)
    if fault:
        return NOTHING, fault
    cosine = (known * seen).sum() / (np.linalg.norm(known) * np.linalg.norm(seen))
    if cosine < ALONG:
        return NOTHING, (
            "the network sees the cameras beside each other in other directions than the rig is "
            "said to hold them: check rig.poses or the transforms (optical frames, z forward)"
        )
    return _checked(_fit(known, seen), window, prediction), ""


def _pairs(window: Window, prediction: Prediction) -> Iterator[_Pair]:
    for i, j in itertools.combinations(range(len(window.views)), 2):
        a, b = window.views[i], window.views[j]
        if not _hold_together(a, b):
            continue
        assert a.T_rig_camera is not None
        assert b.T_rig_camera is not None
        T_known = invert_pose(a.T_rig_camera) @ b.T_rig_camera
        T_seen = invert_pose(prediction.T_window_camera[i]) @ prediction.T_window_camera[j]
        apart = Rotation.from_matrix(T_known[:3, :3].T @ T_seen[:3, :3]).magnitude()
        yield _Pair(T_known[:3, 3], T_seen[:3, 3], math.degrees(apart))


def _too_short(known: Array, seen: Array, prediction: Prediction) -> str:
    """Why baselines cannot be seen, or an empty text."""
    finite = prediction.depth[np.isfinite(prediction.depth)]
    depth = float(np.median(finite)) if finite.size else math.nan
    lengths = np.linalg.norm(known, axis=1)
    share = float(np.median(np.linalg.norm(seen, axis=1))) / depth
    if share >= SHORTEST:
        return ""
    return (
        f"the cameras stand {lengths.max():.3g} m apart, {100 * share:.1f} % of the depth before "
        f"them; the network sees baselines from {100 * SHORTEST:.0f} % on: put the cameras "
        "farther apart, go nearer, or choose another scale.source"
    )


def _checked(
    measure: ScaleMeasurement, window: Window, prediction: Prediction
) -> ScaleMeasurement:
    """The baselines' answer, less sure by as much as the depths say otherwise."""
    pairs = [
        (i, j)
        for i, j in itertools.permutations(range(len(window.views)), 2)
        if _hold_together(window.views[i], window.views[j])
        and all(np.isfinite(prediction.depth[k]).any() for k in (i, j))
    ]
    T_rig = np.stack([_or_nowhere(view.T_rig_camera) for view in window.views])
    logs = where_depths_agree(T_rig, prediction, pairs, measure.value, TRIALS)
    if len(logs) < 2 or float(np.std(logs)) > BY_DEPTHS:
        return measure  # surfaces without detail coincide anywhere
    off = float(np.median(logs))
    if abs(off) <= OUTLIER * math.hypot(measure.sigma, BY_DEPTHS):
        return measure
    # Nobody knows who is right: the middle, and both within a standard deviation.
    return ScaleMeasurement(measure.value * math.exp(off / 2), math.hypot(measure.sigma, off / 2))


def _or_nowhere(T: Array | None) -> Array:
    return np.full((4, 4), np.nan) if T is None else T


def _hold_together(a: View, b: View) -> bool:
    return a.instant == b.instant and a.T_rig_camera is not None and b.T_rig_camera is not None


def _fit(known: Array, seen: Array) -> ScaleMeasurement:
    """Least squares of ``seen`` = units * ``known`` [M, 3], without outliers."""
    good = np.ones(len(known), bool)
    for _ in range(3):
        square = float((known[good] ** 2).sum())
        units = float((known[good] * seen[good]).sum()) / square
        rest = np.linalg.norm(seen - units * known, axis=1)
        typical = float(np.median(rest)) / 1.54  # of a length of three normal numbers
        good = rest <= OUTLIER * math.sqrt(3) * max(typical, 1e-6 * units)
    freedom = 3 * int(good.sum()) - 1
    # Student's t: a noise that was itself measured by few is worth less.
    noise = float((rest[good] ** 2).sum()) / freedom * freedom / (freedom - 2)
    sigma = math.sqrt(noise / square) / units
    return ScaleMeasurement(1 / units, math.hypot(sigma, FLOOR))


class RigScaleEstimator:
    """Measures windows by the rig; says each thing that is wrong with it once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def measure(self, window: Window, prediction: Prediction) -> ScaleMeasurement | None:
        """The window's measure; None where there is none."""
        measure, fault = fit_rig(window, prediction)
        kind = fault[:30]  # numbers behind it change from window to window
        if fault and kind not in self._said:
            self._said.add(kind)
            log.warning("scale.source rig: %s", fault)
        return measure if math.isfinite(measure.value) else None
