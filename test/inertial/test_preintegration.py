"""Preintegrated motion against the exact motion, finite differences and drawn noise."""

import itertools

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from da3_ros.inertial.noise import NO_NOISE
from da3_ros.inertial.preintegration import imu_positions, preintegrate, preintegrate_all
from da3_ros.synthetic import make_room, make_walk
from da3_ros.synthetic.imu import imu_samples
from da3_ros.types import ImuNoise, ImuStretch

AT = 1_000_000_000 + 100_000_000 * np.arange(30)
DERIVATIVES = ("rotation_gyro", "velocity_gyro", "position_gyro")


@pytest.fixture(scope="module")
def walk():
    return make_walk(make_room(3), "carried", 30, 3)


@pytest.fixture(scope="module")
def stretch(walk):
    """Half a second of a walk, with biases."""
    noise = ImuNoise(gyro_bias=0.02, acceleration_bias=0.2, gyro=0, acceleration=0)
    return imu_samples(walk, AT, noise=noise).between(AT[8], AT[13])


def moved(stretch, gyro=0.0, acceleration=0.0):
    return ImuStretch(
        stretch.stamps_ns, stretch.gyro + gyro, stretch.acceleration + acceleration,
        stretch.t_camera_imu,
    )  # fmt: skip


def assert_same(a, b, rtol=1e-9):
    for name in a.__dataclass_fields__:
        scale = np.abs(getattr(b, name)).max()
        np.testing.assert_allclose(
            getattr(a, name), getattr(b, name), atol=rtol * scale, err_msg=name
        )


@pytest.mark.parametrize("arm", [(0, 0, 0), (0.1, -0.05, 0.08)])
def test_it_leads_from_pose_to_pose_whatever_the_arm(walk, arm):
    """Three frames give velocity and position by two stretches, without knowing a velocity."""
    mount = np.eye(4)
    mount[:3, :3] = Rotation.from_euler("xyz", [1.0, 0.4, -2.0]).as_matrix()
    mount[:3, 3] = arm
    samples = imu_samples(walk, AT, T_camera_imu=mount)
    R, g = walk[:, :3, :3], np.array([0, 0, -9.81])
    for i, j, k in ((3, 6, 10), (15, 16, 17)):
        one, two = (
            preintegrate(samples.between(AT[a], AT[b]), NO_NOISE) for a, b in ((i, j), (j, k))
        )
        np.testing.assert_allclose(R[i] @ one.rotation, R[j], atol=2e-5)
        p = imu_positions(walk, 1.0, mount[:3, 3])
        T, U = one.seconds, two.seconds
        velocity = (p[j] - p[i] - g * T**2 / 2 - R[i] @ one.position) / T
        velocity = velocity + g * T + R[i] @ one.velocity
        end = p[j] + velocity * U + g * U**2 / 2 + R[j] @ two.position
        np.testing.assert_allclose(end, p[k], atol=3e-4)


def test_derivatives_by_both_biases_are_finite_differences(stretch):
    by, h = preintegrate(stretch, NO_NOISE), 1e-5
    for axis in range(3):
        d = h * np.eye(3)[axis]
        more, less = (preintegrate(moved(stretch, gyro=-s * d), NO_NOISE) for s in (1, -1))
        turned = Rotation.from_matrix(less.rotation.T @ more.rotation).as_rotvec() / (2 * h)
        np.testing.assert_allclose(by.rotation_gyro[:, axis], turned, atol=1e-6)
        for name in ("velocity", "position"):
            found = (getattr(more, name) - getattr(less, name)) / (2 * h)
            scale = np.abs(getattr(by, name + "_gyro")).max()
            np.testing.assert_allclose(
                getattr(by, name + "_gyro")[:, axis], found, atol=1e-3 * scale
            )
        more, less = (preintegrate(moved(stretch, acceleration=-s * d), NO_NOISE) for s in (1, -1))
        for name in ("velocity", "position"):
            found = (getattr(more, name) - getattr(less, name)) / (2 * h)
            np.testing.assert_allclose(
                getattr(by, name + "_acceleration")[:, axis], found, atol=1e-9
            )


def test_a_small_gyro_bias_may_be_taken_off_later(stretch):
    bias = np.array([0.01, -0.02, 0.015])
    later, at_once = preintegrate(stretch, NO_NOISE), preintegrate(stretch, NO_NOISE, bias)
    np.testing.assert_allclose(later.rotation_at(bias), at_once.rotation, atol=5e-6)
    np.testing.assert_allclose(
        later.velocity + later.velocity_gyro @ bias, at_once.velocity, atol=2e-4
    )


def test_the_covariance_is_that_of_drawn_noise(stretch):
    rng, noise = np.random.default_rng(0), ImuNoise(gyro=3e-3, acceleration=0.05)
    thin = slice(None, None, 5)
    stretch = ImuStretch(
        stretch.stamps_ns[thin], stretch.gyro[thin], stretch.acceleration[thin],
        stretch.t_camera_imu,
    )  # fmt: skip
    exact = preintegrate(stretch, noise)
    dt = np.diff(stretch.stamps_ns)[:, None] / 1e9
    found = []
    for _ in range(300):
        noisy = [sigma * rng.normal(size=(len(dt), 3)) / np.sqrt(dt) for sigma in (3e-3, 0.05)]
        found.append(drawn(stretch, *noisy, exact))
    cov = np.cov(np.array(found).T)
    sigma = np.sqrt(np.diag(exact.covariance))
    np.testing.assert_allclose(
        cov / np.outer(sigma, sigma), exact.covariance / np.outer(sigma, sigma), atol=0.25
    )


def drawn(stretch, gyro, acceleration, exact):
    """Error [9] by noise that is constant during each step, by plain integration."""
    R, v, p = np.eye(3), np.zeros(3), np.zeros(3)
    for i, dt in enumerate(np.diff(stretch.stamps_ns) / 1e9):
        rate = (stretch.gyro[i] + stretch.gyro[i + 1]) / 2 + gyro[i]
        force = (stretch.acceleration[i] + stretch.acceleration[i + 1]) / 2 + acceleration[i]
        push = R @ Rotation.from_rotvec(rate * dt / 2).as_matrix() @ force
        p, v = p + v * dt + push * dt**2 / 2, v + push * dt
        R = R @ Rotation.from_rotvec(rate * dt).as_matrix()
    turned = Rotation.from_matrix(exact.rotation.T @ R).as_rotvec()
    return np.concatenate((turned, v - exact.velocity, p - exact.position))


def test_consecutive_stretches_compose_to_the_whole(stretch, walk):
    samples = imu_samples(walk, AT, noise=ImuNoise(), seed=2)
    whole = preintegrate(samples.between(AT[8], AT[13]), ImuNoise())
    parts = [samples.between(a, b) for a, b in itertools.pairwise(AT[8:14])]
    assert_same(preintegrate_all(parts, ImuNoise()), whole, 0.02)  # ends are interpolated
    at = AT[8] + 5_000_000 * np.arange(101)  # samples at the frames: exactly the same steps
    even = samples.between(at[0], at[-1])
    on_grid = ImuStretch(
        at, *(np.column_stack([np.interp(at - at[0], even.stamps_ns - at[0], a) for a in v.T])
              for v in (even.gyro, even.acceleration)), even.t_camera_imu,
    )  # fmt: skip
    cuts = [
        ImuStretch(at[a:b], on_grid.gyro[a:b], on_grid.acceleration[a:b], np.zeros(3))
        for a, b in ((0, 31), (30, 32), (31, 101))
    ]  # fmt: skip
    assert_same(preintegrate_all(cuts, ImuNoise()), preintegrate(on_grid, ImuNoise()))
