"""Keyframes' depth is measured on when no window comes, until nothing is left to do."""

import dataclasses
import threading
from collections import Counter

import numpy as np
import pytest
from support.streams import as_messages, stream_of

from da3_ros.derived import measuring
from da3_ros.derived.measuring import Measured
from da3_ros.keyframe_store.disk_limit import DiskLimit
from da3_ros.keyframe_store.recorder import KeyframeRecorder
from da3_ros.keyframe_store.store import StoredScene
from da3_ros.live.scene_stream import QUIET_TICKS
from da3_ros.pipeline.depth_mapping import Found
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import Noise, TruthSession

NOISE = Noise(smooth=0.08, per_frame=0.02, rotation_deg=0.3, translation=0.01)
SIZE, FRAMES = (126, 98), 10
MOST = 100  # ticks


class Frames(list):
    """Frames with the calibration of their camera."""

    calibration = None


class Walk:
    """A stream that shows a walk to a network with errors."""

    def __init__(self, frames=FRAMES):
        camera = SyntheticCamera(77, SIZE, walk="loop", frames=52, rate_hz=6)
        self.frames = [camera[2 * i] for i in range(frames)]
        self.calibration = camera.calibration
        settings = {"process_res": max(SIZE), "window.size": 5, "map.voxel_m": 0.03}
        self.stream, self.host = stream_of(TruthSession(self.frames, noise=NOISE), **settings)
        self.host.warn = lambda text, every_s=0.0: None  # of lengths without metres
        self.pipeline = self.stream.pipeline
        self.dense = self.pipeline.scene_map.dense

    def show(self, frames):
        given = Frames(frames)
        given.calibration = self.calibration
        for image in as_messages(given, self.host.lib):
            self.stream.put(image)
            assert self.stream.step()

    def pause(self):
        """Ticks until nothing waits, after each job; returns how many ticks that takes."""
        for count in range(1, MOST):
            if self.dense._running is not None:
                self.dense._running.result(60)
            if not self.stream.tick():
                return count
        raise AssertionError("it does not end")

    @property
    def entries(self):
        return list(self.dense.measurement._entries.values())


@pytest.fixture
def walk():
    made = Walk()
    made.show(made.frames)
    return made


@pytest.mark.long
def test_the_last_keyframes_are_measured_when_images_stop(walk):
    assert sum(e.search is None for e in walk.entries) >= 2
    assert walk.dense.waiting > 0
    revision = walk.pipeline.map.revision
    assert walk.pause() > QUIET_TICKS
    assert all(e.search is not None and e.is_measured for e in walk.entries)
    assert walk.dense.waiting == 0
    assert walk.pipeline.map.revision > revision  # for those who watch the map
    searches, revision = walk.dense.so_far.searches, walk.pipeline.map.revision
    assert not walk.stream.tick()
    assert walk.dense._running is None
    assert (walk.dense.so_far.searches, walk.pipeline.map.revision) == (searches, revision)


def test_nothing_is_searched_before_its_time_while_a_window_may_come(walk):
    """Neighbours on both sides are better: a slow camera gets the time for them."""
    while walk.dense._running is not None:
        walk.dense._running.result(60)
        walk.pipeline.scene_map.measure_depth()
    waiting = [e for e in walk.entries if e.search is None]
    assert walk.stream.tick()  # sees that windows have come
    for _ in range(QUIET_TICKS - 1):
        assert walk.stream.tick()
        assert walk.dense._running is None
    walk.dense.windows += 1
    assert walk.stream.tick()
    assert walk.dense._running is None
    assert all(e.search is None for e in waiting)


@pytest.mark.long
def test_it_goes_on_while_only_blind_images_come(walk):
    black, newest = np.zeros_like(walk.frames[0].image), walk.frames[-1]
    for k in range(1, 2 * QUIET_TICKS):
        stamp_ns = newest.stamp_ns + k * 10**8
        walk.show([dataclasses.replace(newest, image=black, stamp_ns=stamp_ns)])
        walk.stream.tick()
        if walk.dense._running is not None:
            walk.dense._running.result(60)
    assert sum(n for name, n in walk.pipeline.counters.items() if name.startswith("blind")) >= k
    assert all(e.search is not None for e in walk.entries)


@pytest.mark.long
def test_later_images_measure_the_last_keyframes_again(walk):
    more = Walk(FRAMES + 4)
    more.show(more.frames[:FRAMES])
    more.pause()
    last = max(e.keyframe.id for e in more.entries)
    searches = {e.keyframe.id: e.searches for e in more.entries}
    more.show(more.frames[FRAMES:])
    more.pause()
    again = {e.keyframe.id: e.searches for e in more.entries}
    assert again[last] > searches[last]
    assert max(again.values()) <= measuring.SEARCHES


def test_what_a_pause_has_measured_is_stored_until_later_keyframes_say_more(tmp_path):
    walk = Walk()
    walk.pipeline.store(tmp_path, None, DiskLimit(), wait=True)
    walk.show(walk.frames)
    walk.pause()
    newest = walk.entries[-1]
    assert not newest.stays
    flush = walk.pipeline.scene_map.flush_recording()
    flush.done.result(60)
    with StoredScene.open(flush.folder) as scene:
        assert set(scene.measured) == set(scene.images)
        assert len(scene.images) == len(walk.entries)
    gone = Measured(newest.keyframe, None, stays=True, is_withdrawn=True)
    walk.pipeline.scene_map._take_depth([Found(gone, None)])
    assert walk.pipeline.scene_map.finish_recording()
    with StoredScene.open(tmp_path) as scene:
        stamps = {scene.frames[key].stamp_ns: key for key in scene.images}
        assert not scene.load_measured(stamps[newest.keyframe.stamp_ns]).measured.any()


@pytest.mark.long
def test_a_camera_that_pauses_at_each_keyframe_does_not_fill_the_disk(tmp_path, monkeypatch):
    """Each pause measures all keyframes of now again; stored is what says much more."""
    stored, measure = Counter(), KeyframeRecorder.measure

    def counted(recorder, one):
        stored[one.stamp_ns] += 1
        measure(recorder, one)

    monkeypatch.setattr(KeyframeRecorder, "measure", counted)
    walk = Walk()
    walk.pipeline.store(tmp_path, None, DiskLimit(), wait=True)
    for frame in walk.frames:
        walk.show([frame])
        walk.pause()
    assert walk.pipeline.scene_map.finish_recording()
    assert len(stored) > 7
    assert max(stored.values()) <= 4
    assert sum(stored.values()) <= 2.5 * len(stored)
    with StoredScene.open(tmp_path) as scene:  # each has a last word
        assert set(scene.measured) == set(scene.images)


def test_a_job_in_the_thread_is_stopped_when_the_stream_is_closed(monkeypatch):
    running, released, asked = threading.Event(), threading.Event(), []

    def hangs(job, device="cpu", stopping=lambda: False):
        running.set()
        released.wait(60)
        asked.append(stopping())
        return measuring.JobResult({}, [])

    monkeypatch.setattr(measuring.MeasureJob, "run", hangs)
    walk = Walk()
    walk.show(walk.frames)
    assert running.wait(60)
    walk.stream.close()
    released.set()
    walk.dense._running.result(60)
    assert asked == [True]
