"""Linear layers in 8 bits: how close they stay, what they save, where they are refused."""

import json
import os

import numpy as np
import pytest
import torch
from support import programs
from support.cases import long_after
from torch import nn

from da3_ros.backends import openvino_runtime
from da3_ros.cli.plan_table import Question, table
from da3_ros.inference import InferenceConfig, InferenceSession, loading
from da3_ros.inference.devices import Cpu, Cuda, DeviceError, Mps
from da3_ros.inference.memory_footprint import Shape, footprint
from da3_ros.inference.planner import Plan
from da3_ros.network.int8 import LARGEST_WEIGHT, LEVELS, Int8Linear, pair_sums_clip, weight_bits
from da3_ros.network.model import Chunks
from da3_ros.synthetic import SyntheticCamera
from da3_ros.types import View, Window

pytestmark = pytest.mark.skipif(
    not Cpu().supports(torch.int8), reason="this PyTorch has no oneDNN"
)
# Limits of the instructions that libraries use; one above what the CPU has changes nothing.
NO_AVX512 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "FBGEMM_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
}
KERNELS = {
    "without AVX512": NO_AVX512,
    "with AVX-VNNI": {"ONEDNN_MAX_CPU_ISA": "AVX2_VNNI"},
    "without VNNI": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    "without AMX": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"},
}


@pytest.mark.processor
@pytest.mark.parametrize("shape", [(7, 96), (2, 5, 96)])
@pytest.mark.parametrize("offset", [0.0, 3.0, -3.0])
def test_a_layer_is_within_its_rounding(shape, offset):
    torch.manual_seed(0)
    layer, x = nn.Linear(96, 40), torch.randn(shape) + offset
    with torch.inference_mode():
        expected, found = layer(x), Int8Linear(layer)(x)
    assert found.shape == expected.shape
    # Of inputs between -3 and 6, steps of 1/255 of that; of weights, 1/64 or 1/127 of the largest.
    assert float((found - expected).norm() / expected.norm()) < 0.02


@pytest.mark.processor
def test_the_largest_products_are_summed_without_loss():
    """A CPU without VNNI would clip 2 * 255 * 127 to 32767, and give half of this sum."""
    layer = nn.Linear(384, 16, bias=False)
    nn.init.constant_(layer.weight, 0.5)
    with torch.inference_mode():
        found = Int8Linear(layer)(torch.full((64, 384), 2.0))
    torch.testing.assert_close(found, torch.full((64, 16), 384.0), rtol=1e-5, atol=0)


def test_weights_take_7_bits_where_sums_of_products_clip():
    assert (weight_bits(clips=False), weight_bits(clips=True)) == (8, 7)
    assert 2 * LEVELS * LARGEST_WEIGHT[7] < 2**15 < 2 * LEVELS * LARGEST_WEIGHT[8]


@pytest.mark.processor
def test_a_cpu_with_avx512_vnni_gives_weights_8_bits():
    if not torch.cpu._is_vnni_supported() or "ONEDNN_MAX_CPU_ISA" in os.environ:
        pytest.skip("needs a CPU with AVX512-VNNI")
    assert not pair_sums_clip()


@pytest.mark.long
@pytest.mark.process
@pytest.mark.processor
@pytest.mark.slow
@pytest.mark.parametrize("kernel", long_after(1, KERNELS))
def test_int8_is_as_close_with_the_kernels_of_other_cpus(kernel):
    """In a process of its own: libraries read the limit once."""
    chosen = "layer_is_within or largest_products or session_in_int8"
    run = python("-m", "pytest", "-p", "no:cacheprovider", __file__, "-k", chosen, limits=kernel)
    assert run.returncode == 0, run.stdout
    assert "8 passed" in run.stdout


@pytest.mark.long
@pytest.mark.process
@pytest.mark.processor
@pytest.mark.slow
def test_without_vnni_weights_take_7_bits():
    code = "from da3_ros.network.int8 import pair_sums_clip; print(pair_sums_clip())"
    run = python("-c", code, limits="without AVX512")
    assert run.stdout.strip() == "True", run.stderr


def python(*words, limits):
    """Run Python with a limit of instructions, one of KERNELS."""
    return programs.run_alone(*words, env=os.environ | KERNELS[limits])


def test_zeros_stay_zero_and_a_layer_without_bias_works():
    layer = nn.Linear(16, 8, bias=False)
    with torch.inference_mode():
        assert torch.equal(Int8Linear(layer)(torch.zeros(3, 16)), torch.zeros(3, 8))
        nn.init.zeros_(layer.weight)
        assert torch.equal(Int8Linear(layer)(torch.ones(3, 16)), torch.zeros(3, 8))


def session(**changes):
    values = {"mixed_precision": "int8", "process_res": 112} | changes
    return InferenceSession(InferenceConfig("da3-tiny", "", "cpu", **values))


@pytest.mark.processor
@pytest.mark.slow
def test_a_session_in_int8_gives_nearly_equal_results(caplog):
    camera = SyntheticCamera(seed=3, size=(112, 84), walk="straight", frames=4)
    views = tuple(View(i, f.stamp_ns, f.image) for i, f in enumerate(camera))
    fast, plain = session(), session(mixed_precision="off")
    found, expected = (s.infer(Window(0, views, 4)) for s in (fast, plain))
    assert fast.status().precision == "int8"
    assert fast.status().int8_weight_bits == weight_bits(clips=pair_sums_clip())
    assert plain.status().int8_weight_bits is None
    assert "not close to fp32" not in caplog.text
    assert np.median(np.abs(np.log(found.depth / expected.depth))) < 0.01
    apart = np.linalg.norm((found.T_window_camera - expected.T_window_camera)[-1, :3, 3])
    assert apart < 0.01 * np.median(expected.depth)  # it measured 0.2 to 0.5 %
    assert Plan.from_json(json.dumps(fast.memory.plan.repeatable())).dtype == torch.int8
    assert fast.memory.plan.weights < 0.7 * plain.memory.plan.weights
    for (
        name,
        module,
    ) in fast.loaded.module.named_modules():  # what hardly costs and matters most stays
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


@pytest.mark.openvino
def test_where_int8_fails_its_check_fp32_runs_on_openvino(monkeypatch, caplog):
    """Half the speed is lost on torch, and nothing but int8 rules OpenVINO out."""
    monkeypatch.setattr(loading.SelfCheck, "fault", lambda self, network: "depth is wrong")
    found = session()
    assert "in int8 is not close to fp32 here (depth is wrong)" in caplog.text
    assert found.loaded.precision == torch.float32
    assert found.loaded.preferred_backend == "openvino"
    plan = found.memory.fit((112, 84), 4, 1)
    assert (plan.precision, plan.backend) == ("float32", "openvino")
    monkeypatch.setattr(openvino_runtime, "has_precision", lambda precision: False)
    assert session().loaded.preferred_backend == "torch"


def planned(precision):
    question = Question(
        ["da3-tiny"], [2.0], InferenceConfig("da3-tiny", "", "cpu", mixed_precision=precision),
        (112, 84), 4, 1,
    )  # fmt: skip
    header, row = table(question)
    return row[header.index("precision")]


@pytest.mark.parametrize(("clips", "text"), [(True, "7-bit weights"), (False, "8-bit weights")])
def test_the_plan_command_says_how_many_bits_weights_take(monkeypatch, clips, text):
    monkeypatch.setattr(loading, "pair_sums_clip", lambda: clips)
    assert planned("int8") == f"int8 ({text})"
    assert planned("off") == "float32"
