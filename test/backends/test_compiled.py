"""Compiled sessions: all windows of a stream, few programs, the numbers of plain fp32.

torch.compile runs for real here: with inductor, and a C++ compiler, on a few shapes; on a stream
of many with the backend ``aot_eager``; elsewhere with ``eager``, which traces and guards alike.
"""

import dataclasses
import shutil

import numpy as np
import pytest
import torch
import torch._dynamo.testing
from scipy.spatial.transform import Rotation

from da3_ros.backends import compiled as module
from da3_ros.backends.compiled import BOUND, CALLS_BEFORE_COMPILING, Compiler, difference
from da3_ros.config import PipelineConfig, config_from_parameters
from da3_ros.inference import InferenceConfig, InferenceSession
from da3_ros.inference.memory_footprint import cached_footprint
from da3_ros.network import MODELS
from da3_ros.network.model import Output
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera
from da3_ros.types import Frame, View, Window

SIZE = (42, 56)
# Every kind of layer of da3-tiny, which programs are made for one by one, and fewer of each.
SHORT = {"blocks": 5, "alt_start": 1, "taps": (1, 2, 3, 4), "features": 16,
         "channels": (8, 8, 16, 16)}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def short_network():
    """What is called da3-tiny here."""
    with pytest.MonkeyPatch.context() as patch:
        spec = dataclasses.replace(MODELS["da3-tiny"], **SHORT)
        patch.setitem(MODELS, "da3-tiny", spec)
        yield
    cached_footprint.cache_clear()


def session_of(backend=None, **changes):
    values = {
        "model": "da3-tiny", "checkpoint": "random", "device": "cpu", "mixed_precision": "off",
        "process_res": 56, "compile": "off" if backend is None else "on",
    }  # fmt: skip
    torch._dynamo.reset()
    session = InferenceSession(InferenceConfig(**(values | changes)), poses=False)
    if backend is not None:
        session.loaded.compiler.backend = backend
    return session


class Counting:
    """A backend that runs what was traced as it is, and counts the programs it is asked for."""

    def __init__(self, name="eager"):
        self.name, self.programs = name, 0

    def __call__(self, graph, inputs):
        self.programs += 1
        return torch._dynamo.lookup_backend(self.name)(graph, inputs)


def views(n):
    rng = np.random.default_rng(n)
    return [View(i, i, rng.integers(0, 256, (*SIZE, 3)).astype(np.uint8)) for i in range(n)]


def close(a, b, rtol=2e-3):
    np.testing.assert_allclose(a.depth, b.depth, rtol=rtol)
    np.testing.assert_allclose(a.T_window_camera, b.T_window_camera, atol=rtol)
    np.testing.assert_allclose(a.K, b.K, rtol=rtol)


LIMIT = 2  # programs that PyTorch makes of one function; its default is 8


def windows_of_a_stream():
    """A growing window, keyframes in the middle, a loop's window of old views, a short end."""
    some = views(10)
    shapes = [(some[: n + 1], 1) for n in (2, 3)]
    for k in (4, 5):  # keyframes: view 0, then 1
        shapes.append(([some[0 if k % 2 else 1], *some[k - 2 : k + 1]], 1))
    shapes.append(([some[1], *some[6:8]], 0))  # of a loop: all wanted
    shapes.append((some[8:10], 1))
    for number, (held, new) in enumerate(shapes):
        last = len(held) - new - 1
        joining = {0, 1 if number % 2 and last > 1 else last} if new else set()
        wanted = sorted({*joining, *range(len(held) - new, len(held))} - {-1}) if new else None
        yield Window(number, tuple(held), max(new, 1), None if wanted is None else tuple(wanted))


@pytest.mark.long
@pytest.mark.slow
@torch._dynamo.config.patch(recompile_limit=LIMIT)
def test_any_stream_is_compiled_and_right():
    """The backend traces, functionalises and guards as inductor does, without machine code."""
    counting = Counting("aot_eager")
    session, plain = session_of(counting), session_of()
    for s in (session, plain):
        s.memory.fit((56, 42), 4, 1)
    for window in windows_of_a_stream():
        expected = plain.infer(window)
        for _ in range(
            CALLS_BEFORE_COMPILING + 1
        ):  # the last ones compile, and run what was compiled
            close(session.infer(window), expected)
    assert session.loaded.compiler.mode
    shapes = {(len(w.views), len(w.wanted or w.views)) for w in windows_of_a_stream()}
    assert len(shapes) > LIMIT
    encoded = session.loaded.compiler.compiled - len(shapes)
    assert 1 <= encoded <= 4
    # No program is compiled twice: neither wanted frames nor other windows are guards.
    assert counting.programs == session.loaded.compiler.compiled
    assert all(p.run is not None for p in session.loaded.compiler._programs.values())


@pytest.mark.long
@pytest.mark.slow
def test_warm_up_compiles_the_pipelines_own_windows(caplog):
    camera = SyntheticCamera(seed=2, size=(56, 42), walk="loop", frames=12)
    values = {
        "model": "da3-tiny", "device": "cpu", "process_res": 56, "window.size": 6,
        "mixed_precision": "off", "keyframe.rotation_deg": 2.0, "loop.every": 1,
        "refinement.enabled": False,
    }  # fmt: skip
    found = []
    for backend in (Counting(), None):
        session = session_of(backend)
        if backend is not None:
            session.warm_up(6, 1, image=(56, 42))
        pipeline = Pipeline(config_from_parameters(values, PipelineConfig), session)
        frames = [Frame(f.stamp_ns, f.image, calibration=camera.calibration) for f in camera]
        found.append([t for f in frames for t in pipeline.push(f)])
        if backend is not None:
            # Of the warm-up: encode, and decode of the usual window.
            assert backend.programs == session.loaded.compiler.compiled == 2
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours.depth_m, theirs.depth_m, rtol=5e-3)
        np.testing.assert_allclose(ours.T_map_camera, theirs.T_map_camera, atol=5e-3)
    assert "uncompiled" not in caplog.text


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_inductors_encoder_equals_plain_code(caplog):
    """The encoder of a new frame as machine code; the decoder up to the step before it.

    g++ needs two seconds for a kernel, and a window's decoder has fifty: it goes through Inductor
    in the tests that need a GPU alone.
    """
    compiled = []

    def inductor(graph, inputs):
        name = "aot_eager" if len(graph.graph.nodes) > 200 else "inductor"
        compiled.append(name)
        with torch._inductor.config.patch({"cpp.simdlen": 1}):  # tries out no instruction sets
            return torch._dynamo.lookup_backend(name)(graph, inputs)

    session, plain = session_of(inductor), session_of()
    some = views(8)
    for s in (session, plain):
        s.memory.fit((56, 42), 4, 1)
    for k in range(5):
        window = Window(k, tuple(some[k : k + 4]), 1, (k % 2, 2, 3))
        close(session.infer(window), plain.infer(window))
    assert session.loaded.compiler.mode == "default"
    assert session.loaded.compiler.compiled == 2
    assert sorted(compiled) == ["aot_eager", "inductor"]
    assert "uncompiled" not in caplog.text


@pytest.mark.long
@pytest.mark.slow
def test_a_compiler_that_does_not_work_is_not_waited_for(monkeypatch, caplog):
    monkeypatch.setenv("CXX", "/nowhere/compiler")
    with torch._inductor.config.patch(
        {"cpp.cxx": ("/nowhere/compiler",), "fx_graph_cache": False}
    ):
        session, some = session_of("inductor"), views(CALLS_BEFORE_COMPILING)
        for k in range(len(some)):  # the last one compiles: a new frame's encode
            window = Window(k, tuple(some[: k + 1]), 1)
            found = session.infer(window)
    assert "running uncompiled" in caplog.text
    assert session.loaded.compiler.mode == ""
    close(found, session_of().infer(window))


@pytest.mark.long
@pytest.mark.slow
def test_a_warm_session_compiles_nothing_in_its_steady_state():
    counting = Counting()
    session = session_of(counting)
    session.warm_up(4, 1, image=(56, 42))
    before = counting.programs
    assert before == session.loaded.compiler.compiled >= 2
    for _ in range(4):  # a bag that loops: the sizes of the growing window come again and again
        some = views(8)
        for k in range(8):
            session.infer(Window(k, tuple(some[max(0, k - 3) : k + 1]), 1))
    assert counting.programs == before


@pytest.mark.long
@pytest.mark.slow
def test_a_wrong_program_is_not_used_and_reported_once(caplog):
    def wrong(graph, inputs):
        def run(*args):
            return [x * 1.1 if x.is_floating_point() else x for x in graph.forward(*args)]

        return run

    session, plain, some = session_of(wrong), session_of(), views(4)
    for k in range(4):
        window = Window(k, tuple(some), 1)
        close(session.infer(window), plain.infer(window), 1e-5)
    assert session.loaded.compiler.mode == ""
    assert caplog.text.count("torch.compile does not work here") == 1


@pytest.mark.long
@pytest.mark.slow
def test_a_failing_shape_after_working_ones_costs_only_itself(caplog):
    counting = Counting()

    def third(graph, inputs):
        if counting.programs >= 1:
            raise RuntimeError("no such shape")
        return counting(graph, inputs)

    session, plain, some = session_of(third), session_of(), views(6)
    for n in (4, 4, 4, 6, 6, 6, 4):
        window = Window(n, tuple(some[:n]), 1)
        close(session.infer(window), plain.infer(window), 2e-3)
    assert session.loaded.compiler.mode == "default"
    assert caplog.text.count("fails for a shape") == 1


def test_out_of_memory_is_not_the_compilers_fault():
    def exhausted(graph, inputs):
        def run(*args):
            raise torch.OutOfMemoryError("injected")

        return run

    compiler = Compiler("default", lambda e: isinstance(e, torch.OutOfMemoryError), exhausted)
    torch._dynamo.reset()
    for _ in range(3):  # what compiling takes is in no plan: the plain answer is there, and stays
        assert compiler.call(double, torch.float32, 0, torch.ones(2))[0].tolist() == [2.0, 2.0]
    assert compiler.mode == "default"
    assert compiler.compiled == 1


def test_out_of_memory_of_a_checked_program_passes():
    full = []

    def sometimes(graph, inputs):
        def run(*args):
            if full:
                raise torch.OutOfMemoryError("injected")
            return graph.forward(*args)

        return run

    compiler = Compiler("default", lambda e: isinstance(e, torch.OutOfMemoryError), sometimes)
    torch._dynamo.reset()
    for _ in range(3):
        compiler.call(double, torch.float32, 0, torch.ones(2))
    full.append(1)
    with pytest.raises(torch.OutOfMemoryError):
        compiler.call(double, torch.float32, 0, torch.ones(2))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("mode", "left"), [("reduce-overhead", 0), ("default", 2)])
def test_cuda_graphs_go_with_the_plan_and_when_memory_runs_out(mode, left):
    session, some = session_of(Counting()), views(3)
    session.loaded.compiler.mode = mode
    session.memory.fit((56, 42), 3, 1)

    def run():
        for _ in range(3):
            session.feature_cache.bound(0)
            session.infer(Window(0, tuple(some), 1))
        assert len(session.loaded.compiler._programs) >= 2

    run()
    session.memory.use_plan(
        dataclasses.replace(session.memory.plan, chunks=session.memory.plan.chunks)
    )
    assert len(session.loaded.compiler._programs) == 2  # nothing changed
    session.memory.use_plan(dataclasses.replace(session.memory.plan, width=84))
    assert len(session.loaded.compiler._programs) == left
    run()
    session.memory.apply_fallback(0, len(some))
    assert len(session.loaded.compiler._programs) == left


def double(x):
    return (2 * x,)


def spoiling(spoil):
    """A backend whose programs change the answers: ``spoil`` takes and gives all of one."""

    def backend(graph, inputs):
        return lambda *args: spoil(*graph.forward(*args))

    return backend


def several(x):
    return x + 1, x + 2, x + 3


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize(
    ("dtype", "factor", "used"),
    [
        (torch.float32, 1.002, True),
        (torch.float32, 1.01, False),
        (torch.bfloat16, 1.02, True),
        (torch.bfloat16, 1.1, False),
    ],
)
def test_each_result_of_a_program_is_compared(number, dtype, factor, used):
    def spoil(*answers):
        return [x * factor if i == number else x for i, x in enumerate(answers)]

    torch._dynamo.reset()
    compiler = Compiler("default", backend=spoiling(spoil))
    compiler.at_once = True
    compiler.call(several, dtype, 0, torch.ones(4))
    assert bool(compiler.mode) == used


def posed(x):
    eye = torch.eye(4).expand(1, 4, 4, 4)
    return Output(2 * x, 3 * x, eye[..., :3, :] + 0, eye[..., :3, :3] * 50 + x.mean())


def turned(degrees):
    """The last of the views, about the optical axis."""
    R = torch.from_numpy(Rotation.from_euler("z", degrees, degrees=True).as_matrix()).float()

    def spoil(depth, confidence, extrinsics, intrinsics):
        turned = torch.cat([extrinsics[:, :-1], R @ extrinsics[:, -1:]], 1)
        return depth, confidence, turned, intrinsics

    return spoil


def zoomed(factor):
    """The last of the views."""

    def spoil(depth, confidence, extrinsics, intrinsics):
        last = intrinsics[:, -1:] * torch.tensor([factor, 1.0, 1.0])[:, None]
        return depth, confidence, extrinsics, torch.cat([intrinsics[:, :-1], last], 1)

    return spoil


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (turned(1), ""),
        (turned(3), "rotation differs by 3 degrees"),
        (zoomed(1.02), ""),
        (zoomed(1.05), "focal length differs by 0.0488"),
    ],
)
def test_poses_of_a_program_are_compared(spoil, fault, caplog):
    """Poses of a program are as near as those of 16 bits must be."""
    x = torch.ones(1, 4, 8, 8)
    answer = tuple(posed(x)[:4])
    assert difference(spoil(*answer), answer, BOUND[torch.bfloat16]) == ""
    compiler = session_of(spoiling(spoil)).loaded.compiler
    compiler.at_once = True
    compiler.call(posed, torch.bfloat16, 0, x)
    assert bool(compiler.mode) == (fault == "")
    assert fault in caplog.text


class Calls:
    """A compiler that counts, and calls of one function with shapes of so many numbers."""

    def __init__(self, **options):
        torch._dynamo.reset()
        self.counting = Counting()
        self.compiler = Compiler("default", backend=self.counting, **options)

    def __call__(self, *counts):
        for n in counts:
            found = self.compiler.call(double, torch.float32, 0, torch.ones(n))
            assert found[0].tolist() == [2.0] * n
        assert self.compiler.compiled == self.counting.programs
        return self.compiler.compiled


def test_only_the_last_size_of_a_growing_window_is_compiled():
    calls = Calls()
    for passed in range(4):  # as a bag that loops
        assert calls(1, 2, 3, 4) == (passed > 0)
        assert calls(5, 5, 5) == 1
        assert calls(5) == 1


def test_what_comes_between_begins_a_row_anew():
    calls = Calls()
    assert calls(1, 1, 2, 1, 1, 2, 1, 1) == 0
    assert calls(1) == 1
    assert calls(2, 2, 1, 2, 2) == 1  # a compiled shape comes between too
    assert calls(2) == 2


def test_streams_in_turns_are_compiled_whatever_their_shapes():
    calls = Calls(streams=2)
    for _ in range(4):
        assert calls(1, 1, 2, 2, 3, 3, 4, 4) == 0  # two windows that grow together
    assert calls(5, 6, 5, 6, 5, 6, 5, 6, 5, 6) == 0
    assert calls(5, 6) == 2


def test_a_session_reports_how_many_streams_take_turns():
    torch._dynamo.reset()
    config = InferenceConfig("da3-tiny", "random", "cpu", compile="on", mixed_precision="off")
    compiler = InferenceSession(config, poses=False, streams=2).loaded.compiler
    compiler.backend = Counting()
    for n in (5, 6) * (2 * CALLS_BEFORE_COMPILING):
        compiler.call(double, torch.float32, 0, torch.ones(n))
    assert compiler.compiled == 2


@pytest.mark.slow
def test_beyond_the_bound_the_oldest_unused_program_leaves(monkeypatch, caplog):
    monkeypatch.setattr(module, "MAX_PROGRAMS", 2)
    calls = Calls()
    assert calls(1, 1, 1, 2, 2, 2, 1) == 2
    assert calls(3, 3, 3, 1) == 3
    assert calls(2, 2) == 3
    assert calls(2, 1) == 4  # 2 was dropped, and comes again for 3
    assert calls(3, 3, 3, 3) == 5
    assert len(calls.compiler._programs) == 2
    assert caplog.text.count("the least recently used one is dropped") == 1


@pytest.mark.long
@pytest.mark.slow
def test_a_windows_compiling_is_not_measured(monkeypatch):
    session, some = session_of(Counting()), views(4)
    session.memory.fit((56, 42), 4, 1)
    measured = []
    monkeypatch.setattr(
        session.hardware,
        "window_peak",
        lambda before, mine: measured.append(session.loaded.compiler.at_work) or 1,
    )
    for k in range(4):
        session.infer(Window(k, tuple(some), 1))
    assert measured == [False] * 3  # of four windows one compiled


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([1.0, 2.0], ""),
        ([1.0, 2.2], "differs by"),
        ([1.0, float("nan")], "non-finite"),
        ([1.0], "instead of"),
    ],
)
def test_differences_are_reported(found, said):
    told = difference((torch.tensor(found), None), (torch.tensor([1.0, 2.0]), None), 1e-2)
    assert (said in told) if said else told == ""
