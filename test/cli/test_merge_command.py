"""`da3_ros merge`: what it says, its exit codes, and its complaints."""

import subprocess
import sys

import numpy as np
import pytest
from support.scenes import full_store

from da3_ros.cli import main
from da3_ros.cli.arguments import FAILED, INCOMPLETE
from da3_ros.export.scene_file import load_scene, save_scene


@pytest.fixture
def folders(tmp_path):
    """Two scenes that nothing recognises, one of them a replay's output; the second is metric.
    Both have the same stamps, as videos have."""
    save_scene(full_store().snapshot(), tmp_path / "kitchen")
    second = full_store(step=0.2).snapshot(metric=True)
    save_scene(second, tmp_path / "out" / "scene")
    (tmp_path / "out" / "report.json").write_text("{}")
    return tmp_path / "kitchen", tmp_path / "out"


def run(*arguments):
    return main(["merge", *map(str, arguments)])


def test_scenes_that_never_met_stay_apart_and_that_is_said(folders, tmp_path, capsys):
    _, out = folders
    save_scene(full_store().snapshot(metric=True), tmp_path / "hall")
    assert run(out, tmp_path / "hall", "--output", tmp_path / "both") == INCOMPLETE
    said = capsys.readouterr().out
    assert "out: the reference" in said
    assert "hall: met no other scene: unconnected" in said
    assert "has no keyframes that recognise its locations" in said
    assert f"{tmp_path / 'both'}: in metres" in said
    scene = load_scene(tmp_path / "both")
    alone = [load_scene(folder) for folder in (out / "scene", tmp_path / "hall")]
    assert len(scene.poses) == sum(len(one.poses) for one in alone)
    assert len(scene.scene()) == sum(len(one.scene()) for one in alone)
    shots = [(p.camera, p.stamp_ns) for p in scene.poses]
    assert len(set(shots)) == len(shots)
    ids = [s.id for s in scene.submaps]
    assert len(set(ids)) == len(ids)


def test_a_scene_without_metres_is_left_out_of_metres(folders, tmp_path, capsys):
    assert run(*folders, "--output", tmp_path / "both") == INCOMPLETE
    said = capsys.readouterr().out
    assert "kitchen: met no metric scene and has no metres: left out" in said
    assert {s.origin for s in load_scene(tmp_path / "both").submaps} == {"out"}


def test_the_result_is_viewed_exported_and_merged_again(folders, tmp_path):
    kitchen, out = folders
    save_scene(full_store(step=0.25).snapshot(metric=True), tmp_path / "hall")
    assert run(out, tmp_path / "hall", "--output", tmp_path / "both") == INCOMPLETE
    both = tmp_path / "both"
    assert main(["view", str(both), "--output", str(tmp_path / "a.png")]) == 0
    for name in ("a.ply", "a.glb", "a.tum", "a.colmap"):
        assert main(["export", str(both), str(tmp_path / name)]) == 0
    lines = (tmp_path / "a.tum").read_text().splitlines()
    assert "# component" in "".join(lines)
    assert sum(line[0] != "#" for line in lines) == len(load_scene(both).poses.leading())
    assert run(both, kitchen, "--output", tmp_path / "three") == INCOMPLETE
    assert {s.origin for s in load_scene(tmp_path / "three").submaps} == {"out", "hall"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["kitchen"], "at least two scenes"),
        (["kitchen", "kitchen"], "given twice"),
        (["kitchen", "nothing"], "holds no scene"),
    ],
)
def test_complaints_are_one_line(folders, tmp_path, capsys, arguments, said):
    assert run(*(tmp_path / a for a in arguments), "--output", tmp_path / "x") == FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not (tmp_path / "x").exists()


def test_an_input_is_never_the_output(folders, tmp_path, capsys):
    kitchen, out = folders
    before = (kitchen / "scene.da3k").read_bytes()
    for output in (kitchen, out, out / "scene", kitchen / "deep"):
        assert run(kitchen, out, "--output", output) == FAILED
        assert "overlap" in capsys.readouterr().err
    assert (kitchen / "scene.da3k").read_bytes() == before


def test_an_older_scene_is_replaced(folders, tmp_path):
    assert run(*folders, "--output", tmp_path / "both") == INCOMPLETE
    assert run(*folders, "--output", tmp_path / "both") == INCOMPLETE
    points = load_scene(tmp_path / "both").scene().map_points()
    np.testing.assert_array_equal(points, load_scene(folders[1] / "scene").scene().map_points())


def test_help_needs_no_network():
    code = (
        "import sys; from da3_ros.cli import main\n"
        "try: main(['merge', '--help'])\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "exit codes" in done.stdout
