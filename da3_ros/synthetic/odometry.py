"""What a robot would say of its motion: a level base below the camera, and odometry that drifts.

World: metres, z up, floor at z = 0. Knows NumPy and poses; renders nothing.
"""

from __future__ import annotations

import numpy as np

from da3_ros.geometry.poses import invert_pose
from da3_ros.types import Array


def base_below(T_world_camera: Array) -> Array:
    """T_world_base [4, 4] on the floor below a camera, level, x to where the camera looks.

    REP-103 axes (x forward, y left, z up); the camera's are optical.
    """
    forward = T_world_camera[:2, 2]
    yaw = np.arctan2(forward[1], forward[0])
    out = _turn(float(yaw))
    out[:2, 3] = T_world_camera[:2, 3]
    return out


class DriftingOdometry:
    """Pose of a base that carries the camera rigidly, in an ``odom`` frame at its first pose.

    The base is level and below the camera at the first frame. Its error is a random walk: the
    standard deviation per axis is ``noise_m`` after one metre of way and that of the heading
    ``noise_deg`` after one second; both grow with the square root, and never jump.
    """

    def __init__(
        self, T_world_camera: Array, noise_m: float = 0.0, noise_deg: float = 0.0, seed: int = 0
    ) -> None:
        self._T_world_base = base_below(T_world_camera)
        self.T_base_camera = invert_pose(self._T_world_base) @ T_world_camera
        self.T_odom_base = np.eye(4)
        self.covariance = np.zeros((6, 6))  # x, y, z, rotations; of the steps, not their sum
        self._noise_m, self._noise_rad = noise_m, float(np.radians(noise_deg))
        self._rng = np.random.default_rng([seed, 0x0D])

    @property
    def T_odom_camera(self) -> Array:
        """Pose of the camera [4, 4], optical axes."""
        return self.T_odom_base @ self.T_base_camera

    def move(self, T_world_camera: Array, seconds: float) -> Array:
        """The camera is at this true pose ``seconds`` later; returns T_odom_base [4, 4]."""
        T_world_base = T_world_camera @ invert_pose(self.T_base_camera)
        step = invert_pose(self._T_world_base) @ T_world_base
        self._T_world_base = T_world_base
        sigma_m = self._noise_m * float(np.linalg.norm(step[:3, 3])) ** 0.5
        sigma_rad = self._noise_rad * max(seconds, 0.0) ** 0.5
        error = _turn(sigma_rad * float(self._rng.standard_normal()))
        error[:3, 3] = sigma_m * self._rng.standard_normal(3)
        self.T_odom_base = self.T_odom_base @ step @ error
        self.covariance += np.diag([sigma_m**2] * 3 + [0.0, 0.0, sigma_rad**2])
        return self.T_odom_base


def _turn(yaw: float) -> Array:
    """Rotation about z as [4, 4]."""
    out = np.eye(4)
    out[:2, :2] = [[np.cos(yaw), -np.sin(yaw)], [np.sin(yaw), np.cos(yaw)]]
    return out
