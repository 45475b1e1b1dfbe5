"""How much work a refinement may take: chosen once for a time per window, kept by skipping."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from da3_ros.refinement.bundle import Bundle, Observations, adjust
from da3_ros.refinement.features import FeatureDetector
from da3_ros.refinement.tracked_view import match

log = logging.getLogger(__name__)

TRIALS = 3
MATCHED = 7  # views that a new one is matched to: those that a usual window shares
USUAL_PIXELS = 640 * 480  # of a camera; others take more or less
UNMEASURED = 1.3  # factor for start poses, depth and what else is not measured


@dataclass(frozen=True)
class SolverLimits:
    """Limits of the work per window. Results depend on them, not on the time that work takes."""

    features: int  # most features per image
    pixels: int  # most pixels of the image in which features are detected; larger ones shrink
    tracks: int  # most tracks of a bundle
    steps: int  # most steps of a solution

    @staticmethod
    def full(max_features: int) -> SolverLimits:
        """Returns the limits where time is not limited."""
        return SolverLimits(max_features, 800_000, 300, 8)

    @staticmethod
    def from_values(values: Any) -> SolverLimits:
        """Returns the limits of a report. Raises ValueError for anything else."""
        names = [f.name for f in dataclasses.fields(SolverLimits)]
        if not isinstance(values, dict) or sorted(values) != sorted(names):
            raise ValueError(f"refinement needs {', '.join(names)}")
        for name, (low, high) in LIMITS.items():
            if type(values[name]) is not int or not low <= values[name] <= high:
                raise ValueError(f"refinement needs {name} from {low} to {high}")
        return SolverLimits(**values)

    def levels(self) -> list[SolverLimits]:
        """Returns these limits and smaller ones."""
        shares = ((1.0, 1.0, 8), (0.75, 0.5, 6), (0.5, 0.25, 5), (0.35, 0.125, 4))
        return [
            SolverLimits(
                max(MIN_FEATURES, int(self.features * share)),
                int(self.pixels * pixels),
                int(self.tracks * share),
                steps,
            )
            for share, pixels, steps in shares
        ]


MIN_FEATURES = 50
LIMITS = {
    "features": (MIN_FEATURES, 4000), "pixels": (10_000, 100_000_000), "tracks": (20, 10_000),
    "steps": (1, 1000),
}  # fmt: skip


def choose_limits(max_features: int, max_ms: float) -> SolverLimits:
    """Returns the largest limits with which a window takes at most ``max_ms`` on this machine.

    max_ms: 0: any time. The smallest limits if all take longer.
    """
    levels = SolverLimits.full(max_features).levels()
    if max_ms <= 0:
        return levels[0]
    for level in levels:
        took = measured_ms(level)
        if took <= max_ms:
            log.info("refinement: %s takes about %.0f ms per window here", level, took)
            return level
    log.warning(
        "refinement.max_ms %g: the lowest limits take about %.0f ms per window here", max_ms, took
    )
    return levels[-1]


def measured_ms(limits: SolverLimits) -> float:
    """Returns the processor time of features, matching and solving for a window with one new view
    with these limits, milliseconds, by made-up data of a camera of 640x480."""
    rng = np.random.default_rng(0)
    width = 4 * int((min(limits.pixels, USUAL_PIXELS) / 12) ** 0.5)
    image = rng.integers(0, 256, (3 * width // 4, width, 3), np.uint8)
    detector = FeatureDetector(limits.features, limits.pixels)
    features = detector(image)
    bundle = _made_up_bundle(limits.tracks, rng)
    two_steps = _time_ms(lambda: adjust(bundle, 2))  # more steps would converge here
    return UNMEASURED * (
        _time_ms(lambda: detector(image))
        + MATCHED * _time_ms(lambda: match(features, features))
        + limits.steps * two_steps  # a window is solved twice, the second time without outliers
    )


def _time_ms(work: Callable[[], Any]) -> float:
    """Returns the fastest of some trials: others were interrupted."""
    took = []
    for _ in range(TRIALS):
        start = time.thread_time()
        work()
        took.append(1e3 * (time.thread_time() - start))
    return min(took)


def _made_up_bundle(count: int, rng: np.random.Generator) -> Bundle:
    """Returns twelve views in a row, of which four are free, that all see ``count`` points."""
    views = 12
    T = np.tile(np.eye(4), (views, 1, 1))
    T[:, 0, 3] = 0.05 * np.arange(views)
    points = rng.uniform((-2, -1.5, 3), (2, 1.5, 5), (count, 3))
    K = np.tile([[400.0, 0, 250], [0, 400, 190], [0, 0, 1]], (views, 1, 1))
    view, point = np.tile(np.arange(views), count), np.repeat(np.arange(count), views)
    x = points[point] - T[view, :3, 3]
    pixel = 400 * x[:, :2] / x[:, 2:] + (250, 190) + rng.normal(0, 0.5, (len(view), 2))
    depth = np.log(x[:, 2]) + rng.normal(0, 0.05, len(view))
    ones = np.ones(len(view))
    free = np.arange(views) >= views - 4
    T[free, :3, 3] += rng.normal(0, 0.02, (4, 3))
    seen = Observations(view, point, pixel, 0.5 * ones, depth, 0.5 * ones)
    return Bundle(T, np.zeros(views), K, points, free, seen, np.zeros(views), np.full(views, 0.05))


class TimeLimit:
    """Skips work so that it takes at most a given time on average."""

    def __init__(self, limit_ms: float) -> None:
        """limit_ms: 0: none."""
        self.limit_s = 1e-3 * limit_ms
        self._behind = 0.0  # seconds that earlier work has taken too much

    @property
    def is_behind(self) -> bool:
        """Whether the next work would be skipped."""
        return self.limit_s > 0 and self._behind >= self.limit_s

    def skips(self) -> bool:
        """True if the next work must be skipped, which makes up for a part of earlier work."""
        if not self.limit_s or self._behind < self.limit_s:
            return False
        self._behind -= self.limit_s
        return True

    def add(self, seconds: float) -> None:
        """Adds the time that work has taken."""
        self._behind = min(max(0.0, self._behind + seconds - self.limit_s), MOST * self.limit_s)


MOST = 10  # windows that one interruption can cost
