"""Scale, gravity and biases of walks with an IMU, and the motions that show no scale."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from support.inertial import BODY, CHIP, UNIT, InertialWalk, rover

from da3_ros.inertial.initialisation import STILL, PathPose, estimate
from da3_ros.inertial.preintegration import preintegrate_all
from da3_ros.types import ImuNoise

METRES = -np.log(UNIT)


def keyframes(walk, every=2, gap=()):
    out = [PathPose(0, int(walk.at[0]), walk.poses[0], None)]
    for i in range(every, len(walk.at), every):
        since = preintegrate_all(walk.stretches[i - every : i], CHIP)
        out.append(PathPose(i, int(walk.at[i]), walk.poses[i], None if i in gap else since))
    return out


def solved(walk, **kwargs):
    return estimate(keyframes(walk, **kwargs), walk.stretches[0].t_camera_imu, CHIP)


@pytest.mark.parametrize("kind", ["carried", "drone"])
def test_exact_poses_and_samples_give_scale_and_gravity(kind):
    walk = InertialWalk(kind, 3, 5, noise=None)
    found = solved(walk)
    assert found.why_unknown == ""
    assert found.log_metres == pytest.approx(METRES, abs=2e-3)
    assert np.degrees(walk.tilt(found.up_local)) < 0.05
    np.testing.assert_allclose(found.acceleration_bias, 0, atol=0.01)


@pytest.mark.parametrize("kind", ["carried", "drone"])
def test_biases_of_a_consumer_chip_are_found(kind):
    walk = InertialWalk(kind, 4, 12)
    found = solved(walk)
    assert abs(found.log_metres - METRES) < 0.004
    mount = BODY[:3, :3]
    at_rest = walk.samples.gyro_bias.mean(axis=0) @ mount.T
    np.testing.assert_allclose(found.gyro_bias, at_rest, atol=1e-3)
    at_rest = walk.samples.acceleration_bias.mean(axis=0) @ mount.T
    np.testing.assert_allclose(found.acceleration_bias, at_rest, atol=0.02)


@pytest.mark.slow
def test_stated_deviations_are_honest():
    """Over poses with 3 mm and 0.1 degrees of noise."""
    scale, tilt, position = [], [], []
    for seed in range(24):
        walk = InertialWalk("carried", seed, 4, position_m=0.003, rotation_deg=0.1)
        found = solved(walk)
        assert found.why_unknown == ""
        scale.append((found.log_metres - METRES) / found.sigma)
        tilt.append(walk.tilt(found.up_local) ** 2 / found.tilt_sigma**2 / 2)
        position.append(found.position_sigma / UNIT)
    assert 0.5 < np.mean(np.square(scale)) < 1.6
    assert 0.4 < np.mean(tilt) < 1.8
    assert np.mean(position) == pytest.approx(0.003, rel=0.1)


def test_noise_of_poses_does_not_shorten_the_scale():
    off = [
        solved(InertialWalk("drone", seed, 8, position_m=0.02)).log_metres - METRES
        for seed in range(6)
    ]
    assert abs(np.mean(off)) < 0.03


def test_a_gap_costs_certainty_and_nothing_else():
    walk = InertialWalk("carried", 3, 6, position_m=0.002)
    whole, broken = solved(walk), solved(walk, gap={20, 40})
    assert broken.why_unknown == ""
    assert whole.sigma < broken.sigma < 2 * whole.sigma
    assert abs(broken.log_metres - METRES) < 3 * broken.sigma


def steady(kind):
    """Poses of a camera that stands, turns on the spot, or goes at constant speed."""
    T = np.tile(np.eye(4), (60, 1, 1))
    T[:, :3, :3] = [[1, 0, 0], [0, 0, 1], [0, -1, 0]]
    if kind == "speed":
        T[:, :3, 3] = 0.05 * np.arange(60)[:, None] * [1, 0.5, 0]
    if kind == "turn":
        yaw = Rotation.from_euler("z", 0.05 * np.arange(60)[:, None])
        T[:, :3, :3] = yaw.as_matrix() @ T[0, :3, :3]
    return T


@pytest.mark.parametrize("kind", ["stand", "turn", "speed"])
@pytest.mark.parametrize("position_m", [0.0, 0.003])
def test_motion_without_acceleration_shows_no_scale(kind, position_m):
    for seed in range(4):
        walk = InertialWalk("still", seed, 6, poses=steady(kind), position_m=position_m)
        assert solved(walk).why_unknown == STILL


@pytest.mark.parametrize("turned", [(0, 0, 90), (90, 0, 0), (0, 180, 0)])
def test_a_wrong_mount_gives_no_wrong_metres(turned):
    stated = BODY.copy()
    stated[:3, :3] = BODY[:3, :3] @ Rotation.from_euler("xyz", turned, degrees=True).as_matrix()
    for kind, seed in itertools.product(("carried", "drone"), (1, 2)):
        found = solved(InertialWalk(kind, seed, 8, stated=stated))
        assert found.why_unknown or found.sigma > 0.15


@pytest.mark.parametrize("turned", [0, -20, 30, 45, 60])
def test_a_mount_that_no_rotation_shows_gives_no_wrong_metres(turned):
    """A robot on a floor turns about the vertical alone: so does the gyro, however it is turned
    about that. The accelerations of both tell."""
    stated = BODY.copy()
    stated[:3, :3] = BODY[:3, :3] @ Rotation.from_euler("z", turned, degrees=True).as_matrix()
    for seed in range(3):
        walk = InertialWalk(
            "still", seed, 12, poses=rover(seed, 12), stated=stated, position_m=0.002,
            rotation_deg=0.05,
        )  # fmt: skip
        found = solved(walk)
        if not turned:
            assert found.why_unknown == ""
            assert abs(found.log_metres - METRES) < 3 * found.sigma
        elif abs(turned) < 60:
            named = found.why_unknown.split("turned about the vertical by ")[1].split()[0]
            assert float(named) == pytest.approx(abs(turned), abs=3)
        else:
            assert found.why_unknown


# Each gate alone


def test_a_path_whose_unit_changes_gives_two_halves_that_differ():
    walk = InertialWalk("carried", 3, 12)
    half = len(walk.poses) // 2
    walk.poses[half:, :3, 3] = (
        walk.poses[half, :3, 3] + 1.25 * (walk.poses[half:, :3, 3] - walk.poses[half, :3, 3])
    )  # fmt: skip
    assert "two halves of the path give scales that differ" in solved(walk).why_unknown


def test_a_gyro_that_turns_otherwise_than_the_camera_is_named():
    """Also where the accelerometer is right."""
    walk = InertialWalk("carried", 3, 8)
    turn = Rotation.from_euler("xyz", [0, 90, 0], degrees=True).as_matrix()
    walk.stretches = [replace(s, gyro=s.gyro @ turn) for s in walk.stretches]
    assert "the camera's rotations differ from the gyro's" in solved(walk).why_unknown


def test_a_path_whose_noise_is_larger_than_its_motion_gives_no_metres():
    """8 cm in each pose of a walking person."""
    for seed in (1, 2, 3):
        found = solved(InertialWalk("carried", seed, 12, position_m=0.08))
        assert "the camera's accelerations differ from the IMU's" in found.why_unknown


def swaying(acceleration):
    """Poses of a camera that sways sideways by an acceleration, RMS, m/s^2, and hardly turns."""
    t = np.arange(80) / 10
    T = steady("stand")[:1].repeat(len(t), axis=0)
    T[:, 0, 3] = math.sqrt(2) * acceleration / 2.0**2 * np.sin(2.0 * t)
    return T


@pytest.mark.parametrize(("acceleration", "known"), [(0.06, False), (0.3, True)])
def test_too_little_acceleration_shows_no_scale_however_exact_the_imu_is(acceleration, known):
    """The accelerometer's gain and axes are known to a per cent of gravity at best."""
    walk = InertialWalk("still", 1, 8, noise=None, poses=swaying(acceleration))
    assert (solved(walk).why_unknown == "") == known
    assert known or solved(walk).why_unknown == STILL


def test_an_imu_whose_noise_is_the_motion_shows_no_scale():
    loud = replace(CHIP, acceleration=0.3)
    walk = InertialWalk("handheld", 3, 8, noise=loud)
    stretches = [replace(s, noise=loud) for s in walk.stretches]
    walk.stretches = stretches
    frames = [PathPose(0, int(walk.at[0]), walk.poses[0], None)]
    for i in range(2, len(walk.at), 2):
        since = preintegrate_all(stretches[i - 2 : i], loud)
        frames.append(PathPose(i, int(walk.at[i]), walk.poses[i], since))
    assert estimate(frames, BODY[:3, 3], loud).why_unknown == STILL


def test_too_few_keyframes_are_named():
    walk = InertialWalk("carried", 3, 1)
    assert "too few keyframes" in solved(walk).why_unknown


def test_a_chip_without_biases_can_be_stated():
    calibrated = ImuNoise(gyro_bias=0.0, acceleration_bias=0.0)
    walk = InertialWalk("handheld", 3, 4, noise=calibrated)
    sure = estimate(keyframes(walk), BODY[:3, 3], calibrated)
    assert sure.tilt_sigma < solved(walk).tilt_sigma / 2
    assert walk.tilt(sure.up_local) < 4 * sure.tilt_sigma
