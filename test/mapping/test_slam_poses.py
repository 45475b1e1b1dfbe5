"""Poses of another SLAM over time: a jump is spread as the drift has grown."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from da3_ros.geometry.poses import invert_pose
from da3_ros.mapping import slam_poses
from da3_ros.mapping.slam_poses import PoseTable, chords, interpolated, mean_transform, spread_jump
from da3_ros.synthetic.odometry import drifted


def pose(x=0.0, y=0.0, yaw_deg=0.0):
    T = np.eye(4)
    T[:3, :3] = Rotation.from_euler("z", yaw_deg, degrees=True).as_matrix()
    T[:2, 3] = x, y
    return T


@pytest.fixture
def circle():
    """Poses on three quarters of a circle of 5 m, looking ahead."""
    angles = np.linspace(0, 270, 101)
    return [pose(5 * np.sin(np.radians(a)), 5 - 5 * np.cos(np.radians(a)), a) for a in angles]


@pytest.mark.parametrize(
    ("yaw_deg", "offset"), [(0.0, (0, 0, 0)), (0.05, (0, 0, 0)), (-0.03, (0.001, 0.002, 0.0))]
)
def test_the_end_of_a_bent_path_is_right_and_the_rest_nearly(circle, yaw_deg, offset):
    odometry = np.array(drifted(circle, yaw_deg, np.array(offset)))
    J = circle[-1] @ invert_pose(odometry[-1])
    bent, is_drift = spread_jump(odometry, [0], J)
    assert is_drift
    np.testing.assert_allclose(bent[-1], circle[-1], atol=1e-9)
    np.testing.assert_allclose(bent[0], circle[0], atol=1e-9)
    before, after = (np.abs(p - np.array(circle))[:, :3, 3].max() for p in (odometry, bent))
    assert after < 0.3 * before + 1e-9


def test_what_is_older_than_the_last_jump_stays(circle):
    poses = np.array(circle)
    J = pose(0.1)
    bent, _ = spread_jump(poses, [0, 50], J)
    np.testing.assert_array_equal(bent[:51], poses[:51])
    np.testing.assert_allclose(bent[-1], J @ poses[-1], atol=1e-12)


def test_more_than_odometry_can_drift_goes_back_to_an_earlier_jump(circle):
    poses = np.array(circle)
    bent, is_drift = spread_jump(poses, [0, 95], pose(0.5))
    assert is_drift
    assert np.abs(bent[50] - poses[50]).max() > 0.1


def test_what_cannot_be_drift_moves_all_as_one(circle):
    poses, J = np.array(circle), pose(20.0, 3.0, 40.0)
    bent, is_drift = spread_jump(poses, [0, 50], J)
    assert not is_drift
    np.testing.assert_allclose(bent, J @ poses)


def test_a_robot_that_stands_has_not_drifted():
    poses = np.array([pose(1.0, 2.0)] * 10)
    bent, is_drift = spread_jump(poses, [0], pose(0.2))
    assert not is_drift
    np.testing.assert_allclose(bent[0], pose(1.2, 2.0))


def test_the_mean_of_poses_is_the_transform_between_both_frames(circle):
    T = pose(3.0, -1.0, 70.0)
    np.testing.assert_allclose(
        mean_transform(T @ np.array(circle), np.array(circle)), T, atol=1e-12
    )


def test_poses_are_interpolated_and_held_at_the_ends():
    stamps, poses = np.array([10, 20]), np.array([pose(0.0), pose(1.0, yaw_deg=90.0)])
    found = interpolated(stamps, poses, np.array([5, 15, 25]))
    for one, expected in zip(found, (pose(), pose(0.5, yaw_deg=45.0), poses[1]), strict=True):
        np.testing.assert_allclose(one, expected, atol=1e-12)
    np.testing.assert_array_equal(interpolated(stamps[:1], poses[:1], np.array([3])), poses[:1])


def test_a_table_is_bounded(monkeypatch):
    monkeypatch.setattr(slam_poses, "MOST", 100)
    table = PoseTable()
    for i in range(1000):
        table.add(i, pose(float(i)))
        assert len(table) <= 100
    assert table.stamps[0] == 0
    np.testing.assert_array_equal(table.poses[:, 0, 3], table.stamps)
    assert (np.diff(table.stamps) > 0).all()


def test_noise_on_the_spot_adds_nothing_to_chords():
    rng = np.random.default_rng(0)
    way = np.array([pose(0.1 * i) for i in range(101)] + [pose(10.0)] * 500)
    noisy = way.copy()
    noisy[:, :3, 3] += rng.normal(0, 0.05, (len(way), 3))
    first, second = chords(way, noisy, 1.0)
    assert first == pytest.approx(10, abs=1.0)
    assert second == pytest.approx(first, rel=0.02)
    half = way.copy()
    half[:, :3, 3] *= 0.5
    first, second = chords(way, half, 1.0)
    assert second == pytest.approx(first / 2)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_ways_shorter_than_a_chord_have_none(count):
    way = np.array([pose(0.1 * i) for i in range(count)]).reshape(-1, 4, 4)
    assert chords(way, way, 1.0) == (0.0, 0.0)
