"""Metres per network unit of one window, from the known poses of a rig's cameras.

Every pair of views of one frameset is a baseline of known length and direction. The network's
error of a camera's position hardly depends on the baseline and grows with the depth, so that a
baseline much shorter than the depth measures nothing.

Baselines alone would accept a network that places all cameras too close together. Therefore the
depths are compared too: placed by the rig's poses, the surfaces of two views must coincide.
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
from da3_ros.scale_sources.depth_consistency import where_depths_agree
from da3_ros.scale_sources.interface import ScaleSource
from da3_ros.types import Array, ScaleMeasurement, View, Window, WindowEstimate

log = logging.getLogger(__name__)

MIN_BASELINE = 0.02  # baseline over depth; a shorter one is smaller than the network's error
MAX_ROTATION_DEG = 15.0  # between the rig's and the network's rotation; beyond it one is wrong
MIN_COSINE = 0.8  # between the rig's and the network's baselines; below it one is wrong
MIN_PAIRS = 2  # a single pair cannot be checked
OUTLIER = 3.0  # standard deviations
FLOOR = 0.003  # smallest relative standard deviation
TRIALS = np.linspace(-0.6, 0.6, 121)  # log factors tried on the scale from baselines
DEPTH_SIGMA = 0.05  # relative standard deviation of a scale from one window's depths, at best
NOTHING = ScaleMeasurement(math.nan, math.nan)


@dataclass(frozen=True, eq=False)
class _Pair:
    """The baseline of two views of one frameset, in the first one's axes."""

    known: Array  # [3] by the rig, metres
    seen: Array  # [3] by the network, network units
    rotation_deg: float  # between both rotations


def fit_rig(window: Window, estimate: WindowEstimate) -> tuple[ScaleMeasurement, str]:
    """Returns the window's measurement (NaN if there is none), and a one-line fault or "".

    The network's baselines are projected onto the rig's: noise across them does not lengthen them,
    and it measures the noise along them.
    """
    pairs = list(_pairs(window, estimate))
    if len(pairs) < MIN_PAIRS:
        return NOTHING, ""
    rotation_deg = float(np.median([p.rotation_deg for p in pairs]))
    if rotation_deg > MAX_ROTATION_DEG:
        return NOTHING, (
            f"the network's rotations between the cameras differ by {rotation_deg:.0f} degrees "
            "from the rig's: check rig.poses or the transforms (optical frames, z forward)"
        )
    known, seen = (np.stack([getattr(p, name) for p in pairs]) for name in ("known", "seen"))
    if not known.any():
        return NOTHING, "all cameras of the rig have the same position: it gives no scale"
    fault = _too_short(known, seen, estimate)
    if fault:
        return NOTHING, fault
    cosine = (known * seen).sum() / (np.linalg.norm(known) * np.linalg.norm(seen))
    if cosine < MIN_COSINE:
        return NOTHING, (
            "the network's directions between the cameras differ from the rig's: check rig.poses "
            "or the transforms (optical frames, z forward)"
        )
    return _checked(_fit(known, seen), window, estimate), ""


def _pairs(window: Window, estimate: WindowEstimate) -> Iterator[_Pair]:
    for i, j in itertools.combinations(range(len(window.views)), 2):
        a, b = window.views[i], window.views[j]
        if not _same_frameset(a, b):
            continue
        assert a.T_rig_camera is not None
        assert b.T_rig_camera is not None
        T_known = invert_pose(a.T_rig_camera) @ b.T_rig_camera
        T_seen = invert_pose(estimate.T_window_camera[i]) @ estimate.T_window_camera[j]
        apart = Rotation.from_matrix(T_known[:3, :3].T @ T_seen[:3, :3]).magnitude()
        yield _Pair(T_known[:3, 3], T_seen[:3, 3], math.degrees(apart))


def _too_short(known: Array, seen: Array, estimate: WindowEstimate) -> str:
    """Returns why the baselines are too short for the network, or an empty text."""
    finite = estimate.depth[np.isfinite(estimate.depth)]
    depth = float(np.median(finite)) if finite.size else math.nan
    lengths = np.linalg.norm(known, axis=1)
    share = float(np.median(np.linalg.norm(seen, axis=1))) / depth
    if share >= MIN_BASELINE:
        return ""
    return (
        f"the cameras of the rig are {lengths.max():.3g} m apart, {100 * share:.1f} % of the "
        f"depth; the network measures baselines of {100 * MIN_BASELINE:.0f} % or more: put the "
        "cameras farther apart, go nearer, or choose another scale.source"
    )


def _checked(
    measure: ScaleMeasurement, window: Window, estimate: WindowEstimate
) -> ScaleMeasurement:
    """Returns the baselines' measurement, corrected and less certain if the depths disagree."""
    pairs = [
        (i, j)
        for i, j in itertools.permutations(range(len(window.views)), 2)
        if _same_frameset(window.views[i], window.views[j])
        and all(np.isfinite(estimate.depth[k]).any() for k in (i, j))
    ]
    T_rig = np.stack([_or_nan(view.T_rig_camera) for view in window.views])
    logs = where_depths_agree(T_rig, estimate, pairs, measure.value, TRIALS)
    if len(logs) < 2 or float(np.std(logs)) > DEPTH_SIGMA:
        return measure  # surfaces without detail coincide anywhere
    difference = float(np.median(logs))
    if abs(difference) <= OUTLIER * math.hypot(measure.sigma, DEPTH_SIGMA):
        return measure
    # Either may be wrong: take the middle, with both within a standard deviation.
    return ScaleMeasurement(
        measure.value * math.exp(difference / 2), math.hypot(measure.sigma, difference / 2)
    )


def _or_nan(T: Array | None) -> Array:
    return np.full((4, 4), np.nan) if T is None else T


def _same_frameset(a: View, b: View) -> bool:
    return a.frameset == b.frameset and a.T_rig_camera is not None and b.T_rig_camera is not None


def _fit(known: Array, seen: Array) -> ScaleMeasurement:
    """Fits ``seen`` = units * ``known`` [M, 3] by least squares, without outliers."""
    good = np.ones(len(known), bool)
    for _ in range(3):
        square = float((known[good] ** 2).sum())
        units = float((known[good] * seen[good]).sum()) / square
        rest = np.linalg.norm(seen - units * known, axis=1)
        typical = float(np.median(rest)) / 1.54  # of a length of three normal numbers
        good = rest <= OUTLIER * math.sqrt(3) * max(typical, 1e-6 * units)
    freedom = 3 * int(good.sum()) - 1
    # Student's t: a variance estimated from few samples is uncertain.
    noise = float((rest[good] ** 2).sum()) / freedom * freedom / (freedom - 2)
    sigma = math.sqrt(noise / square) / units
    return ScaleMeasurement(1 / units, math.hypot(sigma, FLOOR))


class RigBaselines(ScaleSource):
    """Distances between the rig's cameras, as the network sees them; warns of each kind of fault
    once. Where feature tracks connect the cameras, the refinement measures them instead."""

    needs_rig = True

    def __init__(self) -> None:
        self._fault = ""  # of the newest window
        self._reported: set[str] = set()

    def unsuited(self, cameras: int) -> str:
        return "" if cameras >= 2 else "this needs two or more `cameras` and window.mode joint"

    def measure(
        self, window: Window, estimate: WindowEstimate, by_prior: ScaleMeasurement | None
    ) -> ScaleMeasurement | None:
        measure, self._fault = fit_rig(window, estimate)
        return measure if math.isfinite(measure.value) else None

    def report_missing(self) -> None:
        kind = self._fault[:30]  # numbers behind it change from window to window
        if self._fault and kind not in self._reported:
            self._reported.add(kind)
            log.warning("scale.source rig: %s", self._fault)
