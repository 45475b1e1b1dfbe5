"""Which transforms are published, row by row of the interface's table."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from da3_ros.live.scene_output import Frames, tf_edges, tf_plan
from da3_ros.sensors.transform_tree import TransformError, TransformTree

ALONE = Frames("map", "odom", "", "camera_optical")
ROBOT = Frames("map", "odom", "base_link", "camera_optical")
STAMP = 5 * 10**9


def pose(x=0.0, y=0.0, z=0.0, rpy=(0, 0, 0)):
    T = np.eye(4)
    T[:3, :3] = Rotation.from_euler("xyz", rpy, degrees=True).as_matrix()
    T[:3, 3] = x, y, z
    return T


T_BASE_OPTICAL = pose(0.2, 0, 1.0, (-90, 0, -90))
T_ROS_OPTICAL = pose(3, 1, 1.0, (-90, 0, -60))


def tree(*transforms):
    out = TransformTree()
    for parent, child, T, static in transforms:
        out.add(parent, child, T, STAMP, static=static)
    return out


MOUNT = ("base_link", "camera_optical", T_BASE_OPTICAL, True)
LOCALISER = ("odom", "base_link", pose(1, 2, 0, (0, 0, 30)), False)


def published(mode, frames, others, T_ros_odom=None):
    T_ros_odom = np.eye(4) if T_ros_odom is None else T_ros_odom
    made = tf_edges(mode, frames, others, T_ROS_OPTICAL, STAMP, T_ros_odom)
    return {(p, c): T for p, c, T in made}


def test_alone_the_camera_hangs_under_odom():
    others = TransformTree()
    assert tf_plan("auto", ALONE, others, metric=False).mode == "camera"
    out = published("camera", ALONE, others)
    np.testing.assert_array_equal(out["map", "odom"], np.eye(4))
    np.testing.assert_array_equal(out["odom", "camera_optical"], T_ROS_OPTICAL)


@pytest.mark.parametrize("frames", [ALONE, ROBOT])
def test_motion_from_a_pose_prior_is_its_owners_to_publish(frames):
    """Even where the owner publishes a topic and no transform."""
    decision = tf_plan("auto", frames, tree(MOUNT), metric=True, prior=True)
    assert decision.mode == "none"
    assert "pose prior" in decision.warning
    assert tf_plan("camera", frames, tree(MOUNT), metric=True, prior=True).mode == "none"
    decision = tf_plan("auto", ROBOT, tree(MOUNT, LOCALISER), metric=True, prior=True)
    assert decision.mode == "map_only"


@pytest.mark.parametrize("mode", ["camera", "base"])
def test_corrections_of_the_map_go_between_map_and_odom(mode):
    others, T_ros_odom = tree(MOUNT), pose(0.5, -0.2)
    out = published(mode, ROBOT, others, T_ros_odom)
    np.testing.assert_array_equal(out["map", "odom"], T_ros_odom)
    end = T_ROS_OPTICAL if mode == "camera" else T_ROS_OPTICAL @ np.linalg.inv(T_BASE_OPTICAL)
    child = "camera_optical" if mode == "camera" else "base_link"
    np.testing.assert_allclose(T_ros_odom @ out["odom", child], end, atol=1e-12)


def test_with_base_and_mount_base_moves_and_camera_follows():
    others = tree(MOUNT)
    assert tf_plan("auto", ROBOT, others, metric=True).mode == "base"
    out = published("base", ROBOT, others)
    chain = out["odom", "base_link"] @ T_BASE_OPTICAL
    np.testing.assert_allclose(chain, T_ROS_OPTICAL, atol=1e-12)
    assert ("base_link", "camera_optical") not in out


def test_beside_a_localiser_only_the_map_is_placed():
    others = tree(MOUNT, LOCALISER)
    assert tf_plan("auto", ROBOT, others, metric=True).mode == "map_only"
    out = published("map_only", ROBOT, others)
    assert set(out) == {("map", "odom")}
    chain = out["map", "odom"] @ LOCALISER[2] @ T_BASE_OPTICAL
    np.testing.assert_allclose(chain, T_ROS_OPTICAL, atol=1e-12)


def test_a_parented_camera_is_left_alone_with_one_warning():
    others = tree(("gimbal", "camera_optical", pose(), True))
    chosen = tf_plan("auto", ALONE, others, metric=True)
    assert chosen.mode == "none"
    assert "gimbal is already the parent of camera_optical" in chosen.warning
    assert published("none", ALONE, others) == {}


@pytest.mark.parametrize("others", [tree(MOUNT), tree(MOUNT, LOCALISER)])
def test_an_unknown_scale_is_never_attached_to_a_robot(others):
    chosen = tf_plan("auto", ROBOT, others, metric=False)
    assert chosen.mode == "none"
    assert "the scale is unknown" in chosen.warning


@pytest.mark.parametrize("frames", [ALONE, ROBOT])
@pytest.mark.parametrize("requested", ["auto", "camera"])
@pytest.mark.parametrize(
    "edge",
    [
        LOCALISER,
        ("map", "odom", pose(), False),
        ("earth", "map", pose(), True),
        ("map", "beacon", pose(), True),
    ],
)
def test_unknown_scale_goes_under_no_odom_of_a_robot(frames, requested, edge):
    """Nobody parents the camera; its lengths would stand in the robot's tree all the same."""
    chosen = tf_plan(requested, frames, tree(edge), metric=False)
    assert chosen.mode == "none"
    used = "map" if {"earth", "beacon"} & set(edge[:2]) else "odom"
    assert f"the scale is unknown and {used} is part of a robot" in chosen.warning
    assert tf_plan(requested, frames, tree(edge), metric=True).mode == "camera"


@pytest.mark.parametrize("requested", ["base", "camera", "map_only"])
def test_a_request_that_breaks_the_tree_is_refused_with_reason(requested):
    others = tree(MOUNT, LOCALISER, ("map", "odom", pose(), False))
    chosen = tf_plan(requested, ROBOT, others, metric=True)
    assert chosen.mode == "none"
    assert chosen.warning.startswith(f"tf.publish is {requested}, but ")
    assert "is already the parent of" in chosen.warning


def test_a_request_is_followed_where_it_fits_and_none_is_silent():
    assert tf_plan("base", ROBOT, tree(MOUNT), metric=True).mode == "base"
    assert tf_plan("none", ROBOT, tree(MOUNT), metric=True) == tf_plan(
        "none", ALONE, TransformTree(), metric=False
    )
    assert not tf_plan("none", ALONE, TransformTree(), metric=False).warning


def test_an_owner_of_odom_keeps_the_map_to_himself():
    others = tree(MOUNT, ("map", "odom", pose(), False))
    assert ("map", "odom") not in published("base", ROBOT, others)


def test_a_localiser_that_lags_is_an_error_and_no_guess():
    others = tree(MOUNT, LOCALISER)
    with pytest.raises(TransformError, match="after the known history"):
        tf_edges("map_only", ROBOT, others, T_ROS_OPTICAL, STAMP + 10**9, np.eye(4))


def test_the_transform_of_a_followed_slam_is_never_published():
    """Also before its first one has arrived."""
    robot = tree(MOUNT, LOCALISER)
    assert tf_plan("auto", ROBOT, robot, metric=True, prior=True).mode == "map_only"
    found = tf_plan("auto", ROBOT, robot, metric=True, prior=True, corrected=True)
    assert found.mode == "none"
    assert "the other SLAM that is followed publishes" in found.warning
    asked = tf_plan("map_only", ROBOT, robot, metric=True, prior=True, corrected=True)
    assert asked.mode == "none"
