"""Estimates of a chain's scale from many measurements, and how certain they are."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from da3_ros.geometry.similarity import Similarity
from da3_ros.types import Array, ScaleMeasurement, View

MAX_MEASUREMENTS = 15
MIN_MEASUREMENTS = 3  # so that one bad measurement never decides
OUTLIER = 3.0  # robust standard deviations
AGREEMENT = 0.03  # relative difference that is never an outlier
IN_A_ROW = 3  # newest measurements that are outliers to one side: these are no chance
FLOOR = 0.003  # relative standard deviation that the alignment of windows adds at least
AGES = 0.007  # that of an estimate without news, per root of way over depth


@dataclass(frozen=True)
class Estimate:
    """An estimate of the scale: metres per unit of odometry."""

    log: float  # natural logarithm of the value
    sigma: float  # its standard deviation, which is the value's relative one
    # The part of it that other estimates of the chain have too: the drift of the chain's unit.
    shared: float = FLOOR
    # By how much the newest measurements differ (``contradicted``). It is no reason to agree with
    # another source.
    doubt: float = 0.0

    @property
    def deviation(self) -> float:
        """Standard deviation with the doubt."""
        return math.hypot(self.sigma, self.doubt)


@dataclass(frozen=True)
class MemberState:
    """What one of several sources says of a chain's scale."""

    name: str
    state: str  # counts, left out, silent, unknown
    estimate: Estimate | None  # None: unknown


class MeasurementFilter:
    """Averages the newest measurements of windows that agree. Ignores motions."""

    # Of an estimator that combines sources: the names of those that count, and the state of each.
    counted = ""
    states: tuple[MemberState, ...] = ()

    def __init__(self) -> None:
        self._measurements: deque[Estimate] = deque(maxlen=MAX_MEASUREMENTS)

    @property
    def members(self) -> tuple[MeasurementFilter, ...]:
        """The estimators of the sources that it combines; itself, if it combines none."""
        return (self,)

    @property
    def few(self) -> bool:
        """Whether more measurements are needed for an estimate."""
        return len(self._measurements) < MIN_MEASUREMENTS

    def add(self, measure: ScaleMeasurement, unit: float) -> None:
        """Adds a window's measurement, metres per network unit.

        unit: of odometry, per network unit.
        """
        value = measure.value / unit
        if math.isfinite(value) and value > 0 and math.isfinite(measure.sigma):
            self._measurements.append(Estimate(math.log(value), measure.sigma))

    def add_motion(self, view: View, T_local_camera: Array, depth: float) -> None:
        """Adds a frame of an accepted window: its pose [4, 4] in ``local``, and its typical depth
        in the same unit; NaN: unknown."""
        return

    def interrupt_motion(self) -> None:
        """Takes over that the motion from the last frame to the next is unknown."""
        return

    def note_way(self, T_local_camera: Array, depth: float) -> None:
        """Notes the pose of each frame that ``add_motion`` may get, also of those that it does
        not get, for what ages with the way of the camera."""
        return

    def restart_members(self, chosen: Sequence[bool]) -> None:
        """Forgets what the chosen ones of several combined sources have measured."""
        return

    def refine(self, poses: Mapping[int, Array]) -> None:
        """Takes over refined poses [4, 4] in ``local`` of earlier frames, by view id."""
        return

    def move(self, moves: Mapping[int, Similarity]) -> None:
        """Takes over that earlier frames have moved in ``local``, by view id: a correction of the
        map has moved their submaps."""
        return

    def estimate(self) -> Estimate | None:
        """Returns the mean of the measurements that agree; None if they are too few."""
        if self.few:
            return None
        logs = np.array([m.log for m in self._measurements])
        good = logs[inliers(logs)]
        own = float(np.median([m.sigma for m in self._measurements]))
        newest, sigma = best_average(good, own, MIN_MEASUREMENTS)
        found = Estimate(float(good[-newest:].mean()), sigma, drift_of(good, newest))
        return contradicted(found, logs)


def inliers(logs: Array) -> Array:
    """Returns the mask [M] of the logarithms near their median."""
    difference = np.abs(logs - np.median(logs))
    return np.asarray(
        difference <= max(OUTLIER * 1.4826 * float(np.median(difference)), AGREEMENT)
    )


def contradicted(found: Estimate, logs: Array) -> Estimate:
    """Returns an estimate from measurements [M], with the doubt that the newest of them show.

    Outliers in a row, to one side: the unit of the chain has changed, or the source errs (wheels
    slip). Which of both is not known until one side has the majority, so the doubt is the
    difference.
    """
    outside = ~inliers(logs)
    differences = logs[len(logs) - int(np.argmin(outside[::-1])) :] - found.log
    if len(differences) < IN_A_ROW or len(set(np.sign(differences))) > 1:
        return found
    return replace(found, doubt=abs(float(np.median(differences))))


def best_average(logs: Array, own: float, fewest: int) -> tuple[int, float]:
    """Returns how many of the newest measurements [M] give the most certain mean, and its standard
    deviation.

    More measurements average the noise, but older ones suffer from drift. own: standard deviation
    that a measurement states. Where measurements scatter less than that, the rest of the error is
    common to all windows (same motions, same views) and does not average out.
    """
    count = len(logs)
    noise, drift = _noise_and_drift(logs)
    newest = min(max(round(math.sqrt(3 * noise / drift)), fewest), count) if drift else count
    # Student's t: a variance estimated from few samples is uncertain.
    few = (count - 1) / max(count - 3, 0.7)
    by_chance = 1 + 2 / math.sqrt(count)  # factor by which the true noise may be larger
    common = max(own**2 - noise * by_chance, 0.0)
    variance = common + few * noise / newest + drift * newest / 3
    return newest, math.hypot(math.sqrt(variance), FLOOR)


def drift_of(logs: Array, newest: int) -> float:
    """Returns the standard deviation that the unit's drift gives the mean of the ``newest`` of the
    measurements [M]."""
    return math.hypot(math.sqrt(_noise_and_drift(logs)[1] * newest / 3), FLOOR)


def _noise_and_drift(logs: Array) -> tuple[float, float]:
    """Returns the variance of the measurements' noise, and of the drift between neighbours.

    A random walk with steps of variance d adds d / 2 to half the mean square difference of
    neighbours, and (M + 1) / 6 d to the variance of all M.
    """
    spread = float(np.var(logs, ddof=1))
    near = float(np.mean(np.square(np.diff(logs)))) / 2
    if len(logs) < 4:
        return max(near, spread), 0.0
    drift = max(0.0, 6 * (spread - near) / (len(logs) - 2))
    return max(near - drift / 2, 0.0), drift
