"""Gaussians pass the whole pipeline: from the network to the store and into an exported file."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
import torch
from support.oracle import spec_of
from support.splats import SplatTruth, psnr, read_ply, render
from support.streams import stream_of
from support.tiny_networks import tiny_nested_spec

from da3_ros.cli import main
from da3_ros.config import config_from_parameters
from da3_ros.export.selection import Selection
from da3_ros.export.stored_depth import DepthFilters
from da3_ros.export.stored_splats import export_splats
from da3_ros.inference import open_networks
from da3_ros.inference.memory_footprint import Shape, footprint
from da3_ros.inference.oom_fallback import OOM_FALLBACKS
from da3_ros.keyframe_store.recorder import KeyframeRecorder
from da3_ros.keyframe_store.store import StoredScene
from da3_ros.network import MODELS
from da3_ros.network.model import Chunks
from da3_ros.parameter_schema import ConfigError
from da3_ros.pipeline.keyframe_recording import KeyframeRecording
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.recordings.synthetic_bag import write_synthetic_bag
from da3_ros.splats.relative import COUNT
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.evaluation import fit_poses
from da3_ros.types import Frame

SIZE = (168, 126)
VALUES = ("checkpoint:=random", "process_res:=112", "window.size:=4", "mixed_precision:=off")


@pytest.mark.parametrize("new", [1, 2])
@pytest.mark.parametrize("metres", [None, 1.7])
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
        poses = [stored.map.T_map_world @ p.T_world_camera for p in pipeline.poses()]
    splats = read_ply(done.path)
    for f, T in list(zip(truth, poses, strict=True))[::3]:
        picture, opacity = render(splats, T, f.K, SIZE)
        seen = opacity > 0.98
        assert seen.mean() > 0.7
        assert psnr(picture, f.image, seen) > 25
    S = fit_poses(np.array(poses), np.array([f.T_world_camera for f in truth]))
    nearest = min(f.depth.min() for f in truth)
    away = np.linalg.norm(S.points(splats.means) - truth[0].T_world_camera[:3, 3], axis=1)
    assert away.min() > 0.9 * nearest


def registered(monkeypatch, name):
    """A small network in the place of a large one, with all its kinds of layers."""
    nested = name == "da3nested-giant-large"
    small = dataclasses.replace(spec_of("da3-tiny"), gaussians=True, swiglu=True)
    spec = tiny_nested_spec() if nested else small
    spec = dataclasses.replace(spec, name=name, license="Apache-2.0")
    monkeypatch.setitem(MODELS, name, spec)
    return spec


@pytest.mark.parametrize("name", ["da3-giant", "da3nested-giant-large"])
def test_a_replay_stores_gaussians_and_its_scene_is_exported(monkeypatch, tmp_path, name, capsys):
    registered(monkeypatch, name)
    write_synthetic_bag(tmp_path / "bag", SyntheticCamera(seed=2, size=(112, 84), frames=8))
    words = ["replay", str(tmp_path / "bag"), "--output", str(tmp_path / "out")]
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


def test_gaussians_change_nothing_else(monkeypatch, tmp_path):
    registered(monkeypatch, "da3-giant")
    write_synthetic_bag(tmp_path / "bag", SyntheticCamera(seed=2, size=(112, 84), frames=8))
    for enabled in ("true", "false"):
        values = (*VALUES, "model:=da3-giant", "backend:=torch", f"splats.enabled:={enabled}")
        words = ["replay", str(tmp_path / "bag"), "--output", str(tmp_path / enabled)]
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
        names = [n for n, _ in session.network.named_parameters() if n.startswith("gs_head.")]
        assert len(names) == (66 if enabled else 0)
        plan = session.fit((112, 84), 4, 1)
        sizes[enabled] = plan.weights
    head = sum(p.nbytes for n, p in session.network.named_parameters() if n.startswith("gs_head."))
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
    words = ["plan", "--device", "cpu", "--process-res", "112", "--mixed-precision", "off",
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
