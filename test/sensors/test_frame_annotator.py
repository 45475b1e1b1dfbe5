"""The robot's data for a frame, in the live node and a replay."""

import numpy as np

from da3_ros.config import PipelineConfig, config_from_parameters
from da3_ros.sensors.frame_annotator import FrameAnnotator
from da3_ros.sensors.pose_prior import PosePrior
from da3_ros.sensors.transform_tree import TransformTree
from da3_ros.types import Frame

RIG = {"cameras": ["front", "left"], "scale.source": "rig"}


def shifted(x):
    T = np.eye(4)
    T[0, 3] = x
    return T


def frame(stamp_ns, camera=""):
    image = np.zeros((4, 6, 3), np.uint8)
    return Frame(stamp_ns, image, frame_id=f"{camera}_optical", camera=camera)


def annotator(prior=None, tree=None, mounts=None, **values):
    warned = []
    config = config_from_parameters(values, PipelineConfig)
    tree = TransformTree() if tree is None else tree

    def warn(text, **options):
        warned.append(text)

    return FrameAnnotator(config, tree, prior, warn, mounts=mounts), warned


def test_a_frame_gets_the_robots_own_pose_at_its_stamp():
    tree = TransformTree()
    tree.add("base", "_optical", np.eye(4), 0, static=True)
    prior = PosePrior("odometry", 0.5, tree, "odom")
    for second in (0, 1):
        prior.add_odometry("base", shifted(2.0 * second), int(0.4e9 * second))
    made, warned = annotator(prior, tree)
    (found,) = made.annotate([frame(int(0.1e9))])
    np.testing.assert_allclose(found.T_prior_camera, shifted(0.5), atol=1e-12)
    assert (found.T_rig_camera, warned, made.without_prior) == (None, [], 0)


def test_frames_without_a_pose_are_warned_of_and_counted():
    made, warned = annotator(PosePrior("odometry", 0.5, TransformTree(), "odom"))
    assert [f.T_prior_camera for f in made.annotate([frame(1), frame(2)])] == [None, None]
    assert warned == ["no pose from odometry: no odometry yet"] * 2
    assert made.without_prior == 2


def test_the_cameras_of_a_rig_get_their_places_by_transforms():
    tree = TransformTree()
    tree.add("front_optical", "left_optical", shifted(0.2), 0, static=True)
    made, warned = annotator(tree=tree, **RIG)
    front, left = made.annotate([frame(1, "front"), frame(1, "left")])
    np.testing.assert_array_equal(front.T_rig_camera, np.eye(4))
    np.testing.assert_allclose(left.T_rig_camera, shifted(0.2))
    assert not warned


def test_mounts_of_a_recording_come_before_transforms_and_after_parameters():
    tree = TransformTree()
    tree.add("front_optical", "left_optical", shifted(0.2), 0, static=True)
    mounts = {"front": shifted(1.0), "left": shifted(1.3)}
    frames = [frame(1, "front"), frame(1, "left")]
    found = annotator(tree=tree, mounts=mounts, **RIG)[0].annotate(frames)
    assert [f.T_rig_camera[0, 3] for f in found] == [1.0, 1.3]
    poses = {"rig.poses": [0.0, 0, 0, 0, 0, 0, 1, 0.4, 0, 0, 0, 0, 0, 1]}
    found = annotator(tree=tree, mounts=mounts, **RIG, **poses)[0].annotate(frames)
    assert [f.T_rig_camera[0, 3] for f in found] == [0.0, 0.4]


def test_without_prior_and_rig_a_frame_stays_as_it_is():
    made, warned = annotator()
    (found,) = made.annotate([frame(1)])
    assert found.T_prior_camera is None
    assert found.T_rig_camera is None
    assert not warned


def test_the_base_says_what_is_up_if_it_is_to():
    tree = TransformTree()
    tree.add("base_link", "_optical", shifted(0.3), 0, static=True)
    for source, base, known in (
        ("base", "base_link", True), ("base", "", False), ("none", "base_link", False),
        ("ground", "base_link", False),
    ):  # fmt: skip
        config, warned = config_from_parameters({"level.source": source}), []
        made = FrameAnnotator(config, tree, None, warned.append, base_frame=base)
        (found,) = made.annotate([frame(1)])
        assert (found.T_level_camera is not None) == known
        assert not warned
        if known:
            np.testing.assert_array_equal(found.T_level_camera, shifted(0.3))


def test_a_base_without_a_mount_is_warned_of():
    said = []
    made = FrameAnnotator(
        PipelineConfig(), TransformTree(), None, lambda text, every_s: said.append(text),
        base_frame="base_link",
    )  # fmt: skip
    assert made.annotate([frame(1)])[0].T_level_camera is None
    assert said[0].startswith("what is up is unknown")
    assert "base_link" in said[0]
