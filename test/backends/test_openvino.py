"""Sessions on OpenVINO: PyTorch's numbers in every situation of a stream."""

import dataclasses
import gc
import logging
import shutil
import threading
import time
import weakref

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

pytest.importorskip("openvino", reason="needs OpenVINO: pip install openvino")

from support.cases import long_after

from da3_ros.backends import openvino_runtime
from da3_ros.backends.compiled import difference
from da3_ros.backends.engine_builder import build_engine, load_network
from da3_ros.backends.golden import GOLDEN, smooth_images
from da3_ros.backends.openvino_engine import EngineError
from da3_ros.backends.openvino_import import OpenVinoMissingError
from da3_ros.backends.openvino_runtime import open_checked
from da3_ros.config import config_from_parameters
from da3_ros.inference import DeviceError, InferenceConfig, InferenceSession, devices
from da3_ros.inference.memory_footprint import weight_bytes
from da3_ros.network import MODELS, initialize_randomly
from da3_ros.network.build import network_of
from da3_ros.network.checkpoint import shipped_folder
from da3_ros.network.model import Chunks
from da3_ros.network.precision import drop_rays
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera
from da3_ros.types import Frame, View, Window

pytestmark = [pytest.mark.openvino, pytest.mark.slow]

SIZE = (56, 42)
TINY = {
    "model": "da3-tiny",
    "device": "cpu",
    "process_res": 56,
    "mixed_precision": "off",
}
WEIGHTS = "" if shipped_folder("da3-tiny") else "random"


@pytest.fixture(scope="module")
def walk():
    camera = SyntheticCamera(3, SIZE, walk="loop", frames=30, rate_hz=5.0)
    return camera, list(camera)


def session_of(backend="auto", poses=False, **changes):
    values = {**TINY, "checkpoint": WEIGHTS, "backend": backend} | changes
    return InferenceSession(InferenceConfig(**values), poses=poses)


def views(frames):
    return tuple(View(i, f.stamp_ns, f.image, f.K) for i, f in enumerate(frames))


def assert_equal(found, expected):
    """Depth 1e-5 at the 99th percentile, rotation 1e-3 degrees, translation 1e-5 of depth."""
    np.testing.assert_array_equal(np.isnan(found.depth), np.isnan(expected.depth))
    assert np.nanpercentile(np.abs(found.depth / expected.depth - 1), 99) < 1e-5
    np.testing.assert_allclose(found.confidence, expected.confidence, rtol=1e-4)
    a, b = found.T_window_camera, expected.T_window_camera
    turn = Rotation.from_matrix(a[:, :3, :3] @ b[:, :3, :3].transpose(0, 2, 1))
    assert np.degrees(turn.magnitude()).max() < 1e-3
    depth = np.nanmedian(expected.depth)
    assert np.linalg.norm(a[:, :3, 3] - b[:, :3, 3], axis=1).max() < 1e-5 * depth
    np.testing.assert_allclose(found.K, expected.K, rtol=1e-5)
    np.testing.assert_allclose(found.descriptor, expected.descriptor, rtol=1e-3, atol=1e-4)


# Number of views, of new ones, and which are wanted; each shape is compiled.
SIZES = [((3, 1, (2,)),), ((4, 0, None), (5, 2, (0, 3, 4)), (8, 1, (7,)))]


@pytest.mark.long
@pytest.mark.parametrize("poses", long_after(1, [False, True]))
@pytest.mark.parametrize("sizes", [SIZES[0], pytest.param(SIZES[1], marks=pytest.mark.long)])
def test_windows_of_all_sizes_equal_torch(walk, poses, sizes):
    _, frames = walk
    ours, torchs = (session_of(backend, poses) for backend in ("openvino", "torch"))
    for n, new, wanted in sizes:
        T = np.stack([np.linalg.inv(f.T_room_camera) for f in frames[:n]]) if poses else None
        T = None if T is None else np.linalg.inv(T)
        window = Window(0, views(frames[:n]), new, wanted=wanted, T_prior_camera=T)
        assert_equal(ours.infer(window), torchs.infer(window))
        assert ours.status().backend == "openvino"


@pytest.mark.long
def test_the_memory_that_compiling_took_is_returned_to_the_system(walk, monkeypatch):
    _, frames = walk
    session, trimmed = session_of("openvino"), []
    monkeypatch.setattr(devices, "trim_heap", lambda: trimmed.append(threading.current_thread()))
    session.infer(Window(0, views(frames[:2]), 2))
    assert [thread.name for thread in trimmed].count("engine") == 1


def streamed(values, framesets):
    """Results on OpenVINO and on PyTorch, and the backends and view counts of all windows."""
    results, used, counts = [], [], []
    for backend in ("auto", "torch"):
        config = config_from_parameters(
            {
                **TINY,
                "checkpoint": WEIGHTS,
                "backend": backend,
                "loop.every": 1,
                "refinement.enabled": False,
            }
            | values
        )
        session = InferenceSession(config.inference, poses=False)

        def noted(window, real=session.infer, session=session):
            prediction = real(window)
            used.append(session.status().backend)
            counts.append((len(window.views), window.new))
            return prediction

        session.infer = noted
        pipeline = Pipeline(config, session)
        results.append([frame for frameset in framesets for frame in pipeline.push(*frameset)])
    return results, used, counts


def assert_same_places(results):
    for found, expected in zip(*results, strict=True):
        np.testing.assert_allclose(found.T_map_camera, expected.T_map_camera, atol=1e-3)


def test_a_walk_runs_on_openvino(walk):
    """Growing windows, keyframes: every window, from the first."""
    camera, frames = walk[0], walk[1][:14]
    framesets = [(Frame(f.stamp_ns, f.image, calibration=camera.calibration),) for f in frames]
    results, used, counts = streamed({"window.size": 5}, framesets)
    assert len(results[0]) == len(frames)
    half = len(used) // 2
    assert used == ["openvino"] * half + ["torch"] * half
    assert {count for count, _ in counts} >= {2, 3, 4, 5}
    assert_same_places(results)


@pytest.mark.long
def test_a_rig_with_joint_windows_runs_on_openvino(walk):
    camera, frames = walk
    names = ("front", "left")
    mounts = {"front": np.eye(4), "left": np.eye(4)}
    mounts["left"][0, 3] = 0.2
    framesets = [
        [Frame(f.stamp_ns, g.image, f"{name}_optical", name, camera.calibration,
               T_rig_camera=mounts[name]) for name, g in zip(names, (f, later), strict=True)]
        for f, later in zip(frames[:8], frames[3:], strict=False)
    ]  # fmt: skip
    results, used, counts = streamed({"window.size": 6, "cameras": list(names)}, framesets)
    assert set(used[: len(used) // 2]) == {"openvino"}
    assert {new for _, new in counts} == {2}
    assert_same_places(results)


@pytest.mark.long
@pytest.mark.processor
@pytest.mark.skipif(
    "BF16" not in __import__("openvino").Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"),
    reason="this CPU has no bfloat16",
)
def test_bfloat16_is_as_close_to_fp32_as_in_torch(walk):
    _, frames = walk
    exact = session_of("torch")
    window = Window(0, views(frames[:6]), 1)
    expected = exact.infer(window)
    errors = {}
    for backend in ("openvino", "torch"):
        found = session_of(backend, mixed_precision="bfloat16").infer(window)
        turn = Rotation.from_matrix(
            found.T_window_camera[:, :3, :3]
            @ expected.T_window_camera[:, :3, :3].transpose(0, 2, 1)
        )
        depth = np.nanmedian(np.abs(found.depth / expected.depth - 1))
        errors[backend] = depth, np.degrees(turn.magnitude()).max()
    assert 0 < errors["openvino"][0] < 2 * errors["torch"][0] + 1e-3
    assert errors["openvino"][1] < 2 * errors["torch"][1] + 0.05


def shortened(model):
    """A network of the same kind with few and narrow blocks."""
    small = {"blocks": 4, "width": 64, "heads": 1, "features": 16, "channels": (8, 8, 16, 16)}
    mono = {**small, "alt_start": 4, "taps": (0, 1, 2, 3)}
    spec = MODELS[model]
    if not spec.multi_view:
        return network_of(dataclasses.replace(spec, **mono))
    branch = spec.metric_branch and dataclasses.replace(spec.metric_branch, **mono)
    multi = {**small, "blocks": 6, "alt_start": 1, "taps": (1, 2, 3, 5)}
    return network_of(dataclasses.replace(spec, **multi, metric_branch=branch))


@pytest.mark.long
@pytest.mark.parametrize("model", ["da3mono-large", "da3nested-giant-large"])  # with da3-giant
def test_every_kind_of_network_equals_torch(tmp_path, model):
    network = shortened(model).eval().requires_grad_(False)
    initialize_randomly(network)
    drop_rays(network)
    size = (42, 56)
    build_engine(network, size, tmp_path, {})
    backend = open_checked(network, tmp_path, torch.float32, 1)
    images = torch.from_numpy(smooth_images(4, size))[None]
    network.set_chunks(Chunks(1, 1, 0))
    with torch.inference_mode():
        found, expected = backend.encode(images), network.encode(images)
        assert type(found) is type(expected)
        assert difference(found, expected, 1e-5) == ""
        if model != "da3mono-large":
            for frames in (None, torch.tensor([0, 3])):
                out = backend.decode(found, size, None, frames)
                plain = network.decode(expected, size, ref_view="first", frames=frames)
                assert difference(out[:4], plain[:4], 1e-5) == ""


def test_a_budget_without_room_for_an_engine_runs_torch_and_warns(walk, caplog):
    _, frames = walk
    session = session_of("auto", memory_budget_gb=0.3)
    with caplog.at_level(logging.WARNING):
        for n in range(3):
            session.infer(Window(n, views(frames[:3]), 1))
    assert (session.status().backend, session.memory.plan.backend) == ("torch", "torch")
    assert caplog.text.count("memory_budget_gb is too small for an engine of openvino") == 1
    session.memory.set_budget(2.0)
    session.infer(Window(3, views(frames[:3]), 1))
    assert (session.status().backend, session.memory.plan.backend) == ("openvino", "openvino")
    assert session.status().backend_since == 3
    session.memory.set_budget(0.3)
    session.infer(Window(4, views(frames[:3]), 1))
    assert session.status().backend == "torch"


@pytest.mark.long
def test_engines_leave_memory_when_the_budget_forces_torch(walk):
    _, frames = walk
    session = session_of("auto")
    window = Window(0, views(frames[:3]), 1)
    session.infer(window)
    engine = weakref.ref(session.loaded.backend)
    assert session.memory.meter._kept > 0
    session.memory.set_budget(0.3)
    gc.collect()
    assert engine() is None
    assert session.memory.meter._kept == 0
    session.infer(window)
    assert session.status().backend == "torch"


@pytest.mark.long
def test_each_image_size_in_use_has_its_engine_and_its_memory_in_the_plan(walk):
    frames = walk[1]
    wide = [dataclasses.replace(f, image=f.image[:28].copy()) for f in frames[:3]]
    one = session_of("auto").memory.fit(SIZE, 4, 1)
    session = InferenceSession(
        InferenceConfig(**TINY, checkpoint=WEIGHTS, backend="auto"), poses=False, streams=2
    )
    for n in range(4):
        given = (frames[:3], wide)[n % 2]
        session.memory.fit(given[0].image.shape[1::-1], 4, 1)
        session.infer(Window(n, views(given), 1))
        assert session.status().backend == "openvino"
    assert set(session.loaded._engines._jobs) == {(42, 56), (28, 56)}
    both = session.memory.fit(SIZE, 4, 1)
    assert both.weights - one.weights > 0.9 * (one.weights - weight_bytes(session.loaded.module))
    alone = session_of("auto")
    for n, given in enumerate((frames[:3], wide)):  # one camera whose size changes
        alone.memory.fit(given[0].image.shape[1::-1], 4, 1)
        alone.infer(Window(n, views(given), 1))
        assert alone.status().backend == "openvino"
        assert len(alone.loaded._engines._jobs) == 1


def test_a_session_that_does_not_wait_measures_the_engine_too(walk):
    _, frames = walk
    session = InferenceSession(
        InferenceConfig(**TINY, checkpoint=WEIGHTS, backend="auto"),
        poses=False, wait_for_engine=False,
    )  # fmt: skip
    assert session.warm_up(4, 1) is not None
    assert session.status().backend == "torch"
    first = session.memory.fit(SIZE, 4, 1)
    end, used = time.monotonic() + 60, []
    while used.count("openvino") < 4:
        assert time.monotonic() < end
        session.infer(Window(len(used), views(frames[:4]), 1))
        used.append(session.status().backend)
        assert session.memory._measured_on <= set(used)
    assert used[0] == "torch"
    assert session.memory.measured
    assert session.status().backend_since == used.index("openvino")
    assert first.backend == session.memory.plan.backend == "openvino"


def test_out_of_memory_in_an_engine_runs_the_window_on_torch(walk, monkeypatch):
    _, frames = walk
    session = session_of("auto")
    window = Window(0, views(frames[:3]), 1)
    expected = session.infer(window)
    assert session.status().backend == "openvino"

    def no_memory(*inputs, **options):
        raise RuntimeError("Exception from src/inference/src/infer_request.cpp: std::bad_alloc")

    engine = session.loaded.backend._engine
    monkeypatch.setitem(engine._programs, "window", no_memory)
    no_memory.release_memory = lambda: None
    assert_equal(session.infer(window), expected)
    assert session.status().backend == "torch"
    assert "memory ran out" in session.status().degraded[0]


@pytest.mark.long
def test_an_engine_that_fails_costs_no_window(walk, monkeypatch, caplog):
    _, frames = walk
    session = session_of("auto")
    window = Window(0, views(frames[:3]), 1)
    expected = session.infer(window)

    def broken(*inputs, **options):
        raise RuntimeError("could not execute a primitive")

    monkeypatch.setitem(session.loaded.backend._engine._programs, "window", broken)
    for _ in range(2):
        assert_equal(session.infer(window), expected)
        assert session.status().backend == "torch"
    assert caplog.text.count("running on torch: could not execute a primitive") == 1


def test_a_plan_for_an_engine_needs_one(walk):
    plan = session_of("auto").memory.fit(SIZE, 4, 1)
    assert plan.backend == "openvino"
    session = session_of("torch")
    with pytest.raises(DeviceError, match="the plan is for backend openvino"):
        session.memory.use_plan(plan)
    pinned = session_of("auto")
    pinned.memory.use_plan(dataclasses.replace(plan, backend="torch"))
    pinned.infer(Window(0, views(walk[1][:3]), 1))
    assert pinned.status().backend == "torch"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"mixed_precision": "int8"}, "does not support mixed_precision int8"),
    ],
)
def test_what_openvino_cannot_do_is_refused_only_if_asked_for(values, words):
    with pytest.raises(DeviceError, match=words):
        session_of("openvino", **values)
    assert session_of("auto", **values).loaded.preferred_backend == "torch"


def test_a_type_that_the_cpu_lacks_is_not_replaced_by_another(monkeypatch, caplog):
    """OpenVINO would compute in bfloat16 where it has no float16, without a word."""
    monkeypatch.setattr(
        openvino_runtime, "has_precision", lambda precision: precision == torch.float32
    )
    with pytest.raises(DeviceError, match=r"on this CPU it has no float16; set mixed_precision"):
        session_of("openvino", mixed_precision="float16")
    assert session_of("auto", mixed_precision="float16").loaded.preferred_backend == "torch"
    assert "on this CPU it has no float16" in caplog.text


@pytest.mark.long
@pytest.mark.processor
def test_an_engine_computes_in_the_type_and_threads_of_the_session(walk):
    for name, hint in (("off", "f32"), ("bfloat16", "bf16"), ("float16", "f16")):
        session = session_of("auto", mixed_precision=name)
        session.infer(Window(0, views(walk[1][:2]), 1))
        if session.status().backend == "torch":
            continue  # this CPU does not have the type
        for program in session.loaded.backend._engine._programs.values():
            used = program.get_property("INFERENCE_PRECISION_HINT")
            assert used.get_type_name() == hint
            assert program.get_property("INFERENCE_NUM_THREADS") == torch.get_num_threads()


def test_without_openvino_auto_warns_and_runs_torch(monkeypatch, caplog):
    def missing():
        raise OpenVinoMissingError("OpenVINO cannot be imported: `pip install openvino`")

    monkeypatch.setattr(openvino_runtime, "openvino", missing)
    assert session_of("auto").loaded.preferred_backend == "torch"
    assert "at half the speed: OpenVINO cannot be imported" in caplog.text
    with pytest.raises(DeviceError, match="pip install openvino"):
        session_of("openvino")


@pytest.mark.long
@pytest.mark.parametrize("name", long_after(1, ["tokens", "depth", "extrinsics"]))
def test_an_engine_with_other_results_is_refused(walk, engine_cache, tmp_path, name):
    session_of("openvino").infer(Window(0, views(walk[1][:2]), 2))  # it is in the cache then
    network = load_network("da3-tiny", WEIGHTS)
    folder = shutil.copytree(engine_of(engine_cache, SIZE), tmp_path / "engine")
    open_checked(network, folder, torch.float32, 1)
    golden = dict(np.load(folder / GOLDEN))
    np.savez(folder / GOLDEN, **(golden | {name: golden[name] * np.float32(1.01)}))
    with pytest.raises(EngineError, match=r"differs by 0\.0"):
        open_checked(network, folder, torch.float32, 1)


def engine_of(cache, size):
    """The engine for images of this size."""
    for folder in cache.iterdir():
        with np.load(folder / GOLDEN) as golden:
            if golden["images"].shape[2:] == size[::-1]:
                return folder
    raise AssertionError("there is none")
