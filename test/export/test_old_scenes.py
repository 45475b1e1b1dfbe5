"""Scenes of earlier versions, most of them folders: loaded as those versions did, checked,
replaced."""

import json
import os
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from support.scene_digest import of_saved, of_stored
from support.scenes import frame, pose, store

from da3_ros.cli import main
from da3_ros.export.checked_files import SceneFileError
from da3_ros.export.export import ExportError
from da3_ros.export.scene_file import SceneFile, load_scene, save_scene
from da3_ros.export.scene_folder import find_scene, is_scene, scene_file
from da3_ros.keyframe_store.journal import JournalError, JournalReader
from da3_ros.keyframe_store.store import FORMAT, JOURNAL, VERSION

FIXTURES = Path(__file__).parents[1] / "fixtures"
EXPECTED = sorted(FIXTURES.rglob("*.expected.json"))
# Of the last version with folders: two cameras and chains, a graph; a replay with keyframes.
TWO, REPLAYED = FIXTURES / "e1a73d5" / "two_cameras", FIXTURES / "e1a73d5" / "scene"


def digest(folder):
    file = SceneFile(folder)
    found = of_saved(file.load())
    if file.has_keyframes:
        with file.keyframes() as stored:
            found["keyframes"] = of_stored(stored)
    return json.loads(json.dumps(found))


@pytest.fixture
def two(tmp_path):
    return shutil.copytree(TWO, tmp_path / "two")


@pytest.mark.parametrize(
    "expected", EXPECTED, ids=lambda f: str(f.relative_to(FIXTURES)).partition(".")[0]
)
def test_what_is_loaded_is_what_the_version_itself_loaded(expected, tmp_path):
    folder, wanted = (
        expected.with_name(expected.name.partition(".")[0]),
        json.loads(expected.read_text()),
    )
    assert digest(folder) == wanted
    assert is_scene(folder)
    assert find_scene(folder) == folder
    save_scene(load_scene(folder), tmp_path / "new")  # as it is written today
    wanted.pop("keyframes", None)
    assert digest(tmp_path / "new") == wanted
    assert [p.name for p in (tmp_path / "new").iterdir()] == [JOURNAL]


def test_segments_of_scenes_without_parts_are_unconnected():
    loaded = load_scene(FIXTURES / "0c48921" / "scene_two_segments")
    assert [s.component for s in loaded.submaps] == [s.chain for s in loaded.submaps] == [0, 1]
    assert loaded.poses.leaders == (0,)
    assert {s.origin for s in loaded.submaps} == {"scene_two_segments"}


def test_there_is_a_scene_of_each_layout():
    scenes = [json.loads(file.read_text()) for file in EXPECTED]
    assert {("keyframes" in s, "recognition" in s) for s in scenes} == {
        (False, False), (True, False), (True, True), (False, True),
    }  # fmt: skip
    assert any("floor" in s and "measured" in s["keyframes"] for s in scenes)


def test_there_is_a_scene_of_the_version_that_is_written():
    """So that a later one must load it: add one when the version changes."""
    heads = [next(JournalReader(f).records()).description for f in FIXTURES.rglob(JOURNAL)]
    assert (FORMAT, VERSION) in [(about["format"], about["version"]) for about in heads]


def test_a_run_that_did_not_end_has_keyframes_alone(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(REPLAYED / "keyframes.da3k", folder)
    assert find_scene(folder) == folder
    file = SceneFile(folder)
    assert (file.is_saved, file.has_keyframes) == (False, True)
    assert main(["export", str(folder), str(tmp_path / "a.ply")]) == 0
    with pytest.raises(SceneFileError, match="holds no saved scene"):
        file.load()
    assert not is_scene(folder)
    with pytest.raises(ExportError, match=r"other contents \(keyframes\.da3k\)"):
        save_scene(load_scene(TWO), folder)


def test_stored_keyframes_are_exported(tmp_path):
    for name, options in (("a.npz", []), ("b.ply", ["--voxel", "0.1"])):
        assert main(["export", str(REPLAYED), str(tmp_path / name), *options]) == 0
    assert len(list((tmp_path / "a.npz").glob("17*.npz"))) == 4


def test_an_old_scene_is_replaced_by_a_new_one(two):
    held = store()
    held.add_frame(frame(0, pose()))
    save_scene(held.snapshot(), two)
    assert [p.name for p in two.iterdir()] == [JOURNAL]
    assert len(load_scene(two).submaps) == 1


@pytest.mark.parametrize("file", ["notes.txt", "images/mine.jpg", "submaps/a/000000.npz"])
def test_an_old_scene_with_a_file_of_the_users_stays(two, file):
    (two / file).parent.mkdir(parents=True, exist_ok=True)
    (two / file).write_text("mine")
    with pytest.raises(ExportError, match=rf"with other contents \({file}\)"):
        save_scene(load_scene(two), two)
    assert (two / file).read_text() == "mine"


def test_reading_changes_nothing(two):
    before = {p: p.stat().st_mtime_ns for p in two.rglob("*")}
    for p in before:
        p.chmod(0o555 if p.is_dir() else 0o444)
    load_scene(two)
    assert {p: p.stat().st_mtime_ns for p in two.rglob("*")} == before


def edit(path, change):
    described = json.loads((path / "scene.json").read_text())
    change(described)
    (path / "scene.json").write_text(json.dumps(described))


def cut(file):
    file.write_bytes(file.read_bytes()[:-200])


def swap(file, **changes):
    with np.load(file) as data:
        columns = dict(data)
    np.savez(file, **{**columns, **changes})


def submap(**changes):
    return lambda path: edit(path, lambda d: d["submaps"][0].update(changes))


def whole(**changes):
    return lambda path: edit(path, lambda d: d.update(changes))


def link(path):
    """``path`` is a link to what was there, beside the scene's folder."""
    scene = next(p for p in path.parents if (p / "scene.json").exists())
    path.symlink_to(path.rename(scene.parent / "elsewhere"))


POSES, CLOUD = 5, 190  # of the scene, of its second submap
DAMAGE = {
    "another version": (whole(version=2), "has version 2, this"),
    "foreign": (lambda p: (p / "scene.json").write_text('{"asset": 1}'), "not from da3_ros"),
    "a list": (lambda p: (p / "scene.json").write_text("[]"), "not from da3_ros"),
    "half a json": (lambda p: cut(p / "scene.json"), "damaged"),
    "no submaps": (lambda p: edit(p, lambda d: d.pop("submaps")), "damaged.*submaps"),
    "a submap's file is gone": (lambda p: (p / "submaps" / "000000.npz").unlink(), "000000.npz"),
    "half a submap": (lambda p: cut(p / "submaps" / "000000.npz"), "damaged"),
    "half of the poses": (lambda p: cut(p / "poses.npz"), "damaged"),
    "half an image": (lambda p: cut(p / "images" / "1000.jpg"), "size of images/1000.jpg"),
    "an image is gone": (lambda p: (p / "images" / "1000.jpg").unlink(), "1000.jpg"),
    "a mirrored submap": (submap(R=np.zeros((3, 3)).tolist()), "submap's pose"),
    "a submap of no size": (submap(scale=0.0), "submap's pose"),
    "too many points": (submap(points=10**7), "size of submaps/000000.npz"),
    "too many poses": (whole(poses=10**8), "size of poses.npz"),
    "poses without end": (whole(poses=10**30), "poses is invalid"),
    "a path as a camera": (submap(images=[["../../etc/passwd", 0, 5]]), "camera's name"),
    "a pose of no submap": (
        lambda p: swap(p / "poses.npz", submap=np.full(POSES, 7, "<i4")), "poses: submap"
    ),
    "an object": (
        lambda p: swap(p / "poses.npz", submap=np.array([print], dtype=object)), "allow_pickle"
    ),
    "points that are no numbers": (
        lambda p: swap(p / "submaps" / "000001.npz", xyz=np.full((CLOUD, 3), np.nan, np.float32)),
        "points of submap 1",
    ),
    "points of another type": (
        lambda p: swap(p / "submaps" / "000001.npz", xyz=np.zeros((CLOUD, 3))), "damaged"
    ),
    "too few points": (
        lambda p: swap(p / "submaps" / "000001.npz", xyz=np.zeros((CLOUD - 1, 3), "f4")),
        "points is invalid",
    ),
    "too few colours": (
        lambda p: swap(p / "submaps" / "000001.npz", rgb=np.zeros((CLOUD - 1, 3), "u1")),
        "rgb is invalid",
    ),
    "a reflected submap": (submap(R=np.diag([1.0, 1, -1]).tolist()), "submap's pose"),
    "a submap of a number too large": (submap(id=2**40), "id is invalid"),
    "a component of a number too large": (submap(part=2**70), "component is invalid"),
    "points that are no number": (submap(points=True), "points is invalid"),
    "a huge unit": (whole(unit=1e7), "unit is invalid"),
    "a chain without end": (whole(segment=float("inf")), "chain is invalid"),
    "a map in perspective": (
        whole(T_map_world=(np.eye(4) + np.eye(4)[3]).tolist()), "the last row of T_ros_map"
    ),
    "brackets without end": (
        lambda p: (p / "scene.json").write_text("[" * 200_000), "RecursionError"
    ),
    "a scene.json without end": (
        lambda p: os.truncate(p / "scene.json", 10**12), "size of scene.json"
    ),
    "poses that see nothing": (
        lambda p: swap(p / "poses.npz", K=np.zeros((POSES, 4))), "poses: numbers"
    ),
    "an image elsewhere": (
        lambda p: link(p / "images" / "1000.jpg"),
        "images/1000.jpg points out of the folder: only export_dir is read",
    ),
    "submaps elsewhere": (lambda p: link(p / "submaps"), "submaps/000000.npz points out"),
    "links in a circle": (
        lambda p: ((p / "poses.npz").unlink(), (p / "poses.npz").symlink_to("poses.npz")),
        "damaged",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
def test_what_cannot_be_loaded_is_named_in_one_line(two, kind):
    damage, words = DAMAGE[kind]
    damage(two)
    with pytest.raises(SceneFileError, match=words) as caught:
        load_scene(two)
    assert str(two) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.timeout(60)  # a reader of a pipe waits for ever
@pytest.mark.parametrize(
    "name", ["scene.json", "poses.npz", "submaps/000000.npz", "images/1000.jpg"]
)
def test_a_pipe_in_a_scene_is_refused_and_blocks_nothing(two, name):
    (two / name).unlink()
    os.mkfifo(two / name)
    with pytest.raises(SceneFileError, match=f"{name} is not a regular file"):
        load_scene(two)


def test_a_file_that_inflates_to_far_more_is_not_inflated(two, monkeypatch):
    file = two / "submaps" / "000000.npz"
    size = file.stat().st_size
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("xyz.npy", bytes(100 * size))
        bomb.writestr("pad", np.random.default_rng(0).bytes(size - 1000))
    monkeypatch.setattr(np, "load", lambda *a, **k: pytest.fail("it was believed"))
    with pytest.raises(SceneFileError, match=r"size of submaps/000000\.npz"):
        load_scene(two)


@pytest.mark.parametrize("at", [100, 2500])
def test_damaged_recognition_costs_that_alone(two, caplog, at):
    data = bytearray((two / "recognition.da3k").read_bytes())
    data[at] ^= 1
    (two / "recognition.da3k").write_bytes(data)
    loaded = load_scene(two)
    assert len(loaded.scene()) == 4 * CLOUD
    keyframes = 0 if loaded.recognition is None else len(loaded.recognition.keyframes)
    assert keyframes < 2
    assert caplog.text


def test_a_damaged_keyframe_costs_that_alone(tmp_path):
    folder = shutil.copytree(REPLAYED, tmp_path / "s")
    data = bytearray((folder / "keyframes.da3k").read_bytes())
    data[5000] ^= 1
    (folder / "keyframes.da3k").write_bytes(data)
    load_scene(folder)
    with SceneFile(folder).keyframes() as stored:
        assert len(stored.images) == 4
        with pytest.raises(JournalError, match="damaged"):
            stored.load(0)
        stored.load(1)


def test_a_journal_of_keyframes_of_another_kind_is_named(tmp_path):
    folder = shutil.copytree(REPLAYED, tmp_path / "s")
    shutil.copy(folder / "recognition.da3k", folder / "keyframes.da3k")
    with pytest.raises(JournalError, match="is no journal of a scene"):
        SceneFile(folder).keyframes()
    assert scene_file(folder) == folder / "scene.json"
