"""Where the cameras of a synthetic rig sit."""

from __future__ import annotations

import numpy as np

from da3_ros.types import Array


def rig_mount(number: int, baseline_m: float, yaw_deg: float) -> Array:
    """Pose [4, 4] of a rig's camera on its first one: beside it to the right, turned to the right.

    Each stands ``baseline_m`` from the one before it and is turned by ``yaw_deg`` more.
    """
    angle = np.radians(yaw_deg * number)
    out = np.eye(4)
    out[0, [0, 2]] = np.cos(angle), np.sin(angle)
    out[2, [0, 2]] = -np.sin(angle), np.cos(angle)
    out[0, 3] = baseline_m * number
    return out
