"""A stream that stores its keyframes, without a middleware."""

import errno
import os
import threading
from pathlib import Path

import pytest
from support.cases import long_after
from support.streams import as_messages, stream_of

from da3_ros.keyframe_store import recorder
from da3_ros.keyframe_store.journal import JournalWriter
from da3_ros.keyframe_store.store import StoredScene
from da3_ros.live import stream as live_stream
from da3_ros.parameter_schema import ConfigError
from da3_ros.synthetic import SyntheticCamera

EVERY = {
    "keyframe.rotation_deg": 0.0, "keyframe.parallax": 0.0, "window.size": 3,
    "dense.enabled": False,
}  # fmt: skip


def shown(stream, host, frames=5):
    camera = SyntheticCamera(seed=2, size=(112, 84), walk="straight", frames=frames)
    for raw in as_messages(camera, host.lib):
        stream.put(raw)
        while stream.step():
            pass


def stream_in(folder, **values):
    return stream_of(export_dir=str(folder), **{"map.store": "night", **EVERY, **values})


def stored(folder):
    with StoredScene.open(folder) as scene:
        return len(scene.frames), len(scene.images)


@pytest.mark.long
def test_each_run_stores_its_keyframes_in_a_folder_of_its_own(tmp_path):
    for run in (1, 2):
        stream, host = stream_in(tmp_path)
        shown(stream, host)
        assert stream.finish_recording(10)
        assert stream.pipeline.counters["keyframes_stored"] > 0
        frames, images = stored(tmp_path / "night" / f"{run:06d}")
        assert frames == stream.frame_counts.processed == 5
        assert images == stream.pipeline.counters["keyframes_stored"]
    assert sorted(p.name for p in (tmp_path / "night").iterdir()) == ["000001", "000002"]


def test_what_waits_is_measured_and_stored_when_a_stream_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(live_stream, "FINISH_S", 60.0)
    on = {"refinement.enabled": True, "dense.enabled": True, "keyframe.parallax": 0.02}
    stream, host = stream_in(tmp_path, **on)
    shown(stream, host, frames=8)
    so_far = stream.pipeline.scene_map.dense.so_far
    before = so_far.keyframes
    assert stream.finish_recording(30)
    assert so_far.keyframes == stream.pipeline.counters["keyframes_stored"] > before
    with StoredScene.open(tmp_path / "night" / "000001") as scene:
        assert len(scene.measured) == so_far.measured > 0


def test_a_reset_begins_a_scene_anew(tmp_path):
    stream, host = stream_in(tmp_path)
    shown(stream, host)
    stream.reset()
    shown(stream, host, frames=2)
    assert stream.finish_recording(10)
    assert stored(tmp_path / "night" / "000001")[0] == 2


def test_without_the_parameter_nothing_is_stored(tmp_path):
    stream, host = stream_in(tmp_path, **{"map.store": ""})
    shown(stream, host)
    assert stream.finish_recording(0.0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("store", ["../outside", "/etc", "file"])
def test_a_folder_that_cannot_be_used_is_one_line(tmp_path, store):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"^map\.store is ") as error:
        stream_in(tmp_path, **{"map.store": store})
    assert "\n" not in str(error.value)
    assert not (tmp_path.parent / "outside").exists()


def test_a_map_that_is_off_stores_nothing_and_says_so(tmp_path, caplog):
    stream_in(tmp_path, **{"map.enabled": False})
    assert "map.store: no keyframes are stored, because map.enabled is false" in caplog.text
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("part", long_after(1, ["folder", "journal"]))
def test_a_disk_that_is_full_at_the_start_pauses_storing(tmp_path, monkeypatch, caplog, part):
    """The node starts, and stores as soon as there is room."""

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    caplog.set_level("INFO")
    monkeypatch.setattr(recorder, "RETRY_S", 0.0)
    with monkeypatch.context() as disk:
        if part == "folder":
            disk.setattr(Path, "mkdir", full)
        else:
            disk.setattr(JournalWriter, "append", full)
        stream, host = stream_in(tmp_path)
        shown(stream, host, frames=2)
        assert stream.frame_counts.processed == 2
        assert caplog.text.count("storing keyframes is paused") == 1
    shown(stream, host)
    assert stream.finish_recording(10)
    assert "storing keyframes goes on" in caplog.text
    assert stored(tmp_path / "night" / "000001")[1] > 0


def test_frames_do_not_wait_for_the_disk(tmp_path, monkeypatch):
    """Neither for the journal, nor for what memory cannot hold."""
    go_on, write, append = threading.Event(), os.pwrite, JournalWriter.append

    def slow(call):
        return lambda *args: go_on.wait(60) and call(*args)

    stream, host = stream_in(tmp_path, **{"map.max_points": 2000})
    monkeypatch.setattr(os, "pwrite", slow(write))
    monkeypatch.setattr(JournalWriter, "append", slow(append))
    shown(stream, host, frames=11)
    assert stream.frame_counts.processed == 11
    assert stream.pipeline.counters["keyframes_not_stored"] > 0
    assert stream.pipeline.map.points._disk._moves  # and points wait
    go_on.set()
    assert stream.finish_recording(30)
    assert stored(tmp_path / "night" / "000001")[0] == 11


@pytest.mark.long
def test_the_limit_of_the_disk_holds_for_all_files_of_a_run(tmp_path, caplog):
    stream, host = stream_in(tmp_path, **{"map.disk_gb": 0.0001, "map.max_points": 2000})
    shown(stream, host, frames=12)
    assert stream.finish_recording(10)
    assert "storing keyframes is paused: the run's files have reached 0.0 GB" in caplog.text
    journal = tmp_path / "night" / "000001" / "scene.da3k"
    spilled = stream.pipeline.scene_map._spill.size
    assert 0 < journal.stat().st_size + spilled < 150_000


def test_two_nodes_that_start_at_once_store_in_two_folders(tmp_path, monkeypatch):
    make, names = Path.mkdir, []

    def mkdir(self, *args, **kwargs):
        names.append(self.name)
        if names.count("000001") == 1 and self.name == "000001":
            make(self)  # another node is faster
        make(self, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    stream, host = stream_in(tmp_path)
    shown(stream, host, frames=3)
    assert stream.finish_recording(10)
    assert stored(tmp_path / "night" / "000002")[0] == 3
    assert not list((tmp_path / "night" / "000001").iterdir())
