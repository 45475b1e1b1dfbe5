"""Running out of memory loses nothing; kept prefixes and wanted views change nothing."""

import bisect
import contextlib
import dataclasses
import itertools
import threading

import numpy as np
import pytest
import torch
import torch._inductor.config
from support.cases import long_after

from da3_ros.backends.self_check import SelfCheck
from da3_ros.inference import (
    BudgetError,
    InferenceConfig,
    InferenceSession,
    WindowTooLargeError,
    devices,
    loaded_network,
    memory_governor,
)
from da3_ros.inference import memory_footprint as footprint
from da3_ros.inference import session as module
from da3_ros.inference.devices import CONTEXT, Cpu, Cuda, DeviceError, Mps
from da3_ros.inference.memory_footprint import cached_footprint
from da3_ros.inference.planner import GIB, gib_texts, least_memory, make_plan
from da3_ros.types import View, Window

SIZE = (84, 112)


def make_session(**changes):
    values = {
        "model": "da3-tiny", "checkpoint": "random", "device": "cpu", "mixed_precision": "off",
        "process_res": 112,
    }  # fmt: skip
    return InferenceSession(InferenceConfig(**(values | changes)))


def views(n, first=0):
    rng = np.random.default_rng(first)
    return [
        View(i, i, rng.integers(0, 256, (*SIZE, 3)).astype(np.uint8))
        for i in range(first, first + n)
    ]


def window(some, new=1, wanted=None, number=0):
    return Window(number, tuple(some), new, wanted)


def close(a, b):
    np.testing.assert_allclose(a.depth, b.depth, rtol=1e-4)
    np.testing.assert_allclose(a.T_window_camera, b.T_window_camera, atol=1e-5)


@pytest.mark.slow
def test_prefixes_are_computed_once_and_change_nothing(monkeypatch):
    session, some = make_session(), views(6)
    session.memory.fit((640, 480), 4, 1)
    encoded = []
    plain = session.loaded.module.encode
    monkeypatch.setattr(
        session.loaded.module, "encode", lambda x: encoded.append(x.shape[1]) or plain(x)
    )
    for i in range(3):
        sliding = window(some[i : i + 4])
        found = session.infer(sliding)
        close(found, make_session().infer(sliding))
    assert encoded == [4, 1, 1]
    assert len(session.feature_cache) == 5  # a window's, and room for what comes next


def test_a_view_that_waits_is_begun_with(monkeypatch):
    session, some = make_session(), views(4)
    session.memory.fit((640, 480), 4, 3)
    for view in some[:3]:
        session.prefetch(view.image)
    encoded = []
    plain = session.loaded.module.encode
    monkeypatch.setattr(
        session.loaded.module, "encode", lambda x: encoded.append(x.shape[1]) or plain(x)
    )
    found = session.infer(window(some))
    assert encoded == [1]
    close(found, make_session().infer(window(some)))


def test_beginning_early_never_fails_for_memory(monkeypatch):
    session, some = make_session(), views(2)
    session.memory.fit((640, 480), 4, 2)
    failing(monkeypatch, session.loaded.module, "encode", 1)
    session.prefetch(some[0].image)
    assert session.memory.fallback.level == 0
    assert np.isfinite(session.infer(window(some)).depth).all()


def test_a_gone_view_leaves_no_prefix_to_its_address(monkeypatch):
    session, some = make_session(), views(2)
    session.infer(window(some))
    assert session.feature_cache.get(some[0].image) is not None
    other = views(1, first=9)[0]
    entries = session.feature_cache._entries
    entries[id(other.image)] = entries[id(some[0].image)]  # as if the address was used again
    assert session.feature_cache.get(other.image) is None


def test_unwanted_maps_are_nan_and_the_rest_is_the_same():
    session, some = make_session(), views(4)
    whole, part = session.infer(window(some)), session.infer(window(some, wanted=(0, 3)))
    assert np.isnan(part.depth[[1, 2]]).all()
    np.testing.assert_allclose(part.depth[[0, 3]], whole.depth[[0, 3]], rtol=1e-5)
    np.testing.assert_allclose(part.T_window_camera, whole.T_window_camera, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["encode", "fuse", "decode", "download"])
@pytest.mark.parametrize("times", long_after(1, [1, 2, 3]))
def test_out_of_memory_anywhere_runs_the_same_window_again(monkeypatch, caplog, stage, times):
    session, some = make_session(), views(4)
    expected = session.infer(window(some))
    session.feature_cache.bound(0)
    owner, name = {
        "encode": (session.loaded.module, "encode"),
        "fuse": (session.loaded.module.backbone.pretrained, "fuse"),
        "decode": (session.loaded.module.head, "decode"),
        "download": (module, "to_prediction"),
    }[stage]
    failing(monkeypatch, owner, name, times)
    found = session.infer(window(some, number=7))
    assert session.memory.fallback.level == times
    assert caplog.text.count("out of memory: retrying window 7") == times
    assert found.depth.shape == expected.depth.shape
    assert np.isfinite(found.depth).all()
    if times == 1:  # only pieces got smaller
        close(found, expected)
    assert found.K[0, 0, 2] == pytest.approx(SIZE[1] / 2)


def failing(monkeypatch, owner, name, times):
    plain, left = getattr(owner, name), [times]

    def fail(*args, **kwargs):
        if left[0]:
            left[0] -= 1
            raise torch.OutOfMemoryError("injected")
        return plain(*args, **kwargs)

    monkeypatch.setattr(owner, name, fail)


@pytest.mark.slow
def test_an_oom_at_the_last_level_is_reported(monkeypatch):
    session = make_session()
    failing(monkeypatch, session.loaded.module, "encode", 99)
    with pytest.raises(WindowTooLargeError, match=r"window\.size or process_res"):
        session.infer(window(views(2)))

    def broken(*args):
        raise RuntimeError("something else")

    other = make_session()
    monkeypatch.setattr(other.loaded.module, "encode", broken)
    with pytest.raises(RuntimeError, match="something else"):
        other.infer(window(views(2)))


@pytest.mark.slow
def test_after_calm_it_climbs_back(monkeypatch):
    monkeypatch.setattr(memory_governor, "STABLE_WINDOWS", 3)
    session, some = make_session(), views(3)
    failing(monkeypatch, session.loaded.module, "encode", 2)
    reliefs = []
    for _ in range(8):
        session.infer(window(some))
        reliefs.append(session.memory.fallback.level)
    assert reliefs == [2, 2, 1, 1, 1, 0, 0, 0]


@pytest.mark.slow
def test_a_budget_makes_images_smaller_until_a_larger_one_comes():
    session = make_session(process_res=504)
    plenty = session.memory.fit((640, 480), 8, 1)
    session.memory.set_budget((plenty.weights + 0.5 * (plenty.predicted - plenty.weights)) / GIB)
    small = session.memory.plan
    assert small.process_res < 504
    assert small.predicted <= session.memory.budget
    with pytest.raises(BudgetError):
        session.memory.set_budget(0.01)
    assert session.memory.plan == small
    session.memory.set_budget(0)
    assert session.memory.plan.process_res == 504


def test_a_new_budget_caps_the_device_anew_and_ends_relief(monkeypatch):
    session = make_session()
    session.memory.fit((640, 480), 4, 1)
    session.memory.fallback.level = 2
    caps = []
    monkeypatch.setattr(session.hardware, "cap", caps.append)
    session.memory.set_budget(1.5)
    assert caps == [int(1.5 * GIB)]
    assert session.memory.fallback.level == 0
    assert session.loaded.module.chunks == session.memory.plan.chunks


@pytest.mark.slow
def test_16_bits_that_a_budget_forced_end_with_it(monkeypatch):
    monkeypatch.setattr(Cpu, "native_half", lambda self: None)
    session = make_session(mixed_precision="auto", process_res=504)
    plenty = session.memory.fit((640, 480), 8, 1)
    assert plenty.precision == "float32"
    expected = session.infer(window(views(2)))
    for share in np.arange(0.95, 0.5, -0.03):  # until pieces alone no longer do
        session.memory.set_budget(share * plenty.predicted / GIB)
        if session.loaded.precision == torch.bfloat16:
            break
    assert session.memory.plan.reduced[0] == "precision bfloat16"
    session.memory.set_budget(0)
    assert session.loaded.precision == torch.float32
    close(session.infer(window(views(2))), expected)


@pytest.mark.slow
def test_cameras_of_two_shapes_in_turns_keep_what_was_made(monkeypatch):
    session = InferenceSession(
        InferenceConfig("da3-tiny", "random", "cpu", "torch", process_res=112), streams=2
    )
    encoded, released = [], []
    encode = session.loaded.module.encode
    monkeypatch.setattr(
        session.loaded.module, "encode", lambda x: encoded.append(x.shape[1]) or encode(x)
    )
    monkeypatch.setattr(session.hardware, "release", lambda: released.append(1))
    session.memory._measured_on.add("torch")
    held = {(640, 480): [], (1280, 720): []}
    for k in range(6):
        for image, some in held.items():
            plan = session.memory.fit(image, 3, 1)
            assert plan.width / plan.height == pytest.approx(image[0] / image[1], rel=0.1)
            pixels = np.full((plan.height, plan.width, 3), 20 * k, np.uint8)
            some[:] = [*some, View(k, k, pixels)][-3:]
            session.infer(window(some))
        if k == 1:
            released.clear()
    assert sum(encoded) == 12 + 1  # of the first camera's frame, when the second one came
    assert not released


@pytest.mark.slow
def test_a_shape_that_does_not_fit_borrows_no_other_plan():
    session = make_session(process_res=504)
    session.memory.fit((640, 480), 8, 1)
    least = {}
    for image in ((640, 480), (480, 480)):
        small = dataclasses.replace(
            session.memory.requests.newest, image=image, process_res=224, window=2
        )
        least[image] = next(b for b in range(0, GIB, 1 << 18) if fits(session.hardware, small, b))
    session.memory.set_budget(sum(least.values()) / 2 / GIB)
    assert session.memory.plan.width > session.memory.plan.height
    for _ in range(2):
        with pytest.raises(BudgetError):
            session.memory.fit((480, 480), 8, 1)
    assert session.memory.fit((640, 480), 8, 1).width > session.memory.plan.height


SHAPES = ((640, 480), (1280, 320))


def session_of_two(**changes):
    """A session of two cameras in turns, whose images differ in shape."""
    values = {"process_res": 504, "mixed_precision": "off"} | changes
    session = InferenceSession(
        InferenceConfig("da3-tiny", "random", "cpu", **values), streams=len(SHAPES)
    )
    for image in SHAPES:
        session.memory.fit(image, 8, 1)
    return session


def least_of(session, image):
    request = dataclasses.replace(session.memory.requests.newest, image=image)
    return least_memory(session.hardware, request, session.memory.factor)


def state_of(session):
    memory = session.memory
    return (
        session.memory.plan, memory.budget, memory.fallback.level, memory.over_budget,
        session.loaded.precision, dict(memory.requests.plans), session.loaded.module.chunks,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("newest", SHAPES)
def test_a_budget_too_small_for_one_camera_is_refused_at_once(newest):
    session = session_of_two()
    plan = session.memory.fit(newest, 8, 1)
    before, least = state_of(session), [least_of(session, image) for image in SHAPES]
    between = sum(least) / 2 / GIB
    _, needed = gib_texts(int(between * GIB), max(least))  # rounded up: asked for, it is enough
    for ask in (session.memory.check_budget, session.memory.set_budget):
        with pytest.raises(BudgetError, match=f"it needs at least {needed} GiB"):
            ask(between)
        assert state_of(session) == before
        assert session.memory.plan is plan
    session.memory.set_budget(1.01 * max(least) / GIB)
    for image in SHAPES:
        assert session.memory.fit(image, 8, 1).predicted <= session.memory.budget


@pytest.mark.slow
@pytest.mark.parametrize("change", ["another shape", "another window"])
def test_a_budget_is_judged_by_current_requests_alone(change):
    """A budget is not judged by what no camera asks for any more."""
    session = session_of_two()
    least = [least_of(session, image) for image in SHAPES]
    between = sum(least) / 2 / GIB
    small = SHAPES[least.index(min(least))]
    if change == "another shape":
        session.memory.fit((small[0], small[1] + 1), 8, 1)
    session.memory.fit(small, 8 if change == "another shape" else 6, 1)
    session.memory.set_budget(between)
    assert session.memory.budget == int(between * GIB)


@pytest.mark.slow
def test_the_guess_of_a_warm_up_is_no_cameras_shape():
    session = InferenceSession(
        InferenceConfig("da3-tiny", "random", "cpu", "torch", process_res=112), streams=2
    )
    session.warm_up(4, 1)
    least = least_of(session, (4, 3))
    with pytest.raises(BudgetError):  # it is all that is known
        session.memory.check_budget(0.99 * least / GIB)
    session.memory.fit((1280, 320), 4, 1)
    assert least_of(session, (1280, 320)) < 0.99 * least
    session.memory.check_budget(0.99 * least / GIB)


def test_wrong_16_bits_that_one_camera_needs_change_no_budget(monkeypatch):
    monkeypatch.setattr(SelfCheck, "fault", lambda self, network: "depth off by 0.5 of its value")
    monkeypatch.setattr(Cpu, "native_half", lambda self: None)
    session = session_of_two(mixed_precision="auto")
    plain = {
        image: least_memory(
            session.hardware,
            dataclasses.replace(session.memory.requests.newest, image=image, lower_precision=None),
            session.memory.factor,
        )
        for image in SHAPES
    }
    small, large = sorted(SHAPES, key=plain.get)
    before = session.memory.fit(small, 8, 1), *state_of(session)[1:]
    budget = 0.999 * plain[large]
    assert budget > max(plain[small], least_of(session, large))
    with pytest.raises(BudgetError):
        session.memory.set_budget(budget / GIB)
    assert state_of(session) == before
    assert session.loaded.module.chunks == session.memory.plan.chunks


@pytest.fixture
def loads(monkeypatch):
    """The precisions that networks were loaded in, or converted to."""
    asked, plain = [], loaded_network.load_checked
    monkeypatch.setattr(Cpu, "native_half", lambda self: None)
    monkeypatch.setattr(
        loaded_network, "load_checked",
        lambda load, on, precision, *rest: asked.append(precision)
        or plain(load, on, precision, *rest),
    )  # fmt: skip
    return asked


def budget_between(session):
    """One that one shape needs 16 bits for, in GiB, and that shape; the other one does not."""
    needed = {}
    for image in SHAPES:
        plain = dataclasses.replace(
            session.memory.requests.newest, image=image, lower_precision=None
        )
        budgets = range(100 << 20, 400 << 20, 1 << 20)
        found = bisect.bisect_left(
            budgets, True,
            key=lambda b: bool((p := fits(session.hardware, plain, b)) and not p.reduced),
        )  # fmt: skip
        needed[image] = budgets[found]
    return sum(needed.values()) / 2 / GIB, max(needed, key=needed.get)


@pytest.mark.slow
def test_16_bits_for_one_camera_are_for_all_while_needed(loads):
    session = session_of_two(mixed_precision="auto")
    budget, needs = budget_between(session)
    session.memory.set_budget(budget)
    loads.clear()
    plans = [session.memory.fit(image, 8, 1) for _ in range(6) for image in SHAPES]
    assert len(loads) <= 1
    assert len({id(plan) for plan in plans[2:]}) == 2
    for plan in plans[2:]:
        assert plan.reduced[0] == "precision bfloat16"
        assert plan.predicted <= session.memory.budget
    assert session.loaded.precision == torch.bfloat16

    loads.clear()
    (other,) = set(SHAPES) - {needs}
    for image in [other, (other[0], other[1] + 1)] * 3:  # the other camera has another shape now
        plan = session.memory.fit(image, 8, 1)
    assert loads == [torch.float32]
    assert plan.reduced == ()


@pytest.mark.parametrize("newest", SHAPES)
def test_a_new_budget_gives_the_precision_all_cameras_can_have(loads, newest):
    session = session_of_two(mixed_precision="auto")
    session.memory.fit(newest, 8, 1)
    budget, _ = budget_between(session)
    loads.clear()
    for value, precision in ((budget, torch.bfloat16), (0, torch.float32)):
        session.memory.set_budget(value)
        for _ in range(2):
            assert [session.memory.fit(i, 8, 1).dtype for i in SHAPES] == [precision] * 2
    assert loads == [torch.bfloat16, torch.float32]


def test_a_check_of_a_budget_counts_no_network_anew(monkeypatch):
    session = make_session(process_res=504)
    plan = session.memory.fit((640, 480), 8, 1)

    def count(shape, spec):
        raise AssertionError(f"{shape} is counted")

    monkeypatch.setattr(footprint, "_footprint", count)
    session.memory.check_budget(0.6 * plan.predicted / GIB)  # fits with something given up
    assert session.memory.plan == plan


def fits(on, request, budget):
    try:
        return make_plan(on, request, budget)
    except BudgetError:
        return None


def test_a_measurement_that_nothing_fits_loses_no_window(monkeypatch, caplog):
    session = make_session()
    plan = session.memory.fit((640, 480), 2, 1)
    monkeypatch.setattr(session.hardware, "window_peak", lambda before, persistent: 1 << 50)
    monkeypatch.setattr(memory_governor, "make_plan", refuse)
    assert np.isfinite(session.infer(window(views(2))).depth).all()
    assert session.memory.plan == plan
    assert "the old plan stays" in caplog.text


def refuse(*args):
    raise BudgetError("nothing fits")


def test_a_measured_pass_corrects_the_prediction():
    session, some = make_session(process_res=252), views(5)
    session.memory.fit((640, 480), 4, 1)
    session.infer(window(some[:4]))
    assert session.memory.measured
    assert session.memory.meter.peak > 0
    assert session.memory.plan.predicted < session.memory.budget


def test_a_given_plan_stays_and_wants_its_own_model():
    first = make_session()
    plan = first.memory.fit((640, 480), 4, 1)
    session = make_session()
    session.memory.use_plan(plan)
    assert session.memory.fit((1000, 10), 8, 2) == plan
    with pytest.raises(ValueError, match="is for da3-small"):
        session.memory.use_plan(dataclasses.replace(plan, model="da3-small"))


def test_a_fast_path_that_is_wrong_is_not_used(monkeypatch, caplog):
    monkeypatch.setattr(SelfCheck, "fault", lambda self, network: "depth off by 0.5 of its value")
    session = make_session(mixed_precision="bfloat16")
    assert session.loaded.precision == torch.float32
    assert next(session.loaded.module.backbone.parameters()).dtype == torch.float32
    assert "running in fp32" in caplog.text


def test_self_check_passes_16_bits_and_finds_a_broken_network():
    session = make_session()
    check = SelfCheck(session.loaded.module)
    assert check.fault(session.loaded.module) == ""
    assert make_session(mixed_precision="bfloat16").loaded.precision == torch.bfloat16
    with torch.no_grad():
        session.loaded.module.head.scratch.output_conv2[2].bias += 0.1
    assert "depth" in check.fault(session.loaded.module)
    with torch.no_grad():
        session.loaded.module.head.scratch.output_conv2[2].bias += torch.nan
    assert "depth differs by nan" in check.fault(session.loaded.module)


# Devices --------------------------------------------------------------------------------------


def test_a_second_session_sets_no_threads_and_does_not_raise():
    threads = torch.get_num_threads()
    for _ in range(2):
        make_session(performance_mode="minimal")
    assert torch.get_num_threads() <= threads


def test_cpu_recognises_its_own_out_of_memory():
    cpu = Cpu()
    text = "[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory"
    assert cpu.is_out_of_memory(RuntimeError(text))
    assert cpu.is_out_of_memory(MemoryError())
    assert not cpu.is_out_of_memory(RuntimeError("shapes"))


@pytest.fixture
def mps(monkeypatch):
    """A Mac's GPU with 8 GiB recommended and 1 GiB held by the driver; its tensors are here."""
    calls = []
    faked = {
        "recommended_max_memory": lambda: 8 * GIB,
        "driver_allocated_memory": lambda: GIB,
        "set_per_process_memory_fraction": calls.append,
        "empty_cache": lambda: calls.append("empty"),
        "synchronize": lambda: None,
    }
    for name, function in faked.items():
        monkeypatch.setattr(torch.mps, name, function)
    device = Mps()
    device.device = torch.device("cpu")
    device.calls = calls
    return device


def test_mps_takes_16_bits_where_metal_multiplies_them(mps, monkeypatch):
    assert mps.precision("auto") == torch.bfloat16
    plain = torch.ones

    def old_macos(*shape, dtype=None, **options):
        if dtype == torch.bfloat16:
            raise TypeError("BFloat16 is not supported on MPS")
        return plain(*shape, dtype=dtype, **options)

    monkeypatch.setattr(torch, "ones", old_macos)
    assert mps.precision("auto") == torch.float16
    with pytest.raises(DeviceError, match="mixed_precision bfloat16 is not usable on mps"):
        mps.precision("bfloat16")
    with pytest.raises(DeviceError, match="mixed_precision int8 is not usable on mps"):
        mps.precision("int8")


def test_mps_attention_follows_its_memory(mps, monkeypatch, caplog):
    assert mps.attention(torch.float16) == "fused"
    held = itertools.cycle([GIB, GIB + 2**25])  # 4096 x 4096 scores of 16 bits
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: next(held))
    for _ in range(2):  # a session asks before and after it has loaded the network
        assert mps.attention(torch.float16) == "math"
    assert caplog.text.count("square of a window") == 1


def test_every_device_has_three_modes_that_differ(mps, gpu):
    pieces = []
    for mode in ("minimal", "balanced", "max"):
        mps.mode = mode
        pieces.append(mps.chunks())
    assert len(set(pieces)) == 3
    gpus = [gpu(mode=mode) for mode in ("minimal", "balanced", "max")]
    assert len({(c.chunks(), c.compile_mode("auto")) for c in gpus}) == 3


def test_mps_counts_driver_memory_and_takes_no_compiler(mps):
    assert mps.in_use() == GIB
    assert mps.free() <= 7 * GIB
    with pytest.raises(DeviceError, match="set compile to off"):
        mps.compile_mode("on")
    assert mps.compile_mode("auto") == ""
    mps.cap(4 * GIB)
    assert mps.calls == [0.5]
    assert mps.is_out_of_memory(RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"))


@pytest.fixture
def gpu(monkeypatch):
    """Makes a CUDA device of a given kind out of nothing."""

    def make(capability=(8, 6), bf16=True, integrated=False, free=6 * GIB, mode="balanced"):
        class Properties:
            name, major, minor, is_integrated = "Card", *capability, integrated

        patches = {
            "current_device": lambda: 0,
            "device_count": lambda: 2,
            "is_available": lambda: True,
            "get_device_properties": lambda d: Properties,
            "is_bf16_supported": lambda including_emulation=True: bf16,
            "mem_get_info": lambda d: (free, 8 * GIB),
            "memory_reserved": lambda d: GIB,
            "memory_allocated": lambda d: GIB // 2,
            "max_memory_reserved": lambda d: 2 * GIB,
            "set_per_process_memory_fraction": lambda share, d: shares.append(share),
        }
        for name, function in patches.items():
            monkeypatch.setattr(torch.cuda, name, function)
        device = Cuda(mode)
        device.shares = shares
        return device

    shares: list[float] = []
    return make


def test_cuda_takes_what_the_chip_has(gpu):
    assert gpu().precision("auto") == torch.bfloat16
    turing = gpu((7, 5), bf16=False)
    assert turing.precision("auto") == torch.float16
    with pytest.raises(DeviceError, match="bfloat16 is not usable on cuda"):
        turing.precision("bfloat16")
    assert gpu((6, 1), bf16=False).precision("auto") == torch.float32


def test_a_gpu_is_chosen_by_its_number(gpu, monkeypatch):
    gpu()
    monkeypatch.setattr(torch.cuda, "device", lambda d: contextlib.nullcontext())
    monkeypatch.setattr(Cuda, "prepare", lambda self: None)
    assert devices.open_device("cuda:1").device == torch.device("cuda", 1)
    assert devices.open_device("cuda").device == torch.device("cuda", 0)
    with pytest.raises(DeviceError, match=r"'cuda:2' does not exist: .* one of cuda:0, cuda:1$"):
        devices.open_device("cuda:2")
    with pytest.raises(DeviceError, match=r"'cpu:x' does not exist: set `device` to one of cpu$"):
        devices.open_device("cpu:x")


@pytest.mark.parametrize("given", [None, "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
@pytest.mark.parametrize("processor", ["x86_64", "aarch64"])
def test_the_cuda_allocator_extends_its_blocks_unless_the_user_said_how(
    gpu, monkeypatch, given, processor
):
    gpu()
    monkeypatch.setattr(devices.platform, "machine", lambda: processor)
    monkeypatch.setattr(Cuda, "prepare", lambda self: None)
    monkeypatch.setattr(devices.os, "environ", {given: "mine"} if given else {})
    devices.open_device("cpu")
    assert devices.os.environ == ({given: "mine"} if given else {})
    devices.open_device("cuda:0")
    ours = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} if processor == "x86_64" else {}
    assert devices.os.environ == ({given: "mine"} if given else ours)


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: out of memory\nCUDA kernel errors might be reported asynchronously",
        "CUDA driver error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "FIND was unable to find an engine to execute this computation",
        "GET was unable to find an engine to execute this computation",
        "NVML_SUCCESS == r INTERNAL ASSERT FAILED at CUDACachingAllocator.cpp",
    ],
)
def test_cuda_recognises_out_of_memory_by_its_message_too(gpu, text):
    kinds = [RuntimeError, getattr(torch, "AcceleratorError", RuntimeError)]
    assert all(gpu().is_out_of_memory(kind(text)) for kind in kinds)


def test_other_errors_of_a_gpu_are_not_out_of_memory(gpu):
    for text in ("CUDA error: an illegal memory access was encountered", "shapes", "device-side"):
        assert not gpu().is_out_of_memory(RuntimeError(text))
    assert not gpu().is_out_of_memory(ValueError("CUDA error: out of memory"))


@pytest.mark.parametrize("taken", [6, 7])
def test_attention_is_asked_about_as_this_torch_takes_it(monkeypatch, taken):
    class Params:
        def __init__(self, *args):
            if len(args) != taken:
                raise TypeError("incompatible constructor arguments")

    monkeypatch.setattr(torch.backends.cuda, "SDPAParams", Params)
    assert isinstance(devices.sdpa_params(torch.ones(1)), Params)


def test_cuda_compiles_in_max_and_when_asked(gpu):
    assert gpu().compile_mode("auto") == ""
    assert gpu().compile_mode("on") == "default"
    assert gpu(mode="max").compile_mode("auto") == "reduce-overhead"
    assert gpu(mode="max").compile_mode("off") == ""


def test_cuda_counts_its_context_and_caps_the_allocator(gpu):
    device = gpu()
    assert device.peak() == 2 * GIB + CONTEXT
    assert device.free() == 6 * GIB + GIB // 2
    device.cap(4 * GIB + CONTEXT)
    assert device.shares == [0.5]


def test_a_jetsons_free_memory_is_what_both_leave(gpu, monkeypatch):
    monkeypatch.setattr("da3_ros.inference.devices.host_free", lambda: 2 * GIB)
    assert gpu(integrated=True).free() == 2 * GIB
    assert gpu().free() > 2 * GIB


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks torch about a GPU that is not there")
def test_without_fused_attention_the_remedy_is_named(gpu, monkeypatch):
    device = gpu((6, 1), bf16=False)
    device.device = torch.device("cpu")
    for name in ("can_use_flash_attention", "can_use_efficient_attention"):
        monkeypatch.setattr(torch.backends.cuda, name, lambda given: False)
    with pytest.raises(DeviceError, match=r"no fused attention for float32.*mixed_precision"):
        device.attention(torch.float32)


@pytest.mark.parametrize(
    ("amx", "avx", "pays", "native"),
    [
        (True, True, False, torch.bfloat16),
        (False, True, True, torch.bfloat16),
        (False, True, False, None),
        (False, False, True, None),
    ],
)
def test_a_cpu_computes_in_bf16_where_it_is_faster(monkeypatch, amx, avx, pays, native):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx, raising=False)
    monkeypatch.setattr(devices, "bf16_pays", lambda: pays)
    assert Cpu().native_half() == native


def test_whether_bf16_pays_is_found_out_once(caplog):
    caplog.set_level("INFO")
    assert devices.bf16_pays() == devices.bf16_pays()
    assert caplog.text.count("times as fast as float32") <= 1


# Budgets on a GPU ----------------------------------------------------------------------------


class CachingGpu(Cpu):
    """A GPU's allocator: blocks stay reserved until they are released, and count as its peak."""

    kind, shares_host = "cuda", False

    def __init__(self):
        super().__init__()
        self.device = torch.device("cpu")
        self.reserved = self.most = 0
        self.needs = lambda: 0

    def run(self):
        """A window that takes what its plan's shapes take."""
        self.reserved = max(self.reserved, self.needs())
        self.most = max(self.most, self.reserved)

    def in_use(self):
        return self.reserved

    def peak(self):
        return self.most

    def window_peak(self, before, persistent):
        return self.peak()

    def reset_peak(self):
        self.most = self.reserved

    def release(self):
        self.reserved = 0


@pytest.fixture
def cached(monkeypatch):
    """A session on such a GPU; its windows take 1.4 times the plan's prediction."""
    gpu = CachingGpu()
    monkeypatch.setattr(module, "open_device", lambda name, mode: gpu)
    session = make_session(process_res=504)
    gpu.needs = lambda: int(
        session.memory.plan.predicted
        + (1.4 / session.memory.factor - 1) * session.memory.plan.activations
    )
    session.memory.fit((640, 480), 4, 1)
    plain = session._decoder.answer
    monkeypatch.setattr(session._decoder, "answer", lambda *a: gpu.run() or plain(*a))
    return session


@pytest.mark.slow
def test_a_lowered_budget_shrinks_the_image_once(cached):
    run_some(cached, 3)
    full = cached.memory.plan
    assert full.process_res == 504
    cached.memory.set_budget((full.predicted - 0.3 * full.activations) / GIB)
    sizes = []
    for _ in range(8):
        run_some(cached, 1)
        sizes.append(cached.memory.plan.process_res)
    assert 224 < sizes[0] < 504
    assert set(sizes) == {sizes[0]}
    assert cached.memory.factor == pytest.approx(1.4, rel=0.05)
    assert cached.memory.meter.peak <= full.predicted * 1.1


def test_what_others_left_in_the_allocator_shrinks_nothing(cached):
    run_some(cached, 3)
    before = cached.memory.plan
    cached.memory.set_budget(1.02 * before.predicted / GIB)
    cached.hardware.reserved = 4 * before.predicted  # of the metric model, or of an earlier shape
    run_some(cached, 3)
    assert cached.memory.plan.process_res == before.process_res
    assert cached.memory.factor == pytest.approx(1.4, rel=0.05)


def run_some(session, windows):
    """Windows of the plan's views; the network sees small pictures, the GPU counts the plan's."""
    for number in range(windows):
        session.infer(window(views(4, first=4 * number)))


def test_a_budget_is_checked_without_changing_anything(monkeypatch):
    session = make_session(process_res=504)
    plan = session.memory.fit((640, 480), 4, 1)
    before = session.memory.budget, session.memory.fallback.level, session.loaded.module.chunks
    with pytest.raises(BudgetError, match="raise memory_budget_gb"):
        session.memory.check_budget(0.01)
    session.memory.check_budget(0.2)
    assert (
        session.memory.budget,
        session.memory.fallback.level,
        session.loaded.module.chunks,
    ) == before
    assert session.memory.plan is plan


@pytest.mark.slow
def test_budgets_can_be_checked_while_a_window_runs():
    session, some, wrong = make_session(process_res=112), views(4), []
    session.memory.fit((640, 480), 4, 1)
    expected = session.infer(window(some))
    done = threading.Event()

    def ask():
        while not done.is_set():
            cached_footprint.cache_clear()
            session.memory.check_budget(1.0)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for k in range(5):
            found = session.infer(window(some, number=k))
            if not np.array_equal(found.depth, expected.depth):
                wrong.append(k)
    finally:
        done.set()
        asking.join(60)
    assert wrong == []
    assert not asking.is_alive()


@pytest.mark.slow
def test_16_bits_that_were_wrong_are_not_taken_to_save_memory(monkeypatch, caplog):
    monkeypatch.setattr(SelfCheck, "fault", lambda self, network: "depth off by 0.5 of its value")
    monkeypatch.setattr(Cpu, "native_half", lambda self: torch.bfloat16)
    session = make_session(mixed_precision="auto", process_res=504)
    assert session.loaded.precision == torch.float32
    full = session.memory.fit((640, 480), 8, 1)
    session.memory.set_budget(0.6 * full.predicted / GIB)
    assert session.memory.plan.precision == "float32"
    assert session.memory.plan.process_res < 504
    assert caplog.text.count("is not close to fp32") == 1  # at the start, and not tried again


@pytest.mark.slow
def test_16_bits_that_a_budget_wants_are_checked_first(monkeypatch, caplog):
    monkeypatch.setattr(SelfCheck, "fault", lambda self, network: "depth off by 0.5 of its value")
    monkeypatch.setattr(Cpu, "native_half", lambda self: None)
    session = make_session(mixed_precision="auto", process_res=504)
    full = session.memory.fit((640, 480), 8, 1)
    expected = session.infer(window(views(2)))
    session.memory.set_budget(0.6 * full.predicted / GIB)
    assert session.loaded.precision == torch.float32
    assert session.memory.plan.precision == "float32"
    assert "running in fp32" in caplog.text
    close(session.infer(window(views(2))), expected)


def test_attention_is_named_for_the_precision_that_runs(monkeypatch):
    monkeypatch.setattr(SelfCheck, "fault", lambda self, network: "depth off by 0.5 of its value")
    monkeypatch.setattr(Cpu, "attention", lambda self, dtype: f"for {dtype}")
    assert make_session(mixed_precision="bfloat16").loaded.attention == "for torch.float32"


def test_a_correction_without_a_fitting_plan_keeps_the_old_one(monkeypatch):
    session = make_session()
    plan = session.memory.fit((640, 480), 2, 1)
    monkeypatch.setattr(session.hardware, "window_peak", lambda before, persistent: 1 << 50)
    monkeypatch.setattr(memory_governor, "make_plan", refuse)
    session.infer(window(views(2)))
    assert "the old plan stays" in session.memory.over_budget
    assert session.memory.plan == plan


# Before the first frame -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("poses", long_after(1, [True, False]))
def test_a_warm_up_leaves_no_trace(poses):
    session, plain = (
        InferenceSession(
            InferenceConfig("da3-tiny", "random", "cpu", process_res=112), poses=poses
        )
        for _ in range(2)
    )
    given, answer = session.warm_up(4, 1, image=(112, 84))
    assert answer.depth.shape == (4, 84, 112)
    assert len(given.views) == session.memory.plan.window
    assert (
        len(session.feature_cache)
        == session.memory.meter.peak
        == session.memory.fallback.level
        == 0
    )
    assert not session.memory.measured
    assert not session._waited_s
    close(session.infer(window(views(3))), plain.infer(window(views(3))))


@pytest.mark.slow
def test_a_warm_up_encodes_as_a_stream_does(monkeypatch):
    session, encoded = make_session(), []
    plain = session.loaded.module.encode
    monkeypatch.setattr(
        session.loaded.module, "encode", lambda x: encoded.append(x.shape[1]) or plain(x)
    )
    decoded, decode = [], session.loaded.module.decode
    monkeypatch.setattr(
        session.loaded.module, "decode",
        lambda p, *a, **k: decoded.append((p[0].shape[1], len(k["frames"]))) or decode(p, *a, **k),
    )  # fmt: skip
    session.warm_up(6, 2)
    assert encoded == [1, 2]  # a frame that waits, and the new ones; not a window of them
    assert decoded == [(6, 5)]


def test_a_warm_up_without_memory_leaves_images_as_large(monkeypatch):
    session = make_session()
    decode = session.loaded.module.decode

    def fail(*args, **kwargs):
        raise MemoryError("injected")

    monkeypatch.setattr(session.loaded.module, "decode", fail)
    with pytest.raises(WindowTooLargeError):
        session.warm_up(4, 1, image=(112, 84))
    monkeypatch.setattr(session.loaded.module, "decode", decode)
    assert session.memory.fallback.level == 0
    assert session.loaded.chunks == session.memory.plan.chunks


def test_a_warm_up_ends_when_the_node_does():
    session = make_session()
    assert session.warm_up(4, 1, stopping=lambda: True) is None
