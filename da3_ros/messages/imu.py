"""Reads sensor_msgs/Imu, live or recorded. No middleware."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from da3_ros.config import NodeConfig, uses_imu
from da3_ros.messages.decode import stamp_ns
from da3_ros.sensors.imu_input import ImuError, ImuHistory, ImuInput, ImuSample
from da3_ros.sensors.transform_tree import TransformTree
from da3_ros.types import Array

IMU, TOPIC = "sensor_msgs/msg/Imu", "imu"


def open_imu(
    config: NodeConfig, transforms: TransformTree, history: ImuHistory | None = None,
    mounts: Mapping[str, Array] | None = None,
) -> ImuInput | None:  # fmt: skip
    """Returns the IMU's input; None if the parameters use none. mounts: as of ``ImuInput``."""
    if not uses_imu(config.pipeline):
        return None
    return ImuInput(config.pipeline.imu, transforms, history, mounts)


def read_imu(message: Any) -> ImuSample:
    """Returns the sample of a message. Raises ImuError if it measures nothing, or no numbers."""
    gyro, force = message.angular_velocity, message.linear_acceleration
    # sensor_msgs/Imu: -1 says that the message does not have this measurement.
    for name, covariance in (
        ("angular_velocity", message.angular_velocity_covariance),
        ("linear_acceleration", message.linear_acceleration_covariance),
    ):
        if covariance[0] == -1:
            raise ImuError(
                f"its messages have no {name}: a topic with both is needed (RealSense: "
                "unite_imu_method)"
            )
    values = (gyro.x, gyro.y, gyro.z, force.x, force.y, force.z)
    if not all(map(math.isfinite, values)):
        raise ImuError("a message has NaN or Inf")
    stamp = stamp_ns(message.header.stamp)
    return ImuSample(stamp, message.header.frame_id.lstrip("/"), np.array(values, np.float64))
