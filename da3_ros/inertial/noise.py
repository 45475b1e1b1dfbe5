"""Gravity, the drift of a path, and an IMU without errors."""

from __future__ import annotations

from da3_ros.types import ImuNoise

GRAVITY = 9.81  # m/s^2; it differs by 0.3 % between places on Earth
TURN_DRIFT = 0.001  # of the rotation of a camera's path, rad per root s
NO_NOISE = ImuNoise(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
