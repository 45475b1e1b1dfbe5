"""A recording's LiDAR and range finder as source of metres."""

import json

import numpy as np
import pytest

from da3_ros.config import NodeConfig, config_from_parameters
from da3_ros.recordings.synthetic_bag import write_synthetic_bag
from da3_ros.replay.results import ReplayError, ReplayOptions
from da3_ros.replay.run import replay
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import TruthSession

SIZE, FRAMES, RATE_HZ = (112, 84), 20, 4.0
BASE = {
    "process_res": 112, "model": "da3-tiny", "checkpoint": "random", "window.size": 5,
    "dense.enabled": False, "refinement.enabled": False, "scale.source": "range",
}  # fmt: skip


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    camera = SyntheticCamera(seed=3, size=SIZE, walk="loop", frames=FRAMES, rate_hz=RATE_HZ)
    folder = tmp_path_factory.mktemp("bag") / "bag"
    write_synthetic_bag(folder, camera, tf=True, lidar_hz=10.0)
    return folder, list(camera)


def run(room, output, **values):
    config = config_from_parameters({**BASE, "odom_frame": "map", **values}, NodeConfig)
    options = ReplayOptions(room[0], output, camera="/camera/image_raw")
    replay(options, config, TruthSession(room[1]))
    return json.loads((output / "report.json").read_text())


@pytest.mark.slow
def test_a_bags_lidar_makes_metres(room, tmp_path):
    report = run(room, tmp_path / "out")
    assert report["metric"]
    assert report["scale"]["source"] == "range"
    assert report["counts"]["frames_with_returns"] >= FRAMES - 3
    centres = np.array([f.T_room_camera[:3, 3] for f in room[1]])
    length = np.linalg.norm(np.diff(centres, axis=0), axis=1).sum()
    assert report["path_length"] == pytest.approx(length, rel=0.03)


def test_a_topic_that_is_missing_ends_the_replay(room, tmp_path):
    with pytest.raises(ReplayError, match=r"range_topics: bag has no .* it has them on: /lidar"):
        run(room, tmp_path / "out", range_topics=["/nobody"])
    assert not (tmp_path / "out").exists()
