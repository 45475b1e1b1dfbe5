"""A recording's own odometry and transforms as source of poses and of metres."""

import json

import numpy as np
import pytest
from support.cases import long_after

from da3_ros.config import NodeConfig, config_from_parameters
from da3_ros.recordings.synthetic_bag import write_synthetic_bag
from da3_ros.replay.results import ReplayError, ReplayOptions
from da3_ros.replay.run import replay
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import TruthSession

SIZE, FRAMES = (112, 84), 16
BASE = {
    "process_res": 112, "model": "da3-tiny", "checkpoint": "random", "window.size": 5,
    "dense.enabled": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    camera = SyntheticCamera(seed=3, size=SIZE, walk="loop", frames=FRAMES, rate_hz=4.0)
    folder = tmp_path_factory.mktemp("bag") / "bag"
    write_synthetic_bag(folder, camera, tf=True)
    return folder, list(camera)


def run(room, output, odometry=None, **values):
    config = config_from_parameters({**BASE, **values}, NodeConfig)
    options = ReplayOptions(room[0], output, camera="/camera/image_raw", odometry=odometry)
    summary = replay(options, config, TruthSession(room[1]))
    return summary, json.loads((output / "report.json").read_text())


PRIORS = [
    {"pose_prior.source": "odometry"},
    {"pose_prior.source": "tf", "odom_frame": "map"},
    {"pose_prior.source": "none"},  # the scale's source wants the odometry by itself
]


@pytest.mark.slow
@pytest.mark.parametrize("prior", long_after(1, PRIORS))
def test_a_bags_own_poses_make_metres(room, tmp_path, prior):
    values = {"scale.source": "odometry", **prior}
    _, report = run(room, tmp_path / "out", **values)
    assert report["metric"]
    assert report["scale"]["source"] == "odometry"
    frames = room[1]
    centres = np.array([f.T_room_camera[:3, 3] for f in frames])
    length = np.linalg.norm(np.diff(centres, axis=0), axis=1).sum()
    assert report["path_length"] == pytest.approx(length, rel=0.02)
    lines = np.loadtxt(tmp_path / "out" / "trajectory.tum")[:, 1:4]
    assert len(lines) == len(frames)
    written = np.linalg.norm(np.diff(lines, axis=0), axis=1).sum()
    assert written == pytest.approx(length, rel=0.02)
    given = report["counts"].get("windows_with_prior", 0)
    assert (given > 0) == (prior["pose_prior.source"] != "none")


def test_a_missing_odometry_topic_ends_the_replay(room, tmp_path):
    with pytest.raises(ReplayError, match="no topic /nobody"):
        run(room, tmp_path / "out", "/nobody", **{"pose_prior.source": "odometry"})
    assert not (tmp_path / "out").exists()


@pytest.mark.long
@pytest.mark.slow
def test_transforms_short_of_the_camera_give_no_poses(room, tmp_path):
    """Transforms that do not reach the camera give no poses and no metres."""
    values = {"pose_prior.source": "tf", "scale.source": "odometry"}
    _, report = run(room, tmp_path / "out", **values)
    assert not report["metric"]
    assert report["scale"]["metres_per_unit"] is None
    assert report["counts"]["frames_without_prior"] == FRAMES
