"""Reads calibrations from CameraInfo messages."""

from __future__ import annotations

from typing import Any

import numpy as np

from da3_ros.types import Calibration


def calibration_from_msg(message: Any) -> Calibration:
    """Returns the Calibration of a sensor_msgs/CameraInfo, unchecked (see ``calibration_check``).

    An all-zero P, which many monocular drivers send, becomes None.
    """
    P = np.array(_field(message, "p"), np.float64).reshape(3, 4)
    roi = message.roi
    return Calibration(
        width=int(message.width),
        height=int(message.height),
        K=np.array(_field(message, "k"), np.float64).reshape(3, 3),
        distortion_model=str(message.distortion_model),
        D=np.array(_field(message, "d"), np.float64).reshape(-1),
        R=np.array(_field(message, "r"), np.float64).reshape(3, 3),
        P=P if P.any() else None,
        binning_x=int(message.binning_x),
        binning_y=int(message.binning_y),
        roi_x=int(roi.x_offset),
        roi_y=int(roi.y_offset),
        roi_width=int(roi.width),
        roi_height=int(roi.height),
        roi_do_rectify=bool(roi.do_rectify),
    )


def _field(message: Any, name: str) -> Any:
    """Returns field k, d, r or p, or its capital in definitions converted from ROS 1."""
    return getattr(message, name) if hasattr(message, name) else getattr(message, name.upper())
