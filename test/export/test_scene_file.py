"""A scene saved to a folder and loaded again; what is no such folder, or a damaged one."""

import dataclasses
import json
import os
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from support.scenes import frame, full_store, pose, store

from da3_ros.export.export import ExportError
from da3_ros.export.scene_file import SceneFileError, find_scene, load_scene, save_scene
from da3_ros.mapping.submaps import KEYFRAMES


@pytest.fixture
def saved(tmp_path):
    snapshot = full_store().snapshot(metric=True, unit=3.0)
    save_scene(snapshot, tmp_path / "scene")
    return snapshot, tmp_path / "scene"


def same_scene(a, b):
    np.testing.assert_array_equal(a.cloud().xyz, b.cloud().xyz)
    np.testing.assert_array_equal(a.cloud().rgb, b.cloud().rgb)
    np.testing.assert_array_equal(a.cloud().confidence, b.cloud().confidence)
    np.testing.assert_array_equal(a.cloud().count, b.cloud().count)
    assert a.images == b.images
    for p, q in zip(a.poses, b.poses, strict=True):
        np.testing.assert_array_equal(p.T_world_camera, q.T_world_camera)
        np.testing.assert_array_equal(p.K, q.K)
        rest = [(x.stamp_ns, x.size, x.keyframe, x.camera) for x in (p, q)]
        assert rest[0] == rest[1]


def test_what_is_loaded_is_what_was_saved_in_metres(saved):
    snapshot, path = saved
    loaded = load_scene(path)
    same_scene(loaded.scene(), snapshot.scene())
    assert [s.segment for s in loaded.submaps] == [0, 0, 1]
    assert [s.keyframes for s in loaded.submaps] == [KEYFRAMES, 3, 1]
    assert (loaded.metric, loaded.unit, loaded.segment) == (True, 1.5, 1)
    assert loaded.submaps[0].T_map_submap.scale == 0.5
    assert len(loaded.scene().images) == KEYFRAMES + 4


def test_a_camera_may_have_a_path_as_its_name(tmp_path):
    held = store(keep_images=True)
    held.add(dataclasses.replace(frame(1, pose(0.0)), camera="front/left"))
    save_scene(held.snapshot(), tmp_path / "scene")
    loaded = load_scene(tmp_path / "scene")
    same_scene(loaded.scene(), held.snapshot().scene())
    assert loaded.poses.cameras == ("front/left",)


def test_a_store_goes_on_with_a_loaded_scene(saved):
    snapshot, path = saved
    held = store(keep_images=True)
    held.restore(load_scene(path))
    same_scene(held.scene(), snapshot.scene())
    before = len(held)
    assert held.add(frame(99, pose(9.0), seed=9))[0].id == 3
    assert held.newest.segment == 2
    assert len(held) == before + 190
    assert len(held.poses()) == KEYFRAMES + 6
    assert len(held.scene().images) == KEYFRAMES + 5


def test_a_loaded_scene_is_cut_to_the_caps_of_its_new_home(saved):
    held = store(max_points=1000)
    held.restore(load_scene(saved[1]))
    assert 800 < len(held) <= 1000


def test_the_same_scene_gives_the_same_bytes(tmp_path):
    for name in "ab":
        save_scene(full_store().snapshot(), tmp_path / name)
    files = sorted(p.relative_to(tmp_path / "a") for p in (tmp_path / "a").rglob("*.*"))
    assert len(files) == 2 + 3 + KEYFRAMES + 4
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file


def test_an_older_scene_is_replaced_and_nothing_else_is(saved):
    snapshot, path = saved
    small = store()
    small.add(frame(0, pose()))
    save_scene(small.snapshot(), path)
    assert len(load_scene(path).submaps) == 1
    assert not (path / "images").exists()
    (path / "notes.txt").write_text("mine")
    with pytest.raises(ExportError, match="with other contents"):
        save_scene(snapshot, path)
    assert len(load_scene(path).submaps) == 1
    assert [p.name for p in path.parent.iterdir()] == ["scene"]


@pytest.mark.parametrize("file", ["notes.txt", "images/mine.jpg", "submaps/a/000000.npz"])
def test_a_scene_with_a_file_of_the_users_stays(saved, file):
    snapshot, path = saved
    save_scene(snapshot, path)
    (path / file).parent.mkdir(exist_ok=True)
    (path / file).write_text("mine")
    with pytest.raises(ExportError, match=rf"with other contents \({file}\)"):
        save_scene(snapshot, path)
    assert (path / file).read_text() == "mine"


def test_a_save_that_ends_early_leaves_the_old_scene(saved):
    def stop(step, share):
        raise ExportError("the node is shutting down")

    with pytest.raises(ExportError, match="shutting down"):
        save_scene(store_of_one().snapshot(), saved[1], stop)
    same_scene(load_scene(saved[1]).scene(), saved[0].scene())
    assert [p.name for p in saved[1].parent.iterdir()] == ["scene"]


def store_of_one():
    held = store()
    held.add(frame(0, pose()))
    return held


def test_an_empty_scene_is_not_saved(tmp_path):
    with pytest.raises(ExportError, match="empty"):
        save_scene(store().snapshot(), tmp_path / "scene")
    assert not list(tmp_path.iterdir())


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


DAMAGE = {
    "not there": (shutil.rmtree, "scene.json is missing"),
    "another version": (lambda p: edit(p, lambda d: d.update(version=2)), "has version 2, this"),
    "foreign": (lambda p: (p / "scene.json").write_text('{"asset": 1}'), "not from da3_ros"),
    "a list": (lambda p: (p / "scene.json").write_text("[]"), "not from da3_ros"),
    "half a json": (lambda p: cut(p / "scene.json"), "damaged"),
    "no submaps": (lambda p: edit(p, lambda d: d.pop("submaps")), "damaged.*submaps"),
    "a submap's file is gone": (lambda p: (p / "submaps" / "000000.npz").unlink(), "000000.npz"),
    "half a submap": (lambda p: cut(p / "submaps" / "000000.npz"), "damaged"),
    "half of the poses": (lambda p: cut(p / "poses.npz"), "damaged"),
    "half an image": (lambda p: cut(p / "images" / "1000.jpg"), "size of images/1000.jpg"),
    "an image is gone": (lambda p: (p / "images" / "1000.jpg").unlink(), "1000.jpg"),
    "a mirrored submap": (submap(R=np.zeros((3, 3)).tolist()), "submap's place"),
    "a submap of no size": (submap(scale=0.0), "submap's place"),
    "too many points": (submap(points=10**7), "size of submaps/000000.npz"),
    "a path as a camera": (submap(images=[["../../etc/passwd", 0, 5]]), "camera's name"),
    "a pose of no submap": (
        lambda p: swap(p / "poses.npz", submap=np.full(KEYFRAMES + 5, 7, "<i4")),
        "poses: submap",
    ),
    "an object": (
        lambda p: swap(p / "poses.npz", submap=np.array([print], dtype=object)),
        "allow_pickle",
    ),
    "points that are no numbers": (
        lambda p: swap(p / "submaps" / "000001.npz", xyz=np.full((570, 3), np.nan, np.float32)),
        "points of submaps/000001.npz",
    ),
    "points out of reach": (
        lambda p: swap(p / "submaps" / "000001.npz", xyz=np.full((570, 3), 1e30, np.float32)),
        "points of submaps/000001.npz",
    ),
    "a reflected submap": (submap(R=np.diag([1.0, 1, -1]).tolist()), "submap's place"),
    "a submap of next to no size": (submap(scale=1e-300), "submap's place"),
    "a huge submap": (submap(scale=1e7), "submap's place"),
    "a submap far away": (submap(t=[1e300, 0, 0]), "submap's place"),
    "a submap of a number too large": (submap(id=2**40), "id is invalid"),
    "a part of a number too large": (submap(part=2**70), "part is invalid"),
    "a part below none": (submap(part=-1), "part is invalid"),
    "keyframes below none": (submap(keyframes=-1), "keyframes is invalid"),
    "points that are no number": (submap(points=True), "points is invalid"),
    "a unit of next to nothing": (whole(unit=1e-300), "unit is invalid"),
    "a huge unit": (whole(unit=1e7), "unit is invalid"),
    "a segment of a number too large": (whole(segment=10**30), "segment is invalid"),
    "a segment without end": (whole(segment=float("inf")), "segment is invalid"),
    "a reflected map": (whole(T_map_world=np.diag([1.0, 1, -1, 1]).tolist()), "T_map_world"),
    "a map in perspective": (
        whole(T_map_world=(np.eye(4) + np.eye(4)[3]).tolist()),
        "the last row of T_map_world",
    ),
    "brackets without end": (
        lambda p: (p / "scene.json").write_text("[" * 200_000),
        "RecursionError",
    ),
    "a scene.json without end": (
        lambda p: os.truncate(p / "scene.json", 10**12),
        "size of scene.json",
    ),
    "poses that turn nothing": (
        lambda p: swap(p / "poses.npz", T=np.zeros((KEYFRAMES + 5, 3, 4))),
        "poses: T",
    ),
    "reflected poses": (
        lambda p: swap(
            p / "poses.npz", T=np.tile(np.diag([1.0, 1, -1, 0])[:3], (KEYFRAMES + 5, 1, 1))
        ),
        "poses: T",
    ),
    "poses that see nothing": (
        lambda p: swap(p / "poses.npz", K=np.zeros((KEYFRAMES + 5, 4))),
        "poses: numbers",
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
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_what_cannot_be_loaded_is_named_in_one_line(saved, kind):
    damage, words = DAMAGE[kind]
    damage(saved[1])
    with pytest.raises(SceneFileError, match=words) as caught:
        load_scene(saved[1])
    assert str(saved[1]) in str(caught.value)
    assert "\n" not in str(caught.value)


def pipe(file):
    file.unlink()
    os.mkfifo(file)


@pytest.mark.timeout(60)  # a reader of a pipe waits for ever
@pytest.mark.parametrize(
    "name", ["scene.json", "poses.npz", "submaps/000000.npz", "images/1000.jpg"]
)
def test_a_pipe_in_a_scene_is_refused_and_blocks_nothing(saved, name):
    pipe(saved[1] / name)
    with pytest.raises(SceneFileError, match=f"{name} is not a regular file"):
        load_scene(saved[1])


@pytest.mark.timeout(60)
def test_a_scene_is_not_saved_over_a_folder_of_pipes(saved):
    pipe(saved[1] / "scene.json")
    with pytest.raises(ExportError, match="with other contents"):
        save_scene(saved[0], saved[1])
    assert (saved[1] / "scene.json").is_fifo()


@pytest.mark.timeout(60)
def test_a_pipe_in_place_of_a_file_blocks_nothing(saved, monkeypatch):
    """A pipe that comes while a file is opened blocks nothing."""
    regular = (saved[1] / "scene.json").lstat()
    pipe(saved[1] / "scene.json")
    monkeypatch.setattr(Path, "lstat", lambda self: regular)
    with pytest.raises(SceneFileError, match="not a regular file"):
        load_scene(saved[1])


def test_a_file_that_inflates_to_far_more_is_not_inflated(saved, monkeypatch):
    file = saved[1] / "submaps" / "000000.npz"
    size = file.stat().st_size
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("xyz.npy", bytes(100 * size))
        bomb.writestr("pad", np.random.default_rng(0).bytes(size - 1000))
    monkeypatch.setattr(np, "load", lambda *a, **k: pytest.fail("it was believed"))
    with pytest.raises(SceneFileError, match=r"size of submaps/000000\.npz"):
        load_scene(saved[1])


def test_a_name_that_no_file_can_have_is_no_scene(tmp_path):
    for name in ("x" * 300, "a\0b"):
        with pytest.raises(SceneFileError, match=r"scene.json is missing"):
            load_scene(find_scene(tmp_path / name))
