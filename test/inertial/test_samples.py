"""Which samples of an IMU cannot be used."""

import numpy as np
import pytest

from da3_ros.inertial.samples import stays_at_extreme, usable
from da3_ros.types import ImuStretch


@pytest.mark.parametrize(
    ("values", "stays"),
    [
        ((5, 19.6, 19.6, 19.6, 7), True),
        ((5, -19.6, -19.6, -19.6, 7), True),
        ((5, 19.6, 19.6, 7, 5), False),  # a peak of coarse steps
        ((5, 19.6, 7, 19.6, 19.6), False),
        ((5, 9.6, 9.6, 9.6, 7), False),  # no sensor ends there
        ((5, 19.6), False),
    ],
)
def test_an_axis_at_its_limit_repeats_its_extreme_three_times(values, stays):
    rows = np.zeros((len(values), 3))
    rows[:, 1] = values
    assert stays_at_extreme(rows, 15.0) == stays


@pytest.mark.parametrize("value", [np.nan, np.inf, 3000.0])
def test_impossible_samples_cannot_be_used(value):
    acceleration = np.tile([0.0, -9.8, 0.0], (5, 1))
    stamps = np.arange(5) * 5_000_000
    assert usable(ImuStretch(stamps, np.zeros((5, 3)), acceleration, np.zeros(3)))
    acceleration[2, 0] = value
    assert not usable(ImuStretch(stamps, np.zeros((5, 3)), acceleration, np.zeros(3)))
