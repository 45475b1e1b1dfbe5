"""Simulated robot odometry: a level base below the camera, and poses that drift.

The room: metres, z up, floor at z = 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from da3_ros.geometry.poses import invert_pose
from da3_ros.types import Array


def base_below(T_room_camera: Array) -> Array:
    """T_room_base [4, 4] on the floor below a camera, level, x in the viewing direction.

    REP-103 axes (x forward, y left, z up); the camera's are optical.
    """
    forward = T_room_camera[:2, 2]
    yaw = np.arctan2(forward[1], forward[0])
    out = _yaw_transform(float(yaw))
    out[:2, 3] = T_room_camera[:2, 3]
    return out


class DriftingOdometry:
    """Pose of a base with a rigidly mounted camera; the ``odom`` frame is its first pose.

    The base is level and below the camera at the first frame. Its error is a random walk without
    jumps: the standard deviation per axis is ``noise_m`` after 1 m of motion and grows with the
    square root of the distance; that of the heading is ``noise_deg`` after 1 s and grows with
    the square root of time.
    """

    def __init__(
        self, T_room_camera: Array, noise_m: float = 0.0, noise_deg: float = 0.0, seed: int = 0
    ) -> None:
        self._T_room_base = base_below(T_room_camera)
        self.T_base_camera = invert_pose(self._T_room_base) @ T_room_camera
        self.T_odom_base = np.eye(4)
        # [6, 6] of x, y, z and rotations: sum over the steps, each in its own axes
        self.covariance = np.zeros((6, 6))
        self._noise_m, self._noise_rad = noise_m, float(np.radians(noise_deg))
        self._rng = np.random.default_rng([seed, 0x0D])

    @property
    def T_odom_camera(self) -> Array:
        """Pose of the camera [4, 4], optical axes."""
        return self.T_odom_base @ self.T_base_camera

    def move(self, T_room_camera: Array, seconds: float) -> Array:
        """Move to the camera's true pose ``seconds`` later; returns T_odom_base [4, 4]."""
        T_room_base = T_room_camera @ invert_pose(self.T_base_camera)
        step = invert_pose(self._T_room_base) @ T_room_base
        self._T_room_base = T_room_base
        sigma_m = self._noise_m * float(np.linalg.norm(step[:3, 3])) ** 0.5
        sigma_rad = self._noise_rad * max(seconds, 0.0) ** 0.5
        error = _yaw_transform(sigma_rad * float(self._rng.standard_normal()))
        error[:3, 3] = sigma_m * self._rng.standard_normal(3)
        self.T_odom_base = self.T_odom_base @ step @ error
        self.covariance += np.diag([sigma_m**2] * 3 + [0.0, 0.0, sigma_rad**2])
        return self.T_odom_base


def drifted(poses: Sequence[Array], yaw_deg: float, offset_m: Array) -> list[Array]:
    """Returns poses [4, 4] in the room that drift evenly from the first on: from pose to pose by
    ``yaw_deg`` about the vertical, and by ``offset_m`` [3] in the axes of the camera."""
    out = [poses[0].copy()]
    for before, after in itertools.pairwise(poses):
        step = before[:3, :3].T @ _yaw_transform(float(np.radians(yaw_deg)))[:3, :3]
        error = np.eye(4)
        error[:3, :3], error[:3, 3] = step @ before[:3, :3], offset_m
        out.append(out[-1] @ error @ invert_pose(before) @ after)
    return out


def _yaw_transform(yaw: float) -> Array:
    """Rotation about z, [4, 4]."""
    out = np.eye(4)
    out[:2, :2] = [[np.cos(yaw), -np.sin(yaw)], [np.sin(yaw), np.cos(yaw)]]
    return out
