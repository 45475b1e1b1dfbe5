"""Which global poses a frame gets, and where they are in the map."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from da3_ros.sensors.global_poses import GivenPose, GlobalPoses
from da3_ros.sensors.transform_tree import TransformTree

S = 10**9


def given(stamp_s, frame="map", x=0.0):
    T = np.eye(4)
    T[0, 3] = x
    return GivenPose(int(stamp_s * S), frame, T, np.diag([1.0, 4.0, 9.0, 0.1, 0.2, 0.3]))


@pytest.fixture
def tree():
    tree = TransformTree()
    T = np.eye(4)
    T[:3, :3] = Rotation.from_euler("z", 90, degrees=True).as_matrix()
    T[:3, 3] = 5, 6, 0
    tree.add("map", "tag", T, 0, static=True)
    mount = np.eye(4)
    mount[2, 3] = 0.4
    tree.add("base", "optical", mount, 0, static=True)
    return tree


def poses(tree, base="base"):
    return GlobalPoses(tree, "map", "odom", base)


def stamps(found):
    return [one.stamp_ns / S for one in found[0]]


def test_each_camera_gets_each_pose_once_and_none_before_its_time(tree):
    all_poses = poses(tree)
    for s in (3, 1, 2):
        all_poses.add(given(s))
    assert stamps(all_poses.until("", "optical", 2 * S)) == [1, 2]
    assert stamps(all_poses.until("", "optical", 2 * S)) == []
    all_poses.add(given(1.5))  # late
    assert stamps(all_poses.until("", "optical", 4 * S)) == [1.5, 3]
    assert stamps(all_poses.until("left", "optical", 2 * S)) == [1, 1.5, 2]


def test_a_recording_gives_them_by_their_stamps(tree):
    all_poses = poses(tree)
    all_poses.set_all([given(s) for s in (2, 1, 3)])
    assert stamps(all_poses.until("", "optical", int(2.5 * S))) == [1, 2]
    assert stamps(all_poses.until("", "optical", 9 * S)) == [3]


def test_few_wait_for_frames_that_do_not_come(tree):
    all_poses = poses(tree)
    all_poses.until("", "optical", 0)
    for s in range(3000):
        all_poses.add(given(1 + s))
    assert len(all_poses.until("", "optical", 10**6 * S)[0]) == 1000


def test_a_pose_in_a_tags_frame_is_placed_in_the_map(tree):
    all_poses = poses(tree)
    all_poses.add(given(1, "tag", x=2.0))
    (found,), why = all_poses.until("", "optical", S)
    assert why == ""
    np.testing.assert_allclose(found.T_ros_base[:3, 3], [5, 8, 0], atol=1e-9)
    np.testing.assert_allclose(np.diag(found.covariance), [4, 1, 9, 0.2, 0.1, 0.3], atol=1e-9)
    assert found.T_base_camera[2, 3] == 0.4


def test_without_a_base_it_is_the_cameras_pose(tree):
    all_poses = poses(tree, "")
    all_poses.add(given(1))
    (found,), _ = all_poses.until("", "optical", S)
    np.testing.assert_array_equal(found.T_base_camera, np.eye(4))


@pytest.mark.parametrize(("frame", "why"), [("odom", "which drifts"), ("moon", "moon")])
def test_a_frame_without_a_place_in_the_map_is_refused(tree, frame, why):
    all_poses = poses(tree)
    all_poses.add(given(1, frame))
    found, said = all_poses.until("", "optical", S)
    assert found == ()
    assert why in said
