"""`da3_ros export`: from a saved scene to files, with its options and its complaints."""

import shutil
import subprocess
import sys

import numpy as np
import pytest
import trimesh
from support.file_readers import read_colmap, read_ply
from support.scenes import full_store

from da3_ros.cli import main
from da3_ros.export.scene_file import check_outside_scenes, load_scene, save_scene
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
        ("nothing", ["a.ply"], "scene.json is missing"),
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
