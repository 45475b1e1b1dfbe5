"""The simulated IMU against physics: rest, a turntable, and integrating back to the poses."""

import itertools

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from da3_ros.synthetic import make_room, make_walk
from da3_ros.synthetic.imu import imu_samples
from da3_ros.types import ImuNoise

NS = 1_000_000_000


def stamps(frames, rate_hz=10.0):
    return NS + np.round(np.arange(frames) * NS / rate_hz).astype(np.int64)


def turntable(frames, radius, rate):
    """Poses of a camera on a turntable that looks outwards; z of the room is up."""
    T = np.tile(np.eye(4), (frames, 1, 1))
    angle = rate * np.arange(frames) / 10
    outwards = Rotation.from_euler("z", angle[:, None]).as_matrix()
    optical = np.array([[0, 0, 1], [-1, 0, 0], [0, -1, 0]])
    T[:, :3, :3] = outwards @ optical
    T[:, :3, 3] = radius * outwards[:, :, 0]
    return T


def test_an_imu_at_rest_measures_gravity_upwards():
    T = np.tile(turntable(1, 1.0, 0.0), (5, 1, 1))
    samples = imu_samples(T, stamps(5))
    np.testing.assert_allclose(samples.gyro, 0, atol=1e-12)
    np.testing.assert_allclose(
        samples.acceleration, np.tile([0, -9.81, 0], (len(samples.gyro), 1))
    )


def test_an_imu_with_another_mount_measures_its_own_motion():
    """On a turntable: the rate, and the force towards the axis by its own radius."""
    mount = np.eye(4)
    mount[:3, :3] = Rotation.from_euler("xyz", [0.3, -1.2, 2.0]).as_matrix()
    mount[:3, 3] = 0.0, 0.0, 0.5  # further outwards than the camera
    samples = imu_samples(turntable(40, 1.0, 0.8), stamps(40), T_camera_imu=mount)
    middle = slice(300, 500)
    in_camera = samples.acceleration[middle] @ mount[:3, :3].T
    np.testing.assert_allclose(in_camera - [0, -9.81, -1.5 * 0.64], 0, atol=2e-3)
    rate = samples.gyro[middle] @ mount[:3, :3].T
    np.testing.assert_allclose(rate - [0, -0.8, 0], 0, atol=1e-3)


@pytest.mark.parametrize("kind", ["carried", "drone"])
def test_what_is_measured_leads_from_frame_to_frame(kind):
    """Integrated in small steps, rates and forces give the exact poses of the frames."""
    T, at = make_walk(make_room(3), kind, 30, 3), stamps(30)
    samples = imu_samples(T, at, rate_hz=2000.0)
    stretches = samples.stretches(at)
    assert [(s.stamps_ns[0], s.stamps_ns[-1]) for s in stretches] == list(itertools.pairwise(at))
    R, position, velocity = T[5, :3, :3], T[5, :3, 3], None
    velocity = (T[6, :3, 3] - T[4, :3, 3]) / 0.2
    ways = []
    for s in stretches[5:20]:
        for dt, gyro, force in zip(
            np.diff(s.stamps_ns) / NS, s.gyro[:-1], s.acceleration[:-1], strict=True
        ):
            acceleration = R @ force - [0, 0, 9.81]
            position = position + velocity * dt + acceleration * dt**2 / 2
            velocity = velocity + acceleration * dt
            R = R @ Rotation.from_rotvec(gyro * dt).as_matrix()
        ways.append(position)
    turned = Rotation.from_matrix(T[20, :3, :3].T @ R).magnitude()
    assert turned < 1e-3
    off = np.array(ways) - T[6:21, :3, 3]
    line = np.arange(15)[:, None] * (off[-1] - off[0]) / 14 + off[0]  # the guessed velocity's
    assert np.linalg.norm(off - line, axis=1).max() < 5e-3


def test_noise_and_biases_are_those_stated():
    T = np.tile(np.eye(4), (600, 1, 1))
    noise = ImuNoise(gyro=1e-3, acceleration=1e-2)
    samples = imu_samples(T, stamps(600), noise=noise, seed=1)
    again = imu_samples(T, stamps(600), noise=noise, seed=1)
    np.testing.assert_array_equal(samples.acceleration, again.acceleration)
    assert (imu_samples(T, stamps(600), noise=noise, seed=2).gyro != samples.gyro).any()
    white = samples.acceleration - samples.acceleration_bias - [0, 0, 9.81]
    assert white.std() == pytest.approx(1e-2 * np.sqrt(200), rel=0.03)
    white = samples.gyro - samples.gyro_bias
    assert white.std() == pytest.approx(1e-3 * np.sqrt(200), rel=0.03)
    walk = np.diff(samples.acceleration_bias[::200], axis=0)
    assert walk.std() == pytest.approx(noise.acceleration_walk, rel=0.15)


def test_late_and_limited_samples():
    T, at = make_walk(make_room(3), "carried", 40, 3), stamps(40)
    now, late = imu_samples(T, at, rate_hz=100), imu_samples(T, at, rate_hz=100, late_s=0.05)
    np.testing.assert_allclose(late.gyro[105:300], now.gyro[100:295], atol=1e-6)
    cut = imu_samples(T, at, limits=(0.1, 9.0))
    assert np.abs(cut.gyro).max() == 0.1
    assert np.abs(cut.acceleration).max() == 9.0


def test_stamps_that_do_not_ascend_are_refused():
    with pytest.raises(ValueError, match="ascending stamps"):
        imu_samples(np.tile(np.eye(4), (3, 1, 1)), np.array([0, 2, 1]))
