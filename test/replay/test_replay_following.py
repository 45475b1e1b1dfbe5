"""A recording with another SLAM's corrections: jumps on /tf, and its path, sent again."""

import dataclasses
import json

import numpy as np
import pytest
from support.cases import long_after

from da3_ros.config import NodeConfig, config_from_parameters
from da3_ros.geometry.poses import invert_pose
from da3_ros.messages import build
from da3_ros.messages.build import RosbagsLibrary
from da3_ros.recordings.writer import BagFolderWriter
from da3_ros.replay import checkpoint
from da3_ros.replay.results import ReplayError, ReplayOptions
from da3_ros.replay.run import replay
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.odometry import drifted
from da3_ros.synthetic.truth import TruthSession

OPTICAL, IMAGE = "camera_optical", "/camera/image_raw"
KINDS = {
    "/camera/camera_info": "sensor_msgs/msg/CameraInfo", IMAGE: "sensor_msgs/msg/Image",
    "/odom": "nav_msgs/msg/Odometry", "/tf": "tf2_msgs/msg/TFMessage",
    "/slam/path": "nav_msgs/msg/Path", "/plan": "nav_msgs/msg/Path",
}  # fmt: skip
BASE = {
    "process_res": 140, "model": "da3-tiny", "checkpoint": "random", "window.size": 5,
    "pose_prior.source": "odometry", "scale.source": "odometry", "refinement.enabled": False,
}  # fmt: skip
TF = {"pose_prior.corrections": "tf", "pose_prior.map_frame": "map"}
PATH = {"pose_prior.corrections": "path"}
AT = 34


def write(folder, camera, frames, priors, plan):
    lib = RosbagsLibrary()
    with BagFolderWriter(folder, lib) as bag:

        def say(topic, stamp, message):
            bag.write(topic, KINDS[topic], message, stamp)

        for i, (frame, prior) in enumerate(zip(frames, priors, strict=True)):
            at = frame.stamp_ns
            T = frame.T_room_camera @ invert_pose(prior) if i == AT else np.eye(4)
            if i in (0, AT):
                say("/tf", at, build.tf(lib, [(at, "map", "odom", T)]))
                done = [(f.stamp_ns, f.T_room_camera) for f in frames[: max(i, 1)]]
                say("/slam/path", at, build.path(lib, at, "map", done))
                if plan:
                    say("/plan", at, build.path(lib, at, "map", done))
            say("/odom", at, build.odometry(lib, at, "odom", OPTICAL, prior))
            info = build.calibration_message(lib, at, OPTICAL, camera.calibration)
            say("/camera/camera_info", at, info)
            say(IMAGE, at, build.image(lib, at, OPTICAL, frame.image))


@pytest.fixture(scope="module")
def walk():
    camera = SyntheticCamera(seed=3, size=(140, 112), walk="loop", frames=40, rate_hz=4.0)
    frames = list(camera)
    offset = np.array([0.002, 0.0, 0.0])
    return camera, frames, drifted([f.T_room_camera for f in frames], 0.2, offset)


@pytest.fixture(scope="module")
def bag(walk, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bag") / "bag"
    write(folder, *walk, plan=False)
    return folder


def run(walk, bag, output, slam_path=None, **values):
    config = config_from_parameters({**BASE, **values}, NodeConfig)
    options = ReplayOptions(bag, output, camera=IMAGE, odometry="/odom", slam_path=slam_path)
    replay(options, config, TruthSession(walk[1]))
    return np.loadtxt(output / "trajectory.tum")[:, 1:4]


def error(walk, found):
    true = np.array([f.T_room_camera[:3, 3] for f in walk[1]])
    return np.linalg.norm(found - true, axis=1)


@pytest.mark.long
@pytest.mark.parametrize("values", long_after(1, [TF, PATH]), ids=["tf", "path"])
def test_the_trajectory_is_the_corrected_one(walk, bag, tmp_path, values):
    """In the frame of the other SLAM's map, which is the room's here."""
    found = error(walk, run(walk, bag, tmp_path / "out", **values))
    assert found.max() < 0.06
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["metric"]


@pytest.mark.long
@pytest.mark.parametrize("values", [TF, PATH], ids=["tf", "path"])
def test_two_runs_with_corrections_give_the_same_bytes(walk, bag, tmp_path, values):
    one, other = (run(walk, bag, tmp_path / name, **values) for name in ("out", "again"))
    assert one.tolist() == other.tolist()
    for name in ("trajectory.tum", "scene.ply", "report.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_several_paths_must_be_chosen_from(walk, tmp_path):
    write(tmp_path / "two", *(x[:4] if i else x for i, x in enumerate(walk)), plan=True)
    with pytest.raises(ReplayError, match="choose with --slam-path /plan"):
        run(walk, tmp_path / "two", tmp_path / "out", **PATH)
    run(walk, tmp_path / "two", tmp_path / "out", "/slam/path", **PATH)


def test_a_recording_without_a_path_is_refused(walk, bag, tmp_path):
    with pytest.raises(ReplayError, match="no topic /nobody"):
        run(walk, bag, tmp_path / "out", "/nobody", **PATH)
    assert not (tmp_path / "out").exists()


class Interrupted(TruthSession):
    """Windows that depend on nothing but their number; one of them is interrupted."""

    at = -1

    def infer(self, window):
        if window.id == self.at:
            raise KeyboardInterrupt
        self._rng = np.random.default_rng(window.id)
        return super().infer(window)


@pytest.mark.long
@pytest.mark.parametrize("values", [TF, PATH], ids=["tf", "path"])
@pytest.mark.parametrize("at", [20, AT + 3], ids=["before", "after"])
def test_an_interrupted_replay_goes_on_with_the_corrections(
    checkpoints_are_saved, walk, bag, tmp_path, monkeypatch, values, at
):
    monkeypatch.setattr(checkpoint, "PERIOD_S", 0.0)
    monkeypatch.setattr(checkpoint, "SHARE", 1.0)
    config = config_from_parameters({**BASE, **values}, NodeConfig)
    options = ReplayOptions(bag, tmp_path / "out", camera=IMAGE, odometry="/odom")
    session = Interrupted(walk[1])
    replay(dataclasses.replace(options, output=tmp_path / "whole"), config, session)
    session.at = at
    with pytest.raises(KeyboardInterrupt):
        replay(options, config, session)
    session.at = -1
    replay(dataclasses.replace(options, go_on=True), config, session)
    for name in ("trajectory.tum", "scene.ply"):
        whole, parts = (tmp_path / run / name for run in ("whole", "out"))
        assert whole.read_bytes() == parts.read_bytes()
