"""Gaussians pass the whole pipeline: from the network to the store and into an exported file."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation
from support.cases import long_after
from support.oracle import spec_of
from support.splats import SplatTruth, exact_values, psnr, read_ply, render
from support.streams import stream_of
from support.tiny_networks import tiny_nested_spec

from da3_ros.backends import self_check
from da3_ros.cli import main
from da3_ros.config import config_from_parameters
from da3_ros.export.selection import Selection
from da3_ros.export.stored_depth import DepthFilters
from da3_ros.export.stored_splats import export_splats
from da3_ros.inference import factory, loaded_network, loading, open_networks
from da3_ros.inference.memory_footprint import Shape, footprint
from da3_ros.inference.memory_governor import OOM_FALLBACKS
from da3_ros.inference.preprocess import normalize
from da3_ros.keyframe_store.recorder import KeyframeRecorder
from da3_ros.keyframe_store.store import StoredScene
from da3_ros.network import MODELS
from da3_ros.network.conditioning import normalize_poses
from da3_ros.network.model import Chunks
from da3_ros.parameter_schema import ConfigError
from da3_ros.pipeline.keyframe_recording import KeyframeRecording
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.recordings.synthetic_bag import write_synthetic_bag
from da3_ros.splats.relative import COUNT, keep_visible
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.evaluation import fit_poses
from da3_ros.types import Frame, View, Window

SIZE = (168, 126)
VALUES = ("checkpoint:=random", "process_res:=112", "window.size:=4", "mixed_precision:=off")


@pytest.mark.long
@pytest.mark.parametrize("new", [2, 1])
@pytest.mark.parametrize("metres", [1.7, None])
def test_exact_gaussians_come_out_where_the_room_is(tmp_path, new, metres):
    camera = SyntheticCamera(seed=5, size=SIZE, frames=10, rate_hz=1.5)
    truth = list(camera)
    scale = {} if metres is None else {"scale.source": "fixed", "scale.factor": metres}
    config = config_from_parameters({
        "process_res": SIZE[0], "window.size": 4, "window.new": new, "refinement.enabled": False,
        "keyframe.parallax": 0.02, **scale,
    })  # fmt: skip
    pipeline = Pipeline(config, SplatTruth(truth))
    recorder = KeyframeRecorder(tmp_path / "scene", counters=Counter(), wait=True)
    pipeline.scene_map.record(KeyframeRecording(recorder))
    for f in truth:
        frame = Frame(f.stamp_ns, f.image, calibration=camera.calibration)
        list(pipeline.push(frame))
    list(pipeline.flush())
    assert pipeline.scene_map.finish_recording(60)
    with StoredScene.open(tmp_path / "scene") as stored:
        assert len(stored.images) > 2
        assert all(stored.has_splats(key) for key in stored.images)
        done = export_splats(stored, tmp_path / "a.splat.ply", Selection(), DepthFilters())
        assert stored.map.metric == (metres is not None)
        poses = [stored.map.T_ros_map @ p.T_map_camera for p in pipeline.poses()]
    splats = read_ply(done.path)
    for f, T in list(zip(truth, poses, strict=True))[::3]:
        picture, opacity = render(splats, T, f.K, SIZE)
        seen = opacity > 0.98
        assert seen.mean() > 0.7
        assert psnr(picture, f.image, seen) > 25
    S = fit_poses(np.array(poses), np.array([f.T_room_camera for f in truth]))
    nearest = min(f.depth.min() for f in truth)
    away = np.linalg.norm(S.points(splats.means) - truth[0].T_room_camera[:3, 3], axis=1)
    assert away.min() > 0.9 * nearest


def test_each_keyframe_has_the_gaussians_of_its_own_view(tmp_path):
    camera = SyntheticCamera(seed=5, size=SIZE, frames=9, rate_hz=1.5)
    truth = {f.stamp_ns: f for f in camera}
    config = config_from_parameters({
        "process_res": SIZE[0], "window.size": 6, "window.new": 3, "refinement.enabled": False,
        "keyframe.parallax": 0.0, "keyframe.rotation_deg": 0.0,
    })  # fmt: skip
    pipeline = Pipeline(config, SplatTruth(truth.values()))
    recorder = KeyframeRecorder(tmp_path / "scene", counters=Counter(), wait=True)
    pipeline.scene_map.record(KeyframeRecording(recorder))
    for f in truth.values():
        list(pipeline.push(Frame(f.stamp_ns, f.image, calibration=camera.calibration)))
    list(pipeline.flush())
    assert pipeline.scene_map.finish_recording(60)
    with StoredScene.open(tmp_path / "scene") as stored:
        assert len(stored.images) > 6
        for key in stored.images:
            f = truth[stored.frames[key].stamp_ns]
            wanted = keep_visible(exact_values(f.depth, f.image, f.K), f.depth)
            np.testing.assert_array_equal(stored.load_splats(key).values, wanted.values)


def test_a_keyframe_without_gaussians_is_said_once(tmp_path, caplog):
    class Nothing(SplatTruth):
        def infer(self, window):
            prediction = super().infer(window)
            return dataclasses.replace(prediction, splats=np.full_like(prediction.splats, np.nan))

    camera = SyntheticCamera(seed=5, size=SIZE, frames=6, rate_hz=1.5)
    truth = list(camera)
    config = config_from_parameters({
        "process_res": SIZE[0], "window.size": 3, "refinement.enabled": False,
        "keyframe.parallax": 0.0, "keyframe.rotation_deg": 0.0,
    })  # fmt: skip
    pipeline = Pipeline(config, Nothing(truth))
    recorder = KeyframeRecorder(tmp_path / "scene", counters=Counter(), wait=True)
    pipeline.scene_map.record(KeyframeRecording(recorder))
    for f in truth:
        list(pipeline.push(Frame(f.stamp_ns, f.image, calibration=camera.calibration)))
    list(pipeline.flush())
    assert pipeline.scene_map.finish_recording(60)
    assert caplog.text.count("has no Gaussian that can be used") == 1
    assert pipeline.counters["keyframes_without_splats"] > 3


def registered(monkeypatch, name):
    """A small network in the place of a large one, with all its kinds of layers."""
    nested = name == "da3nested-giant-large"
    small = dataclasses.replace(spec_of("da3-tiny"), gaussians=True, swiglu=True)
    spec = tiny_nested_spec() if nested else small
    spec = dataclasses.replace(spec, name=name, license="Apache-2.0")
    monkeypatch.setitem(MODELS, name, spec)
    return spec


@pytest.mark.parametrize("name", long_after(1, ["da3-giant", "da3nested-giant-large"]))
def test_a_replay_stores_gaussians_and_its_scene_is_exported(monkeypatch, tmp_path, name, capsys):
    registered(monkeypatch, name)
    write_synthetic_bag(tmp_path / "bag", SyntheticCamera(seed=2, size=(112, 84), frames=8))
    words = ["replay", str(tmp_path / "bag"), "--output", str(tmp_path / "out"), "--no-report"]
    values = (*VALUES, f"model:={name}", "splats.enabled:=true")
    assert main([*words, *(word for value in values for word in ("-p", value))]) == 0
    with StoredScene.open(tmp_path / "out" / "scene") as stored:
        assert stored.images
        for key in stored.images:
            splats = stored.load_splats(key)
            assert splats.values.shape == (splats.kept.sum(), COUNT)
            assert len(splats) > 1000
    for suffix in ("ply", "glb"):
        path = str(tmp_path / f"room.splat.{suffix}")
        assert main(["export", str(tmp_path / "out"), path]) == 0
    assert "Gaussians in" in capsys.readouterr().out
    assert len(read_ply(tmp_path / "room.splat.ply").means) > 1000


@pytest.mark.long
def test_gaussians_change_nothing_else(monkeypatch, tmp_path):
    registered(monkeypatch, "da3-giant")
    write_synthetic_bag(tmp_path / "bag", SyntheticCamera(seed=2, size=(112, 84), frames=8))
    for enabled in ("true", "false"):
        values = (*VALUES, "model:=da3-giant", "backend:=torch", f"splats.enabled:={enabled}")
        words = [
            "replay",
            str(tmp_path / "bag"),
            "--no-report",
            "--output",
            str(tmp_path / enabled),
        ]
        assert main([*words, *(word for value in values for word in ("-p", value))]) == 0
    for name in ("trajectory.tum", "scene.ply", "output.mcap"):
        a, b = (tmp_path / e / name for e in ("true", "false"))
        assert a.read_bytes() == b.read_bytes(), name


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"model": "da3-small"}, "da3-small has no Gaussian head: set model to da3-giant or"),
        ({"model": "da3-giant", "backend": "openvino"}, "splats.enabled needs torch"),
    ],
)
def test_what_cannot_give_gaussians_is_refused(values, text):
    config = config_from_parameters({"splats.enabled": True, "checkpoint": "random", **values})
    with pytest.raises(ConfigError, match=text):
        open_networks(config)


def test_the_head_is_not_in_memory_unless_it_is_asked_for(monkeypatch):
    registered(monkeypatch, "da3-giant")
    sizes = {}
    for enabled in (False, True):
        config = config_from_parameters({
            "model": "da3-giant", "checkpoint": "random", "process_res": 112,
            "mixed_precision": "off", "splats.enabled": enabled, "backend": "torch",
        })  # fmt: skip
        session, _ = open_networks(config)
        names = [
            n for n, _ in session.loaded.module.named_parameters() if n.startswith("gs_head.")
        ]
        assert len(names) == (66 if enabled else 0)
        plan = session.memory.fit((112, 84), 4, 1)
        sizes[enabled] = plan.weights
    head = sum(
        p.nbytes for n, p in session.loaded.module.named_parameters() if n.startswith("gs_head.")
    )
    assert sizes[True] - sizes[False] == head


def test_a_live_node_needs_a_place_for_them(tmp_path):
    truth = list(SyntheticCamera(seed=5, size=SIZE, frames=2))
    with pytest.raises(ConfigError, match=r"map\.store is empty"):
        stream_of(SplatTruth(truth), export_dir=str(tmp_path), **{"splats.enabled": True})
    stream_of(SplatTruth(truth), export_dir=str(tmp_path),
              **{"splats.enabled": True, "map.store": "night"})  # fmt: skip


@pytest.mark.parametrize("values", [{"mode": "localization"}, {"map.enabled": False}])
def test_where_no_keyframes_are_stored_they_are_refused(values):
    with pytest.raises(ConfigError, match=r"splats\.enabled is true, but no keyframes"):
        config_from_parameters({"splats.enabled": True, **values})


def test_windows_of_loops_and_of_smaller_images_have_no_gaussians(monkeypatch):
    registered(monkeypatch, "da3-giant")
    session, _ = open_networks(config_from_parameters({
        "model": "da3-giant", "splats.enabled": True, "checkpoint": "random", "process_res": 112,
        "mixed_precision": "off",
    }))  # fmt: skip
    window, prediction = session.warm_up(4, 1)
    assert prediction.splats.shape[:2] == (1, COUNT)
    loop = dataclasses.replace(window, new=0, wanted=None)
    assert session.infer(loop).splats is None
    session.renew()
    session.memory.fallback.level = len(OOM_FALLBACKS) - 1
    assert session.infer(window).splats is None


def test_gaussians_are_planned_in_chunks_of_frames(monkeypatch):
    registered(monkeypatch, "da3-giant")
    plain = Shape("da3-giant", 8, 8, 210, 280, torch.float32, Chunks(1, 1))
    with_splats = dataclasses.replace(plain, splats=4)
    few, many = (
        footprint(dataclasses.replace(with_splats, chunks=Chunks(n, 1))).activations
        for n in (1, 4)
    )
    assert footprint(plain).activations < few < many
    kept = 4 * COUNT * 210 * 280 * 4  # bytes that all four frames keep
    assert few - footprint(plain).activations < 2.5 * kept


def test_the_plan_command_counts_them(monkeypatch, capsys):
    registered(monkeypatch, "da3-giant")
    registered(monkeypatch, "da3nested-giant-large")
    words = ["plan", "--device", "cpu", "--process-res", "224", "--mixed-precision", "off",
             "--backend", "torch", "--budget", "4", "--model", "da3-giant"]  # fmt: skip
    predicted = []
    for more in ((), ("--splats",)):
        assert main([*words, *more]) == 0
        (row,) = (x.split() for x in capsys.readouterr().out.splitlines() if "da3-giant" in x)
        predicted.append(float(row[6]))
    assert predicted[1] > predicted[0]
    assert main(["plan", "--splats", "--device", "cpu", "--budget", "4"]) == 0
    assert "da3nested-giant-large" in capsys.readouterr().out
    assert main(["plan", "--splats", "--model", "da3-small"]) == 2
    assert "one of da3-giant, da3nested-giant-large with --splats" in capsys.readouterr().err


@pytest.fixture
def session(monkeypatch):
    registered(monkeypatch, "da3-giant")
    return opened()


def opened(**values):
    config = config_from_parameters({
        "model": "da3-giant", "splats.enabled": True, "checkpoint": "random", "process_res": 112,
        "mixed_precision": "off", "performance_mode": "minimal", **values,
    })  # fmt: skip
    return open_networks(config)[0]


def window_of(images, new, **values):
    views = tuple(View(i, i, image) for i, image in enumerate(images))
    wanted = (0, *range(len(views) - new, len(views)))
    return Window(0, views, new, wanted, **values)


def pictures(count):
    rng = np.random.default_rng(1)
    return rng.integers(0, 255, (count, 84, 112, 3), dtype=np.uint8)


def as_input(images):
    return normalize(torch.from_numpy(np.stack(images)))[None]


@pytest.mark.parametrize("new", [1, 2])
def test_a_session_gives_what_a_forward_pass_gives(session, new):
    images = pictures(4)
    found = session.infer(window_of(images, new)).splats
    with torch.inference_mode():
        wanted = session.loaded.module(
            as_input(images), ref_view="first", gaussians=True
        ).gaussians
    wanted = wanted[0, -new:].half().numpy()
    np.testing.assert_allclose(found, wanted, atol=2e-3)
    assert session.status().backend == "torch"  # the usual one of a CPU has no Gaussians


def test_chunks_of_frames_change_nothing(session):
    x = as_input(pictures(4))
    found = []
    for chunks in (Chunks(head_frames=4), Chunks(head_frames=1), Chunks(head_frames=3)):
        session.loaded.module.set_chunks(chunks)
        with torch.inference_mode():
            found.append(session.loaded.module(x, ref_view="first", gaussians=True).gaussians)
    for other in found[1:]:
        np.testing.assert_allclose(other.numpy(), found[0].numpy(), atol=1e-4)


def test_known_poses_change_the_rotations_as_the_network_does(monkeypatch):
    registered(monkeypatch, "da3-giant")
    session = opened(**{"pose_prior.source": "odometry"})
    K = np.array([[90.0, 0, 56], [0, 90, 42], [0, 0, 1]])
    T = np.tile(np.eye(4), (3, 1, 1))
    T[:, 0, 3] = 0, 0.2, 0.4
    T[2, :3, :3] = Rotation.from_euler("y", 0.2).as_matrix()
    images = pictures(3)
    views = tuple(View(i, i, image, K=K) for i, image in enumerate(images))
    found = session.infer(Window(0, views, 1, None, T)).splats
    poses = normalize_poses(torch.from_numpy(T)[None]).extrinsics
    with torch.inference_mode():
        out = session.loaded.module(
            as_input(images), poses, torch.from_numpy(K)[None, None].float().repeat(1, 3, 1, 1),
            gaussians=True,
        )  # fmt: skip
    np.testing.assert_allclose(found, out.gaussians[0, -1:].half().numpy(), atol=2e-3)


@pytest.mark.processor
@pytest.mark.parametrize("precision", long_after(1, ["bfloat16", "int8"]))
def test_lower_precision_is_used_where_gaussians_stay_close(monkeypatch, precision):
    registered(monkeypatch, "da3-giant")
    session = opened(mixed_precision=precision)
    exact = opened()
    assert session.status().precision == precision
    window = window_of(pictures(3), 1)
    a, b = (one.infer(window).splats.astype(float) for one in (session, exact))
    assert np.median(np.abs(a - b)) < 0.02


def test_a_head_that_overflows_in_16_bits_runs_in_fp32(monkeypatch, caplog):
    """As where features are larger than float16: depth is finite, Gaussians are not."""
    registered(monkeypatch, "da3-giant")
    loaded = loading.load_network

    def with_large_features(*given, **named):
        network = loaded(*given, **named)
        for layer in network.gs_head.projects:
            layer.weight.data.mul_(3e5)
        return network

    monkeypatch.setattr(loaded_network, "load_network", with_large_features)
    session = opened(mixed_precision="float16")
    assert session.status().precision == "float32"
    assert "share of lost Gaussians differs by 1" in caplog.text


@pytest.mark.parametrize(
    ("change", "faults"),
    [
        (lambda x: x, ""),
        (lambda x: x * 1.01, ""),
        (lambda x: x * 1.5, "Gaussians"),
        (lambda x: put(x, (0, 1, 0, 3, 3), np.nan), ""),  # one pixel
        (lambda x: put(x, (0, 1, 0), np.inf), "share of lost Gaussians"),  # one view
    ],
)
@pytest.mark.parametrize("size", [1.0, 1000.0])
def test_gaussians_are_compared_where_they_are_finite(change, faults, size):
    expected = size * torch.randn(1, 2, COUNT, 20, 20, generator=torch.Generator().manual_seed(0))
    expected[0, 0, :, 5, 5] = np.inf
    found = self_check._gaussian_differences(change(expected.clone()), expected)
    over = [name for name, value in found if not value <= self_check.BOUNDS[name][0]]
    assert over == ([faults] if faults else [])


def put(x, where, value):
    x[where] = value
    return x


def test_gaussians_run_on_torch():
    config = config_from_parameters({"model": "da3-giant", "splats.enabled": True})
    assert config.inference.backend == "auto"
    assert factory._checked_backend(config).backend == "torch"
    plain = config_from_parameters({"model": "da3-giant"})
    assert factory._checked_backend(plain).backend == "auto"
