"""Nothing is written outside the configured folder."""

import os

import pytest

from da3_ros.export.paths import PathError, path_for_camera, resolve_inside


def test_relative_and_absolute_paths_inside_are_accepted(tmp_path):
    assert resolve_inside(str(tmp_path), "a/b.glb") == tmp_path / "a" / "b.glb"
    assert resolve_inside(str(tmp_path), str(tmp_path / "c.ply")) == tmp_path / "c.ply"


@pytest.mark.parametrize("path", ["../x.glb", "/etc/x.glb", "a/../../x.glb", "~/x.glb", ""])
def test_paths_outside_are_refused(tmp_path, path):
    with pytest.raises(PathError):
        resolve_inside(str(tmp_path / "root"), path)


def test_a_link_that_leads_outside_is_refused(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path)
    with pytest.raises(PathError, match="is outside export_dir"):
        resolve_inside(str(root), "link/x.glb")


@pytest.mark.parametrize("folder", [False, True])
def test_a_link_to_a_name_that_cannot_be_sent_is_refused(tmp_path, folder):
    odd = os.fsencode(tmp_path) + b"/\xff\xfe"
    os.mkdir(odd)
    os.symlink(odd, tmp_path / "link")
    for root in (tmp_path, os.fsdecode(odd)):
        with pytest.raises(PathError, match="is not UTF-8: name another") as caught:
            resolve_inside(str(root), "link/x" if root == tmp_path else "x", folder=folder)
        caught.value.args[0].encode()


def test_the_format_adds_a_suffix_and_a_folder_is_no_file(tmp_path):
    assert resolve_inside(str(tmp_path), "scan", ".ply").name == "scan.ply"
    assert resolve_inside(str(tmp_path), "scan.PLY", ".ply").name == "scan.PLY"
    (tmp_path / "folder").mkdir()
    with pytest.raises(PathError, match="is a folder: name a file"):
        resolve_inside(str(tmp_path), "folder")


def test_a_folder_is_a_folder(tmp_path):
    (tmp_path / "scene").mkdir()
    (tmp_path / "file").write_text("")
    assert resolve_inside(str(tmp_path), "scene", folder=True) == tmp_path / "scene"
    assert resolve_inside(str(tmp_path), "a/new", folder=True) == tmp_path / "a" / "new"
    with pytest.raises(PathError, match="is a file: name a folder"):
        resolve_inside(str(tmp_path), "file", folder=True)


@pytest.mark.parametrize("path", ["../x", "/etc", "a/../../x", "~", ".", "", "a/..", "x\0y"])
def test_no_folder_but_those_below_is_one(tmp_path, path):
    root = tmp_path / "root"
    root.mkdir()
    with pytest.raises(PathError):
        resolve_inside(str(root), path, folder=True)
    (root / "link").symlink_to(tmp_path)
    for through in ("link", "link/scene"):
        with pytest.raises(PathError, match="is outside export_dir"):
            resolve_inside(str(root), through, folder=True)


def test_a_scene_beside_another_has_its_cameras_name(tmp_path):
    assert path_for_camera(tmp_path / "room.glb", "left").name == "room_left.glb"
    assert path_for_camera(tmp_path / "room", "rig/left").name == "room_rig_left"


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize(
    "path",
    ["/", ".", "..", "a/..", "~nouser/x", 300 * "n", "x\0y", "\udc80", "loop/x", 5000 * "a/"],
)
def test_hostile_paths_are_one_line_each(tmp_path, path, folder):
    root = tmp_path / "root"
    root.mkdir()
    (root / "loop").symlink_to(root / "loop")
    for home in (str(root), "~nouser/da3"):
        with pytest.raises(PathError) as refused:
            resolve_inside(home, path, "" if folder else ".ply", folder=folder)
        assert "\n" not in str(refused.value)
        assert str(refused.value).isprintable()
