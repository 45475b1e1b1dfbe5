"""Everything that a session does, on a GPU that does not exist: PyTorch's fake tensors.

A fake tensor has a shape, a type and a device, and operations check them: a tensor made on the
host, or of the wrong type, fails here as it would on a GPU.
"""

import contextlib
import dataclasses

import numpy as np
import pytest
import torch
from support.cases import long_after
from support.tiny_networks import tiny_metric_spec, tiny_nested_spec
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from da3_ros.backends.self_check import SelfCheck
from da3_ros.inference import (
    InferenceConfig,
    InferenceSession,
    MetricDepthModel,
    devices,
)
from da3_ros.inference import feature_cache as transfer
from da3_ros.inference import session as module
from da3_ros.inference.devices import Cuda
from da3_ros.inference.loaded_network import LoadedNetwork
from da3_ros.inference.planner import GIB
from da3_ros.network import MODELS
from da3_ros.types import View, Window

K = np.array([[90.0, 0, 42], [0, 110.0, 28], [0, 0, 1]])


class FakeDownload(transfer.Download):
    """Answers with ones of the right shape: fake tensors hold no values."""

    def __init__(self, values):
        make = type(values)
        seen.extend(x for x in values if isinstance(x, torch.Tensor))
        with real():
            host = [None if x is None else torch.ones(x.shape, dtype=x.dtype) for x in values]
        self._event, self._host = None, make(*host)


seen: list = []


def getitem(self, index):
    """Indexing by single operations: Python's own binding of it asks for the GPU's driver."""
    index = index if isinstance(index, tuple) else (index,)
    known = sum(i is not None and i is not Ellipsis for i in index)
    if Ellipsis not in [i if i is Ellipsis else 0 for i in index]:
        index = (*index, Ellipsis)
    out, dim = self, 0
    for i in index:
        if i is Ellipsis:
            dim += self.dim() - known
        elif i is None:
            out, dim = out.unsqueeze(dim), dim + 1
        elif isinstance(i, slice):
            out = torch.ops.aten.slice.Tensor(out, dim, i.start, i.stop, i.step or 1)
            dim += 1
        elif isinstance(i, int):
            out = out.select(dim, i)
        else:
            chosen = i if isinstance(i, torch.Tensor) else torch.tensor(i).to(self.device)
            out, dim = out.index_select(dim, chosen), dim + 1
    return out


def setitem(self, index, value):
    view = getitem(self, index)
    value = value if isinstance(value, torch.Tensor) else torch.full_like(view, value)
    torch.ops.aten.copy_.default(view, value)


def replace_parameters(self, function, recurse=True):
    """As ``nn.Module._apply``, which cannot put one fake tensor in the place of another."""
    for child in self.children():
        child._apply(function)
    for name, parameter in self._parameters.items():
        if parameter is not None:
            value = function(parameter.detach())
            self._parameters[name] = torch.nn.Parameter(value, requires_grad=False)
    return self


@contextlib.contextmanager
def real():
    """Tensors with values, within fake ones."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        yield


def with_values(function):
    """What works on the host works with values."""

    def run(*args, **kwargs):
        with real():
            return function(*args, **kwargs)

    return run


@pytest.fixture
def gpu(monkeypatch):
    """A GPU with 8 GiB that holds fake tensors only."""

    class Properties:
        name, major, minor, is_integrated = "Fake", 8, 6, False

    patches = {
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "is_available": lambda: True,
        "get_device_properties": lambda d: Properties,
        "is_bf16_supported": lambda including_emulation=True: True,
        "mem_get_info": lambda d: (8 * GIB, 8 * GIB),
        "memory_reserved": lambda d: GIB,
        "memory_allocated": lambda d: GIB // 2,
        "max_memory_reserved": lambda d: GIB,
        "reset_peak_memory_stats": lambda d: None,
        "empty_cache": lambda: None,
        "set_per_process_memory_fraction": lambda share, d: None,
        "synchronize": lambda *a: None,
    }
    for name, function in patches.items():
        monkeypatch.setattr(torch.cuda, name, function)
    monkeypatch.setattr(Cuda, "attention", lambda self, dtype: "flash")
    monkeypatch.setattr(Cuda, "prepare", lambda self: None)
    monkeypatch.setattr(SelfCheck, "__init__", lambda self, network: None)
    monkeypatch.setattr(SelfCheck, "fault", lambda self, network: "")
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    monkeypatch.setattr(torch.nn.Module, "_apply", replace_parameters)
    instead = {
        "contiguous": lambda self, memory_format=torch.contiguous_format: self.clone(
            memory_format=memory_format
        ),
        "copy_": lambda self, other, non_blocking=False: torch.ops.aten.copy_.default(self, other),
        "__getitem__": getitem,
        "__setitem__": setitem,
    }
    plain = {name: getattr(torch.Tensor, name) for name in instead}
    for name, ours in instead.items():
        monkeypatch.setattr(
            torch.Tensor, name,
            lambda self, *a, _ours=ours, _plain=plain[name], **k: (
                _ours if self.device.type == "cuda" else _plain
            )(self, *a, **k),
        )  # fmt: skip
    monkeypatch.setattr(module, "Download", FakeDownload)
    monkeypatch.setattr(module, "to_prediction", with_values(module.to_prediction))
    monkeypatch.setattr("da3_ros.inference.feature_cache.Download", HostDownload)
    seen.clear()
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield


class HostDownload:
    """A prefix on the host, as fake as it was on the GPU."""

    def __init__(self, values):
        make = type(values)
        self._host = make(*(x.cpu() for x in values))

    def wait(self):
        return self._host


def open_session(model="da3-tiny", **changes):
    values = {"model": model, "checkpoint": "random", "device": "cuda", "process_res": 84}
    return InferenceSession(InferenceConfig(**(values | changes)))


def window(count, new=1, wanted=None, poses=False, seed=0):
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 255, (count, 56, 84, 3), np.uint8)
    T = np.tile(np.eye(4), (count, 1, 1))
    T[:, 0, 3] = np.arange(count)
    some = tuple(View(i, i, image, K) for i, image in enumerate(images))
    return Window(0, some, new, wanted, T if poses else None)


def on_gpu():
    assert seen
    assert all(isinstance(x, FakeTensor) and x.device.type == "cuda" for x in seen)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("precision", long_after(1, ["bfloat16", "off"]))
@pytest.mark.parametrize("poses", long_after(1, [True, False]))
def test_windows_stay_on_the_gpu_in_the_right_types(gpu, precision, poses):
    session = open_session(mixed_precision=precision)
    session.memory.fit((84, 56), 4, 1)
    sliding = window(4, poses=poses)
    session.prefetch(sliding.views[0].image)
    for wanted in (None, (0, 3)):
        found = session.infer(Window(0, sliding.views, 1, wanted, sliding.T_prior_camera))
        assert found.depth.shape == (4, 56, 84)
        assert found.T_window_camera.shape == (4, 4, 4)
    on_gpu()
    assert {x.dtype for x in seen} == {torch.float32}
    assert next(session.loaded.module.parameters()).device.type == "cuda"


@pytest.mark.long
@pytest.mark.slow
def test_every_other_method_runs_on_a_gpu(gpu, monkeypatch):
    session = open_session()
    plan = session.memory.fit((84, 56), 4, 1)
    assert plan.device == "cuda"
    session.memory.check_budget(2.0)
    session.memory.set_budget(4.0)
    assert session.warm_up(4, 1) is not None
    session.memory.use_plan(plan)
    session.memory.use_plan(dataclasses.replace(plan, prefix_on_host=True))
    for _ in range(2):
        session.infer(window(4))
    for relief in (1, 2, 3):
        session.memory.apply_fallback(0, 3)
        assert session.memory.fallback.level == relief
        session.infer(window(3))
    session.loaded.change_precision(torch.float32)
    session.infer(window(2))
    on_gpu()
    assert session.loaded.attention == "flash"


@pytest.mark.long
@pytest.mark.slow
def test_running_out_on_a_gpu_runs_the_window_again(gpu, monkeypatch):
    session = open_session()
    plain, left = session.loaded.module.decode, [1]

    def fail(*args, **kwargs):
        if left[0]:
            left[0] -= 1
            raise RuntimeError("CUDA error: out of memory")
        return plain(*args, **kwargs)

    monkeypatch.setattr(session.loaded.module, "decode", fail)
    assert session.infer(window(3)).depth.shape == (3, 56, 84)
    assert session.memory.fallback.level == 1


@pytest.mark.slow
@pytest.mark.parametrize("model", long_after(1, ["da3metric-large", "da3nested-giant-large"]))
def test_the_other_kinds_of_networks_stay_on_the_gpu(gpu, monkeypatch, model):
    for spec in (tiny_metric_spec(), tiny_nested_spec()):
        monkeypatch.setitem(MODELS, spec.name, spec)
    monkeypatch.setattr(module, "to_metres", as_metres)
    session = open_session(model)
    session._decoder._warned = True  # whether a focal length is a number cannot be asked of a fake
    session.memory.fit((84, 56), 3, 1)
    assert session.infer(window(3, wanted=(1, 2))).depth.shape == (3, 56, 84)
    on_gpu()


def as_metres(out, canonical, focal, fill_sky):
    assert same_place(out.depth, canonical.depth, focal)
    return out._replace(sky=canonical.sky, scale=focal[:, 0], scale_spread=focal[:, 0])


def same_place(*tensors):
    return len({x.device.type for x in tensors}) == 1


@pytest.mark.long
@pytest.mark.slow
def test_the_metric_model_runs_on_the_same_gpu(gpu, monkeypatch):
    monkeypatch.setitem(MODELS, "da3metric-large", tiny_metric_spec())
    metric_model = MetricDepthModel(InferenceConfig("da3-tiny", "random", "cuda:0"), "random")
    assert (
        metric_model.device
        == open_session(device="cuda:0").hardware.device
        == torch.device("cuda", 0)
    )
    out = metric_model._run([v.image for v in window(2).views])
    assert out.depth.device.type == out.sky.device.type == "cuda"


@pytest.mark.slow
def test_a_tensor_left_on_the_host_is_found(gpu, monkeypatch):
    """This file can fail: fake tensors do distinguish devices."""
    session = open_session()
    monkeypatch.setattr(LoadedNetwork, "upload", lambda self, x: x)
    with pytest.raises(Exception, match=r"device"):
        session.infer(window(3, wanted=(1, 2)))


def test_the_index_of_a_gpu_is_the_sessions_device(gpu):
    with pytest.raises(devices.DeviceError, match="'cuda:3' does not exist"):
        open_session(device="cuda:3")
