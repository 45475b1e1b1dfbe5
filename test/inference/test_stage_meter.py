"""Stages of a window: each is counted once, with its own memory, and nothing stays watched."""

import dataclasses
import itertools

import numpy as np
import pytest

from da3_ros.inference import InferenceConfig, InferenceSession, stage_meter
from da3_ros.inference.benchmark import OTHER, measure_stages
from da3_ros.inference.devices import Device
from da3_ros.inference.random_windows import random_windows
from da3_ros.inference.stage_meter import StageMeter
from da3_ros.network import MODELS
from da3_ros.network.stages import BACKBONE, CAMERA, GAUSSIANS, HEAD, PREPARE, StageCall


class CountedMemory(Device):
    """A device whose memory and time are set by hand; its peak starts at what is in use."""

    kind = "cpu"

    def __init__(self):
        super().__init__()
        self.now, self.used, self.highest = 0.0, 0, 0

    def use(self, total, seconds):
        self.used = total
        self.highest = max(self.highest, total)
        self.now += seconds

    def in_use(self):
        return self.used

    def peak(self):
        return self.highest

    def reset_peak(self):
        self.highest = self.used


class Network:
    """An outer stage that calls an inner one twice."""

    def __init__(self, device):
        self.device = device

    def outer(self):
        self.device.use(150, 1.0)
        self.inner(400)
        self.device.use(160, 2.0)
        self.inner(300)
        self.device.use(100, 4.0)
        return "result"

    def inner(self, peak):
        self.device.use(peak, 10.0)
        self.device.use(120, 0.0)


@pytest.fixture
def device(monkeypatch):
    made = CountedMemory()
    monkeypatch.setattr(stage_meter.time, "perf_counter", lambda: made.now)
    made.use(100, 0.0)
    return made


def test_an_inner_stage_has_its_own_time_and_memory(device):
    network, meter = Network(device), StageMeter(device, memory=True)
    calls = [StageCall("a", network, "outer"), StageCall("b", network, "inner")]
    with meter.watching(calls):
        meter.begin()
        assert network.outer() == "result"
    assert meter.seconds == {"a": 7.0, "b": 20.0}
    assert meter.peaks == {"a": 60, "b": 300}


def test_work_that_a_stage_has_only_begun_counts_as_its_own(device):
    """As that of a GPU, whose calls return before it is done."""
    begun = []
    device.wait = lambda: device.use(100, begun.pop() if begun else 0.0)
    meter = StageMeter(device, memory=False)
    with meter.stage("a"):
        begun.append(8.0)
        with meter.stage("b"):
            begun.append(3.0)
    assert meter.seconds == {"a": 8.0, "b": 3.0}


def test_methods_are_themselves_again_also_after_an_error(device):
    network, meter = Network(device), StageMeter(device, memory=False)
    del network.device
    with pytest.raises(AttributeError), meter.watching([StageCall("a", network, "outer")]):
        network.outer()
    assert vars(network) == {}
    with meter.stage("b"):
        device.now += 1
    assert meter.seconds["b"] == 1.0, "a stage that raised is not open any more"


@pytest.mark.slow
@pytest.mark.openvino
@pytest.mark.parametrize("backend", ["torch", pytest.param("openvino", marks=pytest.mark.long)])
def test_stages_of_a_session_are_those_of_its_network(backend, tmp_path):
    config = InferenceConfig(
        "da3-tiny", "random", "cpu", backend, str(tmp_path), process_res=56, mixed_precision="off"
    )
    session = InferenceSession(config, poses=False)
    session.memory.fit((4, 3), 3, 1)
    found = {s.name: s for s in measure_stages(session, (64, 48), 2)}
    assert session.status().backend == backend
    assert list(found) == [PREPARE, OTHER, BACKBONE, HEAD, CAMERA]
    assert all(s.seconds > 0 for s in found.values())
    assert found[BACKBONE].seconds > found[CAMERA].seconds
    assert all(s.memory < 200 * 2**20 for s in found.values()), "without what was in use before"
    assert found[BACKBONE].memory > 2**17, "with what a runtime keeps between windows"
    assert not [c for c in session.stage_calls() if c.method in vars(c.owner)]


def test_gaussians_are_a_stage_of_their_own(monkeypatch):
    spec = dataclasses.replace(MODELS["da3-tiny"], name="da3-giant", gaussians=True)
    monkeypatch.setitem(MODELS, spec.name, spec)
    config = InferenceConfig("da3-giant", "random", "cpu", "torch", process_res=56)
    session = InferenceSession(config, poses=False, gaussians=True)
    session.memory.fit((4, 3), 3, 1)
    found = {s.name: s for s in measure_stages(session, (64, 48), 2)}
    assert set(found) == {PREPARE, OTHER, BACKBONE, HEAD, CAMERA, GAUSSIANS}
    assert found[GAUSSIANS].seconds > 0
    assert found[GAUSSIANS].memory > 0


def test_seconds_are_those_of_one_window(monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr(stage_meter.time, "perf_counter", lambda: float(next(clock)))
    config = InferenceConfig("da3-tiny", "random", "cpu", "torch", process_res=56)
    session = InferenceSession(config, poses=False)
    session.memory.fit((4, 3), 3, 1)
    two, four = (measure_stages(session, (64, 48), windows) for windows in (2, 4))
    assert {s.name: s.seconds for s in two} == {s.name: s.seconds for s in four}


def test_watching_changes_no_result():
    config = InferenceConfig("da3-tiny", "random", "cpu", "torch", process_res=56)
    session = InferenceSession(config, poses=False)
    session.memory.fit((4, 3), 3, 1)
    (window,) = random_windows(session.memory.plan, 3, 1, 1)
    plain = session.infer(window)
    with StageMeter(session.hardware, memory=True).watching(session.stage_calls()):
        watched = session.infer(window)
    np.testing.assert_array_equal(plain.depth, watched.depth)
