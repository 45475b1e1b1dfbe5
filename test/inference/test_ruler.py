"""The metric model beside a session."""

import dataclasses

import numpy as np
import pytest
import torch
from network.tiny import tiny_metric_spec

from da3_ros.config import InferenceConfig, config_from_parameters
from da3_ros.inference import BudgetError, MetricRuler, budget_beside, open_networks
from da3_ros.inference.planner import GIB
from da3_ros.inference.preprocess import normalize
from da3_ros.network import CheckpointError, initialize_randomly
from da3_ros.network.build import network_of
from da3_ros.types import Prediction, View, Window

CONFIG = InferenceConfig(device="cpu", mixed_precision="off", process_res=84)
K = np.array([[90.0, 0, 42], [0, 110.0, 28], [0, 0, 1]])


@pytest.fixture(scope="module")
def network():
    network = network_of(tiny_metric_spec()).eval()
    initialize_randomly(network, 3)
    return network


def window(count=3, new=2, K=K):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (count, 56, 84, 3), np.uint8)
    return Window(0, tuple(View(i, i, image, K) for i, image in enumerate(images)), new)


def truth(network, window, sky_at=None):
    """A prediction in an unknown unit whose metres are exactly what the metric model says."""
    images = torch.from_numpy(np.stack([v.image for v in window.views]))
    with torch.inference_mode():
        canonical = network(normalize(images)[None], fill_sky=False).depth[0].numpy()
    metres = canonical * 100.0 / 300.0  # mean focal length 100 pixels
    count = len(window.views)
    return Prediction(
        depth=(metres / 2.5).astype(np.float32),
        confidence=np.full(metres.shape, 2.0, np.float32),
        T_window_camera=np.tile(np.eye(4), (count, 1, 1)),
        K=np.tile(np.diag([50.0, 50, 1]), (count, 1, 1)),
    )


class NoSky(torch.nn.Module):
    """The network with a sky map of its own."""

    def __init__(self, inner, value):
        super().__init__()
        self.inner, self.value = inner, value

    def forward(self, images, fill_sky):
        out = self.inner(images, fill_sky=fill_sky)
        return out._replace(sky=torch.full_like(out.sky, self.value))


def ruler_of(network, sky):
    ruler = MetricRuler(CONFIG, network=network)
    ruler.network = NoSky(network, sky)
    return ruler


def test_the_unit_of_a_window_is_found_by_the_calibrated_focal_length(network):
    seen = window()
    out = ruler_of(network, 0.0).measure(seen, truth(network, seen))
    assert out.measure.value == pytest.approx(2.5, rel=1e-4)
    assert out.measure.sigma < 1e-3
    assert np.isnan(out.sky[0]).all()  # not looked at
    assert (out.sky[1:] == 0).all()


def test_without_calibration_the_predicted_focal_length_is_used_with_a_warning(network, caplog):
    seen = window(K=None)
    prediction = truth(network, seen)
    out = ruler_of(network, 0.0).measure(seen, prediction)
    assert out.measure.value == pytest.approx(1.25, rel=1e-4)  # 50 pixels instead of 100
    assert any("focal length that was guessed" in r.message for r in caplog.records)


def test_nothing_but_sky_gives_no_number(network):
    seen = window()
    out = ruler_of(network, 1.0).measure(seen, truth(network, seen))
    assert np.isnan(out.measure.value)
    assert (out.sky[1:] == 1).all()


def test_the_budget_holds_for_both_networks(network):
    ruler = MetricRuler(CONFIG, network=network)
    assert ruler.nbytes > sum(p.nbytes for p in network.parameters())
    assert budget_beside(ruler, 0.0) == 0.0
    assert budget_beside(ruler, 2.0) == pytest.approx(2.0 - ruler.nbytes / GIB)
    assert budget_beside(None, 2.0) == 2.0
    with pytest.raises(BudgetError, match="da3metric-large alone needs"):
        budget_beside(ruler, ruler.nbytes / GIB / 2)


def test_a_missing_metric_checkpoint_is_told_before_anything_runs(tmp_path):
    values = {
        "model": "da3-tiny",
        "checkpoint": "random",
        "device": "cpu",
        "scale.source": "metric_model",
        "scale.metric_checkpoint": str(tmp_path),
    }
    with pytest.raises(CheckpointError, match=r"scale\.source is metric_model"):
        open_networks(config_from_parameters(values))


def test_other_sources_load_no_second_network():
    values = {"model": "da3-tiny", "checkpoint": "random", "device": "cpu"}
    assert open_networks(config_from_parameters(values))[1] is None


def test_the_pipeline_asks_the_ruler(network):
    from da3_ros.pipeline import Pipeline
    from da3_ros.synthetic import SyntheticCamera
    from da3_ros.synthetic.truth import TruthSession
    from da3_ros.types import Frame

    camera = SyntheticCamera(seed=3, size=(84, 56), walk="straight", frames=6)
    frames = list(camera)
    config = config_from_parameters(
        {"process_res": 84, "scale.source": "metric_model", "scale.metric_every": 1}
    )
    ruler = ruler_of(network, 0.0)
    pipeline = Pipeline(config, TruthSession(frames), ruler)
    results = [
        r
        for f in frames
        for r in pipeline.push(Frame(f.stamp_ns, f.image, calibration=camera.calibration))
    ]
    # Random weights measure badly; the point is that measures arrive, as doubtful as they are.
    assert len(pipeline.metres._keeper._filter) == len(results)
    assert dataclasses.is_dataclass(results[-1].scale)
