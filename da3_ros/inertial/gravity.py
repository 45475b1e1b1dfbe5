"""Up, frame by frame: gravity from an IMU and the motion of its camera, in metres or without.

What the IMU measures is gravity and acceleration. With metres the camera's path tells the
acceleration; without, the velocity is only known to stay within limits. No acceleration is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from da3_ros.inertial.noise import GRAVITY, TURN_DRIFT
from da3_ros.inertial.preintegration import Preintegrated, preintegrate
from da3_ros.inertial.samples import usable
from da3_ros.types import Array, ImuNoise, ImuStretch

LEAST_POSITION_M, MOST_POSITION_M = 0.002, 0.1  # standard deviations of a camera's position
ROTATION = 0.002  # of a camera's rotation, rad
WAY_DRIFT = 0.01  # of a position, over the way from frame to frame
FIRST_ACCELERATION = 2.0  # of the camera in the first stretch, m/s^2
SPEED = 2.0  # of a camera whose motion is unknown, m/s
SPEED_CHANGE, CHANGE_S = 0.7, 2.0  # without metres: change of the velocity, m/s, and its duration
STANDING = 0.02  # velocity of a camera that stands, m/s
SCALE_SIGMA = 0.02  # relative, of a known scale
MOST_CORRECTION = 0.1  # of a scale, relative, beyond which motion begins anew
LENGTH_SIGMA = 0.03  # of gravity, m/s^2
FEWEST_SAMPLES = 8  # that show how much the accelerometer shakes
MORE_NOISE = 2.0  # times the stated noise, from which on that counts
MEMORY = 0.05  # share of the newest frame in the noise that is learned
# State: position and velocity of the IMU in ``local``, metres; gravity in ``local``; bias of the
# accelerometer in the camera's axes; metres per unit.
_P, _V, _G, _B, _S = slice(0, 3), slice(3, 6), slice(6, 9), slice(9, 12), 12
_SIZE = 13
_AXES = np.eye(3)


@dataclass(frozen=True, eq=False)
class GravityEstimate:
    """Up in the frame of the camera's path."""

    up_local: Array  # [3] unit vector
    covariance: Array  # [3, 3] of ``up_local``, rad^2; zero along it
    acceleration_bias: Array  # [3] m/s^2, camera axes

    @property
    def sigma(self) -> float:
        """Standard deviation about each horizontal axis, rad."""
        return math.sqrt(float(np.trace(self.covariance)) / 2)


class GravityFilter:
    """A Kalman filter of gravity; half a millisecond of one core per frame, and constant memory.

    Where the camera turns by tens of degrees about the vertical, the bias of the accelerometer is
    separated from gravity; else its standard deviation limits that of up.
    """

    def __init__(self, bias: float = ImuNoise.acceleration_bias) -> None:
        """bias: standard deviation of the accelerometer's constant offset, m/s^2."""
        self._x, self._P = np.zeros(_SIZE), np.zeros((_SIZE, _SIZE))
        self._P[_B, _B] = bias**2 * _AXES
        self._position_m = 0.01  # standard deviation of the camera's position, as learned
        self.restart()

    def restart(self) -> None:
        """Begins in another frame ``local``; the accelerometer's bias stays known."""
        self._known = False  # whether gravity is
        self._last: tuple[int, Array] | None = None  # stamp and pose of the last frame
        self._moving = False  # whether position and velocity are estimated

    def follow(
        self,
        stamp_ns: int,
        stretch: ImuStretch | None,
        T_local_camera: Array,
        metres_per_unit: float | None = None,
        *,
        still: bool = False,
    ) -> GravityEstimate | None:
        """Adds a frame; returns what is known of gravity, or None before the first stretch.

        stretch: since the camera's last frame; None, or one that does not begin at the last frame
        that was added: the motion since then is unknown, and only gravity is kept.
        T_local_camera: [4, 4] in units of the path, whatever they are. metres_per_unit: None if
        unknown; then speeds that change by much more than 0.7 m/s within seconds are an error of
        up. still: whether the camera is known to stand.
        """
        last, self._last = self._last, (stamp_ns, T_local_camera)
        follows = stretch is not None and last is not None and stretch.stamps_ns[0] == last[0]
        if last is None or stretch is None or not follows or not usable(stretch):
            self._interrupt(last, stamp_ns)
            return self._estimate()
        moved = preintegrate(stretch, noise_of(stretch))
        before, after = last[1], T_local_camera
        # The mean of both ends' rotations leaves the gyro's bias without effect.
        R = (before[:3, :3] + after[:3, :3] @ moved.rotation.T) / 2
        arm = stretch.t_camera_imu
        if not self._known:
            self._begin(R @ moved.velocity / moved.seconds)
        if not self._moving or _differs(self._metres, metres_per_unit):
            self._begin_motion(before, metres_per_unit, arm)
        elif self._metres is not None and metres_per_unit is not None:
            self._correct_scale(before, metres_per_unit)
        way = float(np.linalg.norm(after[:3, 3] - before[:3, 3]))
        self._predict(R, moved, way, stretch.noise.acceleration_walk)
        if still:
            self._stay(STANDING**2)
        elif metres_per_unit is None:
            self._stay(SPEED_CHANGE**2 * CHANGE_S / moved.seconds)
        if metres_per_unit is not None:
            self._see(after[:3, 3] - self._origin, after[:3, :3] @ arm)
        self._keep_length()
        return self._estimate()

    def _interrupt(self, last: tuple[int, Array] | None, stamp_ns: int) -> None:
        self._moving = False
        if last is not None:
            seconds = max(stamp_ns - last[0], 0) / 1e9
            self._P[_G, _G] += (GRAVITY * TURN_DRIFT) ** 2 * seconds * _AXES

    def _begin(self, force: Array) -> None:
        """Begins with gravity as one stretch measures it [3], m/s^2."""
        self._known = True
        self._x[_G] = -GRAVITY * force / max(float(np.linalg.norm(force)), 1e-6)
        self._forget(_G, FIRST_ACCELERATION**2 * _AXES)

    def _begin_motion(self, before: Array, metres: float | None, arm: Array) -> None:
        """Begins at a pose with an unknown velocity."""
        self._moving, self._metres, self._origin = True, metres, before[:3, 3].copy()
        self._x[_P], self._x[_V] = before[:3, :3] @ arm, 0.0
        self._forget(_P, self._position_m**2 * _AXES)
        self._forget(_V, SPEED**2 * _AXES)
        if metres is not None:
            self._x[_S] = metres
            self._forget(slice(_S, _S + 1), np.array([[(SCALE_SIGMA * metres) ** 2]]))

    def _correct_scale(self, before: Array, metres: float) -> None:
        """Takes over a slightly different scale: the positions so far are longer by that."""
        self._x[_P] += (metres - self._x[_S]) * (before[:3, 3] - self._origin)
        self._x[_S] = self._metres = metres

    def _forget(self, which: slice, covariance: Array) -> None:
        """Makes a part of the state independent of the others."""
        self._P[which] = 0.0
        self._P[:, which] = 0.0
        self._P[which, which] = covariance

    def _predict(self, R: Array, moved: Preintegrated, way: float, walk: float) -> None:
        """Moves the state over a stretch. R: [3, 3] local from the axes of its beginning. way: of
        the camera, units of the path. walk: of the accelerometer's bias, m/s^2 per root s."""
        T = moved.seconds
        F = np.eye(_SIZE)
        F[_P, _V], F[_P, _G], F[_V, _G] = T * _AXES, T**2 / 2 * _AXES, T * _AXES
        F[_P, _B], F[_V, _B] = R @ moved.position_acceleration, R @ moved.velocity_acceleration
        self._x = F @ self._x
        self._x[_P] += R @ moved.position
        self._x[_V] += R @ moved.velocity
        P = F @ self._P @ F.T
        P[:6, :6] += _white(R, moved)
        turned = (ROTATION * GRAVITY * T) ** 2
        P[_V, _V] += turned * _AXES
        P[_P, _P] += (turned * T**2 / 4 + (WAY_DRIFT * self._x[_S] * way) ** 2) * _AXES
        P[_G, _G] += (GRAVITY * TURN_DRIFT) ** 2 * T * _AXES
        P[_B, _B] += walk**2 * T * _AXES
        self._P = P

    def _see(self, c: Array, arm: Array) -> None:
        """Takes over the camera's position [3], units of the path; its noise is learned."""
        H = np.zeros((3, _SIZE))
        H[:, _P], H[:, _S] = _AXES, -c
        away = self._x[_S] * c + arm - self._x[_P]
        expected = H @ self._P @ H.T
        typical = float(away @ away) / 3 - float(np.trace(expected)) / 3
        variance = (1 - MEMORY) * self._position_m**2 + MEMORY * typical
        low, high = LEAST_POSITION_M**2, MOST_POSITION_M**2
        self._position_m = math.sqrt(min(max(variance, low), high))
        self._correct(H, away, self._position_m**2 * _AXES)

    def _stay(self, variance: float) -> None:
        """Takes over that the velocity is zero, or was before it changed."""
        H = np.zeros((3, _SIZE))
        H[:, _V] = _AXES
        self._correct(H, -self._x[_V], variance * _AXES)

    def _keep_length(self) -> None:
        """Takes over the length of gravity, as far as its direction is known."""
        length = float(np.linalg.norm(self._x[_G]))
        H = np.zeros((1, _SIZE))
        H[0, _G] = self._x[_G] / length
        bent = float(np.trace(self._P[_G, _G])) / (2 * length)
        variance = LENGTH_SIGMA**2 + bent**2
        self._correct(H, np.array([GRAVITY - length]), np.array([[variance]]))

    def _correct(self, H: Array, away: Array, noise: Array) -> None:
        K = np.linalg.solve(H @ self._P @ H.T + noise, H @ self._P).T
        # The scale is given: noise of the camera's positions would shorten it.
        K[_S] = 0.0
        self._x = self._x + K @ away
        rest = np.eye(_SIZE) - K @ H
        P = rest @ self._P @ rest.T + K @ noise @ K.T
        self._P = (P + P.T) / 2

    def _estimate(self) -> GravityEstimate | None:
        if not self._known:
            return None
        g = self._x[_G]
        length = float(np.linalg.norm(g))
        up = -g / length
        across = _AXES - np.outer(up, up)
        covariance = across @ self._P[_G, _G] @ across / length**2
        return GravityEstimate(up, covariance, self._x[_B].copy())


def noise_of(stretch: ImuStretch) -> ImuNoise:
    """Returns the noise of an IMU, with that of its acceleration as the samples show it where it
    is much more than stated: an IMU that shakes says less of what is up."""
    inside = stretch.acceleration[1:-1]  # the ends are interpolated
    if len(inside) < FEWEST_SAMPLES:
        return stretch.noise
    # Second differences of white noise; motion hardly has any from sample to sample.
    white = math.sqrt(float(np.mean(np.diff(inside, 2, axis=0) ** 2)) / 6)
    step = float(stretch.stamps_ns[-1] - stretch.stamps_ns[0]) / 1e9 / (len(inside) + 1)
    seen = white * math.sqrt(step)
    if seen < MORE_NOISE * stretch.noise.acceleration:
        return stretch.noise
    return replace(stretch.noise, acceleration=seen)


def _differs(before: float | None, metres: float | None) -> bool:
    """Whether a scale is so different that it is another one."""
    if before is None or metres is None:
        return before is not metres
    return abs(metres / before - 1) > MOST_CORRECTION


def _white(R: Array, moved: Preintegrated) -> Array:
    """Returns the covariance [6, 6] of position and velocity by the IMU's white noise."""
    order = [6, 7, 8, 3, 4, 5]
    turn = np.kron(np.eye(2), R)
    return np.asarray(turn @ moved.covariance[np.ix_(order, order)] @ turn.T)
