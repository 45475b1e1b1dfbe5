"""Models beyond the any-view ones run through the same session, budget and self-check."""

import dataclasses

import numpy as np
import pytest
import torch
from support.tiny_networks import tiny_metric_spec, tiny_nested_spec

from da3_ros.backends.self_check import SelfCheck
from da3_ros.cli.plan_table import AbsentCuda
from da3_ros.config import InferenceConfig, config_from_parameters
from da3_ros.inference import BudgetError, InferenceSession, open_networks
from da3_ros.inference.devices import open_device
from da3_ros.inference.memory_footprint import Shape, footprint, weight_bytes
from da3_ros.inference.planner import GIB, Request, make_plan
from da3_ros.inference.preprocess import normalize
from da3_ros.network import MODELS, initialize_randomly, save_checkpoint
from da3_ros.network.build import network_of
from da3_ros.network.model import Chunks
from da3_ros.parameter_schema import ConfigError
from da3_ros.types import View, Window

MONO, METRIC, NESTED = "da3mono-large", "da3metric-large", "da3nested-giant-large"
SIZE = (56, 84)
K = np.array([[90.0, 0, 42], [0, 110.0, 28], [0, 0, 1]])


@pytest.fixture
def small(monkeypatch):
    """The three models with toy sizes under their own names."""
    for spec in (tiny_metric_spec(MONO), tiny_metric_spec(METRIC), tiny_nested_spec()):
        monkeypatch.setitem(MODELS, spec.name, spec)
    monkeypatch.setitem(MODELS, MONO, dataclasses.replace(MODELS[MONO], metric=False))


def session_of(model, **changes):
    values = {
        "model": model, "checkpoint": "random", "device": "cpu", "mixed_precision": "off",
        "process_res": 84,
    }  # fmt: skip
    return InferenceSession(InferenceConfig(**(values | changes)))


def views(count, K=K):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (count, *SIZE, 3), np.uint8)
    return tuple(View(i, i, image, K) for i, image in enumerate(images))


def network_input(some):
    return normalize(torch.from_numpy(np.stack([v.image for v in some])))[None]


@torch.inference_mode()
def test_mono_gives_every_frames_own_depth_and_no_poses(small, caplog):
    session, some = session_of(MONO), views(3)
    found = session.infer(Window(0, some, 3))
    expected = session.loaded.module(network_input(some), fill_sky=False)
    np.testing.assert_allclose(found.depth, expected.depth[0].numpy(), rtol=1e-4)
    np.testing.assert_allclose(found.sky, expected.sky[0].numpy(), atol=1e-5)
    assert not found.posed
    assert np.isnan(found.T_window_camera).all()
    assert np.isnan(found.confidence).all()
    assert found.measure is None
    np.testing.assert_array_equal(found.K[1], K)
    assert "is a single-image network" in caplog.text


@torch.inference_mode()
def test_metric_gives_metres_by_each_frames_focal_length(small):
    session = session_of(METRIC)
    near, far = views(2)
    far = dataclasses.replace(far, K=2 * K)
    found = session.infer(Window(0, (near, far), 2))
    canonical = session.loaded.module(network_input((near, far)), fill_sky=False).depth[0].numpy()
    for index, focal in ((0, 100.0), (1, 200.0)):
        np.testing.assert_allclose(found.depth[index], canonical[index] * focal / 300, rtol=1e-4)
    assert found.measure.value == 1.0


def test_metric_without_a_focal_length_claims_no_metres(small):
    found = session_of(METRIC).infer(Window(0, views(2, K=None), 2))
    assert found.measure is None
    assert np.isnan(found.K).all()
    assert np.isfinite(found.depth).all()


def test_metres_do_not_depend_on_the_size_in_the_network(small):
    session = session_of(METRIC)
    full = session.infer(Window(0, views(2), 2)).depth
    with torch.no_grad():  # a depth that does not hang on the image
        last = session.loaded.module.head.scratch.output_conv2[2]
        last.weight.zero_()
        last.bias.fill_(1.0)
    session.feature_cache.bound(0)
    full = session.infer(Window(0, views(2), 2)).depth
    session.memory.fallback.level = 3
    session.feature_cache.bound(0)
    half = session.infer(Window(0, views(2), 2)).depth
    # 42 x 28 pixels: half of the focal length. The network would answer with twice the depth.
    np.testing.assert_allclose(half, full / 2, rtol=1e-5)


@pytest.mark.slow
@torch.inference_mode()
@pytest.mark.parametrize("known", [K, None])
def test_nested_equals_the_whole_network(small, known, caplog):
    session, some = session_of(NESTED), views(3, known)
    never_sky(session.loaded.module)
    found = session.infer(Window(0, some, 1))
    focal = None if known is None else torch.full((1, 3), 100.0)
    expected = session.loaded.module(
        network_input(some), ref_view="first", focal_px=focal, fill_sky=False
    )
    np.testing.assert_allclose(found.depth, expected.depth[0].numpy(), rtol=1e-4)
    assert found.posed
    assert found.measure.value == 1.0
    assert found.measure.sigma == pytest.approx(float(expected.scale_spread[0]), rel=1e-3)
    assert np.isfinite(found.sky).all()
    assert ("estimated focal length" in caplog.text) == (known is None)


def test_nested_has_no_metres_where_all_is_sky(small):
    session = session_of(NESTED)
    never_sky(session.loaded.module, 5.0)
    found = session.infer(Window(0, views(3), 1))
    assert np.isnan(found.measure.value)
    assert np.isfinite(found.depth).all()


@torch.no_grad()
def never_sky(network, value=0.0):
    sky = network.da3_metric.head.scratch.sky_output_conv2[2]
    sky.weight.zero_()
    sky.bias.fill_(value)


@pytest.mark.parametrize("model", [MONO, METRIC, NESTED])
def test_what_sees_a_frame_alone_runs_once_in_a_sliding_window(small, monkeypatch, model):
    session, some = session_of(model), views(5)
    if model == NESTED:
        never_sky(session.loaded.module)
    session.memory.fit((84, 56), 3, 1)
    encoded, plain = [], session.loaded.module.encode
    monkeypatch.setattr(
        session.loaded.module, "encode", lambda x: encoded.append(x.shape[1]) or plain(x)
    )
    for i in range(3):
        found = session.infer(Window(i, some[i : i + 3], 1, (1, 2)))
        assert np.isnan(found.depth[0]).all()
        assert np.isfinite(found.depth[1:]).all()
    assert encoded == [3, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("model", [MONO, METRIC, NESTED])
def test_16_bits_pass_the_self_check_a_broken_network_fails_it(small, model):
    session = session_of(model, mixed_precision="bfloat16")
    assert session.loaded.precision == torch.bfloat16
    assert np.isfinite(session.infer(Window(0, views(2), 2)).depth).all()
    fp32 = session_of(model)
    check = SelfCheck(fp32.loaded.module)
    assert check.fault(fp32.loaded.module) == ""
    part = fp32.loaded.module.da3_metric if model == NESTED else fp32.loaded.module
    with torch.no_grad():
        part.head.scratch.output_conv2[2].bias += 0.1
    assert "depth differs by" in check.fault(fp32.loaded.module)


@pytest.mark.parametrize("model", [MONO, METRIC, NESTED])
def test_the_planner_counts_weights_prefix_and_activations(small, model):
    session = session_of(model)
    shape = Shape(model, 4, 2, *SIZE, torch.float32, Chunks(1, 1), poses=True)
    needed = footprint(shape)
    assert needed.weights == weight_bytes(session.loaded.module)
    kept = session._encoder.encode([v.image for v in views(1)], SIZE)
    assert needed.prefix == 4 * sum(x.nbytes for prefix in kept.values() for x in prefix)
    larger = dataclasses.replace(shape, chunks=Chunks(8, 0))
    assert footprint(larger).activations >= needed.activations


def test_out_of_memory_runs_a_single_image_again_too(small, monkeypatch):
    session = session_of(MONO)
    expected = session.infer(Window(0, views(2), 2))
    session.feature_cache.bound(0)
    plain, left = session.loaded.module.encode, [1]

    def fail(images):
        if left.pop() if left else 0:
            raise torch.OutOfMemoryError("injected")
        return plain(images)

    monkeypatch.setattr(session.loaded.module, "encode", fail)
    found = session.infer(Window(0, views(2), 2))
    assert session.memory.fallback.level == 1
    np.testing.assert_allclose(found.depth, expected.depth, rtol=1e-4)


def test_a_nested_checkpoint_is_read_as_official_files_are(small, tmp_path):
    network = network_of(MODELS[NESTED]).eval()
    initialize_randomly(network, 5)
    save_checkpoint(network, tmp_path)
    session = session_of(NESTED, checkpoint=str(tmp_path))
    ours = session.loaded.module.state_dict()
    theirs = network.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    assert len(ours) < len(theirs)  # the ray branch is not kept


@pytest.mark.long
@pytest.mark.slow
def test_all_models_are_planned_in_full_size():
    device = open_device("cpu")
    for name in MODELS:
        request = Request(name, torch.float32, None, 504, 4, 1, (504, 280))
        plan = make_plan(device, request, 100 * GIB)
        own = 4 * MODELS[name].parameters
        assert 0.6 * own < plan.weights < 1.01 * own
        assert plan.activations > 0
    request = Request(NESTED, torch.bfloat16, None, 504, 8, 1, (504, 280))
    with pytest.raises(BudgetError, match="or set model to da3-giant"):
        make_plan(AbsentCuda(), request, int(3.5 * GIB))


def test_nested_needs_no_metric_model_beside_it(small):
    values = {
        "model": NESTED, "checkpoint": "random", "device": "cpu", "process_res": 84,
        "scale.source": "metric_model",
    }  # fmt: skip
    session, metric_model = open_networks(config_from_parameters(values))
    assert metric_model is None
    prediction = session.infer(Window(0, views(2), 1))
    assert prediction.measure is not None


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"model": MONO, "scale.source": "metric_model"}, "scale.source metric_model"),
        ({"model": METRIC, "scale.source": "odometry"}, "scale.source odometry"),
        ({"model": MONO, "pose_prior.source": "tf"}, "takes no poses"),
        ({"model": "da3-huge"}, "one of da3-tiny"),
    ],
)
def test_what_a_model_cannot_do_is_refused_before_it_loads(values, said):
    with pytest.raises(ConfigError, match=said):
        open_networks(config_from_parameters(values | {"checkpoint": "/nowhere"}))


def test_nested_without_a_scale_source_names_the_remedy(small, caplog):
    values = {"model": NESTED, "checkpoint": "random", "device": "cpu", "process_res": 84}
    open_networks(config_from_parameters(values))
    assert "set scale.source to metric_model" in caplog.text
