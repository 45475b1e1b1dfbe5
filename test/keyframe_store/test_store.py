"""Keyframes on disk: what is read back, and what a crash at any byte leaves."""

import dataclasses
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from support.cases import long_after
from support.journals import changed_in, changed_rows, rewritten

from da3_ros.geometry.similarity import Similarity
from da3_ros.keyframe_store import encoding, store
from da3_ros.keyframe_store.journal import (
    CHUNK,
    HEADER,
    JournalError,
    JournalReader,
    JournalWriter,
)
from da3_ros.keyframe_store.keyframe import FramePose, Keyframe, MeasuredKeyframe, Tracks
from da3_ros.keyframe_store.store import (
    FRAME,
    JOURNAL,
    SUBMAP,
    MapState,
    StoredScene,
    StoredSubmap,
    StoreWriter,
)
from da3_ros.types import DenseDepth

SIZE = (48, 36)


def keyframe(k, camera=""):
    rng = np.random.default_rng(k)
    width, height = SIZE
    depth = rng.uniform(0.5, 20, (height, width)).astype(np.float32)
    depth[0], depth[1] = np.nan, np.inf
    T = np.eye(4)
    T[:3, 3] = k, 0.5, -1
    K = np.array([[40.0, 0, 24], [0, 41, 18], [0, 0, 1]])
    image = np.full((2 * height, 2 * width, 3), (k % 200, 40, 90), np.uint8)
    tracks = Tracks(np.arange(k, k + 5), rng.uniform(0, 36, (5, 2)).astype(np.float32))
    pose = FramePose(1000 + k, camera, k // 3, T, K, SIZE, True)
    descriptor = rng.normal(size=16).astype(np.float32)
    return Keyframe(pose, depth, 1 + 10 * depth, image, descriptor, tracks)


def moved(x):
    """Another pose."""
    T = np.eye(4)
    T[0, 3] = x
    return T


def stored_submap(id, x=0.0, component=0):
    return StoredSubmap(id, 0, component, Similarity(1.5, np.eye(3), np.array([x, 0, 0])))


SUBMAPS = [stored_submap(id) for id in range(1000)]


def written(folder, count=6):
    writer = StoreWriter(folder)
    for k in range(count):
        if k % 3 == 0:
            writer.place([stored_submap(k // 3)])
        writer.add_keyframe(keyframe(k))
    return writer


def same(scene, k):
    found, expected = scene.load(scene.newest["", 1000 + k]), keyframe(k)
    known = np.isfinite(expected.depth)
    assert (np.isnan(found.depth) == np.isnan(expected.depth)).all()
    assert (np.isinf(found.depth) == np.isinf(expected.depth)).all()
    bound = (1 / expected.depth[known]).max() / 131066 * 1.01
    assert np.abs(1 / found.depth[known] - 1 / expected.depth[known]).max() < bound
    np.testing.assert_allclose(found.confidence[known], expected.confidence[known], rtol=1e-3)
    assert np.abs(found.image.astype(int) - expected.image).max() <= 2
    np.testing.assert_array_equal(found.pose.T_submap_camera, expected.pose.T_submap_camera)
    np.testing.assert_array_equal(found.pose.K, expected.pose.K)
    np.testing.assert_array_equal(found.tracks.ids, expected.tracks.ids)
    np.testing.assert_allclose(found.descriptor, expected.descriptor, atol=2e-3)
    assert (found.pose.submap, found.pose.camera) == (expected.pose.submap, expected.pose.camera)
    assert (found.pose.size, found.pose.keyframe) == (SIZE, True)


def test_what_was_stored_is_read_back(tmp_path):
    writer = written(tmp_path)
    writer.place([stored_submap(1, 4.0, component=2)])
    writer.correct({("", 1002): moved(2)})
    T = np.diag([1.0, -1, -1, 1])
    writer.set_map(MapState(True, 0.5, 2.0, T))
    writer.journal.close()
    with StoredScene.open(tmp_path) as scene:
        assert [scene.frames[k].stamp_ns for k in scene.images] == list(range(1000, 1006))
        for k in (0, 1, 3, 4, 5):
            same(scene, k)
        corrected = scene.frames[scene.newest["", 1002]].T_submap_camera
        np.testing.assert_array_equal(corrected, moved(2))
        assert (scene.submaps[1].T_map_submap.t[0], scene.submaps[1].component) == (4.0, 2)
        assert scene.submaps[0].T_map_submap.scale == 1.5
        assert (scene.map.metric, scene.map.scene_scale, scene.map.unit) == (True, 0.5, 2.0)
        np.testing.assert_array_equal(scene.map.T_ros_map, T)


@pytest.mark.long
@pytest.mark.parametrize("count", long_after(1, [2, 200]))
def test_a_journal_cut_at_any_byte_costs_the_last_keyframe_at_most(tmp_path, count):
    writer = StoreWriter(tmp_path / "whole")
    writer.place(SUBMAPS)
    ends = []
    for k in range(6):
        writer.add_keyframe(keyframe(k))
        ends.append(writer.journal.size)
    writer.journal.close()
    data = (tmp_path / "whole" / JOURNAL).read_bytes()
    rng = np.random.default_rng(0)
    cuts = {0, 3, 20, 60, *ends, *(e - 1 for e in ends)}
    cuts |= set(rng.integers(0, len(data), count).tolist())
    path = tmp_path / "cut" / JOURNAL
    path.parent.mkdir()
    for cut in sorted(cuts):
        path.write_bytes(data[:cut])
        whole = sum(e <= cut for e in ends)
        again = StoreWriter(path.parent)  # goes on behind the last complete record
        again.place(SUBMAPS)
        again.add_keyframe(keyframe(7))
        again.journal.close()
        with StoredScene.open(path.parent) as scene:
            stamps = [scene.frames[k].stamp_ns for k in scene.images]
            assert stamps == [*range(1000, 1000 + whole), 1007], cut
            for k in [*range(whole), 7][-2:]:
                same(scene, k)


def test_a_recording_that_is_played_again_repeats_stamps(tmp_path):
    writer = written(tmp_path)
    again = dataclasses.replace(keyframe(1).pose, submap=7, T_submap_camera=moved(5))
    writer.add_keyframe(dataclasses.replace(keyframe(1), pose=again))
    writer.correct({("", 1001): moved(6)})
    writer.journal.close()
    with StoredScene.open(tmp_path) as scene:
        assert [scene.frames[k].submap for k in scene.images] == [0, 0, 0, 1, 1, 1]
        assert len(scene.frames) == 7  # nobody knows where submap 7 is
        writer = StoreWriter(tmp_path)
        writer.place([stored_submap(7)])
        writer.journal.close()
    with StoredScene.open(tmp_path) as scene:
        stamps = [scene.frames[k].stamp_ns for k in scene.images]
        assert stamps == [*range(1000, 1006), 1001]
        poses = [scene.frames[k].T_submap_camera[0, 3] for k in (1, 6)]
        assert poses == [1, 6]  # the newest is corrected


def test_a_flipped_bit_costs_what_it_hits_and_nothing_behind_it(tmp_path, caplog):
    written(tmp_path).journal.close()
    with StoredScene.open(tmp_path) as scene:
        start = scene.images[2].record.start
    data = bytearray((tmp_path / JOURNAL).read_bytes())
    data[start - 5] ^= 1  # in the description of the third keyframe
    (tmp_path / JOURNAL).write_bytes(data)
    with StoredScene.open(tmp_path) as scene:
        assert [scene.frames[k].stamp_ns for k in scene.images] == [1000, 1001, 1003, 1004, 1005]
        same(scene, 5)
    assert "damaged bytes are left out" in caplog.text
    StoreWriter(tmp_path).journal.close()  # going on removes nothing
    assert len((tmp_path / JOURNAL).read_bytes()) == len(data)


@pytest.mark.parametrize("part", ["the image", "the middle"])
def test_damaged_images_cost_one_keyframe(tmp_path, part):
    written(tmp_path).journal.close()
    with StoredScene.open(tmp_path) as scene:
        record = scene.images[2].record
    data = bytearray((tmp_path / JOURNAL).read_bytes())
    # A JPEG with a wrong bit is decoded without an error, as other pixels.
    image = record.description["bytes"]["image"]
    data[record.start + (image - 20 if part == "the image" else record.size // 2)] ^= 1
    (tmp_path / JOURNAL).write_bytes(data)
    with StoredScene.open(tmp_path) as scene:
        assert len(scene.images) == 6
        with pytest.raises(JournalError, match="damaged"):
            scene.load(2)
        same(scene, 3)


@pytest.mark.parametrize("kind", ["submaps", "frames", "poses"])
def test_a_damaged_record_costs_what_it_is_about(tmp_path, caplog, kind):
    writer = written(tmp_path)
    writer.add_frames([dataclasses.replace(keyframe(8).pose, keyframe=False, submap=1)])
    writer.correct({("", 1000): moved(7)})
    writer.journal.close()
    reader = JournalReader(tmp_path / JOURNAL)
    records = [r for r in reader.records() if r.description["kind"] == kind]
    reader.close()
    data = bytearray((tmp_path / JOURNAL).read_bytes())
    data[records[-1].start + 3] ^= 1
    (tmp_path / JOURNAL).write_bytes(data)
    with StoredScene.open(tmp_path) as scene:
        assert {"submaps": 3, "frames": 6, "poses": 6}[kind] == len(scene.images)
        assert ("", 1008) in scene.newest or kind != "poses"
        same(scene, 2) if kind != "poses" else same(scene, 0)  # before it was corrected
    assert caplog.text.count("is damaged: it is left out") == 1


@pytest.mark.parametrize("at", [2, 10, HEADER.size + 8])
def test_a_damaged_first_record_costs_nothing_else(tmp_path, caplog, at):
    written(tmp_path)
    data = bytearray((tmp_path / JOURNAL).read_bytes())
    data[at] ^= 0x41
    (tmp_path / JOURNAL).write_bytes(data)
    with StoredScene.open(tmp_path) as scene:
        for k in range(6):
            same(scene, k)
    assert "its first record is damaged" in caplog.text


def test_a_keyframe_whose_frame_is_damaged_is_left_out(tmp_path):
    written(tmp_path)
    reader = JournalReader(tmp_path / JOURNAL)
    frames = [r for r in reader.records() if r.description["kind"] == "frames"]
    reader.close()
    data = bytearray((tmp_path / JOURNAL).read_bytes())
    data[frames[2].start + 3] ^= 0x41
    (tmp_path / JOURNAL).write_bytes(data)
    with StoredScene.open(tmp_path) as scene:
        assert len(scene.images) == 5
        for k in (0, 1, 3, 4, 5):
            same(scene, k)


def test_a_record_after_a_failed_one_follows_the_last_complete_one(tmp_path, monkeypatch):
    path = tmp_path / JOURNAL
    writer = JournalWriter(path)
    writer.append({"kind": "a"}, b"1")
    real = writer._file

    class Half:
        """Writes half of a record, then fails."""

        def __init__(self):
            self.calls = 0

        def write(self, data):
            self.calls += 1
            if self.calls > 1:
                raise OSError(28, "No space left on device")
            return real.write(data[: len(data) // 2])

        def __getattr__(self, name):
            return getattr(real, name)

    writer._file = Half()
    with pytest.raises(OSError, match="No space"):
        writer.append({"kind": "b"}, b"2" * 100)
    writer._file = real
    writer.append({"kind": "c"}, b"3")
    writer.close()
    reader = JournalReader(path)
    records, texts = list(reader.records()), ['{"kind":"a"}', '{"kind":"c"}']
    assert [reader.data(record) for record in records] == [b"1", b"3"]
    sizes = [record.size + len(text) for record, text in zip(records, texts, strict=True)]
    assert path.stat().st_size == 2 * HEADER.size + sum(sizes)  # without a hole
    reader.close()


class SmallDisk:
    """A journal's file on a disk with room for some bytes: the first of a record that fit."""

    def __init__(self, file, room):
        self._file, self.room, self.can_cut = file, room, True

    def write(self, data):
        free = self.room - self._file.tell()
        if free <= 0:
            raise OSError(28, "No space left on device")
        return self._file.write(data[:free])

    def truncate(self, size):
        if not self.can_cut:
            raise OSError(28, "No space left on device")
        self._file.truncate(size)

    def __getattr__(self, name):
        return getattr(self._file, name)


def test_a_file_that_could_not_be_cut_is_cut_before_the_next_record(tmp_path):
    writer = written(tmp_path)
    disk = SmallDisk(writer.journal._file, writer.journal.size + 1000)
    writer.journal._file, disk.can_cut = disk, False
    for _ in range(2):  # the second cannot cut what the first has left
        with pytest.raises(OSError, match="No space"):
            writer.add_keyframe(keyframe(6))
    disk.room, disk.can_cut = 1 << 30, True
    writer.add_keyframe(keyframe(7))
    assert writer.journal.size == (tmp_path / JOURNAL).stat().st_size
    writer.journal.close()
    with StoredScene.open(tmp_path) as scene:
        assert scene.reader.end == writer.journal.size
        assert [frame.stamp_ns for frame in scene.frames] == [*range(1000, 1006), 1007]


def test_a_keyframe_that_does_not_fit_leaves_no_frame(tmp_path):
    writer = written(tmp_path)
    disk = SmallDisk(writer.journal._file, writer.journal.size + 1000)  # room for the frame
    writer.journal._file = disk
    size = writer.journal.size
    with pytest.raises(OSError, match="No space"):
        writer.add_keyframe(keyframe(6))
    assert writer.journal.size == size
    disk.room = 1 << 30
    writer.add_frames([keyframe(6).pose])  # as the recorder does
    writer.journal.close()
    with StoredScene.open(tmp_path) as scene:
        assert [frame.stamp_ns for frame in scene.frames] == list(range(1000, 1007))
        assert len(scene.images) == 6


@pytest.mark.parametrize(
    ("data", "match"),
    [(None, "holds no keyframes"), (b"", "no journal"), (b"x" * 99, "no journal")],
)
def test_other_files_are_refused_in_one_line(tmp_path, data, match):
    if data is not None:
        (tmp_path / JOURNAL).write_bytes(data)
    with pytest.raises(JournalError, match=match) as error:
        StoredScene.open(tmp_path)
    if data == b"x" * 99:
        with pytest.raises(JournalError, match=match):
            StoreWriter(tmp_path)
        assert (tmp_path / JOURNAL).read_bytes() == data
    assert "\n" not in str(error.value)


def test_depth_without_values_or_with_one_is_kept():
    for depth in (np.full((4, 5), np.nan), np.full((4, 5), 2.5), np.full((4, 5), np.inf)):
        found = encoding.decode_depth(*encoding.encode_depth(depth.astype(np.float32)))
        np.testing.assert_allclose(found, depth, rtol=1e-6)
    zero = encoding.encode_depth(np.array([[0.0, -1.0, 3.0]], np.float32))
    assert np.isnan(encoding.decode_depth(*zero)[0, :2]).all()


CHILD = """
import sys
sys.path[:0] = [sys.argv[2], sys.argv[2] + "/.."]
from pathlib import Path
from test_store import SUBMAPS, keyframe
from da3_ros.keyframe_store.store import StoreWriter
writer = StoreWriter(Path(sys.argv[1]))
writer.place(SUBMAPS)
for k in range(int(sys.argv[3]), 10**6):
    writer.add_keyframe(keyframe(k))
    print(k, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("runs", long_after(1, [2, 5]))
def test_killed_writers_lose_nothing_that_was_stored(tmp_path, runs):
    first = 0
    for run in range(runs):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path), os.path.dirname(__file__), str(first)],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        last = first - 1
        deadline = time.monotonic() + 60
        while last < first + 3 + 2 * run and time.monotonic() < deadline:
            last = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().split()
        child.wait()
        last = int(rest[-1]) if rest else last
        with StoredScene.open(tmp_path) as scene:
            stamps = [scene.frames[k].stamp_ns - 1000 for k in scene.images]
            assert stamps[: last + 1] == list(range(last + 1))
            assert len(stamps) <= last + 2
            for k in (0, last):
                same(scene, k)
        first = len(stamps)


@pytest.mark.parametrize(
    "change",
    [
        changed_in("frames", cameras=[]),
        changed_in("frames", cameras=["../../etc"]),
        changed_in("frames", cameras=["/etc"]),
        changed_in("frames", cameras=7),
        changed_in("keyframe", image_size=[10**6, 10**6]),
        changed_in("keyframe", image_size="ab"),
        changed_in("map", T_ros_map=[0] * 7),
        changed_in("map", scene_scale=0),
        changed_in("scene", version=9),
        changed_rows("frames", FRAME, camera=-1),
        changed_rows("frames", FRAME, size=10**9),
        changed_rows("frames", FRAME, K=0),
        changed_rows("frames", FRAME, T=np.nan),
        changed_rows("frames", FRAME, T=2.0),
        changed_rows("frames", FRAME, size=(1 << 14, 1 << 14)),
        changed_rows("submaps", SUBMAP, R=-np.eye(3)),
        changed_in("keyframe", image_size=[1 << 14, 1 << 14]),
        changed_in("map", T_ros_map=np.diag([2.0, 2, 2, 1]).tolist()),
        changed_rows("submaps", SUBMAP, scale=0),
        changed_rows("submaps", SUBMAP, t=1e300),
        lambda description, data: (description, data[:-1]),
        lambda description, data: (description | {"kind": ["x"]}, data),
    ],
)
def test_a_journal_of_other_contents_is_one_line(tmp_path, change):
    writer = written(tmp_path)
    writer.set_map(MapState())
    writer.journal.close()
    rewritten(tmp_path, change)
    try:
        with StoredScene.open(tmp_path) as scene:
            for key in scene.images:
                with pytest.raises(JournalError) as error:
                    scene.load(key)
                assert "\n" not in str(error.value)
    except JournalError as error:
        assert "\n" not in str(error)  # noqa: PT017


def test_unknown_records_and_lost_frames_are_passed_over(tmp_path):
    written(tmp_path).journal.close()
    rewritten(
        tmp_path, lambda d, data: ((d | {"kind": "other"}) if d["kind"] == "submaps" else d, data)
    )
    with StoredScene.open(tmp_path) as scene:
        assert not scene.placed_frames
        assert not scene.images


def test_images_of_another_size_are_not_decoded(tmp_path, monkeypatch):
    written(tmp_path, count=1).journal.close()
    rewritten(tmp_path, changed_in("keyframe", image_size=[7, 7]))
    monkeypatch.setattr(store, "decode_image", None)
    with (
        StoredScene.open(tmp_path) as scene,
        pytest.raises(JournalError, match="size of the image"),
    ):
        scene.load(0)


def test_bytes_that_look_like_records_are_read_few_times(tmp_path, monkeypatch):
    """A crafted file would else take the square of its size."""
    path, read, pread = tmp_path / "crafted", [], os.pread
    path.write_bytes(b"DA3K" * 2000 + b"x" * 3_000_000 + b"DA3K" * 2000)
    JournalWriter(path, path.stat().st_size).append({"kind": "found"})
    reader = JournalReader(path)
    monkeypatch.setattr(os, "pread", lambda *of: read.append(of[1]) or pread(*of))
    assert [r.description for r in reader.records()] == [{"kind": "found"}]
    assert sum(size for size in read if size > 10_000) < 4 * path.stat().st_size


@pytest.mark.parametrize("at", range(CHUNK - 8, CHUNK + 8))
def test_a_record_is_found_at_any_place_behind_damage(tmp_path, at):
    path = tmp_path / "damaged"
    path.write_bytes(b"x" * (at - 12) + b"DA3K" * 3)
    JournalWriter(path, at).append({"kind": "found"})
    assert [r.description for r in JournalReader(path).records()] == [{"kind": "found"}]


def test_two_processes_do_not_write_one_journal(tmp_path):
    writer = written(tmp_path)
    with pytest.raises(OSError, match="is written by another process"):
        StoreWriter(tmp_path)
    writer.journal.close()
    StoreWriter(tmp_path).journal.close()


def test_a_pipe_is_no_journal(tmp_path):
    os.mkfifo(tmp_path / JOURNAL)
    with pytest.raises(JournalError, match="not a regular file"):
        StoredScene.open(tmp_path)


def dense(k):
    """Measured depth of a keyframe."""
    rng = np.random.default_rng(100 + k)
    depth = keyframe(k).depth * np.float32(1.1)
    sigma = np.where(np.isfinite(depth), rng.uniform(1e-3, 0.5, depth.shape), np.nan)
    measured = np.isfinite(depth) & (rng.uniform(size=depth.shape) < 0.7)
    return DenseDepth(depth, sigma.astype(np.float32), measured)


def measured(k):
    return MeasuredKeyframe("", 1000 + k, k // 3, dense(k))


def test_measured_depth_is_read_back_beside_the_networks(tmp_path):
    writer = written(tmp_path)
    writer.measure(measured(2))
    writer.journal.close()
    with StoredScene.open(tmp_path) as scene:
        same(scene, 2)
        key, expected = scene.newest["", 1002], dense(2)
        found = scene.load_measured(key)
        np.testing.assert_array_equal(found.measured, expected.measured)
        known = np.isfinite(expected.depth)
        np.testing.assert_array_equal(np.isfinite(found.depth), known)
        np.testing.assert_array_equal(np.isinf(found.depth), np.isinf(expected.depth))
        np.testing.assert_allclose(found.depth[known], expected.depth[known], rtol=1e-3)
        np.testing.assert_allclose(found.sigma[known], expected.sigma[known], rtol=0.04)
        assert np.isnan(found.sigma[~known]).all()
        assert scene.load_measured(scene.newest["", 1001]) is None


def test_measured_depth_counts_for_the_newest_keyframe_of_its_stamp(tmp_path):
    writer = written(tmp_path)
    writer.measure(measured(1))
    writer.measure(measured(1))  # twice: the newer one
    writer.measure(MeasuredKeyframe("", 999, 0, dense(1)))  # of none
    writer.add_frames([dataclasses.replace(keyframe(7).pose, keyframe=False)])
    writer.measure(measured(7))  # of a keyframe that was not stored
    writer.begin()
    writer.place([stored_submap(0)])
    writer.add_keyframe(keyframe(1))
    writer.journal.close()
    with StoredScene.open(tmp_path) as scene:
        assert scene.measured == {}


def test_measured_depth_without_its_keyframe_is_left_out(tmp_path):
    writer = written(tmp_path)
    writer.add_frames([dataclasses.replace(keyframe(7).pose, submap=0, keyframe=False)])
    writer.measure(measured(7))
    writer.measure(measured(3))
    writer.journal.close()
    with StoredScene.open(tmp_path) as scene:
        assert set(scene.measured) == {scene.newest["", 1003]}


def test_damaged_measured_depth_is_an_error_of_that_keyframe(tmp_path):
    writer = written(tmp_path)
    for k in (1, 2):
        writer.measure(measured(k))
    writer.journal.close()

    def change(description, data):
        if description["kind"] == "measured depth" and description["stamp_ns"] == 1001:
            return description, data[:8] + bytes(16) + data[24:]
        return description, data

    rewritten(tmp_path, change)
    with StoredScene.open(tmp_path) as scene:
        with pytest.raises(JournalError, match="damaged"):
            scene.load_measured(scene.newest["", 1001])
        assert scene.load_measured(scene.newest["", 1002]) is not None
        same(scene, 1)


def test_a_copied_keyframe_takes_its_measured_depth_along(tmp_path):
    writer = written(tmp_path / "a")
    writer.measure(measured(4))
    writer.journal.close()
    with StoredScene.open(tmp_path / "a") as scene:
        other = StoreWriter(tmp_path / "b")
        other.place(SUBMAPS[:2])
        key = scene.newest["", 1004]
        other.copy(scene, key, dataclasses.replace(scene.frames[key], camera="left"), 0)
        other.journal.close()
        with StoredScene.open(tmp_path / "b") as copied:
            (found,) = copied.measured
            assert copied.frames[found].camera == "left"
            a, b = copied.load_measured(found), scene.load_measured(key)
            np.testing.assert_array_equal(a.depth, b.depth)
            np.testing.assert_array_equal(a.measured, b.measured)


def test_deviations_outside_the_range_become_its_ends():
    sigma = np.array([[1e-9, 1e-4, 0.01, 1.0, 50.0, np.nan, np.inf]], np.float32)
    found, known = encoding.decode_sigma(encoding.encode_sigma(sigma, np.ones(sigma.shape, bool)))
    np.testing.assert_allclose(found[0, :5], [1e-4, 1e-4, 0.01, 1, 1], rtol=0.04)
    assert np.isnan(found[0, 5:]).all()
    np.testing.assert_array_equal(known[0], [True] * 5 + [False] * 2)
    with pytest.raises(ValueError, match="8 bits"):
        encoding.decode_sigma(encoding.encode_depth(np.ones((3, 3), np.float32))[0])


def test_measured_depth_of_another_submap_with_the_same_stamp_is_left_out(tmp_path):
    writer = written(tmp_path)
    writer.measure(MeasuredKeyframe("", 1004, 7, dense(4)))
    writer.measure(measured(5))
    writer.journal.close()
    with StoredScene.open(tmp_path) as scene:
        assert set(scene.measured) == {scene.newest["", 1005]}
