"""Relative poses by robot and rig: their weights, and their unit."""

import dataclasses

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from da3_ros.geometry.poses import invert_pose
from da3_ros.inertial.gyro_turns import GyroPose
from da3_ros.refinement.bundle import GYRO, RIG, ROBOT, PosePriors, adjust
from da3_ros.refinement.features import Features
from da3_ros.refinement.measured_poses import (
    RIG_ACROSS,
    RIG_ALONG,
    are_connected,
    measured_poses,
    units_per_metre,
)
from da3_ros.refinement.track_noise import PoseNoise
from da3_ros.refinement.tracked_view import MeasuredPose, TrackedView

NOISE = PoseNoise(rotation=0.001, position=0.0005)
BOTH = {ROBOT: NOISE, RIG: PoseNoise(rotation=0.002, position=0.0)}
NO_FEATURES = Features((10, 10), np.zeros((0, 2)), np.zeros((0, 128), np.uint8))


def at(x, turn=0.0):
    T = np.eye(4)
    T[:3, :3] = Rotation.from_euler("y", turn).as_matrix()
    T[0, 3] = x
    return T


def view(id, T, **measured):
    return TrackedView(
        id, "", NO_FEATURES, np.eye(3), T, np.zeros(0), measured=MeasuredPose(**measured)
    )


def by_robot(variances, step=0.1, unit=2.0):
    """Views whose poses are the robot's, in units of which ``unit`` make a metre."""
    out = []
    for i, variance in enumerate(variances):
        T = at(step * i, 0.1 * i)
        here = T.copy()
        here[:3, 3] *= unit
        out.append(view(i, here, T_prior_camera=T, prior_variance=variance))
    return out


def sigmas(root, R_first=None, R_second=None):
    """Standard deviations of rotation and position in the axes of the prior's frame."""
    P = np.linalg.inv(root.T @ root)
    first = np.eye(3) if R_first is None else R_first
    second = np.eye(3) if R_second is None else R_second
    return np.sqrt(np.diag(second @ P[:3, :3] @ second.T)), np.sqrt(
        np.diag(first @ P[3:, 3:] @ first.T)
    )


def test_the_unit_is_the_ratio_of_the_distances():
    assert units_per_metre(by_robot([None] * 5)) == pytest.approx(2.0)


@pytest.mark.parametrize("views", [by_robot([None] * 3), by_robot([None] * 9, step=0.01), []])
def test_the_unit_of_few_or_short_distances_is_unknown(views):
    assert np.isnan(units_per_metre(views))


def test_the_growth_of_the_variance_is_that_of_the_motion():
    variance = np.array([0.01, 0.04, 0.09, 1e-4, 4e-4, 9e-4])
    views = by_robot([variance, 2 * variance])
    prior = measured_poses(views, 2.0, BOTH, depth=4.0)
    assert prior.source.tolist() == [ROBOT]
    first, second = (v.measured.T_prior_camera[:3, :3] for v in views)
    rotation, position = sigmas(prior.root[0], first, second)
    np.testing.assert_allclose(rotation, [0.01, 0.02, 0.03], rtol=1e-6)
    np.testing.assert_allclose(position, [0.2, 0.4, 0.6], rtol=1e-6)  # two units a metre
    expected = invert_pose(views[0].T_local_camera) @ views[1].T_local_camera
    np.testing.assert_allclose(prior.T_first_second[0], expected, atol=1e-12)


@pytest.mark.parametrize("variance", [None, np.zeros(6), np.full(6, 0.01), np.full(6, np.nan)])
def test_a_variance_that_does_not_grow_is_unknown(variance):
    prior = measured_poses(by_robot([variance, variance]), 2.0, BOTH, depth=4.0)
    rotation, position = sigmas(prior.root[0])
    np.testing.assert_allclose(rotation, 0.001, rtol=1e-6)
    np.testing.assert_allclose(position, 0.0005 * 4, rtol=1e-6)


def test_an_axis_that_the_robot_does_not_measure_counts_nothing():
    variance = np.array([1e-6, 1e-6, 1e6, 1e6, 1e6, 1e-8])
    views = by_robot([variance, 2 * variance])
    first, second = (v.measured.T_prior_camera[:3, :3] for v in views)
    root = measured_poses(views, 2.0, BOTH, depth=4.0).root[0]
    rotation, position = sigmas(root, first, second)
    assert rotation[:2].min() > 100 > rotation[2]
    assert position[2] > 100 > position[0]


def test_a_robot_is_not_believed_more_than_tracks_have_confirmed():
    tiny = np.full(6, 1e-12)
    rotation, position = sigmas(measured_poses(by_robot([tiny, 2 * tiny]), 2.0, BOTH, 4.0).root[0])
    np.testing.assert_allclose(rotation, 0.001, rtol=1e-6)
    np.testing.assert_allclose(position, 0.002, rtol=1e-6)


def test_without_a_unit_only_rotations_count():
    root = measured_poses(by_robot([None, None]), np.nan, BOTH, depth=4.0).root[0]
    assert root[:3, :3].any()
    assert not root[3:].any()


def test_cameras_of_one_frameset_are_held_by_the_rig():
    left, right = at(0.0), at(0.3, 0.5)
    views = [
        view(0, np.eye(4), T_rig_camera=left, T_prior_camera=at(5.0), frameset=7),
        view(1, np.eye(4), T_rig_camera=right, T_prior_camera=at(9.0), frameset=7),
        view(2, np.eye(4), T_rig_camera=left, frameset=8),
    ]
    prior = measured_poses(views, 1.0, BOTH, depth=4.0)
    assert prior.source.tolist() == [RIG]
    assert (prior.first.tolist(), prior.second.tolist()) == ([0], [1])
    np.testing.assert_allclose(prior.T_first_second[0], invert_pose(left) @ right)
    rotation, position = sigmas(prior.root[0])
    np.testing.assert_allclose(rotation, 0.002)
    ahead = prior.T_first_second[0, :3, 3] / 0.3
    np.testing.assert_allclose(np.abs(ahead), [1, 0, 0], atol=1e-12)
    np.testing.assert_allclose(position, 0.3 * np.array([RIG_ALONG, RIG_ACROSS, RIG_ACROSS]))


@pytest.mark.parametrize(
    ("last", "framesets", "connected"),
    [(30, [0, 0, 0, 1, 1], True), (29, [0, 0, 0, 1, 1], False), (30, [0, 1, 2, 3, 4], False)],
)
def test_tracks_connect_cameras_that_see_them_together(last, framesets, connected):
    """In all framesets together; and through a third camera."""
    cameras = ["a", "b", "c", "a", "b"]
    shared = [(0, range(100)), (1, range(60, 75)), (1, range(200, 230)),
              (2, range(200, 200 + last)), (3, range(500, 530)), (4, range(515, 530))]  # fmt: skip
    view = np.concatenate([np.full(len(t), v) for v, t in shared])
    track = np.concatenate([list(t) for _, t in shared])
    assert are_connected(cameras, framesets, view, track) == connected


def test_rotations_by_a_gyro_hold_consecutive_views_of_a_camera():
    """In the camera's axes, whatever the gyro calls its own frame, and nothing of the position.
    Views of another chain are not held, nor those of another camera."""

    def by_gyro(id, turn, seconds, chain=0, camera=""):
        frame = Rotation.from_euler("zx", [0.4 + chain, 0.2]).as_matrix()
        pose = GyroPose(
            chain, seconds, frame @ at(0, turn)[:3, :3], abs(turn), 0.001, 0.01, 0.01,
            *np.zeros((3, 3)),
        )  # fmt: skip
        return dataclasses.replace(view(id, at(0.1 * id, turn), gyro=pose), camera=camera)

    views = [by_gyro(0, 0.0, 0.0), by_gyro(1, 0.3, 1.0), by_gyro(2, 0.4, 1.5, chain=1),
             by_gyro(3, 0.7, 2.0, camera="left"), by_gyro(4, 0.6, 2.5, chain=1)]  # fmt: skip
    priors = measured_poses(views, np.nan, BOTH, depth=4.0)
    assert priors.source.tolist() == [GYRO, GYRO]
    ends = zip(priors.first.tolist(), priors.second.tolist(), strict=True)
    assert list(ends) == [(0, 1), (2, 4)]
    for i, turn in enumerate((0.3, 0.2)):
        np.testing.assert_allclose(
            priors.T_first_second[i, :3, :3], at(0, turn)[:3, :3], atol=1e-12
        )
        assert not priors.root[i, 3:].any()
    stated = np.sqrt(0.01**2 + 0.001**2 + (0.01 * 0.3) ** 2)
    np.testing.assert_allclose(priors.root[0, :3, :3], np.eye(3) / stated, rtol=0.01)


def test_views_without_measured_poses_have_no_priors():
    assert len(measured_poses([view(0, at(0)), view(1, at(1))], 1.0, BOTH, 4.0).first) == 0


def test_a_good_measurement_helps_where_tracks_are_weak(made):
    """And counts nothing once its variance says so."""
    bundle, T, _ = made(views=4, points=14, pixel=8.0, depth=0.3, poses=PosePriors.none())

    def error(position):
        views = [
            view(i, T[i], T_prior_camera=T[i], prior_variance=np.full(6, position) * (i + 1))
            for i in range(4)
        ]
        priors = measured_poses(views, 1.0, BOTH, depth=4.0).indexed(range(4))
        done = adjust(dataclasses.replace(bundle, poses=priors), 20).bundle.T_local_camera
        return np.abs(done[:, :3, 3] - T[:, :3, 3]).max()

    without = adjust(bundle, 20).bundle.T_local_camera
    alone = np.abs(without[:, :3, 3] - T[:, :3, 3]).max()
    assert error(1e-6) < alone / 5
    assert error(900.0) == pytest.approx(alone, rel=0.05)
