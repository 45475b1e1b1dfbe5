"""Where the camera may be in the map, as a user says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from da3_ros.geometry.poses import invert_pose
from da3_ros.types import Array

SIGMAS = 4.0


@dataclass(frozen=True, eq=False)
class PoseHint:
    """A position on the ground, such as a click into a map gives; heights are unknown."""

    position: Array  # [3]
    up: Array  # [3] the vertical, a unit vector
    sigma: float  # standard deviation of the position

    @staticmethod
    def on_map(x: float, y: float, sigma: float) -> PoseHint:
        """Returns the hint in the frame and the unit of the map (REP 103: z is up)."""
        return PoseHint(np.array([x, y, 0.0]), np.array([0.0, 0.0, 1.0]), sigma)

    def moved(self, T_ros_local: Array, unit: float) -> PoseHint:
        """Returns the hint in another frame, of which ``T_ros_local`` [4, 4] is the pose in the
        map, and where lengths are ``unit`` times those of the map."""
        back = invert_pose(T_ros_local)
        position = (back[:3, :3] @ self.position + back[:3, 3]) * unit
        return PoseHint(position, back[:3, :3] @ self.up, self.sigma * unit)

    def allows(self, camera: Array, sight: float) -> bool:
        """True if a camera [3] that sees as far as ``sight`` may see what is at the hint."""
        away = camera - self.position
        away = away - (away @ self.up) * self.up
        return bool(np.linalg.norm(away) <= SIGMAS * self.sigma + sight)
