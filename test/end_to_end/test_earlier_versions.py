"""What earlier versions wrote is loaded: saved scenes, parameter files, replay outputs."""

import json
from pathlib import Path

import numpy as np
import pytest
import trimesh

from da3_ros.cli import main
from da3_ros.cli.arguments import load_config
from da3_ros.export.scene_file import load_scene
from da3_ros.export.scene_folder import find_scene
from da3_ros.parameter_schema import parameters
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.recordings import open_recording
from da3_ros.recordings.synthetic_bag import write_synthetic_bag
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import TruthSession

FIXTURES = Path(__file__).parents[1] / "fixtures"
EARLIER = sorted(f.parent for f in FIXTURES.glob("*/parameters.yaml"))
pytestmark = pytest.mark.parametrize("folder", EARLIER, ids=lambda p: p.name)


def test_parameter_files_are_read_and_every_value_counts(folder):
    config = load_config(folder / "parameters.yaml", [])
    values = {p.name: p.value for p in parameters(config)}
    said = json.loads((folder / "replay" / "report.json").read_text())["parameters"]
    for name, value in said.items():
        assert values[name] == (tuple(value) if isinstance(value, list) else value), name
    assert config.pipeline.scale.factor == 1.5


def test_a_saved_scene_is_loaded_whole(folder):
    saved = load_scene(folder / "scene_two_segments")
    assert saved.metric
    assert {s.chain for s in saved.submaps} == {0, 1}
    assert [len(s.cloud) for s in saved.submaps] == [951, 673]
    assert len(saved.poses) == 33
    assert len(saved.scene()) == 951 + 673


def test_a_saved_scene_is_gone_on_in(folder):
    camera = SyntheticCamera(seed=3, size=(140, 112), walk="straight", frames=24)
    frames = list(camera)
    config = load_config(None, ["model:=da3-tiny", "process_res:=140", "window.size:=4"])
    pipeline = Pipeline(config.pipeline, TruthSession(frames))
    pipeline.resume(load_scene(folder / "scene_two_segments"))
    assert len(pipeline.map) == 951 + 673
    assert len(pipeline.scene()) == 951 + 673


@pytest.mark.parametrize("form", ["glb", "ply", "tum", "colmap"])
def test_a_saved_scene_is_exported(folder, form, tmp_path):
    out = tmp_path / f"scene.{form}"
    assert main(["export", str(folder / "scene_two_segments"), str(out)]) == 0
    if form == "ply":
        assert len(trimesh.load(out).vertices) == 951 + 673
    if form == "tum":
        assert np.loadtxt(out).shape == (33, 8)


@pytest.mark.slow
def test_a_replay_output_is_read_exported_and_gone_on_from(folder, tmp_path):
    output = folder / "replay"
    with open_recording(output / "output.mcap", camera="/da3/rgb") as recording:
        assert recording.length == 12
    assert len(load_scene(find_scene(output)).poses) == 12
    camera = SyntheticCamera(seed=4, size=(112, 84), walk="loop", frames=3)
    write_synthetic_bag(tmp_path / "bag", camera)
    code = main([
        "replay", str(tmp_path / "bag"), "--output", str(tmp_path / "out"),
        "--config", str(folder / "parameters.yaml"), "--no-report",
        "--plan", str(output / "report.json"), "--resume", str(output),
    ])  # fmt: skip
    assert code == 0
    assert json.loads((tmp_path / "out" / "report.json").read_text())["counts"]["processed"] == 3
