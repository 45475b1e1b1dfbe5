"""Growth of a series: the slope of its second half, with a confidence interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import theilslopes

FEWEST = 10  # values in the second half that a slope needs


@dataclass(frozen=True)
class Growth:
    """Slope of the second half, extrapolated over the whole run and divided by the level.

    The level is the median of the second half.
    """

    growth: float
    low: float  # lower bound of the 95 % interval
    high: float  # upper bound
    flat: bool  # the upper bound is within the tolerance; false also if the series is too noisy


def measure_growth(series: Sequence[float], tolerance: float) -> Growth:
    """Returns the growth of values that were taken at even steps.

    tolerance: growth, as a share of the level, up to which a series is flat. The slope is the
    Theil-Sen estimate (the median over all pairs), which a single peak or a single step does not
    change. Raises ValueError for fewer than 20 values.
    """
    half = np.asarray(series[len(series) // 2 :], dtype=float)
    if len(series) < 2 * FEWEST:
        raise ValueError(f"{len(series)} values: a slope needs at least {2 * FEWEST}")
    slope, _, low, high = theilslopes(half, np.arange(len(half)))
    level = max(abs(float(np.median(half))), 1e-12)
    growth, least, most = (float(s) * len(series) / level for s in (slope, low, high))
    return Growth(growth, least, most, most <= tolerance)
