"""With a store, what the map's limits take from memory is on the disk, and comes back."""

import dataclasses
import errno
import os
import threading
import time
from collections import Counter
from concurrent.futures import Future

import numpy as np
import pytest
from scipy.spatial import cKDTree
from support.pipelines import settings, to_frame
from support.ring import DescribedTruth, walked

from da3_ros.config import MapConfig
from da3_ros.export.scene_file import load_scene, save_scene
from da3_ros.geometry.similarity import IDENTITY
from da3_ros.keyframe_store import array_spill
from da3_ros.keyframe_store.array_spill import ArraySpill
from da3_ros.keyframe_store.disk_limit import DiskLimit
from da3_ros.keyframe_store.recorder import KeyframeRecorder
from da3_ros.mapping import loop_keyframes, submap_points, submaps
from da3_ros.mapping.scene import jpeg_bytes
from da3_ros.mapping.submap_points import SubmapPoints
from da3_ros.mapping.submap_spill import Submap, SubmapSpill
from da3_ros.mapping.voxel_map import PointCloud
from da3_ros.pipeline.keyframe_recording import KeyframeRecording
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import TruthSession
from da3_ros.types import Calibration, Frame

SIZE = (140, 112)


@pytest.fixture(scope="module")
def camera():
    return SyntheticCamera(seed=3, size=SIZE, walk="loop", frames=36, rate_hz=4.0)


def run(camera, folder=None, limit_bytes=-1, background=False, **values):
    """Returns a pipeline after all frames; with a store if there is a folder."""
    session = TruthSession(camera, seed=1)
    values = {"keyframe.parallax": 0.02, "map.remove_movers": True, **values}
    pipeline = Pipeline(settings(**values), session)
    if folder is not None:
        recorder = KeyframeRecorder(folder, counters=Counter(), wait=True)
        spill = ArraySpill(folder, limit=DiskLimit(limit_bytes), background=background)
        pipeline.scene_map.record(KeyframeRecording(recorder), spill)
    for frame in camera:
        for _ in pipeline.push(to_frame(camera, frame)):
            pass
    pipeline.scene_map.finish_recording()
    return pipeline


def cloud(pipeline):
    scene = pipeline.scene()
    xyz = np.concatenate([c.xyz for c in scene.chunks()])
    return xyz[np.lexsort(xyz.T)]


@pytest.fixture(scope="module")
def whole(camera):
    return run(camera, **{"map.max_points": 0})


FEW = {"map.max_points": 70_000}


def test_all_points_are_exported_and_few_are_in_memory(camera, whole, tmp_path):
    pipeline = run(camera, tmp_path, **FEW)
    assert len(pipeline.map) == len(whole.map) > 100_000
    np.testing.assert_array_equal(cloud(pipeline), cloud(whole))
    assert pipeline.map.points._memory_points <= 70_000
    assert pipeline.map.nbytes < whole.map.nbytes - 19 * 40_000
    shown = pipeline.map.view.thinned(1_000_000, np.eye(4))
    assert 0 < len(shown) <= 70_000  # the display shows what is in memory


@pytest.mark.long
def test_in_the_background_the_same_is_exported(camera, whole, tmp_path):
    pipeline = run(camera, tmp_path, background=True, **FEW)
    assert len(pipeline.map) == len(whole.map)
    np.testing.assert_array_equal(cloud(pipeline), cloud(whole))
    assert pipeline.map.points._memory_points <= 70_000


@pytest.mark.long
def test_no_more_than_needed_is_moved_at_once(camera, tmp_path, monkeypatch):
    enforce, moved = SubmapPoints.enforce_limits, []

    def enforced(points, most, *rest):
        before = {id: len(points._submaps[id].cloud) for id in points.closed_in_memory}
        enforce(points, most, *rest)
        gone = [size for id, size in before.items() if id not in points._in_memory]
        if gone and points._disk.is_ready:
            moved.append(points._memory_points + min(gone) > most)

    monkeypatch.setattr(SubmapPoints, "enforce_limits", enforced)
    monkeypatch.setattr(submap_points, "KEPT_SHARE", 0.3)
    monkeypatch.setattr(submaps, "KEYFRAMES", 3)
    run(camera, tmp_path, **{"map.max_points": 60_000})
    assert len(moved) > 2
    assert all(moved)


def test_what_changes_on_its_way_to_the_disk_is_not_replaced(monkeypatch):
    class Late:
        is_ready = True

        def offer(self, arrays):
            self.arrays, self.future = arrays, Future()
            return self.future

    def cloud(count):
        return PointCloud(np.ones((count, 3), np.float32), np.zeros((count, 3), np.uint8),
                          np.ones(count, np.float16), np.ones(count, np.uint16))  # fmt: skip

    disk = SubmapSpill()
    disk.spill = late = Late()
    submap = Submap(0, 0, IDENTITY, cloud(5), images={("", 1): b"one", ("", 2): b"two"})
    assert disk.move(submap)
    assert submap.image_bytes == 0  # it counts as there
    submap.cloud, submap.images["", 3] = cloud(3), b"new"
    late.future.set_result([array.copy() for array in late.arrays])
    assert disk.finish() == []
    assert len(submap.cloud) == 3
    wanted = {("", 1): b"one", ("", 2): b"two", ("", 3): b"new"}
    assert submap.moved[0].data is not late.arrays[4]
    assert {shot: jpeg_bytes(data) for shot, data in submap.all_images().items()} == wanted
    assert disk.move(submap)
    assert {shot: jpeg_bytes(data) for shot, data in submap.all_images().items()} == wanted
    submap.images["", 4] = b"newer"
    late.future.set_exception(OSError("full"))
    assert disk.finish() == [(submap, 3)]
    assert submap.images == {("", 3): b"new", ("", 4): b"newer"}  # in memory again
    assert submap.image_bytes == 8
    assert disk.move(submap)
    submap.images, submap.moved = {}, []  # dropped meanwhile
    late.future.set_exception(OSError("full"))
    assert disk.finish() == [(submap, 0)]
    assert submap.all_images() == {}


@pytest.mark.long
def test_frames_do_not_wait_for_a_disk_that_hangs(camera, whole, tmp_path, monkeypatch):
    go_on, write = threading.Event(), os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda *args: go_on.wait(60) and write(*args))
    pipeline = run(camera, tmp_path, background=True, **FEW)
    np.testing.assert_array_equal(cloud(pipeline), cloud(whole))  # what waits is not lost
    go_on.set()
    deadline = time.monotonic() + 30
    while pipeline.map.points._disk._moves and time.monotonic() < deadline:
        pipeline.map.points._finish_moves()
        time.sleep(0.01)
    np.testing.assert_array_equal(cloud(pipeline), cloud(whole))
    for submap in pipeline.map.submaps.values():
        assert pipeline.map.points.is_in_memory(submap) != (submap.cloud.xyz.base is not None)


@pytest.mark.long
def test_more_than_may_wait_for_the_disk_is_not_lost(camera, tmp_path, monkeypatch):
    """As when a large scene is loaded, or a limit is lowered."""
    monkeypatch.setattr(array_spill, "WAITING", 300_000)
    monkeypatch.setattr(submaps, "KEYFRAMES", 2)
    saved = run(camera, **{"map.max_points": 0}).snapshot()
    images = sum(len(s.images) for s in saved.submaps)
    spill = ArraySpill(tmp_path, background=True)
    store = submaps.SubmapStore(MapConfig(max_points=10_000, memory_mb=2), spill)
    go_on, write = threading.Event(), os.pwrite  # the disk works, but not yet
    monkeypatch.setattr(os, "pwrite", lambda *args: go_on.wait(60) and write(*args))
    store.restore(saved)
    total = sum(len(s.cloud) for s in saved.submaps)
    assert len(store) == total
    assert store.points._memory_points > 10_000
    go_on.set()
    for _ in range(200):  # keyframes of later frames
        store._enforce_limits(np.zeros(3))
        time.sleep(0.01)
        if not store.points._disk._moves and store.points._memory_points <= 10_000:
            break
    assert store.points._memory_points <= 10_000
    assert len(store) == total
    assert len(store.snapshot().scene().images) == images > 0


@pytest.mark.long
def test_a_disk_that_fails_in_the_background_drops_points(
    camera, whole, tmp_path, monkeypatch, caplog
):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    pipeline = run(camera, tmp_path, background=True, **FEW)
    assert caplog.text.count("points that memory cannot hold are dropped") == 1
    points = pipeline.map.points
    while points._disk._moves:
        points._finish_moves()
    points.enforce_limits(70_000, 0, 0)
    assert len(cloud(pipeline)) == len(pipeline.map) <= 70_000


@pytest.mark.long
def test_images_that_memory_cannot_hold_come_back(camera, tmp_path):
    wanted = {"map.keep_images": True, "map.max_points": 0}
    whole = run(camera, **wanted)
    assert len(whole.scene().images) > 20
    pipeline = run(camera, tmp_path, **wanted, **{"map.memory_mb": 2})
    held = pipeline.map.points
    assert held._image_bytes < 0.3 * whole.map.points._image_bytes
    assert held._image_bytes == sum(s.image_bytes for s in pipeline.map.submaps.values())
    found = {shot: jpeg_bytes(data) for shot, data in pipeline.scene().images.items()}
    assert found == dict(whole.scene().images)
    save_scene(pipeline.snapshot(), tmp_path / "scene")
    assert load_scene(tmp_path / "scene").scene().images == found


@pytest.mark.long
def test_without_a_store_the_oldest_points_are_dropped(camera):
    assert len(run(camera, **FEW).map) <= 70_000


@pytest.mark.long
def test_a_full_disk_drops_points_with_one_warning(camera, whole, tmp_path, caplog):
    pipeline = run(camera, tmp_path, limit_bytes=900_000, **FEW)
    assert caplog.text.count("points that memory cannot hold are dropped") == 1
    assert 70_000 < len(pipeline.map) < len(whole.map)
    assert len(cloud(pipeline)) == len(pipeline.map)


@pytest.mark.long
def test_a_radius_holds_for_points_on_the_disk(camera, tmp_path):
    limits = {"map.radius_m": 3.0}
    near = run(camera, **limits)
    spilled = run(camera, tmp_path, **limits, **{"map.max_points": 40_000})
    assert spilled.map.points._spilled_total > 0  # some are still near
    assert spilled.map.points._memory_points <= 40_000  # others that were cut are there again
    rows = spilled.poses().rows
    at = rows["T"][rows["keyframe"]][-1, :, 3]
    xyz = np.concatenate([c.T_map_submap.points(c.cloud.xyz) for c in spilled.scene().clouds])
    assert np.linalg.norm(xyz - at, axis=1).max() < 3.0
    far, _ = cKDTree(cloud(spilled)).query(cloud(near))
    assert np.quantile(far, 0.99) < 0.03


@pytest.mark.long
def test_a_found_scale_regrids_points_on_the_disk(camera, tmp_path):
    pipeline = run(camera, tmp_path, **FEW)
    before, nbytes = len(pipeline.map), pipeline.map.nbytes
    pipeline.map.set_limits(dataclasses.replace(pipeline.map.limits, voxel_m=0.1))
    pipeline.map.regrid()
    assert len(pipeline.map) < 0.6 * before
    assert pipeline.map.points._spilled  # what was on the disk is there again
    assert pipeline.map.nbytes <= nbytes
    assert len(cloud(pipeline)) == len(pipeline.map)


@pytest.mark.long
def test_a_reset_begins_with_an_empty_map_and_disk(camera, tmp_path):
    pipeline = run(camera, tmp_path, **FEW)
    held = pipeline.snapshot().scene()
    before = np.concatenate([c.xyz for c in held.chunks()])
    pipeline.reset()
    assert len(pipeline.map) == 0
    assert pipeline.scene_map._spill.size == 0  # a node that is reset for years fills no disk
    for frame in list(camera)[:30]:
        list(pipeline.push(to_frame(camera, frame)))
    after = np.concatenate([c.xyz for c in held.chunks()])
    np.testing.assert_array_equal(before, after)  # an export that still runs


class Described(TruthSession):
    """With a descriptor of each view, and the number of verified loops."""

    verified = 0

    def __init__(self, camera):
        super().__init__(camera, seed=1)
        self.poses = {f.stamp_ns: f.T_room_camera for f in camera}

    def infer(self, window):
        self.verified += window.new == 0
        waves = np.random.default_rng(5).normal(size=(3, 64))
        T = [self.poses[v.stamp_ns] for v in window.views]
        angle = [np.arctan2(t[1, 2], t[0, 2]) for t in T]
        seen = np.cos([[*t[:2, 3], 2 * a] @ waves for t, a in zip(T, angle, strict=True)])
        return dataclasses.replace(super().infer(window), descriptor=seen)


@pytest.mark.long
def test_keyframes_of_loops_come_back(camera, tmp_path, monkeypatch):
    monkeypatch.setattr(loop_keyframes, "MAX_KEYFRAMES", 4)
    values = {"keyframe.parallax": 0.02, "loop.every": 1}
    pipeline = Pipeline(settings(**values), Described(camera))
    recorder = KeyframeRecorder(tmp_path, counters=Counter(), wait=True)
    pipeline.scene_map.record(KeyframeRecording(recorder), ArraySpill(tmp_path))
    for _ in range(2):  # the second time on top of the first
        for frame in list(camera)[:40]:
            list(pipeline.push(to_frame(camera, frame)))
    pipeline.scene_map.finish_recording()
    keyframes = pipeline.loops.keyframes
    assert len(keyframes) > 20
    assert keyframes._on_disk == len(keyframes) - 4
    one = keyframes[0]
    assert keyframes.nbytes < 0.5 * len(keyframes) * sum(a.nbytes for a in one.arrays)
    images = {f.stamp_ns: f.image for f in camera}
    for kept in keyframes:
        view = kept.view
        np.testing.assert_array_equal(view.image, images[view.stamp_ns])
    assert pipeline.session.verified > 0


@pytest.mark.long
@pytest.mark.parametrize("background", [False, True])
def test_where_keyframes_lie_changes_no_pose(tmp_path, monkeypatch, background):
    """Windows share some of those that go to the disk: their samples and images stay."""
    there = walked(40, 0.15)
    walk = [
        dataclasses.replace(f, stamp_ns=10**8 * (n + 1)) for n, f in enumerate(there + there[::-1])
    ]

    def run(spill):
        values = {
            "process_res": 84, "hold_when_blind": False,  # images are black
            "keyframe.parallax": 0.05, "keyframe.rotation_deg": 3.0,
        }  # fmt: skip
        pipeline = Pipeline(settings(**values), DescribedTruth(walk, seed=1))
        if spill is not None:
            pipeline.scene_map.loops.spill_to(spill)
        black = np.zeros((*walk[0].depth.shape, 3), np.uint8)
        K = walk[0].K.copy()
        K[:2, 2] -= 0.5
        lens = Calibration(*walk[0].depth.shape[::-1], K)
        frames = [Frame(f.stamp_ns, black, calibration=lens) for f in walk]
        out = [r.T_map_camera for frame in frames for r in pipeline.push(frame)]
        return np.array(out), pipeline.loops.keyframes

    expected, _ = run(None)
    monkeypatch.setattr(loop_keyframes, "MAX_KEYFRAMES", 5)
    found, keyframes = run(ArraySpill(tmp_path, background=background))
    assert keyframes._on_disk > 10
    np.testing.assert_array_equal(found, expected)
