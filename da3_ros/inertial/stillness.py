"""Whether an IMU is at rest, by its samples alone."""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from da3_ros.inertial.noise import ImuNoise
from da3_ros.types import Array, ImuStretch

REST_S = 1.0  # for which nothing may change
FORCE = 0.02  # change of the force at rest beyond its noise, m/s^2; a tilt by 0.1 degrees
TREMBLE = 3.0  # factor on the white noise within a stretch
SIGMAS = 4.0  # of the mean rate and force of a stretch
LEAST_RATE = 0.002  # of the mean rate, rad/s


class Stillness:
    """Rest needs a second in which force and rate do not change, and no rate but the bias.

    An IMU cannot tell rest from constant speed. It can tell it from a slow turn about the vertical
    only if the gyro's bias is known: at first to ``noise.gyro_bias``, and as exactly as an
    estimate that is given (``know_bias``). A turn about another axis changes the direction of
    gravity, which shows after half a degree.
    """

    def __init__(self, noise: ImuNoise | None = None) -> None:
        self.noise = noise or ImuNoise()
        self._bias, self._bias_sigma = np.zeros(3), self.noise.gyro_bias
        self._means: deque[tuple[int, Array]] = deque()  # end and mean force of each stretch
        self._begin_ns: int | None = None  # since when nothing has changed

    def know_bias(self, bias: Array, sigma: float) -> None:
        """Takes over the gyro's bias [3], rad/s in the axes of the stretches, and its standard
        deviation."""
        self._bias, self._bias_sigma = bias, sigma

    def add(self, stretch: ImuStretch | None) -> bool:
        """Adds a stretch and returns whether the IMU is at rest; None: a gap, after which rest
        must be seen anew."""
        if stretch is None or not self._calm(stretch):
            self._begin_ns = None
            self._means.clear()
            return False
        first, last = int(stretch.stamps_ns[0]), int(stretch.stamps_ns[-1])
        if self._begin_ns is None or not self._means or self._means[-1][0] != first:
            self._begin_ns = first
            self._means.clear()
        force = stretch.acceleration.mean(axis=0)
        noise = self.noise.acceleration / math.sqrt((last - first) / 1e9)
        if self._means and np.abs(force - self._means[0][1]).max() > FORCE + SIGMAS * noise:
            self._begin_ns = first
            self._means.clear()
        self._means.append((last, force))
        while len(self._means) > 2 and last - self._means[1][0] > 2e9 * REST_S:
            self._means.popleft()
        return last - self._begin_ns >= 1e9 * REST_S

    def _calm(self, stretch: ImuStretch) -> bool:
        """Whether a stretch shows no more than noise and the gyro's bias."""
        seconds = (stretch.stamps_ns[-1] - stretch.stamps_ns[0]) / 1e9
        rate_hz = (len(stretch.stamps_ns) - 1) / seconds
        white = math.sqrt(rate_hz)
        forces = float(stretch.acceleration.std(axis=0).max())
        rates = float(stretch.gyro.std(axis=0).max())
        if not forces <= TREMBLE * self.noise.acceleration * white + FORCE:
            return False
        if not rates <= TREMBLE * self.noise.gyro * white + LEAST_RATE:
            return False
        allowed = SIGMAS * math.hypot(self._bias_sigma, self.noise.gyro / math.sqrt(seconds))
        mean = np.abs(stretch.gyro.mean(axis=0) - self._bias).max()
        return bool(mean <= allowed + LEAST_RATE)
