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


def test_poses_by_a_clock_that_is_ahead_are_named(tree):
    """They would wait for ever. Those of a recording are all there from the beginning on."""
    live, recorded = poses(tree), poses(tree)
    for s in range(5):
        live.add(given(3600 + s))
        found, why = live.until("", "optical", s * S)
        assert not found
        assert "s later than that of the image" in why
    recorded.set_all([given(3600 + s) for s in range(5)])
    assert recorded.until("", "optical", S) == ((), "")


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


def recorded(*late_s, stamps_s):
    """Poses by their stamps, and when they were recorded: as late as given."""
    given_ = [given(s) for s in stamps_s]
    return given_, [int((s + late) * S) for s, late in zip(stamps_s, late_s, strict=True)]


def test_stamps_of_a_recording_that_jump_back_are_not_mixed(tree):
    all_poses = poses(tree)
    once = [10, 11, 12, 13, 14]
    all_poses.set_all(*recorded(*[0.1] * 5, *[5.1] * 5, stamps_s=[*once, *once]))
    assert stamps(all_poses.until("", "optical", 13 * S)) == [10, 11, 12, 13]
    assert stamps(all_poses.until("", "optical", 11 * S)) == [10, 11]  # 14 had no frame
    assert stamps(all_poses.until("", "optical", 99 * S)) == [12, 13, 14]


def test_poses_that_come_late_are_no_jump(tree):
    all_poses = poses(tree)
    all_poses.set_all(
        *recorded(0.1, 0.1, 4, 3, 0.1, 0.1, 6, stamps_s=[10, 15, 12, 13, 17, 18, 14])
    )
    assert stamps(all_poses.until("", "optical", 99 * S)) == [10, 12, 13, 14, 15, 17, 18]


def test_poses_that_come_later_from_some_time_on_are_no_jump(tree):
    all_poses = poses(tree)
    all_poses.set_all(*recorded(0.1, 2, 2.5, 2, 2, stamps_s=[10, 11, 12, 13, 14]))
    assert stamps(all_poses.until("", "optical", 99 * S)) == [10, 11, 12, 13, 14]


def test_a_wrong_stamp_of_a_frame_loses_none_of_a_recording(tree):
    all_poses = poses(tree)
    all_poses.set_all([given(s) for s in range(10, 60)])
    assert stamps(all_poses.until("", "optical", 20 * S)) == list(range(10, 21))
    assert stamps(all_poses.until("", "optical", 15 * S)) == []
    assert stamps(all_poses.until("", "optical", 22 * S)) == [21, 22]


def test_live_poses_that_wait_are_forgotten_when_frames_jump_back(tree):
    all_poses = poses(tree)
    assert stamps(all_poses.until("", "optical", 50 * S)) == []
    for s in (50.5, 10, 10.2):  # the latter two are of the time after the jump
        all_poses.add(given(s))
    assert stamps(all_poses.until("", "optical", 10 * S)) == [10]
    assert stamps(all_poses.until("", "optical", 60 * S)) == [10.2]


@pytest.mark.parametrize("shared", [True, False])
def test_without_a_base_it_is_the_pose_of_the_first_camera_alone(tree, shared):
    all_poses = GlobalPoses(tree, "map", "odom", "", leading="front", shared=shared)
    all_poses.add(given(1))
    assert stamps(all_poses.until("front", "optical", S)) == [1]
    found, why = all_poses.until("left", "optical", S)
    assert found == ()
    wanted = "it is the pose of camera front, and not that of left: set base_frame"
    assert why == "" if shared else wanted in why


def test_where_the_map_is_odometrys_frame_too_it_is_the_map(tree):
    """As in a recording whose transforms place the camera in the map itself."""
    all_poses = GlobalPoses(tree, "map", "map", "base")
    all_poses.add(given(1))
    assert stamps(all_poses.until("", "optical", S)) == [1]
