"""A backend from outside: a row, and parameter, plan, session and fallback know it."""

import json

import numpy as np
import pytest
import torch
from support.toys import ToyBackend, ToyRuntime

from da3_ros.backends import BACKENDS, backend_choices
from da3_ros.backends.factory import preferred_backend
from da3_ros.backends.interface import BackendError, EngineMemory
from da3_ros.cli import main
from da3_ros.config import PipelineConfig, config_from_parameters
from da3_ros.inference import DeviceError, InferenceSession
from da3_ros.inference.planner import BudgetError, Plan
from da3_ros.parameter_schema import ConfigError, parameters
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera
from da3_ros.types import Frame, View, Window

SIZE = (56, 42)
TINY = {
    "model": "da3-tiny", "checkpoint": "random", "device": "cpu", "process_res": 56,
    "mixed_precision": "off",
}  # fmt: skip


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    monkeypatch.setitem(BACKENDS, "toy", ToyRuntime)


@pytest.fixture(scope="module")
def frames():
    return list(SyntheticCamera(3, SIZE, walk="loop", frames=3))


def session_of(backend="toy", **changes):
    config = config_from_parameters({**TINY, "backend": backend, **changes})
    return InferenceSession(config.inference, poses=False)


def window_of(frames, id=0):
    views = tuple(View(i, f.stamp_ns, f.image, f.K) for i, f in enumerate(frames))
    return Window(id, views, 1)


def test_a_toy_backend_runs_a_window(frames):
    session = session_of()
    found = session.infer(window_of(frames))
    assert session.status().backend == "toy"
    assert session.status().backend_since == 0
    assert session.memory.plan.backend == "toy"
    expected = session_of("torch").infer(window_of(frames))
    np.testing.assert_allclose(found.depth, 2 * expected.depth, rtol=1e-5)


def test_a_toy_backend_runs_a_pipeline(frames):
    values = {**TINY, "backend": "toy", "window.size": 3, "refinement.enabled": False}
    pipeline = Pipeline(config_from_parameters(values))
    for frame in frames:
        list(pipeline.push(Frame(frame.stamp_ns, frame.image)))
    assert pipeline.session.status().backend == "toy"


def test_the_parameter_lists_the_toy(capsys):
    (row,) = (p for p in parameters(PipelineConfig()) if p.name == "backend")
    assert row.choices == backend_choices() == ("auto", *BACKENDS)
    with pytest.raises(ConfigError, match=r"must be one of auto, torch, .*toy"):
        config_from_parameters({"backend": "onnx"})
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    assert " or toy" in " ".join(capsys.readouterr().out.split())


def test_the_table_of_plans_has_the_toy(capsys):
    assert main(["plan", "--device", "cpu", "--model", "da3-tiny", "--mixed-precision", "off",
                 "--process-res", "56", "--budget", "4", "--backend", "toy"]) == 0  # fmt: skip
    assert "  toy  " in capsys.readouterr().out


def test_the_plan_of_a_toy_is_read_again(frames):
    session = session_of()
    session.infer(window_of(frames))
    text = json.dumps(session.memory.plan.repeatable())
    assert Plan.from_json(text).backend == "toy"
    with pytest.raises(BudgetError, match="unknown backend 'onnx'"):
        Plan.from_json(text.replace('"toy"', '"onnx"'))


def test_torch_runs_when_the_toy_fails(frames, monkeypatch, caplog):
    def broken(self, images):
        raise RuntimeError("a toy breaks")

    monkeypatch.setattr(ToyBackend, "encode", broken)
    session = session_of()
    session.infer(window_of(frames))
    assert session.status().backend == "torch"
    assert "toy failed, running on torch: a toy breaks" in caplog.text


def test_torch_runs_when_memory_is_short_for_the_toy(frames, monkeypatch, caplog):
    def large(self, spec, weights, views, size, precision):
        return EngineMemory(weights=2**40, activations=0, build=0)

    monkeypatch.setattr(ToyRuntime, "memory", large)
    session = session_of(memory_budget_gb=4.0)
    session.infer(window_of(frames))
    assert session.status().backend == "torch"
    assert "memory_budget_gb is too small for an engine of toy" in caplog.text


@pytest.mark.parametrize("automatic", [False, True])
def test_auto_takes_a_toy_that_offers_itself(monkeypatch, automatic):
    monkeypatch.setattr(ToyRuntime, "automatic", automatic)
    monkeypatch.delitem(BACKENDS, "openvino")
    assert preferred_backend("auto", "cpu", torch.float32) == ("toy" if automatic else "torch")


def test_why_a_toy_cannot_run_is_said_if_it_is_asked_for(monkeypatch, caplog):
    with pytest.raises(DeviceError, match="backend toy: it does not support mixed_precision bf"):
        session_of(mixed_precision="bfloat16")

    def check(self, precision):
        raise BackendError("no toy is here", "buy one", "without joy")

    monkeypatch.setattr(ToyRuntime, "check", check)
    monkeypatch.setattr(ToyRuntime, "automatic", True)
    monkeypatch.delitem(BACKENDS, "openvino")
    with pytest.raises(DeviceError, match="no toy is here; buy one"):
        session_of()
    assert preferred_backend("auto", "cpu", torch.float32) == "torch"
    assert caplog.messages[-1] == "running on torch, without joy: no toy is here"
