"""`da3_ros export`: from a saved scene to files, with its options and its complaints."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import trimesh
from support.file_readers import read_colmap, read_ply
from support.journals import rewritten
from support.scenes import full_store
from support.stored_walls import write_walls

from da3_ros.cli import conversion, main
from da3_ros.export.formats import FORMATS
from da3_ros.export.scene_file import SceneFile, load_scene, save_scene, write_scene
from da3_ros.export.scene_folder import check_outside_scenes
from da3_ros.recordings import RecordingError, open_recording


@pytest.fixture(scope="module")
def replayed(tmp_path_factory):
    """What a replay leaves: a folder with the folder ``scene`` in it."""
    folder = tmp_path_factory.mktemp("replayed")
    snapshot = full_store().snapshot(metric=True)
    save_scene(snapshot, folder / "scene")
    return folder, snapshot.scene()


def test_every_format_comes_from_scene_or_replay_folder(replayed, tmp_path, capsys):
    folder, scene = replayed
    for source, name in ((folder, "a.glb"), (folder / "scene", "a.ply"), (folder, "a.tum")):
        assert main(["export", str(source), str(tmp_path / name)]) == 0
        assert str(tmp_path / name) in capsys.readouterr().out
    assert set(trimesh.load(tmp_path / "a.glb").geometry) == {"points", "cameras", "path"}
    assert len(read_ply(tmp_path / "a.ply")) == len(scene)
    lines = (tmp_path / "a.tum").read_text().splitlines()
    assert sum(line[0] != "#" for line in lines) == len(scene.poses.leading())
    assert main(["export", str(folder), str(tmp_path / "m"), "--format", "colmap"]) == 0
    _, images, points = read_colmap(tmp_path / "m")
    assert len(points) == len(scene)
    assert len(images) == len(scene.images)
    assert all((tmp_path / "m" / "images" / name).is_file() for *_, name in images)


@pytest.mark.parametrize("name", ["x.ply", "images/x.ply", "deep/model.colmap"])
def test_nothing_is_exported_into_a_saved_scene(replayed, tmp_path, capsys, name):
    folder, _ = replayed
    scene = tmp_path / "s"
    shutil.copytree(folder / "scene", scene)
    assert main(["export", str(scene), str(scene / name)]) != 0
    (said,) = capsys.readouterr().err.splitlines()
    assert f"{name} is inside the saved scene {scene}" in said
    assert "name a path outside" in said
    assert main(["export", str(folder), str(tmp_path / "s.ply")]) == 0
    save_scene(load_scene(scene), scene)


def test_a_mesh_does_not_load_the_points_of_the_saved_scene(tmp_path, monkeypatch, caplog):
    """They may be many gigabytes."""
    pytest.importorskip("skimage", reason="needs scikit-image: pip install scikit-image")
    scene = write_walls(tmp_path / "scene", 3)
    write_scene(full_store().snapshot(metric=True), scene)
    with monkeypatch.context() as patch:
        patch.setattr(SceneFile, "load", lambda _: pytest.fail("points are loaded"))
        for name, options in (("a.mesh.ply", ["--voxel", "0.1"]), ("b", ["--format", "npz"])):
            assert main(["export", str(scene), str(tmp_path / name), *options]) == 0
    more = int(load_scene(scene).poses.rows["keyframe"].sum()) > 3
    assert ("not all of its keyframes are stored" in caplog.text) == more
    rewritten(scene, lambda d, data: (d, data[:-1] if d["kind"] == "path" else data))
    assert main(["export", str(scene), str(tmp_path / "c.mesh.ply")]) == 1


def test_a_circle_of_links_is_in_no_scene(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    check_outside_scenes(tmp_path / "loop" / "x.ply")


def test_options_reach_the_selection(replayed, tmp_path):
    folder, scene = replayed
    xyz, confidence = scene.map_points(), scene.cloud().confidence
    box = [0.0, -3.0, -5.0, 9.0, 0.0, 5.0]

    def count(*options):
        target = tmp_path / "a.ply"
        assert main(["export", str(folder), str(target), *options]) == 0
        return len(read_ply(target))

    assert count("--min-confidence", "2.5") == (confidence >= 2.5).sum()
    inside = ((xyz >= box[:3]) & (xyz <= box[3:])).all(axis=1)
    assert 0 < inside.sum() < len(xyz)
    assert count("--crop", *(str(v) for v in box)) == inside.sum()
    assert count("--max-points", "100") <= 100
    coarse = count("--voxel", "0.2")
    assert coarse < len(scene) / 2
    assert 0 < count("--voxel", "0.2", "--min-observations", "4") < coarse
    assert main(["export", str(folder), str(tmp_path / "a.glb"), "--no-cameras"]) == 0
    assert len(trimesh.load(tmp_path / "a.glb").geometry) == 1


@pytest.mark.parametrize(
    ("source", "arguments", "words"),
    [
        ("", ["a.obj"], "unknown format, the suffix must be .glb, .ply, .colmap, .tum"),
        ("", ["a.ply", "--crop", "1", "0", "0", "0", "1", "1"], "min x y z must be below"),
        ("nothing", ["a.ply"], "scene.da3k is missing"),
    ],
)
def test_the_impossible_is_reported_in_one_line(
    replayed, tmp_path, capsys, source, arguments, words
):
    target = [str(tmp_path / arguments[0]), *arguments[1:]]
    assert main(["export", str(replayed[0] / source), *target]) == 1
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.process
def test_exporting_needs_neither_torch_nor_ros(replayed, tmp_path):
    code = (
        "import sys; from da3_ros.cli import main; "
        f"code = main(['export', {str(replayed[0])!r}, {str(tmp_path / 'a.ply')!r}]); "
        "sys.exit(code or 10 * ('torch' in sys.modules) + 20 * ('rclpy' in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    assert np.isfinite(read_ply(tmp_path / "a.ply")["x"]).all()


@pytest.fixture
def walls(tmp_path):
    """A scene of stored keyframes whose depth must not be read."""
    return write_walls(tmp_path / "walls", 2)


@pytest.fixture
def unread(monkeypatch):
    def read(*_):
        raise AssertionError("the work has begun")

    monkeypatch.setattr(conversion, "readable_keyframes", read)
    for form in FORMATS.values():
        monkeypatch.setattr(type(form), "write", read)


@pytest.mark.parametrize(
    "name", ["x.ply", "x.glb", "x.tum", "x.colmap", "x.npz", "x.mesh.glb", "x.splat.ply"]
)
@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--confidence-percentile", "150", "is 150: must be at least 0 and below 100"),
        ("--confidence-percentile", "nan", "is nan: must be at least 0 and below 100"),
        ("--max-depth", "-1", "is -1: must be above 0"),
        ("--max-depth", "0", "is 0: must be above 0"),
        ("--max-depth", "nan", "is nan: must be above 0"),
        ("--voxel", "-1", "is -1.0: must be at least 0"),
        ("--voxel", "nan", "is nan: must be at least 0"),
        ("--min-confidence", "nan", "is nan: must be at least 0"),
    ],
)
def test_a_number_out_of_range_names_the_option_and_the_range(
    walls, unread, tmp_path, capsys, name, option, value, words
):
    assert main(["export", str(walls), str(tmp_path / name), option, value]) == 1
    assert capsys.readouterr().err == f"da3_ros: {option} {words}\n"
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", ["x.ply", "x.glb", "x.tum", "x.mesh.glb", "x.colmap", "x.npz"])
@pytest.mark.parametrize("kind", ["other kind", "pipe", "below a file", "in no folder for files"])
def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    walls, unread, tmp_path, capsys, name, kind
):
    target = tmp_path / name
    if kind == "pipe":
        os.mkfifo(target)
    elif kind == "below a file":
        (tmp_path / "file").write_text("")
        target = tmp_path / "file" / name
    elif kind == "in no folder for files":
        target = Path("/proc") / name  # not even root may write there
    elif target.suffix in (".colmap", ".npz"):
        target.write_text("a file")
    else:
        target.mkdir()
    assert main(["export", str(walls), str(target)]) == 1
    said = capsys.readouterr().err
    assert f"{target} cannot be written: " in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("name", ["x.colmap", "x.npz"])
def test_a_folder_with_other_files_is_refused_before_the_work(
    walls, unread, tmp_path, capsys, name
):
    (tmp_path / name).mkdir()
    (tmp_path / name / "thesis.txt").write_text("mine")
    assert main(["export", str(walls), str(tmp_path / name)]) == 1
    assert "with other contents (thesis.txt)" in capsys.readouterr().err


def test_a_refused_output_makes_no_folder(walls, tmp_path):
    target = tmp_path / "new" / "deep" / "x.ply"
    assert main(["export", str(walls), str(target), "--max-depth", "-1"]) == 1
    assert not (tmp_path / "new").exists()
    assert main(["export", str(walls), str(target)]) == 0


LONG = 300 * "x"


@pytest.mark.parametrize(
    "arguments",
    [
        ["export", "{scene}", "~nouser/x.ply"],
        ["export", "~nouser", "x.ply"],
        ["export", "{scene}", f"{LONG}.ply"],
        ["export", "{scene}", f"{LONG}/x.ply"],
        ["export", "{scene}", f"{LONG}.colmap"],
        ["export", LONG, "x.ply"],
        ["export", "{scene}", "a\0b.ply"],
        ["export", "a\0b", "x.ply"],
        ["view", LONG, "--output", "x.png"],
        ["replay", "~nouser/x.mcap", "--output", "out"],
        ["replay", LONG, "--output", "out"],
        ["replay", "x.mcap", "--output", LONG],
        ["replay", "x.mcap", "--output", "out", "--resume", "~nouser"],
    ],
)
def test_paths_that_cannot_be_are_one_line(replayed, tmp_path, monkeypatch, capsys, arguments):
    monkeypatch.chdir(tmp_path)
    assert main([a.replace("{scene}", str(replayed[0])) for a in arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("da3_ros: ")
    assert said.count("\n") == 1
    assert len(said) < 200
    assert not list(tmp_path.iterdir())


def test_a_home_is_expanded(replayed, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(replayed[0]), "~/x.ply"]) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["x.ply"]


@pytest.mark.parametrize("path", ["~nouser/x.mcap", LONG])
def test_an_invalid_path_of_a_recording_is_named(path):
    with pytest.raises(RecordingError, match="is not a valid path"):
        open_recording(path)
