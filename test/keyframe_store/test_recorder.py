"""Keyframes stored by a thread: order, a slow disk, a full disk, errors, the end."""

import errno
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from test_store import keyframe, measured, moved, same, stored_submap

from da3_ros.geometry.similarity import Similarity
from da3_ros.keyframe_store import recorder as module
from da3_ros.keyframe_store.disk_limit import DiskLimit
from da3_ros.keyframe_store.recorder import KeyframeRecorder
from da3_ros.keyframe_store.store import MapState, StoredScene, StoredSubmap, StoreWriter


def recorder_in(folder, wait=True, **options):
    counters = Counter()
    recorder = KeyframeRecorder(folder, counters=counters, wait=wait, **options)
    recorder.place([stored_submap(id) for id in range(10)])
    return recorder, counters


def stamps(folder):
    with StoredScene.open(folder) as scene:
        return [scene.frames[k].stamp_ns - 1000 for k in scene.images]


def test_all_that_was_given_is_stored_in_order(tmp_path):
    recorder, counters = recorder_in(tmp_path)
    for k in range(20):
        recorder.add_keyframe(keyframe(k))
    recorder.correct({("", 1003): moved(3)})
    recorder.set_map(MapState(metric=True, scene_scale=0.25))
    assert recorder.close(30)
    assert counters["keyframes_stored"] == 20
    assert stamps(tmp_path) == list(range(20))
    with StoredScene.open(tmp_path) as scene:
        assert scene.frames[scene.newest["", 1003]].T_submap_camera[0, 3] == 3
        assert (scene.map.metric, scene.map.scene_scale) == (True, 0.25)
        same(scene, 19)


def test_frames_of_a_standing_camera_are_stored_too(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MANY", 5)
    recorder, _ = recorder_in(tmp_path)
    for k in range(12):
        recorder.add_frame(keyframe(k).pose)
    settle(recorder)
    with StoredScene.open(tmp_path) as scene:
        assert len(scene.frames) == 10
    assert recorder.close(30)
    with StoredScene.open(tmp_path) as scene:
        assert len(scene.frames) == 12


def test_a_scene_that_begins_anew_forgets_what_was_stored(tmp_path):
    recorder, _ = recorder_in(tmp_path)
    recorder.place([stored_submap(0), stored_submap(7)])
    recorder.add_keyframe(keyframe(1))
    recorder.begin()
    recorder.place([stored_submap(0, 2.0)])
    recorder.add_keyframe(keyframe(2))
    assert recorder.close(30)
    assert stamps(tmp_path) == [2]
    with StoredScene.open(tmp_path) as scene:
        assert list(scene.submaps) == [0]
        assert [f.stamp_ns for f in scene.frames] == [1002]


class SlowDisk(StoreWriter):
    gate = threading.Event()

    def add_keyframe(self, keyframe):
        self.gate.wait(30)
        super().add_keyframe(keyframe)


def test_frames_do_not_wait_for_a_slow_disk(tmp_path, monkeypatch, caplog):
    SlowDisk.gate.clear()
    monkeypatch.setattr(module, "StoreWriter", SlowDisk)
    recorder, counters = recorder_in(tmp_path, wait=False)
    for k in range(30):
        recorder.add_keyframe(keyframe(k))
    assert counters["keyframes_not_stored"] == 30 - module.WAITING
    assert caplog.text.count("the disk is too slow for all keyframes") == 1
    assert not recorder.close(0.1)
    SlowDisk.gate.set()
    assert recorder.close(30)
    assert stamps(tmp_path) == list(range(module.WAITING))


def test_measured_depth_takes_no_place_of_keyframes_before_a_slow_disk(
    tmp_path, monkeypatch, caplog
):  # fmt: skip
    SlowDisk.gate.clear()
    monkeypatch.setattr(module, "StoreWriter", SlowDisk)
    recorder, counters = recorder_in(tmp_path, wait=False)
    recorder.add_keyframe(keyframe(0))
    for _ in range(30):
        recorder.measure(measured(0))
    for k in range(1, module.WAITING):
        recorder.add_keyframe(keyframe(k))
    assert counters["depth_not_stored"] == 30 - module.DEPTH_WAITING
    assert caplog.text.count("the disk is too slow for all measured depth") == 1
    SlowDisk.gate.set()
    assert recorder.close(30)
    assert counters["keyframes_stored"] == module.WAITING
    with StoredScene.open(tmp_path) as scene:
        assert len(scene.measured) == 1


class FullDisk(StoreWriter):
    full = False

    def add_keyframe(self, keyframe):
        if FullDisk.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().add_keyframe(keyframe)


def test_a_full_disk_pauses_storing_with_one_warning(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr(module, "StoreWriter", FullDisk)
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    FullDisk.full = False
    recorder, counters = recorder_in(tmp_path)
    recorder.add_keyframe(keyframe(0))
    settle(recorder)
    FullDisk.full = True
    for k in range(1, 5):
        recorder.add_keyframe(keyframe(k))
    recorder.place([StoredSubmap(0, 0, 0, Similarity(1.0, np.eye(3), np.full(3, 9.0)))])
    settle(recorder)
    FullDisk.full = False
    recorder.add_keyframe(keyframe(5))
    assert recorder.close(30)
    assert stamps(tmp_path) == [0, 5]
    assert (counters["keyframes_stored"], counters["keyframes_not_stored"]) == (2, 4)
    assert caplog.text.count("storing keyframes is paused: [Errno 28]") == 1
    assert caplog.text.count("storing keyframes goes on") == 1
    with StoredScene.open(tmp_path) as scene:  # what moved meanwhile is right
        assert scene.submaps[0].T_map_submap.t[0] == 9.0


def settle(recorder):
    while recorder._queue.qsize() or recorder._room._value < module.WAITING:
        threading.Event().wait(0.01)


def test_a_disk_that_failed_is_left_alone_for_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "StoreWriter", FullDisk)
    FullDisk.full = False
    recorder, counters = recorder_in(tmp_path)
    recorder.add_keyframe(keyframe(0))
    settle(recorder)
    FullDisk.full = True
    recorder.add_keyframe(keyframe(1))
    settle(recorder)
    FullDisk.full = False
    recorder.add_keyframe(keyframe(2))  # RETRY_S has not passed
    recorder.correct({("", 1000): moved(4)})
    settle(recorder)
    assert (counters["keyframes_stored"], counters["keyframes_not_stored"]) == (1, 2)
    assert recorder.close(30)  # with a last attempt
    with StoredScene.open(tmp_path) as scene:
        np.testing.assert_array_equal(scene.frames[0].T_submap_camera, moved(4))


def test_who_waits_for_a_flush_need_not_wait_for_a_disk_that_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "StoreWriter", FullDisk)
    FullDisk.full = True
    recorder, _ = recorder_in(tmp_path)
    recorder.add_keyframe(keyframe(0))
    settle(recorder)
    FullDisk.full = False
    recorder.correct({("", 1000): moved(4)})
    recorder.flush().done.result(30)  # RETRY_S has not passed
    with StoredScene.open(tmp_path) as scene:
        assert len(scene.frames) == 1
    assert recorder.close(30)


def test_what_waits_for_a_disk_that_hangs_is_bounded_and_the_newest_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST", 20)
    monkeypatch.setattr(module, "StoreWriter", SlowDisk)
    SlowDisk.gate.clear()
    recorder, _ = recorder_in(tmp_path, wait=False)
    recorder.add_keyframe(keyframe(0))
    while recorder._queue.qsize():
        threading.Event().wait(0.01)
    for k in range(1, 500):
        recorder.add_frame(keyframe(k).pose)
        recorder.correct({("", 1000): moved(k)})
        recorder.place([stored_submap(0, float(k))])
    recorder.set_map(MapState(metric=True))
    assert recorder._queue.qsize() <= 20
    assert len(recorder._late.frames) == 20
    SlowDisk.gate.set()
    assert recorder.close(30)
    with StoredScene.open(tmp_path) as scene:
        assert scene.frames[scene.newest["", 1000]].T_submap_camera[0, 3] == 499
        assert scene.submaps[0].T_map_submap.t[0] == 499
        assert scene.map.metric
        assert scene.frames[-1].stamp_ns == 1499


def test_what_waits_for_a_full_disk_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST", 20)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    recorder, _ = recorder_in(tmp_path)
    settle(recorder)
    monkeypatch.setattr(StoreWriter, "place", full)
    monkeypatch.setattr(StoreWriter, "add_frames", full)
    for k in range(1500):
        recorder.add_frame(keyframe(k).pose)
        recorder.correct({("", 1000 + k): moved(k)})
    settle(recorder)
    assert len(recorder._changes.frames) <= 20
    assert len(recorder._changes.poses) <= 20
    recorder.close(30)


def test_the_limit_of_the_disk_counts(tmp_path, caplog):
    recorder, counters = recorder_in(tmp_path, limit=DiskLimit(25_000))
    for k in range(30):
        recorder.add_keyframe(keyframe(k))
    assert recorder.close(30)
    assert 25_000 < (tmp_path / "scene.da3k").stat().st_size < 40_000
    assert counters["keyframes_stored"] == len(stamps(tmp_path))
    assert caplog.text.count("see map.disk_gb") == 1


def test_a_keyframe_that_cannot_be_encoded_ends_nothing(tmp_path, caplog):
    recorder, counters = recorder_in(tmp_path)
    broken = keyframe(0)
    object.__setattr__(broken, "image", np.zeros((0, 0, 3), np.uint8))
    for k in range(12):  # more than may wait
        recorder.add_keyframe(broken if k < 10 else keyframe(k))
    assert recorder.close(30)
    assert stamps(tmp_path) == [10, 11]
    assert counters["keyframes_not_stored"] == 10
    assert "is not stored" in caplog.text


LIMITED = """
import resource, sys
from collections import Counter
from pathlib import Path
sys.path[:0] = [sys.argv[2], sys.argv[2] + "/.."]
from test_store import keyframe, stored_submap
from da3_ros.keyframe_store.recorder import KeyframeRecorder
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
counters = Counter()
recorder = KeyframeRecorder(Path(sys.argv[1]), counters=counters, wait=True)
recorder.place([stored_submap(id) for id in range(10)])
for k in range(20):
    recorder.add_keyframe(keyframe(k))
assert recorder.close(30)
print(counters["keyframes_stored"], counters["keyframes_not_stored"])
"""


@pytest.mark.process
def test_a_file_that_really_cannot_grow_stays_readable(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path), str(Path(__file__).parent)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    stored, lost = map(int, done.stdout.split())
    assert stored + lost == 20
    assert stamps(tmp_path) == list(range(stored))
    assert done.stderr.count("paused") == 1
    with StoredScene.open(tmp_path) as scene:
        same(scene, stored - 1)


def test_what_is_stored_is_on_the_disk_soon(tmp_path, monkeypatch):
    """A pulled plug costs the last seconds."""
    synced = []
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(True))
    monkeypatch.setattr(module, "SYNC_S", 0.0)
    one = KeyframeRecorder(tmp_path, counters=Counter(), wait=True)
    one.add_keyframe(keyframe(1))
    one.state()
    while_running = len(synced)
    assert while_running >= 2  # behind the keyframe, and for the state
    one.close()
    assert len(synced) > while_running
