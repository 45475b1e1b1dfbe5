"""Scale, gravity and biases of a camera's path from its IMU: inertial-only MAP estimation.

After Campos et al., arXiv 2003.05766. The path is known up to its unit, and has noise. Three
keyframes in a row give one vector equation, from which their velocities are eliminated:

    D c = L (M + T g + A b)

``D c`` is the change of the camera's velocity in units of the path (``c`` positions), ``M`` that
of the IMU without gravity, ``T`` the time, ``A b`` the effect of the accelerometer's bias, and
``L`` units per metre. The unknowns are log L, the direction of ``g``, and ``b``.

The equations are in units of the path, so that noise of the poses does not shorten the scale. The
IMU's noise is on the other side; its effect on the scale is known, and is taken off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_solve, solve_triangular
from scipy.spatial.transform import Rotation

from da3_ros.geometry.poses import cross_matrices
from da3_ros.inertial.noise import GRAVITY, TURN_DRIFT
from da3_ros.inertial.preintegration import Preintegrated
from da3_ros.types import Array, ImuNoise

MIN_EQUATIONS = 8  # so that each half has more equations than unknowns
STEPS = 15  # of Gauss-Newton, at most
LONGEST_STEP = 0.7  # of log scale, and of gravity in rad
CONVERGED = 0.03  # step of the scale in its standard deviations
HELD_STEPS = 3  # the first ones, which correct gravity and bias for the scale of the start
LEAST_ROTATION = 2e-4  # smallest standard deviation of a camera's rotation, rad
LEAST_GYRO = 1e-5  # smallest standard deviation of a preintegrated rotation, rad
LEAST_POSITION = 1e-5  # smallest standard deviation of a position over the path's extent
LEAST_ACCELERATION = 0.1  # RMS, m/s^2
MOST_SIGMA = 0.5
MOST_NOISE = 0.25  # share of the IMU's own noise in the motion that it measured
MOST_TURN = 0.009  # RMS of rotation between keyframes that camera and gyro differ by, rad
MOST_TURN_SHARE = 0.3  # of its square in that of the camera's rotation, beyond which one is wrong
MOST_RESIDUAL = 0.6  # share of the camera's changes of velocity that the IMU does not explain
HALVES = 4.0  # standard deviations that two halves may differ by
# Turn about gravity between both accelerations that is named, rad, and its standard deviations.
MOST_YAW, SURE_YAW = math.radians(15), 5.0
CHECK = "check the IMU's mount (transform to the optical frame) and its time offset"
YAW = "the IMU is turned about the vertical"  # how the text of that fault begins
STILL = "the camera hardly accelerates; constant speed and turning on the spot show no scale"


@dataclass(frozen=True, eq=False)
class PathPose:
    """A pose of the path, and what the IMU measured since the keyframe before it."""

    id: int
    stamp_ns: int
    T_local_camera: Array  # [4, 4], units of the path
    since: Preintegrated | None  # None: unknown


@dataclass(frozen=True, eq=False)
class InertialEstimate:
    """What the IMU says of a path. NaN where nothing is known."""

    log_metres: float  # logarithm of metres per unit of the path
    sigma: float  # its standard deviation
    up_local: Array  # [3] unit vector
    tilt_sigma: float  # standard deviation of ``up_local`` about each horizontal axis, rad
    gyro_bias: Array  # [3] rad/s, camera axes
    acceleration_bias: Array  # [3] m/s^2, camera axes
    position_sigma: float  # of the path's positions as the residuals show it, units of the path
    why_unknown: str  # why the scale must not be used; "": it may


def estimate(
    keyframes: Sequence[PathPose], t_camera_imu: Array, noise: ImuNoise
) -> InertialEstimate:
    """Returns what the IMU says of keyframes in temporal order.

    t_camera_imu: [3] position of the IMU in the camera's frame, metres.
    """
    known = [k.since is not None for k in keyframes[1:]]
    rows = [i for i in range(len(known) - 1) if known[i] and known[i + 1]]
    if len(rows) < MIN_EQUATIONS:
        return _nothing("too few keyframes with IMU data in a row")
    turns = _Rotations.smoothed(keyframes, noise)
    equations = _Equations.of(keyframes, np.array(rows), turns, t_camera_imu, noise)
    fit = _InertialSolution.to(equations, noise)
    if fit is None:
        return _nothing(STILL)
    seconds = (keyframes[-1].stamp_ns - keyframes[0].stamp_ns) / 1e9
    tilt = math.hypot(fit.tilt_sigma, TURN_DRIFT * math.sqrt(seconds / 3))
    return InertialEstimate(
        -fit.log_units, fit.sigma, -fit.gravity / GRAVITY, tilt, turns.gyro_bias,
        fit.bias, fit.position_sigma, turns.fault or _why_unknown(equations, fit, noise),
    )  # fmt: skip


def _nothing(why: str) -> InertialEstimate:
    unknown = np.full(3, np.nan)
    return InertialEstimate(math.nan, math.nan, unknown, math.nan, unknown, unknown, math.nan, why)


def _why_unknown(equations: _Equations, fit: _InertialSolution, noise: ImuNoise) -> str:
    """Returns why the scale of a fit must not be used, or an empty text."""
    weak = fit.acceleration < LEAST_ACCELERATION or fit.noise_share > MOST_NOISE
    if weak or not (fit.converged and fit.sigma < MOST_SIGMA):
        return STILL
    if fit.residual_share > MOST_RESIDUAL:
        return f"the camera's accelerations differ from the IMU's, or are too noisy: {CHECK}"
    if abs(fit.yaw) > max(MOST_YAW, SURE_YAW * fit.yaw_sigma):
        # What no rotation shows of a robot that turns about the vertical alone.
        degrees = math.degrees(abs(fit.yaw))
        return f"{YAW} by {degrees:.0f} degrees: {CHECK}"
    first, second = (_InertialSolution.to(half, noise) for half in equations.halves())
    if first is None or second is None:
        return STILL
    apart = abs(first.log_units - second.log_units)
    if apart > HALVES * math.hypot(first.sigma, second.sigma):
        return f"two halves of the path give scales that differ by {100 * math.expm1(apart):.0f} %"
    return ""


@dataclass(frozen=True, eq=False)
class _Rotations:
    """Rotations of keyframes by the camera and the gyro together, with the gyro's bias."""

    R: Array  # [N, 3, 3] local from camera
    covariance: Array  # [3 N, 3 N] rad^2, of rotations about the axes of ``local``
    gyro_bias: Array  # [3] rad/s
    fault: str  # why camera and gyro contradict each other; ""

    @staticmethod
    def smoothed(keyframes: Sequence[PathPose], noise: ImuNoise) -> _Rotations:
        """Solves for small rotations of all keyframes and a constant bias, by least squares."""
        R = np.stack([k.T_local_camera[:3, :3] for k in keyframes])
        ends = [i for i, k in enumerate(keyframes) if i and k.since is not None]
        since = [m for i in ends if (m := keyframes[i].since) is not None]
        turned = [R[i].T @ R[i - 1] @ m.rotation for i, m in zip(ends, since, strict=True)]
        turns = Rotation.from_matrix([R[i].T @ R[i - 1] for i in ends]).as_rotvec()
        apart = np.einsum("nij,nj->ni", R[ends], Rotation.from_matrix(turned).as_rotvec())
        by_bias = R[ends] @ np.stack([m.rotation_gyro for m in since])
        gyro = np.array([np.trace(m.covariance[:3, :3]) / 3 for m in since]) + LEAST_GYRO**2
        camera, fault = _rotation_variance(apart, by_bias, gyro, turns)
        chain = np.zeros((len(ends), len(R)))
        chain[np.arange(len(ends)), ends] = 1
        chain[np.arange(len(ends)), np.array(ends) - 1] = -1
        free = np.linalg.inv(chain.T @ (chain / gyro[:, None]) + np.eye(len(R)) / camera)
        # Elimination of the rotations leaves equations of the bias alone.
        weight = np.diag(1 / gyro) - (chain / gyro[:, None]) @ free @ (chain / gyro[:, None]).T
        information = np.einsum("nki,nm,mkj->ij", by_bias, weight, by_bias)
        information = information + np.eye(3) / max(noise.gyro_bias, 1e-6) ** 2
        bias = -np.linalg.solve(information, np.einsum("nki,nm,mk->i", by_bias, weight, apart))
        gain = free @ (chain / gyro[:, None]).T
        small = gain @ (apart + np.einsum("nij,j->ni", by_bias, bias))
        by = np.einsum("nm,mij->nij", gain, by_bias).reshape(-1, 3)
        covariance = np.kron(free, np.eye(3)) + by @ np.linalg.solve(information, by.T)
        return _Rotations(Rotation.from_rotvec(small).as_matrix() @ R, covariance, bias, fault)


def _rotation_variance(
    apart: Array, by_bias: Array, gyro: Array, turns: Array
) -> tuple[float, str]:
    """Returns the variance of a camera's rotation, as differences [M, 3] from the gyro's show it
    beyond what a bias explains, and a fault or an empty text.

    turns: [M, 3] the camera's rotations, rad.
    """
    bias = np.linalg.lstsq(by_bias.reshape(-1, 3), -apart.reshape(-1), rcond=None)[0]
    rest = apart + np.einsum("nij,j->ni", by_bias, bias)
    spread = float(np.mean(rest**2)) * len(rest) / max(len(rest) - 1, 1)
    wrong = spread > MOST_TURN_SHARE * float(np.mean(turns**2)) and spread > MOST_TURN**2 / 3
    fault = f"the camera's rotations differ from the gyro's: {CHECK}" if wrong else ""
    return max((spread - float(gyro.mean())) / 2, LEAST_ROTATION**2), fault


@dataclass(frozen=True, eq=False)
class _Equations:
    """Equations of E triples of keyframes, with the covariance of both sides' noise."""

    seen: Array  # [E, 3] changes of the camera's velocity, units of the path
    measured: Array  # [E, 3] the IMU's, without gravity, m/s
    seconds: Array  # [E] factor of gravity
    by_bias: Array  # [E, 3, 3] seconds
    camera: Array  # [E, E] covariance of an axis of ``seen`` for positions of variance 1
    imu: Array  # [3 E, 3 E] covariance of ``measured``
    extent: float  # of the path, units of the path

    @staticmethod
    def of(
        keyframes: Sequence[PathPose], rows: Array, turns: _Rotations, arm: Array, noise: ImuNoise
    ) -> _Equations:
        """rows: [E] indices of the first keyframe of each triple. arm: [3] ``t_camera_imu``."""
        c = np.stack([k.T_local_camera[:3, 3] for k in keyframes])
        parts = _Stretches.of(keyframes, turns)
        D = np.zeros((len(rows), len(c)))
        n, first, second = np.arange(len(rows)), parts.seconds[rows], parts.seconds[rows + 1]
        D[n, rows], D[n, rows + 1], D[n, rows + 2] = 1 / first, -1 / first - 1 / second, 1 / second
        begin = parts.velocity[rows] - parts.position[rows] / first[:, None]
        end = parts.position[rows + 1] / second[:, None]
        arms = turns.R @ arm
        by_bias = parts.velocity_bias[rows] - parts.position_bias[rows] / first[:, None, None]
        by_bias = by_bias + parts.position_bias[rows + 1] / second[:, None, None]
        # A small rotation of a keyframe turns what begins there.
        by_turn = -np.einsum("en,nij->einj", -D, cross_matrices(arms))
        by_turn[n, :, rows] -= cross_matrices(begin)
        by_turn[n, :, rows + 1] -= cross_matrices(end)
        flat = by_turn.reshape(3 * len(rows), 3 * len(c))
        imu = flat @ turns.covariance @ flat.T + parts.white(rows) + parts.walk(rows, noise)
        extent = float(np.linalg.norm(np.ptp(c, axis=0)))
        return _Equations(
            D @ c, begin + end - D @ arms, (first + second) / 2, by_bias, D @ D.T, imu, extent
        )

    def halves(self) -> tuple[_Equations, _Equations]:
        """Returns the equations of the first and of the second half of the time."""
        middle = len(self.seen) // 2
        return self._some(slice(None, middle)), self._some(slice(middle, None))

    def _some(self, which: slice) -> _Equations:
        n = np.arange(len(self.seen))[which]
        flat = (3 * n[:, None] + np.arange(3)).reshape(-1)
        return _Equations(
            self.seen[n], self.measured[n], self.seconds[n], self.by_bias[n],
            self.camera[np.ix_(n, n)], self.imu[np.ix_(flat, flat)], self.extent,
        )  # fmt: skip

    def predicted(self, gravity: Array, bias: Array) -> Array:
        """Returns the changes of velocity [E, 3] by the IMU, m/s."""
        return np.asarray(self.measured + self.seconds[:, None] * gravity + self.by_bias @ bias)


@dataclass(frozen=True, eq=False)
class _Stretches:
    """Preintegrated motion from each keyframe to the next, in the axes of ``local``; rows of
    unknown stretches are not used."""

    R: Array  # [M, 3, 3]
    seconds: Array  # [M]
    velocity: Array  # [M, 3]
    position: Array  # [M, 3]
    velocity_bias: Array  # [M, 3, 3] derivative by the accelerometer's bias
    position_bias: Array  # [M, 3, 3]
    covariance: Array  # [M, 6, 6] of velocity and position, in the axes of the camera

    @staticmethod
    def of(keyframes: Sequence[PathPose], turns: _Rotations) -> _Stretches:
        any_known = next(k.since for k in keyframes[1:] if k.since is not None)
        since = [k.since or any_known for k in keyframes[1:]]
        R, bias = turns.R[:-1], turns.gyro_bias
        velocity = np.stack([m.velocity + m.velocity_gyro @ bias for m in since])
        position = np.stack([m.position + m.position_gyro @ bias for m in since])
        return _Stretches(
            R,
            np.array([m.seconds for m in since]),
            np.einsum("nij,nj->ni", R, velocity),
            np.einsum("nij,nj->ni", R, position),
            R @ np.stack([m.velocity_acceleration for m in since]),
            R @ np.stack([m.position_acceleration for m in since]),
            np.stack([m.covariance[3:, 3:] for m in since]),
        )

    def white(self, rows: Array) -> Array:
        """Returns the covariance [3 E, 3 E] of triples by the IMU's white noise."""
        n, M = len(rows), len(self.seconds)
        effect = np.zeros((n, 3, M, 6))
        k, T = np.arange(n), self.seconds[:, None, None]
        effect[k, :, rows, :3] = self.R[rows]
        effect[k, :, rows, 3:] = -self.R[rows] / T[rows]
        effect[k, :, rows + 1, 3:] = self.R[rows + 1] / T[rows + 1]
        spread = np.einsum("eimk,mkl->eiml", effect, self.covariance)
        flat = (3 * n, 6 * M)
        return np.asarray(spread.reshape(flat) @ effect.reshape(flat).T)

    def walk(self, rows: Array, noise: ImuNoise) -> Array:
        """Returns the covariance [3 E, 3 E] of triples by the walk of the accelerometer's bias
        away from its mean value."""
        n, M = len(rows), len(self.seconds)
        effect = np.zeros((n, 3, M, 3))
        k, T = np.arange(n), self.seconds[:, None, None]
        effect[k, :, rows] = self.velocity_bias[rows] - self.position_bias[rows] / T[rows]
        effect[k, :, rows + 1] = self.position_bias[rows + 1] / T[rows + 1]
        time = np.cumsum(self.seconds)
        shared = np.minimum(time[:, None], time)
        centred = np.eye(M) - 1 / M
        spread = noise.acceleration_walk**2 * centred @ shared @ centred.T
        flat = effect.reshape(3 * n, 3 * M)
        return np.asarray(flat @ np.kron(spread, np.eye(3)) @ flat.T)


@dataclass(frozen=True, eq=False)
class _InertialSolution:
    """The solution of equations."""

    log_units: float  # logarithm of units of the path per metre
    sigma: float
    gravity: Array  # [3] m/s^2
    tilt_sigma: float  # rad
    bias: Array  # [3] m/s^2
    position_sigma: float  # units of the path
    acceleration: float  # RMS, m/s^2
    noise_share: float  # of the IMU's noise in the motion that determines the scale
    residual_share: float  # of the camera's changes of velocity that is not explained
    # Turn of the camera's accelerations about gravity, from the IMU's, rad, and its deviation.
    yaw: float
    yaw_sigma: float
    converged: bool

    @staticmethod
    def to(equations: _Equations, noise: ImuNoise) -> _InertialSolution | None:
        """Solves from a linear start by Gauss-Newton; None for a camera that never moved."""
        start = _linear_start(equations)
        if start is None:
            return None
        state = _Unknowns(*start, np.zeros(3), equations.extent, equations.seen.size - 6.0)
        prior = np.diag([0.0] * 3 + [1 / max(noise.acceleration_bias, 1e-6) ** 2] * 3)
        for number in range(STEPS):
            terms = _WhiteTerms.at(equations, state)
            known = terms.J.T @ terms.J
            held = np.diag([1e12 if number < HELD_STEPS else 0.0] + [0.0] * 5)
            covariance = np.linalg.inv(known + prior + held)
            gradient = terms.J.T @ terms.rest - prior[:, 3:] @ state.bias
            gradient[0] += terms.imu_noise  # of the IMU's noise in J, which the residual has too
            freedom = equations.seen.size - float(np.trace(covariance @ known))
            step = covariance @ gradient
            converged = abs(step[0]) < CONVERGED * math.sqrt(covariance[0, 0])
            if converged and number >= HELD_STEPS:
                break
            state = state.moved(step, terms.position_sigma, freedom)
        yaw, yaw_sigma = terms.yaw_with(prior)
        return _InertialSolution(
            state.log_units,
            math.sqrt(covariance[0, 0]),
            state.gravity,
            math.sqrt(covariance[1, 1] / 2 + covariance[2, 2] / 2),
            state.bias,
            terms.position_sigma,
            terms.acceleration,
            terms.imu_noise * float(covariance[0, 0]),
            float(terms.rest @ terms.rest) / max(float(terms.seen @ terms.seen), 1e-12),
            yaw,
            yaw_sigma,
            converged,
        )


@dataclass(frozen=True, eq=False)
class _Unknowns:
    """The unknowns, between two steps."""

    log_units: float
    gravity: Array  # [3] m/s^2
    bias: Array  # [3] m/s^2
    position_sigma: float  # units of the path
    freedom: float  # equations less the unknowns that they determine

    def moved(self, step: Array, position_sigma: float, freedom: float) -> _Unknowns:
        """Returns the state after a step [6], which is shortened if it is large."""
        step = step * min(1.0, LONGEST_STEP / max(float(np.abs(step[:3]).max()), 1e-12))
        gravity = self.gravity + GRAVITY * _tangent(self.gravity) @ step[1:3]
        return _Unknowns(
            self.log_units + float(step[0]),
            gravity * (GRAVITY / np.linalg.norm(gravity)),
            self.bias + step[3:],
            position_sigma,
            freedom,
        )


@dataclass(frozen=True, eq=False)
class _WhiteTerms:
    """Linearized equations, whitened: residuals and derivatives of unit variance.

    The noise of the positions is that with which the residuals are as large as they are.
    """

    rest: Array  # [3 E]
    J: Array  # [3 E, 6] by log units, two rotations of gravity, and the bias
    by_yaw: Array  # [3 E] by a turn of all accelerations about gravity
    seen: Array  # [3 E]
    imu_noise: float  # expected square of the IMU's noise in the first column of J
    position_sigma: float  # units of the path
    acceleration: float  # RMS by the IMU, m/s^2

    @staticmethod
    def at(q: _Equations, state: _Unknowns) -> _WhiteTerms:
        units, predicted = math.exp(state.log_units), q.predicted(state.gravity, state.bias)
        rest = (q.seen - units * predicted).reshape(-1)
        by_gravity = q.seconds[:, None, None] * (GRAVITY * _tangent(state.gravity))
        turned = np.cross(state.gravity / GRAVITY, predicted)[:, :, None]
        columns = predicted[:, :, None], by_gravity, q.by_bias, turned
        J = units * np.concatenate(columns, axis=2)
        sigma, half = _position_sigma(q, rest, units, state)
        white, seen = (solve_triangular(half, a, lower=True) for a in (rest, q.seen.ravel()))
        J = solve_triangular(half, J.reshape(-1, 7), lower=True)
        acceleration = math.sqrt(3 * float(np.mean((predicted / q.seconds[:, None]) ** 2)))
        imu_noise = units**2 * float(np.trace(cho_solve((half, True), q.imu)))
        return _WhiteTerms(white, J[:, :6], J[:, 6], seen, imu_noise, sigma, acceleration)

    def yaw_with(self, prior: Array) -> tuple[float, float]:
        """Returns the turn about gravity that fits best at the solution, with what else it
        changes, and its standard deviation, rad. prior: information [6, 6]."""
        J = np.column_stack((self.J, self.by_yaw))
        information = J.T @ J
        information[:6, :6] += prior
        covariance = np.linalg.inv(information + 1e-9 * np.eye(7))
        # At the solution nothing else is drawn anywhere.
        tangent = float(covariance[6, 6] * (self.by_yaw @ self.rest))
        return math.atan(tangent), math.sqrt(covariance[6, 6]) / (1 + tangent**2)


def _linear_start(q: _Equations) -> tuple[float, Array] | None:
    """Returns log units per metre and gravity [3] of the linear equations without a bias, where
    gravity may have any length; None for a camera that never moved."""
    columns = np.zeros((*q.seen.shape, 4))
    columns[..., 0] = q.measured
    columns[..., 1:] = q.seconds[:, None, None] * np.eye(3)
    found = np.linalg.lstsq(columns.reshape(-1, 4), q.seen.reshape(-1), rcond=None)[0]
    if found[0] > 0:
        length = float(np.linalg.norm(found[1:]))
        return math.log(found[0]), found[1:] * (GRAVITY / max(length, 1e-12))
    # The camera hardly accelerates: what the IMU measures is gravity.
    mean = -(q.measured / q.seconds[:, None]).mean(axis=0)
    length = float(np.linalg.norm(mean))
    still = q.extent <= 0 or length <= 0
    return None if still else (math.log(q.extent), mean * (GRAVITY / length))


def _position_sigma(
    q: _Equations, rest: Array, units: float, state: _Unknowns
) -> tuple[float, Array]:
    """Returns a standard deviation of positions that explains residuals [3 E] better than that of
    the state, and the lower Cholesky factor of their covariance."""
    camera, imu = np.kron(q.camera, np.eye(3)), units**2 * q.imu
    sigma, least = state.position_sigma, LEAST_POSITION * q.extent + 1e-12
    for _ in range(3):
        half = np.linalg.cholesky(sigma**2 * camera + imu)
        whitened = solve_triangular(half, rest, lower=True)
        ratio = float(whitened @ whitened) / max(state.freedom, 1.0)
        if abs(ratio - 1) < 0.02:
            break
        sigma = max(sigma * ratio**0.5, least)
    return sigma, half


def _tangent(gravity: Array) -> Array:
    """Returns two unit vectors [3, 2] across gravity."""
    across = np.linalg.svd(gravity[None])[2][1:]
    return np.asarray(across.T)
