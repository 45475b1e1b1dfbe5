"""Models that see each image alone: depth in the camera's frame, and nothing unknown."""

import json

import numpy as np
import pytest
from support.tiny_networks import tiny_metric_spec

from da3_ros.config import NodeConfig, config_from_parameters
from da3_ros.messages.build import RosbagsLibrary
from da3_ros.messages.outputs import Outputs
from da3_ros.network import MODELS
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.recordings.synthetic_bag import write_synthetic_bag
from da3_ros.replay.results import ReplayError, ReplayOptions
from da3_ros.replay.run import replay
from da3_ros.synthetic import SyntheticCamera
from da3_ros.types import Calibration, Frame

MONO, METRIC = "da3mono-large", "da3metric-large"
K = np.array([[100.0, 0, 41.5], [0, 100.0, 27.5], [0, 0, 1]])


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    for name in (MONO, METRIC):
        monkeypatch.setitem(MODELS, name, tiny_metric_spec(name))


def frames(count, calibration=True):
    rng = np.random.default_rng(0)
    known = Calibration(84, 56, K) if calibration else None
    return [
        Frame(10 + i, rng.integers(0, 255, (56, 84, 3), np.uint8), calibration=known)
        for i in range(count)
    ]


def run(model, given, **changes):
    values = {
        "model": model, "checkpoint": "random", "device": "cpu", "mixed_precision": "off",
        "process_res": 84, "depth.edge_filter": False,
        "hold_when_blind": False,  # images are noise
    }  # fmt: skip
    pipeline = Pipeline(config_from_parameters(values | changes))
    results = [r for f in given for r in pipeline.push(f)] + list(pipeline.flush())
    return pipeline, results


def topics(frame):
    outputs = Outputs(RosbagsLibrary(), config_from_parameters({"window.size": 8}))
    return {topic: message for topic, _, message in outputs.frame(frame)}


@pytest.mark.parametrize("new", [1, 3])
def test_every_frame_comes_once_in_order_with_its_own_depth(new):
    given = frames(5)
    pipeline, results = run(MONO, given, **{"window.new": new})
    assert [r.stamp_ns for r in results] == [f.stamp_ns for f in given]
    assert all((r.depth_m > 0).mean() > 0.5 for r in results)
    assert not any(r.posed or r.keyframe or r.scale.metric for r in results)
    assert pipeline.counters["processed"] == 5
    assert len(pipeline.map) == 0
    alone = run(MONO, given[3:4])[1][0]
    np.testing.assert_allclose(results[3].depth_m, alone.depth_m, rtol=1e-4)


def test_what_needs_a_pose_is_not_published():
    _, results = run(MONO, frames(1))
    sent = topics(results[0])
    assert {"depth/image", "depth/camera_info", "rgb/image", "points", "window"} <= set(sent)
    assert not {"pose", "odom", "/tf", "confidence/image", "confidence/image_color"} & set(sent)
    assert sent["window"].new_frames == 1
    assert len(sent["window"].frames) == 0
    assert not sent["window"].aligned


def test_without_calibration_there_is_no_cloud_or_camera_info():
    _, results = run(MONO, frames(1, calibration=False))
    sent = topics(results[0])
    assert "depth/image" in sent
    assert not {"points", "depth/camera_info"} & set(sent)


def test_metric_depth_needs_a_known_focal_length():
    """Metric depth is metres if and only if the focal length is known."""
    given = frames(2)
    _, known = run(METRIC, given)
    _, unknown = run(METRIC, frames(2, calibration=False))
    assert known[0].scale.source == "metric_model"
    assert not unknown[0].scale.metric
    both = np.isfinite(known[0].depth_m) & np.isfinite(unknown[0].depth_m)
    ratio = known[0].depth_m[both] / unknown[0].depth_m[both]
    np.testing.assert_allclose(ratio, 100 / 300, rtol=1e-4)


def test_depth_at_camera_size_and_confidence_limits_do_no_harm():
    limits = {"depth.min_confidence": 5.0, "depth.confidence_percentile": 30.0}
    _, results = run(MONO, frames(1), process_res=42, **limits, **{"depth.size": "input"})
    assert results[0].depth_m.shape == (56, 84)
    assert (results[0].depth_m > 0).mean() > 0.5


@pytest.mark.slow
def test_a_replay_has_depth_and_clouds_and_no_scene(tmp_path):
    walk = SyntheticCamera(seed=7, size=(84, 56), walk="straight", frames=4)
    bag = tmp_path / "bag"
    write_synthetic_bag(bag, walk)
    values = {
        "model": METRIC, "checkpoint": "random", "device": "cpu", "process_res": 84,
    }  # fmt: skip
    settings = config_from_parameters(values, NodeConfig)
    output = tmp_path / "out"
    replay(ReplayOptions(bag, output, pictures=True), settings)
    assert (output / "trajectory.tum").read_text() == ""
    assert not (output / "scene.glb").exists()
    report = json.loads((output / "report.json").read_text())
    assert report["counts"]["processed"] == 4
    assert report["metric"]
    assert report["scale"]["source"] == "metric_model"
    refused = config_from_parameters(values | {"pose_prior.source": "tf"}, NodeConfig)
    with pytest.raises(ReplayError, match=r"set pose_prior\.source to none"):
        replay(ReplayOptions(bag, output), refused)
