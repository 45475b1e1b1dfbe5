"""Poses of the cameras on a synthetic rig."""

from __future__ import annotations

import numpy as np

from da3_ros.types import Array


def rig_mount(number: int, baseline_m: float, yaw_deg: float) -> Array:
    """Pose [4, 4] of camera ``number`` of a rig, relative to the first one.

    Each camera is ``baseline_m`` to the right of the previous one and rotated by ``yaw_deg`` more
    to the right.
    """
    angle = np.radians(yaw_deg * number)
    out = np.eye(4)
    out[0, [0, 2]] = np.cos(angle), np.sin(angle)
    out[2, [0, 2]] = -np.sin(angle), np.cos(angle)
    out[0, 3] = baseline_m * number
    return out
