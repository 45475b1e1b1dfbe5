"""A scene saved to a folder and loaded again; what is no such folder, or a damaged one."""

import dataclasses
import os
import shutil
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from support.journals import (
    changed_in,
    changed_rows,
    records_of,
    rewritten,
    without_keyframes,
)
from support.scenes import frame, full_store, pose, store
from support.stored_walls import SIZE, K, write_walls

from da3_ros.export.checked_files import SceneFileError
from da3_ros.export.export import ExportError
from da3_ros.export.saved_records import SUBMAP
from da3_ros.export.scene_file import SceneFile, load_scene, save_scene, write_scene
from da3_ros.export.scene_folder import find_scene, is_scene
from da3_ros.keyframe_store.journal import HEADER, JournalReader, JournalWriter
from da3_ros.keyframe_store.keyframe import FramePose
from da3_ros.keyframe_store.store import JOURNAL, StoreWriter
from da3_ros.mapping.submaps import KEYFRAMES
from da3_ros.mapping.trajectory import SAVED


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
        np.testing.assert_array_equal(p.T_map_camera, q.T_map_camera)
        np.testing.assert_array_equal(p.K, q.K)
        rest = [(x.stamp_ns, x.size, x.keyframe, x.camera) for x in (p, q)]
        assert rest[0] == rest[1]


def test_what_is_loaded_is_what_was_saved_in_metres(saved):
    snapshot, path = saved
    loaded = load_scene(path)
    same_scene(loaded.scene(), snapshot.scene())
    assert [s.chain for s in loaded.submaps] == [0, 0, 1]
    assert [s.keyframes for s in loaded.submaps] == [KEYFRAMES, 3, 1]
    assert (loaded.metric, loaded.unit, loaded.chain) == (True, 1.5, 1)
    assert loaded.submaps[0].T_map_submap.scale == 0.5
    assert len(loaded.scene().images) == KEYFRAMES + 4


def test_a_camera_may_have_a_path_as_its_name(tmp_path):
    held = store(keep_images=True)
    held.add_frame(dataclasses.replace(frame(1, pose(0.0)), camera="front/left"))
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
    assert held.add_frame(frame(99, pose(9.0), seed=9))[0].id == 3
    assert held.newest.chain == 2
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
        assert [p.name for p in (tmp_path / name).iterdir()] == [JOURNAL]
    assert (tmp_path / "a" / JOURNAL).read_bytes() == (tmp_path / "b" / JOURNAL).read_bytes()


def test_an_older_scene_is_replaced_and_nothing_else_is(saved):
    snapshot, path = saved
    small = store()
    small.add_frame(frame(0, pose()))
    save_scene(small.snapshot(), path)
    assert len(load_scene(path).submaps) == 1
    (path / "notes.txt").write_text("mine")
    with pytest.raises(ExportError, match="with other contents"):
        save_scene(snapshot, path)
    assert len(load_scene(path).submaps) == 1
    assert [p.name for p in path.parent.iterdir()] == ["scene"]


@pytest.mark.parametrize("file", ["notes.txt", "images/mine.jpg", "submaps/a/000000.npz"])
def test_a_scene_with_a_file_of_the_users_stays(saved, file):
    snapshot, path = saved
    save_scene(snapshot, path)
    (path / file).parent.mkdir(parents=True, exist_ok=True)
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
    held.add_frame(frame(0, pose()))
    return held


def test_an_empty_scene_is_not_saved(tmp_path):
    with pytest.raises(ExportError, match="empty"):
        save_scene(store().snapshot(), tmp_path / "scene")
    assert not list(tmp_path.iterdir())


def contents(**values):
    return lambda path: rewritten(path, changed_in("contents", **values))


def submap(**values):
    return lambda path: rewritten(path, changed_rows("contents", SUBMAP, **values))


def poses(**values):
    return lambda path: rewritten(path, changed_rows("path", SAVED, **values))


def points(xyz):
    def change(description, data):
        if description["kind"] == "points":
            data = (
                np.full((description["count"], 3), xyz, "<f4").tobytes()
                + data[12 * description["count"] :]
            )
        return description, data

    return lambda path: rewritten(path, change)


def flipped(kind, at=0):
    """A wrong bit in the data of the first record of a kind."""

    def damage(path):
        found = next(r for r in JournalReader(path / JOURNAL).records()
                     if r.description["kind"] == kind)  # fmt: skip
        data = bytearray((path / JOURNAL).read_bytes())
        data[found.start + at] ^= 1
        (path / JOURNAL).write_bytes(data)

    return damage


def of_another_kind(kind):
    """Where a record should be there is another one."""
    return lambda path: rewritten(path, changed_in(kind, kind="other"))


def shorter(kind):
    return lambda path: rewritten(
        path, lambda d, data: (d, data[:-3] if d["kind"] == kind else data)
    )


def link(path):
    """The scene's file is a link to what was there, beside its folder."""
    file = path / JOURNAL
    file.symlink_to(file.rename(path.parent / "elsewhere"))


def with_images(change):
    def changed(description, data):
        if description["kind"] == "images":
            description["images"][0] = change(*description["images"][0])
        return description, data

    return lambda path: rewritten(path, changed)


DAMAGE = {
    "not there": (shutil.rmtree, "scene.da3k is missing"),
    "another version": (
        lambda p: rewritten(p, changed_in("scene", version=3)), "has version 3, this"
    ),
    "foreign": (lambda p: (p / JOURNAL).write_text("{}" * 50), "no journal of a scene"),
    "of another program": (
        lambda p: rewritten(p, changed_in("scene", format="other")), "no journal of a scene"
    ),
    "empty": (lambda p: (p / JOURNAL).write_text(""), "no journal of a scene"),
    "half a file": (
        lambda p: os.truncate(p / JOURNAL, (p / JOURNAL).stat().st_size // 2),
        "holds no saved scene",
    ),
    "a number of no submaps": (shorter("contents"), "damaged"),
    "a wrong bit in the contents": (flipped("contents", 9), "damaged"),
    "a wrong bit in points": (flipped("points", 9), "damaged"),
    "a wrong bit in the path": (flipped("path", 9), "damaged"),
    "a wrong bit in an image": (flipped("images", 9), "damaged"),
    "half of the points": (shorter("points"), "number of points"),
    "half of the poses": (shorter("path"), "damaged"),
    "half an image": (shorter("images"), "size of images"),
    "points of another submap": (
        lambda p: rewritten(p, changed_in("points", submap=7)), "the record of points"
    ),
    "points elsewhere": (submap(points=10**12), "damaged"),
    "points below none": (submap(points=-5), "damaged"),
    "points that are a path": (of_another_kind("points"), "the record of points"),
    "images that are none": (of_another_kind("images"), "the record of images"),
    "a path that is none": (of_another_kind("path"), "the record of path"),
    "an origin that is none": (submap(origin=3), "origin is invalid"),
    "origins that are no names": (
        lambda p: submap(origin=0)(contents(origins=[7])(p)), "origin is invalid"
    ),
    "too many points": (
        lambda p: rewritten(p, changed_in("points", count=10**9)), "number of points"
    ),
    "a mirrored submap": (submap(R=np.zeros((3, 3))), "submap's pose"),
    "a submap of no size": (submap(scale=0.0), "submap's pose"),
    "a path as a camera": (
        with_images(lambda c, t, size: ["../../etc/passwd", t, size]), "camera's name"
    ),
    "an image below no size": (with_images(lambda c, t, size: [c, t, -size]), "size of images"),
    "a path as the camera of a pose": (
        lambda p: rewritten(p, changed_in("path", cameras=["../etc", "front"])), "camera's name"
    ),
    "an unknown leader": (
        lambda p: rewritten(p, changed_in("path", leaders=["back"])), "leaders"
    ),
    "a pose of no submap": (poses(submap=7), "poses: submap"),
    "a pose of no camera": (poses(camera=7), "poses: numbers"),
    "points that are no numbers": (points(np.nan), "points of submap 0"),
    "points out of reach": (points(1e30), "points of submap 0"),
    "a reflected submap": (submap(R=np.diag([1.0, 1, -1])), "submap's pose"),
    "a submap of next to no size": (submap(scale=1e-300), "submap's pose"),
    "a huge submap": (submap(scale=1e7), "submap's pose"),
    "a submap far away": (submap(t=[1e300, 0, 0]), "submap's pose"),
    "two submaps of one number": (submap(id=0), "submap ids"),
    "a submap of a number too large": (submap(id=2**30 + 1), "id is invalid"),
    "a component of a number too large": (submap(component=2**30 + 1), "component is invalid"),
    "a component below none": (submap(component=-1), "component is invalid"),
    "keyframes below none": (submap(keyframes=-1), "keyframes is invalid"),
    "a unit of next to nothing": (contents(unit=1e-300), "unit is invalid"),
    "a huge unit": (contents(unit=1e7), "unit is invalid"),
    "metres that are no truth": (contents(metric=1), "unit is invalid"),
    "a chain of a number too large": (contents(chain=10**30), "chain is invalid"),
    "a chain without end": (contents(chain=float("inf")), "chain is invalid"),
    "a reflected map": (
        contents(T_ros_map=np.diag([1.0, 1, -1, 1]).ravel().tolist()), "T_ros_map"
    ),
    "a map of few numbers": (contents(T_ros_map=[1.0]), "damaged"),
    "a map in perspective": (
        contents(T_ros_map=(np.eye(4) + np.eye(4)[3]).ravel().tolist()),
        "the last row of T_ros_map",
    ),
    "poses that turn nothing": (poses(T=0.0), "poses: T"),
    "reflected poses": (poses(T=np.diag([1.0, 1, -1, 0])[:3]), "poses: T"),
    "poses that see nothing": (poses(K=0.0), "poses: numbers"),
    "a file elsewhere": (link, "scene.da3k points out of the folder: only export_dir is read"),
    "links in a circle": (
        lambda p: ((p / JOURNAL).unlink(), (p / JOURNAL).symlink_to(JOURNAL)), "damaged"
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
def test_what_cannot_be_loaded_is_named_in_one_line(saved, kind):
    damage, words = DAMAGE[kind]
    damage(saved[1])
    with pytest.raises(SceneFileError, match=words) as caught:
        load_scene(saved[1])
    assert str(saved[1]) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_scene_whose_records_move_is_the_same(saved):
    """What ``rewritten`` changes is the damage alone."""
    rewritten(saved[1], lambda d, data: (d | {"more": "x" * 99}, data))
    same_scene(load_scene(saved[1]).scene(), saved[0].scene())


@pytest.mark.parametrize("count", [40, pytest.param(400, marks=pytest.mark.long)])
def test_a_file_cut_at_any_byte_is_no_scene_or_the_whole_one(saved, tmp_path, count):
    """The last record tells where the contents are; without it they are found."""
    data = (saved[1] / JOURNAL).read_bytes()
    end = records_of(saved[1] / JOURNAL)[-1][0]  # of the contents
    rng = np.random.default_rng(1)
    cuts = {0, end - 1, end, end + 1, len(data) - 1} | set(rng.integers(0, len(data), count))
    whole = []
    for cut in sorted(map(int, cuts)):
        (saved[1] / JOURNAL).write_bytes(data[:cut])
        try:
            same_scene(load_scene(saved[1]).scene(), saved[0].scene())
            whole.append(cut)
        except SceneFileError as error:
            assert "\n" not in str(error)  # noqa: PT017
    assert whole == [cut for cut in sorted(cuts) if cut >= end]


@pytest.mark.parametrize("count", [60, pytest.param(600, marks=pytest.mark.long)])
def test_a_wrong_bit_anywhere_costs_the_scene_or_nothing(saved, count):
    data = (saved[1] / JOURNAL).read_bytes()
    loaded = 0
    for at in np.random.default_rng(2).integers(0, len(data), count):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        (saved[1] / JOURNAL).write_bytes(damaged)
        try:
            same_scene(load_scene(saved[1]).scene(), saved[0].scene())
            loaded += 1
        except SceneFileError as error:
            assert "\n" not in str(error)  # noqa: PT017
    assert loaded < count / 2


@pytest.mark.parametrize("at", [2, 10, HEADER.size + 8])
def test_a_damaged_first_record_costs_nothing(saved, caplog, at):
    data = bytearray((saved[1] / JOURNAL).read_bytes())
    data[at] ^= 0x41
    (saved[1] / JOURNAL).write_bytes(data)
    same_scene(load_scene(saved[1]).scene(), saved[0].scene())
    assert "its first record is damaged" in caplog.text


def test_a_damaged_last_record_costs_nothing(saved):
    data = bytearray((saved[1] / JOURNAL).read_bytes())
    data[-3] ^= 1
    (saved[1] / JOURNAL).write_bytes(data)
    same_scene(load_scene(saved[1]).scene(), saved[0].scene())
    save_scene(saved[0], saved[1])  # it is known as a scene, too


@pytest.mark.parametrize("points_at", [0, 10**12, -1])
def test_a_last_record_that_points_elsewhere_costs_nothing(saved, points_at):
    rewritten(saved[1], changed_in("end", contents=points_at))
    same_scene(load_scene(saved[1]).scene(), saved[0].scene())


def test_the_newest_scene_in_a_file_counts(saved):
    small = store_of_one().snapshot()
    write_scene(small, saved[1])
    same_scene(load_scene(saved[1]).scene(), small.scene())
    with closing(JournalWriter(saved[1] / JOURNAL, (saved[1] / JOURNAL).stat().st_size)) as file:
        file.append({"kind": "submaps"}, b"")  # a run goes on
    same_scene(load_scene(saved[1]).scene(), small.scene())
    assert is_scene(saved[1])
    run = StoreWriter(saved[1])
    with closing(run.journal):
        run.begin()
    with pytest.raises(SceneFileError, match="holds no saved scene"):
        load_scene(saved[1])


def test_stored_keyframes_are_read_from_the_same_file(tmp_path):
    snapshot = full_store().snapshot()
    folder = write_walls(tmp_path / "s", 3)
    alone = SceneFile(folder)
    assert (alone.is_saved, alone.has_keyframes) == (False, True)
    with pytest.raises(SceneFileError, match=r"keyframes of a run that did not end: da3_ros exp"):
        load_scene(folder)
    write_scene(snapshot, folder)
    file = SceneFile(folder)
    assert (file.is_saved, file.has_keyframes) == (True, True)
    same_scene(file.load().scene(), snapshot.scene())
    assert len(file.poses()) == len(snapshot.poses)
    with file.keyframes() as stored:
        assert len(stored.images) == 3
    without_keyframes(folder)
    assert not SceneFile(folder).has_keyframes
    same_scene(load_scene(folder).scene(), snapshot.scene())


def test_a_scene_is_opened_without_reading_the_keyframes(tmp_path, monkeypatch):
    folder = write_walls(tmp_path / "s", 50)
    write_scene(full_store().snapshot(), folder)
    found, at = [], JournalReader._at

    def counted(self, offset):
        found.append(offset)
        return at(self, offset)

    monkeypatch.setattr(JournalReader, "_at", counted)
    load_scene(folder)
    assert len(found) < 25


def test_a_folder_of_keyframes_alone_is_not_replaced(tmp_path):
    """They are in no other file, and a run may be writing them."""
    folder = write_walls(tmp_path / "s", 2)
    before = (folder / JOURNAL).read_bytes()
    assert not is_scene(folder)
    with pytest.raises(ExportError, match=r"with other contents \(scene.da3k\)"):
        save_scene(store_of_one().snapshot(), folder)
    assert (folder / JOURNAL).read_bytes() == before


def test_a_reader_beside_a_writer_sees_a_whole_scene_or_none(tmp_path):
    """A run stores keyframes, and the scene is saved behind them twice."""
    small, full = store_of_one().snapshot(), full_store().snapshot()
    folder = write_walls(tmp_path / "s", 2)
    steps, ended = threading.Event(), threading.Event()

    def write():
        for _ in range(4):
            for saved in (small, full):
                write_scene(saved, folder)
                run = StoreWriter(folder)
                with closing(run.journal):
                    run.add_frames([wall_pose(stamp) for stamp in range(2, 40)])
                steps.wait(0.01)
        ended.set()

    thread, seen, frames = threading.Thread(target=write), set(), []
    thread.start()
    while not (ended.is_set() and len(seen) > 1) and len(frames) < 500:
        with SceneFile(folder).keyframes() as stored:
            frames.append(len(stored.frames))
        file = SceneFile(folder)
        if file.is_saved:
            seen.add(len(file.load().scene()))
    thread.join()
    assert seen <= {len(small.scene()), len(full.scene())}
    assert len(full.scene()) in seen
    assert frames == sorted(frames)
    assert frames[0] >= 2


FULL = """
import resource, sys
sys.path[:0] = [sys.argv[2]]
from pathlib import Path
from support.scenes import full_store
from da3_ros.export.export import ExportError
from da3_ros.export.scene_file import save_scene
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
try:
    save_scene(full_store().snapshot(), Path(sys.argv[1]))
except ExportError as error:
    print(error)
"""


@pytest.mark.long
@pytest.mark.process
@pytest.mark.slow
def test_a_file_that_really_cannot_grow_leaves_the_old_scene(tmp_path):
    small = store_of_one().snapshot()
    save_scene(small, tmp_path / "scene")
    said = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "scene"), str(Path(__file__).parents[1])],
        capture_output=True, text=True,
    )  # fmt: skip
    assert "cannot be written: [Errno 27] File too large" in said.stdout, said.stderr
    same_scene(load_scene(tmp_path / "scene").scene(), small.scene())
    assert [p.name for p in tmp_path.iterdir()] == ["scene"]
    assert [p.name for p in (tmp_path / "scene").iterdir()] == [JOURNAL]


@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.long)])
def test_a_file_of_a_run_cut_at_any_byte_has_all_keyframes_before(tmp_path, count):
    folder = write_walls(tmp_path / "s", 6)
    keyframes = (folder / JOURNAL).stat().st_size
    write_scene(full_store().snapshot(), folder)
    data, ends = (folder / JOURNAL).read_bytes(), []
    for at, description, _ in records_of(folder / JOURNAL):
        ends += [at] if description["kind"] == "frames" else []
    ends = [*ends[1:], keyframes]  # a keyframe ends where the next one's frame begins
    for cut in np.random.default_rng(3).integers(1000, len(data), count):
        (folder / JOURNAL).write_bytes(data[:cut])
        with SceneFile(folder).keyframes() as stored:
            assert len(stored.images) == sum(end <= cut for end in ends), cut
            for key in stored.images:
                stored.load(key)
    assert len(ends) == 6


def test_points_of_one_submap_are_in_memory_at_a_time(saved):
    file = SceneFile(saved[1])
    assert [len(s.cloud) for s in file.saved.submaps] == [0, 0, 0]
    for submap in saved[0].submaps:
        filled = file.filled(submap.id)
        np.testing.assert_array_equal(filled.cloud.xyz, submap.cloud.xyz)
        assert filled.images == submap.images
        assert file.shots(submap.id) == list(submap.images)


def wall_pose(stamp):
    return FramePose(stamp, "", 0, np.eye(4), K, SIZE, False)


def pipe(file):
    file.unlink()
    os.mkfifo(file)


@pytest.mark.timeout(60)  # a reader of a pipe waits for ever
def test_a_pipe_in_a_scene_is_refused_and_blocks_nothing(saved):
    pipe(saved[1] / JOURNAL)
    with pytest.raises(SceneFileError, match=r"scene\.da3k is not a regular file"):
        load_scene(saved[1])


@pytest.mark.timeout(60)
def test_a_scene_is_not_saved_over_a_folder_of_pipes(saved):
    pipe(saved[1] / JOURNAL)
    with pytest.raises(ExportError, match="with other contents"):
        save_scene(saved[0], saved[1])
    assert (saved[1] / JOURNAL).is_fifo()


@pytest.mark.timeout(60)
def test_a_pipe_in_place_of_a_file_blocks_nothing(saved, monkeypatch):
    """A pipe that comes while a file is opened blocks nothing."""
    regular = (saved[1] / JOURNAL).lstat()
    pipe(saved[1] / JOURNAL)
    monkeypatch.setattr(Path, "lstat", lambda self: regular)
    with pytest.raises(SceneFileError, match="not a regular file"):
        load_scene(saved[1])


def test_a_name_that_no_file_can_have_is_no_scene(tmp_path):
    for name in ("x" * 300, "a\0b"):
        with pytest.raises(SceneFileError, match=r"scene.da3k is missing"):
            load_scene(find_scene(tmp_path / name))
