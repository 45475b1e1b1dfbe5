"""Linear layers in 8 bits: how close they stay, what they save, where they are refused."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from da3_ros.inference import InferenceConfig, InferenceSession
from da3_ros.inference.devices import Cpu, Cuda, DeviceError, Mps
from da3_ros.inference.memory_footprint import Shape, footprint
from da3_ros.inference.planner import Plan
from da3_ros.network.int8 import Int8Linear
from da3_ros.network.model import Chunks
from da3_ros.synthetic import SyntheticCamera
from da3_ros.types import View, Window

pytestmark = pytest.mark.skipif(
    not Cpu().supports(torch.int8), reason="this PyTorch has no oneDNN"
)


@pytest.mark.parametrize("shape", [(7, 96), (2, 5, 96)])
@pytest.mark.parametrize("offset", [0.0, 3.0, -3.0])
def test_a_layer_is_within_its_rounding(shape, offset):
    torch.manual_seed(0)
    layer, x = nn.Linear(96, 40), torch.randn(shape) + offset
    with torch.inference_mode():
        expected, found = layer(x), Int8Linear(layer)(x)
    assert found.shape == expected.shape
    # Of inputs between -3 and 6, steps of 1/255 of that; of weights, of 1/127 of the largest.
    assert float((found - expected).norm() / expected.norm()) < 0.02


def test_zeros_stay_zero_and_a_layer_without_bias_works():
    layer = nn.Linear(16, 8, bias=False)
    with torch.inference_mode():
        assert torch.equal(Int8Linear(layer)(torch.zeros(3, 16)), torch.zeros(3, 8))
        nn.init.zeros_(layer.weight)
        assert torch.equal(Int8Linear(layer)(torch.ones(3, 16)), torch.zeros(3, 8))


def session(**changes):
    values = {"mixed_precision": "int8", "process_res": 112} | changes
    return InferenceSession(InferenceConfig("da3-tiny", "", "cpu", **values))


@pytest.mark.slow
def test_a_session_in_int8_gives_nearly_equal_results(caplog):
    camera = SyntheticCamera(seed=3, size=(112, 84), walk="straight", frames=4)
    views = tuple(View(i, f.stamp_ns, f.image) for i, f in enumerate(camera))
    fast, plain = session(), session(mixed_precision="off")
    found, expected = (s.infer(Window(0, views, 4)) for s in (fast, plain))
    assert fast.status().precision == "int8"
    assert "not close to fp32" not in caplog.text
    assert np.median(np.abs(np.log(found.depth / expected.depth))) < 0.01
    apart = np.linalg.norm((found.T_window_camera - expected.T_window_camera)[-1, :3, 3])
    assert apart < 0.01 * np.median(expected.depth)  # it measured 0.2 to 0.5 %
    assert Plan.from_json(json.dumps(fast.plan.repeatable())).dtype == torch.int8
    assert fast.plan.weights < 0.7 * plain.plan.weights
    for name, module in fast.network.named_modules():  # what hardly costs and matters most stays
        assert not (isinstance(module, Int8Linear) and name.startswith(("cam_", "head.")))


def test_linear_layers_are_planned_with_a_byte_per_weight():
    plain = Shape("da3-small", 4, 2, 84, 112, torch.float32, Chunks(1, 1))
    small = Shape("da3-small", 4, 2, 84, 112, torch.int8, Chunks(1, 1))
    saved = footprint(plain).weights - footprint(small).weights
    linear = 12 * 12 * 384 * 384  # blocks; qkv, projection and two layers of four times the width
    assert saved == 3 * linear
    assert footprint(plain).activations == footprint(small).activations


def test_int8_is_for_the_cpu_and_runs_uncompiled():
    with pytest.raises(DeviceError, match="set compile to off"):
        session(compile="on")
    for device in (Cuda.__new__(Cuda), Mps.__new__(Mps)):
        with pytest.raises(DeviceError, match="mixed_precision int8 is not usable on"):
            device.precision("int8")
