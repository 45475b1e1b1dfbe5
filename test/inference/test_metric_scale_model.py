"""The metric model beside a session."""

import dataclasses

import numpy as np
import pytest
import torch
from support.tiny_networks import tiny_metric_spec

from da3_ros.config import InferenceConfig, config_from_parameters
from da3_ros.inference import BudgetError, InferenceSession, MetricDepthModel, open_networks
from da3_ros.inference.planner import GIB, CompanionModel
from da3_ros.inference.preprocess import normalize
from da3_ros.network import MODELS, CheckpointError, initialize_randomly
from da3_ros.network.build import network_of
from da3_ros.network.monocular import MonocularOutput
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
    """A prediction in an unknown unit whose metres are exactly what the metric model predicts."""
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
    metric_model = MetricDepthModel(CONFIG, network=network)
    metric_model.network = NoSky(network, sky)
    return metric_model


def test_unit_of_a_window_comes_from_the_calibration(network):
    seen = window()
    out = ruler_of(network, 0.0).measure(seen, truth(network, seen))
    assert out.measure.value == pytest.approx(2.5, rel=1e-4)
    assert out.measure.sigma < 1e-3
    assert np.isnan(out.sky[0]).all()  # not processed
    assert (out.sky[1:] == 0).all()


def test_without_calibration_the_predicted_focal_length_is_used(network, caplog):
    """Without calibration the predicted focal length is used with a warning."""
    seen = window(K=None)
    prediction = truth(network, seen)
    out = ruler_of(network, 0.0).measure(seen, prediction)
    assert out.measure.value == pytest.approx(1.25, rel=1e-4)  # 50 pixels instead of 100
    assert any("estimated focal length" in r.message for r in caplog.records)


def test_nothing_but_sky_gives_no_number(network):
    seen = window()
    out = ruler_of(network, 1.0).measure(seen, truth(network, seen))
    assert np.isnan(out.measure.value)
    assert (out.sky[1:] == 1).all()


@pytest.mark.slow
def test_the_budget_holds_for_both_networks():
    companion = CompanionModel("da3metric-large", torch.float32, 1 << 30)
    values = {"model": "da3-tiny", "checkpoint": "random", "device": "cpu"}
    config = InferenceConfig(**values, memory_budget_gb=20.0, mixed_precision="off")
    alone, both = InferenceSession(config), InferenceSession(config, companion=companion)
    plans = [s.memory.fit((640, 480), 4, 1) for s in (alone, both)]
    assert plans[1].fixed - plans[0].fixed == companion.weights
    # The metric model, one frame at a time, needs more room to work in than da3-tiny.
    assert plans[1].activations > 1.5 * plans[0].activations
    assert plans[1].predicted <= plans[1].budget == 20 * GIB
    with pytest.raises(BudgetError, match=r"1\.00 of it for the weights of da3metric-large"):
        both.memory.set_budget(1.05)
    assert both.memory.plan == plans[1]


def test_opening_both_counts_the_ruler_in_the_sessions_budget(monkeypatch):
    monkeypatch.setitem(MODELS, "da3metric-large", tiny_metric_spec())
    values = {
        "model": "da3-tiny", "checkpoint": "random", "device": "cpu", "process_res": 84,
        "scale.source": "metric_model", "scale.metric_checkpoint": "random",
        "memory_budget_gb": 2.0,
    }  # fmt: skip
    session, metric_model = open_networks(config_from_parameters(values))
    plan = session.memory.fit((640, 480), 4, 1)
    weights = sum(p.nbytes for p in metric_model.network.parameters())
    assert plan.fixed >= weights
    assert session.memory.budget == 2 * GIB


def test_out_of_memory_takes_a_smaller_picture_then_skips(network, monkeypatch, caplog):
    seen, metric_model = window(), ruler_of(network, 0.0)
    prediction = truth(network, seen)
    sizes, left = [], [1]
    plain = metric_model.network.forward

    def fail(images, fill_sky):
        sizes.append(tuple(images.shape[-2:]))
        if left[0]:
            left[0] -= 1
            raise torch.OutOfMemoryError("injected")
        return plain(images, fill_sky)

    monkeypatch.setattr(metric_model.network, "forward", fail)
    found = metric_model.measure(seen, prediction)
    assert sizes == [(56, 84), (28, 42)]
    assert np.isfinite(found.measure.value)
    assert found.sky.shape == prediction.depth.shape
    left[0] = 4
    for _ in range(2):
        assert metric_model.measure(seen, prediction) is prediction
    assert caplog.text.count("did not measure window 0") == 1


def test_the_focal_length_follows_a_smaller_picture(network, monkeypatch):
    class Flat(torch.nn.Module):
        """Says depth 3 of everything, whatever the size."""

        def forward(self, images, fill_sky):
            shape = (1, images.shape[1], *images.shape[-2:])
            return MonocularOutput(torch.full(shape, 3.0), torch.zeros(shape))

    seen, metric_model = window(), MetricDepthModel(CONFIG, network=network)
    metric_model.network = Flat()
    ours = dataclasses.replace(truth(network, seen), depth=np.ones((3, 56, 84), np.float32))
    full, half = (
        metric_model._measure_at(seen, ours, scale).measure.value for scale in (1.0, 0.5)
    )
    assert full == pytest.approx(3 * 100 / 300)
    assert half == pytest.approx(full / 2)


def test_a_missing_metric_checkpoint_is_an_error(tmp_path):
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


class Listening:
    """Notes what a metric model says of windows."""

    def __init__(self, model):
        self.model, self.said = model, []

    def measure(self, window, prediction):
        out = self.model.measure(window, prediction)
        self.said.append(out.measure)
        return out


def test_the_pipeline_asks_the_ruler(network):
    from da3_ros.pipeline.pipeline import Pipeline
    from da3_ros.synthetic import SyntheticCamera
    from da3_ros.synthetic.truth import TruthSession
    from da3_ros.types import Frame

    camera = SyntheticCamera(seed=3, size=(84, 56), walk="straight", frames=6)
    frames = list(camera)
    config = config_from_parameters(
        {"process_res": 84, "scale.source": "metric_model", "scale.metric_every": 1}
    )
    ruler = Listening(ruler_of(network, 0.0))
    pipeline = Pipeline(config, TruthSession(frames), ruler)
    results = [
        r
        for f in frames
        for r in pipeline.push(Frame(f.stamp_ns, f.image, calibration=camera.calibration))
    ]
    # Random weights measure badly: whether that makes metres is open.
    assert len(results) == len(frames) == len(ruler.said)
    assert all(m.value > 0 and m.sigma > 0 for m in ruler.said)
    assert {r.scale.source for r in results} <= {"none", "metric_model"}
