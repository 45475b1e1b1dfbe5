"""The programs in examples/ run as a user runs them, on rendered rooms, and are short."""

import re
import runpy
from pathlib import Path

import cv2
import numpy as np
import pytest
import trimesh

from da3_ros.export.formats import FORMATS
from da3_ros.scale_sources import SCALE_SOURCES
from da3_ros.synthetic import demo_settings

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*.py"))


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Runs a program in an empty folder, on a walk of seven frames; returns what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo_settings, "FRAMES", 7)
    formats, sources = dict(FORMATS), dict(SCALE_SOURCES)

    def run(name, *arguments):
        monkeypatch.setattr("sys.argv", [name, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out

    yield run
    for table, before in ((FORMATS, formats), (SCALE_SOURCES, sources)):
        for name in table.keys() - before.keys():
            del table[name]


def said(error):
    """The line with which a program ends."""
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.stem)
def test_a_program_is_short_and_listed(program):
    assert len(program.read_text().splitlines()) <= 60
    assert f"python examples/{program.name}" in (EXAMPLES / "README.md").read_text()
    assert f"python examples/{program.name}" in program.read_text().split('"""')[1]


# Depth and poses


@pytest.mark.slow
def test_depth_and_poses_of_image_files_are_written(run, monkeypatch, tmp_path):
    monkeypatch.setattr(demo_settings, "FRAMES", 30)
    camera = demo_settings.demo_camera()
    names = [f"{i}.png" for i in (0, 8)]
    for name, i in zip(names, (0, 8), strict=True):
        cv2.imwrite(name, camera[i].image[:, :, ::-1])
    text = run("depth_and_poses", *names, "--model", "da3-tiny")
    rows = [line.split() for line in text.splitlines()[1:3]]
    assert [row[0] for row in rows] == ["0", "1"]
    moved = np.array(rows[1][1:], float) - np.array(rows[0][1:], float)
    assert 0.01 < np.linalg.norm(moved) < 1  # of the unit, which is about the depth of the view
    assert cv2.imread("depth_and_poses.png").std() > 20


def test_images_of_two_sizes_end_in_one_line(run, monkeypatch):
    for name, width in (("a.png", 64), ("b.png", 80)):
        cv2.imwrite(name, np.zeros((48, width, 3), np.uint8))
    with pytest.raises(SystemExit) as error:
        run("depth_and_poses", "a.png", "b.png")
    assert "images of one size, given: 64x48, 80x48" in said(error)
    with pytest.raises(SystemExit) as error:
        run("depth_and_poses", "missing.png")
    assert "missing.png" in said(error)


def test_photos_need_the_weights_of_an_official_model(run, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    cv2.imwrite("a.png", np.zeros((48, 64, 3), np.uint8))
    with pytest.raises(SystemExit) as error:
        run("depth_and_poses", "a.png")
    assert "da3_ros models --get da3-small" in said(error)


@pytest.mark.slow
def test_the_lines_of_python_in_the_readme_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(
        r"^```python\n(.+?)^```", (EXAMPLES.parent / "README.md").read_text(), re.M | re.S
    )
    assert len(code.splitlines()) <= 10
    camera = demo_settings.demo_camera()
    for name, i in (("a.jpg", 0), ("b.jpg", 4), ("c.jpg", 8)):
        cv2.imwrite(name, camera[i].image[:, :, ::-1])
    names = {}
    exec(code.replace("da3-small", "da3-tiny").replace("504", "140"), names)  # from the README
    prediction = names["prediction"]
    assert np.isfinite(prediction.depth).all()
    assert [len(a) for a in (prediction.depth, prediction.T_window_camera, prediction.K)] == [
        3
    ] * 3


# A mesh


@pytest.mark.long
@pytest.mark.slow
def test_a_rendered_room_becomes_a_mesh(run):
    text = run("recording_to_mesh")
    assert "open room_mesh/room.mesh.glb" in text
    mesh = trimesh.load("room_mesh/room.mesh.glb", force="mesh")
    assert len(mesh.faces) > 1000


def test_a_missing_recording_ends_in_one_line(run):
    with pytest.raises(SystemExit) as error:
        run("recording_to_mesh", "nowhere", "out")
    assert "nowhere" in said(error)
    with pytest.raises(SystemExit) as error:
        run("recording_to_mesh", "nowhere")
    assert said(error).startswith("usage:")


# An own source of metres


@pytest.mark.slow
def test_the_height_of_the_camera_gives_metres(run):
    found = re.findall(r"depth ([\d.]+) m, true ([\d.]+) m", run("scale_from_camera_height"))
    assert len(found) >= 3
    ours, true = np.array(found, float).T
    np.testing.assert_allclose(ours, true, rtol=0.25)  # the unit is 2.5 m


# An own format


@pytest.mark.slow
def test_the_floor_plan_of_a_rendered_room_is_written(run):
    assert run("export_floor_plan") == "open floor_plan.png\n"
    plan = cv2.imread("floor_plan.png")
    assert max(plan.shape) == 201
    grey = plan[(plan == plan[:, :, :1]).all(axis=2)][:, 0]
    assert (grey < 50).any()  # walls
    assert (grey == 255).mean() > 0.1  # not seen
    assert 9 <= (plan == (0, 0, 255)).all(axis=2).sum() <= 17  # the first camera


def test_the_command_writes_a_floor_plan_of_a_saved_scene(run, tmp_path):
    from support.scenes import full_store

    from da3_ros.export.scene_file import save_scene

    save_scene(full_store().snapshot(metric=True), tmp_path / "scene")
    with pytest.raises(SystemExit) as ended:
        run("export_floor_plan", "scene", "room.png", "--max-points", 100)
    assert ended.value.code == 0
    assert cv2.imread("room.png").min() < 100
