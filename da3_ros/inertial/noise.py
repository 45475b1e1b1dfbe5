"""Noise and biases of an IMU, and gravity."""

from __future__ import annotations

from dataclasses import dataclass

GRAVITY = 9.81  # m/s^2; it differs by 0.3 % between places on Earth
TURN_DRIFT = 0.001  # of the rotation of a camera's path, rad per root s


@dataclass(frozen=True)
class ImuNoise:
    """Standard deviations of an IMU's errors, of each axis.

    The defaults are a consumer chip's. Noise and walk are those published with the calibration of
    a phone's chip, BMI160 (data set TUM VI, arXiv 1804.06120); the offsets are those of the data
    sheet of BMI088: 1 degree/s and 20 mg.
    """

    gyro: float = 1.6e-4  # white noise, rad/s per root Hz
    gyro_walk: float = 2.2e-5  # of the bias, rad/s per root s
    gyro_bias: float = 0.0175  # of the constant offset, rad/s
    acceleration: float = 2.8e-3  # white noise, m/s^2 per root Hz
    acceleration_walk: float = 8.6e-4  # of the bias, m/s^2 per root s
    acceleration_bias: float = 0.196  # of the constant offset, m/s^2


NO_NOISE = ImuNoise(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
