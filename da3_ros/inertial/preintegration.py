"""Preintegrated motion: what an IMU measured between two frames, apart from gravity and velocity.

After Forster et al., arXiv 1512.02363. With biases, gravity ``g`` and the velocity ``v`` known:

    R_end = R rotation,  v_end = v + g T + R velocity,  p_end = p + v T + g T^2 / 2 + R position

``R`` and ``p`` are the IMU's pose in a frame at rest, with the axes of the camera.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.spatial.transform import Rotation

from da3_ros.geometry.poses import cross_matrices
from da3_ros.types import Array, ImuNoise, ImuStretch


@dataclass(frozen=True, eq=False)
class Preintegrated:
    """Relative motion over one or more stretches, at the biases that it was integrated with.

    The covariance is of (rotation, velocity, position), rotation to the right: R Exp(error).
    """

    seconds: float
    rotation: Array  # [3, 3]
    velocity: Array  # [3] m/s
    position: Array  # [3] m
    rotation_gyro: Array  # [3, 3] derivative of the rotation by the gyro's bias
    velocity_gyro: Array  # [3, 3]
    position_gyro: Array  # [3, 3]
    velocity_acceleration: Array  # [3, 3] derivative by the accelerometer's bias
    position_acceleration: Array  # [3, 3]
    covariance: Array  # [9, 9] of the white noise

    def then(self, later: Preintegrated) -> Preintegrated:
        """Returns the motion over this stretch and the one that begins where it ends."""
        R, T = self.rotation, later.seconds
        turned, moved = R @ cross_matrices(later.velocity), R @ cross_matrices(later.position)
        A = np.eye(9)
        A[:3, :3] = later.rotation.T
        A[3:6, :3], A[6:, :3] = -turned, -moved
        A[6:, 3:6] = T * np.eye(3)
        B = np.eye(9)
        B[3:6, 3:6] = B[6:, 6:] = R
        return Preintegrated(
            self.seconds + T,
            R @ later.rotation,
            self.velocity + R @ later.velocity,
            self.position + T * self.velocity + R @ later.position,
            later.rotation.T @ self.rotation_gyro + later.rotation_gyro,
            self.velocity_gyro + R @ later.velocity_gyro - turned @ self.rotation_gyro,
            self.position_gyro + T * self.velocity_gyro + R @ later.position_gyro
            - moved @ self.rotation_gyro,
            self.velocity_acceleration + R @ later.velocity_acceleration,
            self.position_acceleration + T * self.velocity_acceleration
            + R @ later.position_acceleration,
            A @ self.covariance @ A.T + B @ later.covariance @ B.T,
        )  # fmt: skip

    def rotation_at(self, gyro_bias: Array) -> Array:
        """Returns the rotation [3, 3] at another gyro bias [3], to first order."""
        return np.asarray(
            self.rotation @ Rotation.from_rotvec(self.rotation_gyro @ gyro_bias).as_matrix()
        )


def preintegrate(
    stretch: ImuStretch, noise: ImuNoise, gyro_bias: Array | None = None
) -> Preintegrated:
    """Returns the motion over a stretch (midpoint rule), without the gyro bias [3]; the
    derivatives are at that bias and at no bias of the accelerometer.

    Sums over products of rotations give derivatives and covariance, without a loop over them: the
    rotation from sample i to k is R_i^T R_k.
    """
    step = np.diff(stretch.stamps_ns)[:, None] / 1e9
    rate = (stretch.gyro[:-1] + stretch.gyro[1:]) / 2
    if gyro_bias is not None:
        rate = rate - gyro_bias
    force = (stretch.acceleration[:-1] + stretch.acceleration[1:]) / 2
    R = _products(Rotation.from_rotvec(rate * step).as_matrix())  # [N + 1] at the samples
    middle = R[:-1] @ Rotation.from_rotvec(rate * step / 2).as_matrix()
    dt = step[:, :, None]
    # A push at a sample moves the end for the rest of the time.
    rest = (step.sum() - np.cumsum(step) + step[:, 0] / 2)[:, None, None]
    turn = np.cumsum(R[1:] @ _right_jacobian(rate * step) * dt, axis=0)  # by a gyro bias
    half = turn - R[1:] * dt / 2  # at the middle of each step
    push, bend = middle * dt, _times_cross(middle, force) * dt
    along = np.einsum("nij,nj->ni", middle, force) * step
    # A turn of the frame of the middle, seen in the axes of the beginning.
    lever = -np.einsum("nij,nkj->nik", bend, middle)
    return Preintegrated(
        float(step.sum()),
        R[-1],
        along.sum(axis=0),
        (rest[:, 0] * along).sum(axis=0),
        -R[-1].T @ turn[-1],
        -(lever @ half).sum(axis=0),
        -(rest * (lever @ half)).sum(axis=0),
        -push.sum(axis=0),
        -(rest * push).sum(axis=0),
        _covariance(R, lever, rest, push, step[:, 0], noise),
    )


def preintegrate_all(
    stretches: Iterable[ImuStretch], noise: ImuNoise, gyro_bias: Array | None = None
) -> Preintegrated:
    """Returns the motion over one or more stretches, each of which begins where the last ends."""
    first, *others = (preintegrate(stretch, noise, gyro_bias) for stretch in stretches)
    for later in others:
        first = first.then(later)
    return first


def imu_positions(T: Array, metres: float, t_camera_imu: Array) -> Array:
    """Returns positions [N, 3] of the IMU in metres, for poses [N, 4, 4] of its camera in units of
    ``metres``, in the axes of their frame."""
    return np.asarray(metres * T[:, :3, 3] + T[:, :3, :3] @ t_camera_imu)


def _products(steps: Array) -> Array:
    """Returns the products [N + 1, 3, 3] of the first 0 to N rotations."""
    out = np.empty((len(steps) + 1, 3, 3))
    out[0] = np.eye(3)
    for i, R in enumerate(steps):
        out[i + 1] = out[i] @ R
    return out


def _times_cross(R: Array, v: Array) -> Array:
    return R @ cross_matrices(v)


def _right_jacobian(rotvec: Array) -> Array:
    """Returns derivatives [N, 3, 3] of small rotations by their vectors [N, 3], to second
    order."""
    cross = cross_matrices(rotvec)
    return np.asarray(np.eye(3) - cross / 2 + cross @ cross / 6)


def _covariance(
    R: Array, lever: Array, rest: Array, push: Array, step: Array, noise: ImuNoise
) -> Array:
    """Returns the covariance [9, 9] of rotation, velocity and position by white noise.

    The noise of step i turns all later steps: sums from the end give what they then add.
    """
    later = np.cumsum(lever[::-1], axis=0)[::-1] - lever
    later_far = np.cumsum((rest * lever)[::-1], axis=0)[::-1] - rest * lever
    axes = R[1:]
    by_gyro = np.concatenate((R[-1].T @ axes, later @ axes, later_far @ axes), axis=1)
    by_force = np.concatenate((np.zeros_like(push), push, rest * push), axis=1)
    gyro = np.einsum("n,nij,nkj->ik", step, by_gyro, by_gyro)
    force = np.einsum("n,nij,nkj->ik", 1 / step, by_force, by_force)
    return np.asarray(noise.gyro**2 * gyro + noise.acceleration**2 * force)
