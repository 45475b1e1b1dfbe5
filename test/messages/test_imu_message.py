"""sensor_msgs/Imu: what a message says, and messages that measure nothing."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from da3_ros.messages.imu import read_imu
from da3_ros.sensors.imu_input import ImuError


def message(gyro=(0.1, 0.2, 0.3), force=(0.0, 0.0, 9.8), gyro_known=True, force_known=True):
    def vector(values):
        return SimpleNamespace(**dict(zip("xyz", values, strict=True)))

    return SimpleNamespace(
        header=SimpleNamespace(stamp=SimpleNamespace(sec=3, nanosec=7), frame_id="/imu_link"),
        angular_velocity=vector(gyro), linear_acceleration=vector(force),
        angular_velocity_covariance=np.full(9, 0.0 if gyro_known else -1.0),
        linear_acceleration_covariance=np.full(9, 0.0 if force_known else -1.0),
    )  # fmt: skip


def test_a_message_gives_one_sample():
    one = read_imu(message())
    assert (one.stamp_ns, one.frame_id) == (3_000_000_007, "imu_link")
    np.testing.assert_array_equal(one.values, [0.1, 0.2, 0.3, 0, 0, 9.8])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"gyro_known": False}, "no angular_velocity"),
        ({"force_known": False}, "no linear_acceleration"),
        ({"gyro": (np.nan, 0, 0)}, "NaN"),
        ({"force": (0, np.inf, 0)}, "NaN or Inf"),
    ],
)
def test_a_message_that_measures_nothing_is_refused(options, text):
    with pytest.raises(ImuError, match=text):
        read_imu(message(**options))
