"""What another SLAM says at the stamp of a frame: transforms that jump, and its newest path."""

import numpy as np
import pytest

from da3_ros.config import PipelineConfig
from da3_ros.sensors.frame_annotator import FrameAnnotator
from da3_ros.sensors.pose_prior import PosePrior
from da3_ros.sensors.slam_corrections import SlamCorrections
from da3_ros.sensors.transform_tree import TransformError, TransformTree
from da3_ros.types import Frame, SlamPath

S = 10**9


def at(x):
    T = np.eye(4)
    T[0, 3] = x
    return T


def corrections(kind, tree, source="odometry", base=""):
    prior = PosePrior(source, 0.5, tree, "odom")
    return prior, SlamCorrections(kind, "map", tree, prior, base)


def held(slam, stamp_s):
    return slam.at("optical", int(stamp_s * S)).T_slam_prior[0, 3]


def test_a_jump_holds_from_its_stamp_on_however_old():
    tree = TransformTree()
    for second, x in ((10, 1.0), (12, 5.0)):
        tree.add("map", "odom", at(x), second * S)
    _, slam = corrections("tf", tree)
    assert [held(slam, t) for t in (9.0, 10.0, 11.9, 12.0, 900.0)] == [1.0, 1.0, 1.0, 5.0, 5.0]


def test_a_transform_that_is_dated_into_the_future_holds_then():
    tree = TransformTree()
    tree.add("map", "odom", at(1.0), 10 * S)
    tree.add("map", "odom", at(5.0), 13 * S)  # sent at 12, as AMCL does
    _, slam = corrections("tf", tree)
    assert held(slam, 12.5) == 1.0


def test_the_transform_leads_to_the_frame_of_the_odometrys_poses():
    tree = TransformTree()
    tree.add("map", "odom", at(1.0), 10 * S)
    tree.add("map", "vio", at(7.0), 10 * S)
    prior, slam = corrections("tf", tree)
    assert held(slam, 20.0) == 1.0
    prior.add_odometry("base", np.eye(4), 0, prior_frame="vio")
    assert held(slam, 20.0) == 7.0


def test_several_transforms_may_lie_between_both_frames():
    tree = TransformTree()
    tree.add("map", "site", at(100.0), 0, static=True)
    tree.add("site", "odom", at(1.0), 10 * S)
    _, slam = corrections("tf", tree)
    assert held(slam, 50.0) == 101.0


def path(number, stamp_s):
    return SlamPath(number, stamp_s * S, np.array([stamp_s * S]), np.eye(4)[None])


def numbers(slam, *stamps_s):
    found = [slam.at("optical", t * S).path for t in stamps_s]
    return [p and p.number for p in found]


def test_a_recorded_path_holds_from_its_time_on():
    tree = TransformTree()
    tree.add("base", "optical", at(0.2), 0, static=True)
    prior, slam = corrections("path", tree)
    prior.add_odometry("base", np.eye(4), 0)
    slam.set_paths([path(2, 20), path(1, 10)])
    assert numbers(slam, 5, 10, 19, 20, 99) == [None, 1, 1, 2, 2]
    assert slam.at("optical", S).T_base_camera[0, 3] == 0.2


def test_live_the_newest_path_holds():
    tree = TransformTree()
    tree.add("base", "optical", at(0.2), 0, static=True)
    _, slam = corrections("path", tree, "tf", "base")
    assert numbers(slam, 5) == [None]
    slam.add_path(path(1, 10))
    slam.add_path(path(2, 20))
    assert numbers(slam, 5) == [2]


def test_without_odometry_the_base_of_a_path_is_unknown():
    _, slam = corrections("path", TransformTree())
    with pytest.raises(TransformError, match="no odometry yet"):
        slam.at("optical", S)


def test_a_frame_without_the_transform_is_passed_on_with_one_line():
    tree, warned = TransformTree(), []
    prior, slam = corrections("tf", tree)
    made = FrameAnnotator(PipelineConfig(), tree, prior, lambda t, **_: warned.append(t), slam)
    frame = Frame(S, np.zeros((4, 6, 3), np.uint8), frame_id="optical")
    assert made.annotate([frame])[0].slam is None
    text = "pose_prior.corrections is tf, but nothing can be followed: frame 'map' is not in"
    assert any(line.startswith(text) for line in warned)
    tree.add("map", "odom", at(3.0), S)
    assert made.annotate([frame])[0].slam.T_slam_prior[0, 3] == 3.0
