"""A recording with global poses of the robot, which hold the map of its replay."""

import json

import numpy as np
import pytest

from da3_ros.config import NodeConfig, config_from_parameters
from da3_ros.geometry.poses import invert_pose
from da3_ros.messages import build
from da3_ros.messages.build import RosbagsLibrary
from da3_ros.recordings.writer import BagFolderWriter
from da3_ros.replay.results import ReplayError, ReplayOptions
from da3_ros.replay.run import replay
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import TruthSession

OPTICAL, IMAGE, TAGS = "camera_optical", "/camera/image_raw", "/tags/pose"
BASE = {
    "process_res": 140, "model": "da3-tiny", "checkpoint": "random", "window.size": 5,
    "scale.source": "odometry", "refinement.enabled": False, "dense.enabled": False,
    "base_frame": "base", "level.source": "base",
}  # fmt: skip
POSE = "geometry_msgs/msg/PoseWithCovarianceStamped"
MOUNT = np.eye(4)
MOUNT[:3, :3] = [[0, 0, 1], [-1, 0, 0], [0, -1, 0]]
MOUNT[:3, 3] = 0.3, 0.1, 0.2


@pytest.fixture(scope="module")
def walk():
    camera = SyntheticCamera(seed=3, size=(140, 112), walk="loop", frames=36, rate_hz=4.0)
    return camera, list(camera)


@pytest.fixture(scope="module")
def bag(walk, tmp_path_factory):
    return written(walk, tmp_path_factory.mktemp("bag") / "bag", every=6)


def written(walk, folder, every):
    """A bag with the base's pose each few frames, in the frame of a tag; one of them is bad."""
    lib = RosbagsLibrary()
    camera, frames = walk
    T_map_tag = np.eye(4)
    T_map_tag[:3, 3] = 4, 5, 0
    covariance = np.diag([1e-4] * 3 + [1e-5] * 3)
    with BagFolderWriter(folder, lib) as out:

        def say(topic, kind, stamp, message):
            out.write(topic, kind, message, stamp)

        for i, f in enumerate(frames):
            at = f.stamp_ns
            if i == 0:
                static = [(at, "base", OPTICAL, MOUNT), (at, "map", "tag", T_map_tag)]
                say("/tf_static", "tf2_msgs/msg/TFMessage", at, build.tf(lib, static))
            prior = invert_pose(frames[0].T_room_camera) @ f.T_room_camera
            odometry = build.odometry(lib, at, "odom", OPTICAL, prior)
            say("/odom", "nav_msgs/msg/Odometry", at, odometry)
            if i % every == 1:
                T = invert_pose(T_map_tag) @ f.T_room_camera @ invert_pose(MOUNT)
                frame = "" if i == 1 else "tag"
                say(TAGS, POSE, at, build.pose_with_covariance(lib, at, frame, T, covariance))
            info = build.calibration_message(lib, at, OPTICAL, camera.calibration)
            say("/camera/camera_info", "sensor_msgs/msg/CameraInfo", at, info)
            say(IMAGE, "sensor_msgs/msg/Image", at, build.image(lib, at, OPTICAL, f.image))
    return folder


def run(walk, bag, output, topic, odometry="/odom", **values):
    config = config_from_parameters({**BASE, **values}, NodeConfig)
    options = ReplayOptions(bag, output, camera=IMAGE, odometry=odometry, global_pose=topic)
    replay(options, config, TruthSession(walk[1]))
    return np.loadtxt(output / "trajectory.tum")[:, 1:4]


@pytest.mark.long
def test_the_trajectory_is_where_the_global_poses_have_it(walk, bag, tmp_path, caplog):
    found = run(walk, bag, tmp_path / "out", TAGS)
    true = np.array([f.T_room_camera[:3, 3] for f in walk[1]])
    assert np.linalg.norm(found - true, axis=1).max() < 0.06
    assert f"{TAGS}: not used: its header has no frame_id" in caplog.text
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["metric"]


@pytest.mark.long
def test_metres_are_those_of_global_poses_without_odometry_or_a_flag(walk, tmp_path):
    bag, values = written(walk, tmp_path / "bag", every=2), {"scale.source": "global_pose"}
    found = run(walk, bag, tmp_path / "out", None, odometry=None, **values)
    true = np.array([f.T_room_camera[:3, 3] for f in walk[1]])
    assert np.linalg.norm(found - true, axis=1).max() < 0.06
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["metric"]


@pytest.mark.parametrize("topic", ["/nothing", "/odom"])
def test_a_topic_that_is_not_there_is_named(walk, bag, tmp_path, topic):
    with pytest.raises(ReplayError, match=f"no topic {topic} of PoseWith.*: it has {TAGS}"):
        run(walk, bag, tmp_path / "out", topic)


@pytest.mark.long
def test_a_trajectory_with_a_declared_scale_is_where_they_have_it_too(walk, bag, tmp_path):
    """No scale that is learned makes it be written again at the end."""
    factor = 1 / TruthSession(walk[1]).unit
    values = {"scale.source": "fixed", "scale.factor": factor}
    found = run(walk, bag, tmp_path / "out", TAGS, **values)
    true = np.array([f.T_room_camera[:3, 3] for f in walk[1]])
    assert np.linalg.norm(found - true, axis=1).max() < 0.1
