"""Which samples of an IMU can be used: finite, possible, and within the sensor's range."""

from __future__ import annotations

import numpy as np

from da3_ros.types import Array, ImuStretch

MOST_FORCE, MOST_RATE = 2000.0, 200.0  # beyond any sensor, m/s^2 and rad/s
# Smallest limits of a sensor's range (2 g, 250 degrees per second), with a margin.
LEAST_LIMITS = 15.0, 4.0
REPEATED = 3  # equal samples in a row, at the extreme of a stretch


def usable(stretch: ImuStretch) -> bool:
    """Whether a stretch can be integrated."""
    forces, rates = stretch.acceleration, stretch.gyro
    possible = np.isfinite(forces).all() and np.isfinite(rates).all()
    if not possible or np.abs(forces).max() > MOST_FORCE or np.abs(rates).max() > MOST_RATE:
        return False
    return not is_saturated(stretch)


def is_saturated(stretch: ImuStretch) -> bool:
    """Whether an axis was at the limit of its range: equal extreme samples in a row."""
    values = zip((stretch.acceleration, stretch.gyro), LEAST_LIMITS, strict=True)
    return any(stays_at_extreme(v, least) for v, least in values)


def stays_at_extreme(values: Array, least: float) -> bool:
    """Whether an axis of values [N, 3] repeats its extreme, and that is above ``least``."""
    size = np.abs(values)
    extreme = (size == size.max(axis=0)) & (size > least)  # [N, 3]
    if len(values) < REPEATED or not extreme.any():
        return False
    runs = np.lib.stride_tricks.sliding_window_view(extreme, REPEATED, axis=0)
    return bool(runs.all(axis=-1).any())
