"""Whether a series grows: the slope of its second half, and how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import theilslopes

FEWEST = 10  # values of the second half that a slope can be judged by


@dataclass(frozen=True)
class Growth:
    """What the second half's slope would add over the whole run, over the level; 95 % interval.

    ``flat``: surely below ``room``; a series that is too noisy or too short to say so is not.
    """

    growth: float
    low: float
    high: float
    flat: bool


def judge(series: Sequence[float], room: float) -> Growth:
    """Whether values at even steps stay as they are, up to ``room`` of their level.

    The slope is Theil and Sen's (a median of all pairs'), which neither one peak nor one step in
    memory moves. Raises ValueError for fewer than 20 values.
    """
    half = np.asarray(series[len(series) // 2 :], dtype=float)
    if len(series) < 2 * FEWEST:
        raise ValueError(f"{len(series)} values: a slope needs at least {2 * FEWEST}")
    slope, _, low, high = theilslopes(half, np.arange(len(half)))
    level = max(abs(float(np.median(half))), 1e-12)
    growth, least, most = (float(s) * len(series) / level for s in (slope, low, high))
    return Growth(growth, least, most, most <= room)
