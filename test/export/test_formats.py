"""A format from outside: one row, and command, errors and exports of a running node know it."""

import pytest
from support.scenes import full_store
from support.stored_walls import write_walls
from support.toys import Xyz

from da3_ros.cli import main
from da3_ros.export.export import ExportError, export_scene
from da3_ros.export.formats import FORMATS, NamedFormat, find_format
from da3_ros.export.scene_file import save_scene


class Counted:
    """The result of ``Count``."""

    points, bytes, keyframes = 0, 2, 2

    def __init__(self, path):
        self.path, self.text = path, f"a number in {path}"


class Count(NamedFormat):
    """The number of stored keyframes."""

    name, title, suffixes = "count", "a number", (".txt",)

    def write(self, stored, path, selection, filters, progress):
        with self.place(path) as temporary:
            temporary.write_text(f"{len(stored.images)}\n")
        return Counted(path)


@pytest.fixture(autouse=True)
def toys(monkeypatch):
    for toy in (Xyz(), Count()):
        monkeypatch.setitem(FORMATS, toy.name, toy)


@pytest.fixture
def saved(tmp_path):
    snapshot = full_store().snapshot(metric=True)
    save_scene(snapshot, tmp_path / "scene")
    return tmp_path / "scene", snapshot.scene()


@pytest.mark.parametrize("arguments", [["a.xyz"], ["a", "--format", "xyz"]])
def test_the_command_writes_a_toy_format(saved, tmp_path, capsys, arguments):
    folder, scene = saved
    assert main(["export", str(folder), str(tmp_path / arguments[0]), *arguments[1:]]) == 0
    assert len((tmp_path / arguments[0]).read_text().splitlines()) == len(scene)
    assert f"{len(scene)} points in" in capsys.readouterr().out


def test_the_selection_of_points_holds_for_a_toy_format(saved, tmp_path):
    assert main(["export", str(saved[0]), str(tmp_path / "a.xyz"), "--max-points", "100"]) == 0
    assert 0 < len((tmp_path / "a.xyz").read_text().splitlines()) <= 100


@pytest.mark.parametrize("arguments", [["a.count.txt"], ["a.txt", "--format", "count"]])
def test_the_command_makes_a_toy_from_stored_keyframes(tmp_path, capsys, arguments):
    walls = write_walls(tmp_path / "walls", 2)
    assert main(["export", str(walls), str(tmp_path / arguments[0]), *arguments[1:]]) == 0
    assert (tmp_path / arguments[0]).read_text() == "2\n"
    assert "a number in" in capsys.readouterr().out


def test_help_and_errors_list_toys(saved, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit):
        main(["export", "--help"])
    told = capsys.readouterr().out
    for one in FORMATS.values():
        assert all(suffix in told for suffix in one.suffixes), one.name
    assert "NAME.count.txt" in told
    assert f"--format {{{','.join(FORMATS)}}}" in told
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "NPZ, mesh, splats, XYZ text or a number" in capsys.readouterr().out
    for target, words in (
        ("a.obj", "the suffix must be .glb, .ply, "),
        ("a.count.obj", "unknown count format, name it NAME.count.txt"),
        ("a.count.txt", "leave out --format npz, mesh, splat or count"),
    ):
        assert main(["export", str(saved[0]), str(tmp_path / target)]) == 1
        assert words in capsys.readouterr().err


def test_a_scene_is_written_as_a_toy_format(tmp_path):
    scene = full_store().snapshot(metric=True).scene()
    assert export_scene(scene, tmp_path / "a", form="xyz").points == len(scene)
    with pytest.raises(ExportError, match=r"one of glb, ply, .*xyz.*, or empty"):
        export_scene(scene, tmp_path / "a", form="obj")


def test_names_with_a_word_are_told_from_those_without(tmp_path):
    names = {
        "a.glb": "glb", "A.GLB": "glb", "a.mesh.glb": "mesh", "a.splat.ply": "splat",
        "a.mesh.npz": "mesh", "a.npz": "npz", "a.count.xyz": "count", "mesh.glb": "glb",
    }  # fmt: skip
    assert {name: find_format(tmp_path / name).name for name in names} == names
    assert find_format(tmp_path / "a.glb", "mesh").name == "mesh"
    assert find_format(tmp_path / "a", ".TUM").name == "tum"
    with pytest.raises(ExportError, match="unknown format 'npz': one of glb"):
        find_format(tmp_path / "a", "npz", live=True)
