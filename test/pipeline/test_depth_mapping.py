"""The pipeline measures the depth of keyframes: in points, scene file and published depth."""

import dataclasses
import functools
import threading
import time
from collections import Counter, defaultdict
from concurrent import futures
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from support.cases import long_after
from support.pipelines import to_frame

from da3_ros.config import DenseConfig, DepthConfig, config_from_parameters
from da3_ros.derived import measuring
from da3_ros.derived.measuring import Measurable, Measured
from da3_ros.inference.factory import open_networks
from da3_ros.keyframe_store.disk_limit import DiskLimit
from da3_ros.keyframe_store.store import StoredScene
from da3_ros.mapping import free_space, submap_points
from da3_ros.mapping.submap_points import Bins
from da3_ros.mapping.voxel_map import VoxelSums
from da3_ros.pipeline import depth_mapping, scene_map
from da3_ros.pipeline.depth_mapping import DepthMapping, MeasuredSoFar, PointsMaker
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.pipeline.scene_map import SceneMap
from da3_ros.refinement.refiner import WindowRefiner
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.evaluation import cloud_errors, fit_poses, resize_nearest
from da3_ros.synthetic.rig import rig_mount
from da3_ros.synthetic.rooms import make_room
from da3_ros.synthetic.truth import Noise, TruthSession
from da3_ros.types import DenseDepth, Frame

NOISE = Noise(smooth=0.08, per_frame=0.02, rotation_deg=0.3, translation=0.01)
SEED, SIZE, FRAMES = 77, (126, 98), 14


@functools.cache
def walk(frames=FRAMES):
    camera = SyntheticCamera(SEED, SIZE, walk="loop", frames=52, rate_hz=6)
    return camera, [camera[2 * i] for i in range(frames)]


TINY = {"model": "da3-tiny", "device": "cpu", "backend": "torch"}  # a network, which errs alike


def opened(frames=FRAMES, **values):
    settings = {"process_res": max(SIZE), "window.size": 5, "map.voxel_m": 0.03, **values}
    return Pipeline(config_from_parameters(settings), TruthSession(walk(frames)[1], noise=NOISE))


def keyframe_of(frame):
    """A keyframe with true depth."""
    depth = frame.depth.astype(np.float32)
    return Measurable(
        0, 0, 0, "", frame.stamp_ns, frame.image, frame.K, depth, np.ones_like(depth)
    )  # fmt: skip


def run(pipeline, frames=None):
    camera, true = walk()
    results = []
    for f in true if frames is None else frames:
        results += pipeline.push(to_frame(camera, f))
    results += pipeline.flush()
    return pipeline, results


@functools.cache
def with_dense():
    return run(opened())


@functools.cache
def without():
    return run(opened(**{"dense.enabled": False}))


def fit(results):
    ours = np.array([r.T_map_camera for r in results])
    return fit_poses(ours, np.array([f.T_room_camera for f in walk()[1]]))


@pytest.mark.long
def test_poses_do_not_depend_on_it():
    for a, b in zip(with_dense()[1], without()[1], strict=True):
        np.testing.assert_array_equal(a.T_map_camera, b.T_map_camera)
        np.testing.assert_array_equal(a.T_odom_map, b.T_odom_map)
        assert a.keyframe == b.keyframe


def test_most_of_the_map_is_measured_and_nearer_to_the_room():
    errors = []
    for pipeline, results in (with_dense(), without()):
        points = fit(results).points(pipeline.map.scene(np.eye(4)).cloud().xyz)
        errors.append(cloud_errors(make_room(SEED), points))
    measured, network = errors
    so_far = with_dense()[0].scene_map.dense.so_far
    assert so_far.keyframes == sum(r.keyframe for r in with_dense()[1])
    assert so_far.share > 0.5
    assert 0.5 < so_far.agreement <= 1
    assert measured.points > 0.5 * network.points  # surfaces of several keyframes are one
    assert measured.median_m < network.median_m / 1.5
    assert without()[0].scene_map.dense.so_far.keyframes == 0


@pytest.mark.long
def test_measured_depth_has_the_size_of_the_way_where_depth_gives_metres(monkeypatch):
    """The map's keyframes are adjusted together again after depth was measured by their
    distances."""
    found, note = {}, DepthMapping._note

    def noted(self, one):
        found[one.keyframe.id] = one
        note(self, one)

    monkeypatch.setattr(DepthMapping, "_note", noted)
    values = TINY | {"process_res": 168, "window.size": 6, "scale.source": "fixed"}
    camera = SyntheticCamera(3, (336, 252), walk="loop", frames=30, rate_hz=5)
    config = config_from_parameters(values)
    pipeline = Pipeline(config, *open_networks(config))
    for f in camera:
        list(pipeline.push(to_frame(camera, f)))
    list(pipeline.flush())
    assert pipeline.counters["map_adjustments"] > 3
    table, true = pipeline.map.table, {f.stamp_ns: f for f in camera}
    depth, here = [], []
    for one in (one for one in found.values() if one.dense is not None):
        k = one.keyframe
        S = table.submaps[k.submap].T_map_submap
        exact = resize_nearest(true[k.stamp_ns].depth, one.dense.depth.shape)
        depth.append(np.median((S.scale * one.dense.depth / exact)[one.dense.measured]))
        T = S.pose(table.path.pose_of(k.stamp_ns, k.camera, k.submap))
        here.append((T[:3, 3], true[k.stamp_ns].T_room_camera[:3, 3]))
    ours, theirs = np.array(here).transpose(1, 0, 2)
    way = np.linalg.norm(ours - ours.mean(0)) / np.linalg.norm(theirs - theirs.mean(0))
    assert len(depth) > 12
    assert np.median(depth) / way == pytest.approx(1, abs=0.007)


def test_no_keyframe_waits_at_the_end():
    pipeline = with_dense()[0]
    newest = pipeline.map.newest
    assert pipeline.map.points._growing[newest.id].waiting == ()
    assert list(pipeline.map.points._growing) == [newest.id]


@pytest.mark.long
def test_published_depth_is_corrected_where_the_images_agree_better(monkeypatch):
    corrected_frame, others, depths = SceneMap.corrected, [], []

    def corrected(self, frame):
        """Notes what a frame that is corrected would get in a refused window, or another chain."""
        out = corrected_frame(self, frame)
        depths.append((frame.depth, out.depth))
        for change in ({"aligned": False}, {"chain": 7}) if out is not frame else ():
            other = dataclasses.replace(frame, window=dataclasses.replace(frame.window, **change))
            others.append(corrected_frame(self, other) is other)
        return out

    monkeypatch.setattr(SceneMap, "corrected", corrected)
    camera = SyntheticCamera(SEED, (126, 98), walk="loop", frames=20, rate_hz=10)
    settings = {"process_res": 126, "window.size": 5, **TINY}
    pipeline = Pipeline(config_from_parameters(settings))
    published = [r.depth_m for f in camera for r in pipeline.push(to_frame(camera, f))]
    for depth_m, (_, depth) in zip(published, depths, strict=True):  # in another unit
        known = np.isfinite(depth_m)
        assert known.any()
        assert np.ptp(depth_m[known] / depth[known]) < 1e-4
    corrected = pipeline.counters["frames_depth_corrected"]
    assert corrected > 5
    assert all(others)
    assert len(others) == 2 * corrected

    def error(depth, f):  # the scale may be any
        known = np.isfinite(f.depth) & np.isfinite(depth)
        log = np.log(depth / f.depth)[known]
        return np.abs(log - np.median(log)).mean()

    errors = np.array(
        [[error(d, f) for d in both] for f, both in zip(camera, depths, strict=True)]
    ).T
    before, after = errors[:, errors[0] != errors[1]]
    assert len(before) == corrected
    assert np.mean(after) < 0.9 * np.mean(before)
    assert (after < before).mean() > 0.7


def test_map_and_floor_get_the_corrected_frames(monkeypatch):
    add_frame, corrected, added = SceneMap.add_frame, [], []

    def correct(self, frame):
        corrected.append(dataclasses.replace(frame, depth=1.5 * frame.depth))
        return corrected[-1]

    def add(self, frame, *arguments, **options):
        added.append(frame)
        return add_frame(self, frame, *arguments, **options)

    monkeypatch.setattr(SceneMap, "corrected", correct)
    monkeypatch.setattr(SceneMap, "add_frame", add)
    run(opened(), walk()[1][:4])
    assert len(added) == 4
    assert all(a is b for a, b in zip(added, corrected, strict=True))


def test_keyframes_with_the_networks_poses_are_not_measured(monkeypatch):
    """Only the first window's views may be: later windows refine them."""
    added, add = [], SceneMap.add_frame

    def noted(self, frame, data, *, measure):
        added.append((frame.id, measure))
        return add(self, frame, data, measure=measure)

    monkeypatch.setattr(SceneMap, "add_frame", noted)
    monkeypatch.setattr(WindowRefiner, "refine", lambda *_: None)
    pipeline, results = run(opened(), walk()[1][:6])
    assert sum(r.keyframe for r in results) >= 3
    assert [id for id, measure in added if measure] == [0]
    assert pipeline.scene_map.dense.so_far.share == 0


@pytest.mark.long
@pytest.mark.usefixtures("solved_each_time")
def test_the_same_frames_give_the_same_map():
    again = run(opened())
    a, b = with_dense()[0].scene().cloud(), again[0].scene().cloud()
    np.testing.assert_array_equal(a.xyz, b.xyz)
    np.testing.assert_array_equal(a.rgb, b.rgb)
    for one, other in zip(with_dense()[1], again[1], strict=True):
        np.testing.assert_array_equal(one.depth_m, other.depth_m)


def test_measured_depth_is_stored_with_its_keyframe(tmp_path):
    pipeline = opened()
    pipeline.store(tmp_path, None, DiskLimit(), wait=True)
    run(pipeline)
    assert pipeline.scene_map.finish_recording()
    so_far, scale = pipeline.scene_map.dense.so_far, fit(with_dense()[1]).scale
    true = {f.stamp_ns: f for f in walk()[1]}
    with StoredScene.open(tmp_path) as scene:
        assert len(scene.images) == so_far.keyframes
        assert len(scene.measured) == so_far.measured > 3
        for key in scene.measured:
            dense, keyframe = scene.load_measured(key), scene.load(key)
            unit = scale * scene.submaps[keyframe.pose.submap].T_map_submap.scale
            truth = true[keyframe.pose.stamp_ns].depth
            at = dense.measured & np.isfinite(truth)
            after = np.abs(np.log(unit * dense.depth / truth))[at].mean()
            before = np.abs(np.log(unit * keyframe.depth / truth))[at].mean()
            assert after < before / 2


def test_frames_do_not_wait_for_a_live_measurement(monkeypatch):
    pipeline, released = opened(), threading.Event()
    pipeline.scene_map.dense.waits = False
    whole = measuring.MeasureJob.run

    def slow(job, device="cpu", stopping=None):
        released.wait(60)
        return whole(job, device, stopping)

    monkeypatch.setattr(measuring.MeasureJob, "run", slow)
    camera, frames = walk()
    try:
        results = [r for f in frames for r in pipeline.push(to_frame(camera, f))]
        assert len(results) == FRAMES  # all of them, while the first measurement has not ended
        assert pipeline.scene_map.dense.so_far.keyframes == 0
        assert len(pipeline.scene().cloud().xyz) > 1000  # what waits is shown
    finally:
        released.set()
    list(pipeline.flush())
    so_far = pipeline.scene_map.dense.so_far
    assert so_far.keyframes == sum(r.keyframe for r in results)
    skipped = pipeline.counters["keyframes_depth_skipped"]
    assert so_far.measured <= so_far.keyframes - skipped


@pytest.mark.long
@pytest.mark.usefixtures("solved_each_time")
def test_keyframes_beyond_the_time_limit_are_skipped():
    pipeline = opened(20, **{"dense.max_ms": 1.0})
    dense = pipeline.scene_map.dense
    dense.waits = False
    camera, frames = walk(20)
    for f in frames:
        list(pipeline.push(to_frame(camera, f)))
        while dense._running is not None and not dense._running.done():
            time.sleep(0.01)
    list(pipeline.flush())
    so_far = dense.so_far
    assert pipeline.counters["keyframes_depth_skipped"] > so_far.keyframes / 2
    assert so_far.measured > 1  # what is searched is in a row, and confirms each other


def test_a_measurement_rests_after_a_row_of_searches_until_it_has_made_up_for_them():
    so_far, rests = MeasuredSoFar(), []
    for _ in range(500):
        so_far.arrive(max_ms=150)
        if not so_far.rests:
            so_far.add_job(0.6, 2)  # a keyframe is searched twice
        rests.append(so_far.rests)
    assert so_far.seconds / len(rests) == pytest.approx(0.15, rel=0.03)
    changes = np.flatnonzero(np.diff(rests))
    assert np.diff(changes).min() >= 2  # at least four searches in a row
    assert rests[-1] or rests[-20:].count(True)


def test_a_measurement_within_its_time_does_not_rest():
    so_far, rng = MeasuredSoFar(), np.random.default_rng(0)
    so_far.add_job(0.01, 0)  # only decides
    assert not so_far.rests
    for seconds in rng.normal(0.14, 0.03, 2000):
        so_far.arrive(max_ms=150)
        so_far.add_job(seconds, 1)
        assert not so_far.rests
    so_far.rests, so_far.behind_s = True, 1.0
    so_far.add_job(0.01, 0)
    assert so_far.rests  # until it has made up for all
    for _ in range(9999):
        so_far.arrive(max_ms=150)
    assert not so_far.rests
    searches = 0
    while not so_far.rests:  # what was saved is little
        so_far.add_job(1.0, 1)
        searches += 1
    assert searches <= 5


def test_depth_that_is_withdrawn_corrects_no_frame():
    dense = DepthMapping(DenseConfig(), Counter())
    one = keyframe_of(walk()[1][0])
    depth = DenseDepth(one.depth, one.depth, one.known)
    dense._note(Measured(one, depth, stays=False))
    assert dense.newest[""].dense is depth
    dense._note(Measured(one, None, stays=False, is_withdrawn=True))
    assert not dense.newest


def test_depth_that_is_withdrawn_takes_its_points_along():
    one = keyframe_of(walk()[1][0])
    maker = PointsMaker(DepthConfig(), {one.id: (np.eye(4), Bins(0.03, 0))})
    farther = DenseDepth(1.5 * one.depth, one.depth, one.known)
    before, after, again = (
        maker.points(Measured(one, dense, False, is_withdrawn=dense is None)).view
        for dense in (None, farther, None)
    )
    assert maker.points(Measured(one, None, False)) is None  # nothing was, nothing is
    at = np.isfinite(before.near)
    assert at.mean() > 0.5
    np.testing.assert_allclose(after.near[at], 1.5 * before.near[at], rtol=1e-5)
    np.testing.assert_array_equal(again.near, before.near)


def test_a_failed_measurement_costs_no_frame(monkeypatch, caplog):
    def fails(*args, **kwargs):
        raise RuntimeError("no memory")

    monkeypatch.setattr(measuring, "search_depth", fails)
    pipeline, results = run(opened())
    assert len(results) == FRAMES
    assert pipeline.counters["keyframes_depth_failed"] > 3
    assert "the depth of a keyframe is not measured: RuntimeError: no memory" in caplog.text
    # Which points are removed depends on their order a little.
    expected = len(without()[0].scene().cloud())
    assert len(pipeline.scene().cloud()) == pytest.approx(expected, rel=0.01)


@pytest.mark.long
def test_a_reset_forgets_what_is_measured():
    pipeline = opened()
    camera, frames = walk()
    for f in frames[:8]:
        list(pipeline.push(to_frame(camera, f)))
    assert pipeline.scene_map.dense.so_far.searches
    pipeline.reset()
    assert not pipeline.scene_map.dense.newest
    assert pipeline.scene_map.dense.measurement.nbytes == 0
    assert pipeline.scene_map.dense.so_far == MeasuredSoFar()
    results = [r for f in frames[:8] for r in pipeline.push(to_frame(camera, f))]
    list(pipeline.flush())
    assert len(results) == 8
    assert len(pipeline.scene().cloud()) > 1000


@pytest.mark.parametrize("off", ["refinement.enabled", "dense.enabled"])
def test_it_is_off_without_refined_poses(off):
    pipeline = opened(**{off: False})
    camera, frames = walk()
    for f in frames[:8]:
        list(pipeline.push(to_frame(camera, f)))
    assert pipeline.scene_map.dense.measurement.nbytes == 0


@pytest.mark.long
def test_nothing_is_measured_in_a_read_only_map(tmp_path, monkeypatch):
    camera, frames = walk()
    pipeline = opened()
    pipeline.store(tmp_path, None, DiskLimit(), wait=True)
    seen = [r for f in frames[:15] for r in pipeline.push(to_frame(camera, f))]
    so_far = pipeline.scene_map.dense.so_far
    assert so_far.keyframes < sum(r.keyframe for r in seen)
    monkeypatch.setattr(scene_map, "FINISH_S", 60.0)
    pipeline.reconfigure(config_from_parameters(
        {"process_res": max(SIZE), "window.size": 5, "map.voxel_m": 0.03, "mode": "localization"}
    ))  # fmt: skip
    # Those that waited belong to the map that is read-only now.
    assert so_far.keyframes == (before := sum(r.keyframe for r in seen))
    points = pipeline.scene().cloud().xyz
    for f in frames[15:]:
        list(pipeline.push(to_frame(camera, f)))
    list(pipeline.flush())
    assert pipeline.scene_map.dense.so_far.keyframes == before
    np.testing.assert_array_equal(pipeline.scene().cloud().xyz, points)
    assert pipeline.scene_map.finish_recording()
    with StoredScene.open(tmp_path) as scene:
        assert len(scene.measured) == so_far.measured > before / 2


@pytest.mark.long
def test_no_more_is_measured_at_the_end_than_there_is_time_for(monkeypatch):
    pipeline, (camera, frames) = opened(), walk()
    for f in frames[:15]:
        list(pipeline.push(to_frame(camera, f)))
    dense = pipeline.scene_map.dense
    searches, waiting = dense.so_far.searches, dense.measurement._entries.values()
    waiting = sum(e.search is None for e in waiting)
    assert waiting > 1
    monkeypatch.setattr(
        depth_mapping.time, "monotonic", iter([0.0, 0.5, 0.6, *[9.0] * 99]).__next__
    )
    pipeline.scene_map.finish_depth(1.0)  # over after the first search
    assert dense.so_far.searches == searches + 1
    assert pipeline.counters["keyframes_depth_skipped"] == waiting - 1
    assert all(e.stays for e in dense.measurement._entries.values())
    points = pipeline.map.points
    assert all(not growing.waiting for growing in points._growing.values())


def test_memory_is_bounded_behind_a_job_that_hangs(monkeypatch):
    """Keyframes that it is too late for are given up, counted once, and wait no more."""
    released, counters = threading.Event(), Counter()

    def makers(_):
        return PointsMaker(DepthConfig(), {})

    dense = DepthMapping(DenseConfig(), counters)
    dense.waits = False
    whole = measuring.MeasureJob.run

    def slow(job, device="cpu", stopping=None):
        released.wait(60)
        return whole(job, device, lambda: True)

    monkeypatch.setattr(measuring.MeasureJob, "run", slow)
    monkeypatch.setattr(measuring, "MOST_KEPT", 8)
    frames, found = walk()[1], []
    poses = {k: (f.T_room_camera, 1.0) for k, f in enumerate(frames)}
    try:
        for k, f in enumerate(frames):
            dense.add_keyframe(dataclasses.replace(keyframe_of(f), id=k))
            found += dense.end_window(lambda one: poses[one.id], makers)
            assert len(dense.measurement._entries) <= 8
        assert [one.measured.keyframe.id for one in found] == list(range(FRAMES - 8))
        assert all(one.measured.stays and one.points is None for one in found)
        assert counters["keyframes_depth_skipped"] == dense.so_far.keyframes == FRAMES - 8
    finally:
        released.set()
    dense._running.result(60)
    found = dense.end_window(lambda one: poses[one.id], makers)
    assert not any(one.measured.keyframe.id < FRAMES - 8 for one in found)
    assert dense.so_far.keyframes == FRAMES - 8  # what is forgotten is not counted again
    assert dense.so_far.behind_s == pytest.approx(dense.so_far.seconds)  # without a limit
    dense.config = DenseConfig(max_ms=1000.0)
    dense.add_keyframe(dataclasses.replace(keyframe_of(frames[0]), id=99))
    assert dense.so_far.behind_s == pytest.approx(dense.so_far.seconds - 1)


def test_a_job_that_hangs_does_not_hold_up_the_end(monkeypatch):
    pipeline, released = opened(), threading.Event()
    pipeline.scene_map.dense.waits = False
    camera, frames = walk()
    with monkeypatch.context() as during:
        during.setattr(
            measuring.MeasureJob, "run", lambda job, **kwargs: released.wait(60) and None
        )
        for f in frames[:12]:
            list(pipeline.push(to_frame(camera, f)))
        assert pipeline.scene_map.dense._running is not None
    try:
        pipeline.scene_map.finish_depth(0.05)  # it is given up, and the others are left out
    finally:
        released.set()
    points = pipeline.map.points
    assert all(not growing.waiting for growing in points._growing.values())
    assert pipeline.counters["keyframes_depth_skipped"] > 0


@pytest.mark.parametrize("what", long_after(2, ["reset", "finish", "finish in time"]))
def test_a_running_job_is_stopped_where_no_one_waits_for_all_of_it(monkeypatch, what):
    pipeline, (camera, frames), asked = opened(), walk(), []
    running, released = threading.Event(), threading.Event()
    whole = measuring.MeasureJob.run

    def run_job(job, device="cpu", stopping=lambda: False):
        if not running.is_set():
            running.set()
            released.wait(60)
            asked.append(stopping())
        return whole(job, device, stopping)

    monkeypatch.setattr(measuring.MeasureJob, "run", run_job)
    dense = pipeline.scene_map.dense
    dense.waits = False
    for f in frames:
        if not running.is_set():
            list(pipeline.push(to_frame(camera, f)))
            running.wait(0.2)
    job, before = dense._running, dense.so_far
    if what == "reset":
        pipeline.reset()
        released.set()
    else:
        threading.Timer(0.2, released.set).start()
        pipeline.scene_map.finish_depth(20.0 if what == "finish in time" else None)
    job.result(60)
    assert asked == [what != "finish"]
    if what == "reset":
        assert dense.so_far is not before
        assert dense.so_far.seconds == 0  # what it took is not the new map's
        assert not dense.newest


def test_no_keyframe_is_searched_again_while_time_is_short(monkeypatch):
    pipeline, asked = opened(**{"dense.max_ms": 1.0}), []
    dense = pipeline.scene_map.dense
    dense.waits = False
    monkeypatch.setattr(
        measuring.DepthMeasurement, "job", lambda self, poses, **options: asked.append(options)
    )
    for dense.so_far.rests in (False, True):
        dense.end_window(None, None)
    assert [options["again"] for options in asked] == [True, False]
    dense.config = DenseConfig()  # without a limit it is never short
    dense.end_window(None, None)
    assert asked[-1]["again"]
    dense.finish(None, None, 1.0)
    dense.finish(None, None)
    assert [options["again"] for options in asked[-2:]] == [False, True]


@pytest.mark.long
def test_points_that_cannot_be_made_cost_no_other_keyframe(monkeypatch, caplog):
    whole, calls = PointsMaker.points, []

    def fails(maker, one):
        calls.append(one)
        if len(calls) == 3:
            raise ValueError("odd")
        return whole(maker, one)

    monkeypatch.setattr(PointsMaker, "points", fails)
    pipeline, results = run(opened(), walk()[1][:12])
    assert len(results) == 12
    assert pipeline.counters["keyframes_depth_failed"] == 1
    assert "are not those of its measured depth: ValueError: odd" in caplog.text
    points = pipeline.map.points
    assert all(not growing.waiting for growing in points._growing.values())


@pytest.mark.long
def test_what_a_running_job_has_searched_is_kept_at_the_end(monkeypatch):
    pipeline, (camera, frames), searching = opened(), walk(), threading.Event()
    whole, released = measuring.search_depth, threading.Event()

    in_thread = []

    def slow(*args):
        if threading.current_thread() is not threading.main_thread():
            in_thread.append(0)
            searching.set()
            released.wait(60)
        return whole(*args)

    dense = pipeline.scene_map.dense
    for f in frames[:12]:
        list(pipeline.push(to_frame(camera, f)))
    monkeypatch.setattr(measuring, "search_depth", slow)
    dense.waits = False
    while not searching.is_set():
        list(pipeline.push(to_frame(camera, frames[12 + dense.measurement._idle])))
    threading.Timer(0.2, released.set).start()
    pipeline.scene_map.finish_depth(20.0)
    assert len(in_thread) == 1  # the others are searched by who ends it, while there is time
    assert not pipeline.counters["keyframes_depth_skipped"]
    assert all(e.stays for e in dense.measurement._entries.values())
    assert dense.so_far.measured > 3


@pytest.mark.long
def test_cameras_of_a_live_rig_are_measured_alike():
    """Three cameras at one place that look around: each is measured, and each frame's depth is
    corrected by its own camera's."""
    names, rigs = ("front", "left", "right"), {}
    for k, name in enumerate(names):
        mount = rig_mount(k, 0.1, -120)
        rigs[name] = SyntheticCamera(
            SEED, (126, 98), walk="loop", frames=16, rate_hz=6, mount=mount
        )
    frames = {name: list(camera)[::2] for name, camera in rigs.items()}
    settings = {
        "process_res": 126, "window.size": 7, "map.voxel_m": 0.03, "cameras": list(names)
    }  # fmt: skip
    pipeline = Pipeline(config_from_parameters(settings), TruthSession(frames, noise=NOISE))
    dense = pipeline.scene_map.dense
    dense.waits = False
    for k in range(8):
        list(pipeline.push(*(
            Frame(frames[n][k].stamp_ns, frames[n][k].image, n, camera=n,
                  calibration=rigs[n].calibration) for n in names
        )))  # fmt: skip
        while dense._running is not None and not dense._running.done():
            time.sleep(0.01)
    entries = dense.measurement._entries.values()
    searched = Counter(e.keyframe.camera for e in entries if e.search is not None)
    assert min(searched[name] for name in names) > 0.7 * max(searched.values()) > 1
    assert set(dense.newest) == set(names)
    assert not pipeline.counters["keyframes_depth_skipped"]


@pytest.mark.long
def test_all_that_takes_time_is_done_in_the_thread(monkeypatch):
    """Of a measured keyframe's points, only sums are left to the thread of the frames."""
    threads = defaultdict(list)
    for owner, name in (
        (depth_mapping, "filter_depth"), (VoxelSums, "of"), (free_space, "depth_view"),
        (submap_points, "depth_view"), (measuring, "confirmed_depth"), (measuring, "grey_of"),
    ):  # fmt: skip
        whole = getattr(owner, name)

        def noting(*args, whole=whole, name=name, **kwargs):
            threads[name].append(threading.current_thread() is threading.main_thread())
            return whole(*args, **kwargs)

        monkeypatch.setattr(owner, name, noting)
    pipeline, (camera, frames) = opened(), walk()
    pipeline.scene_map.dense.waits = False
    keyframes = 0
    for f in frames:
        keyframes += sum(r.keyframe for r in pipeline.push(to_frame(camera, f)))
        running = pipeline.scene_map.dense._running
        while running is not None and not running.done():
            time.sleep(0.01)
    assert len(threads["confirmed_depth"]) > 5
    assert not any(threads["confirmed_depth"])
    assert not any(threads["filter_depth"])
    assert len(threads["grey_of"]) > 5
    assert not any(threads["grey_of"])
    assert sum(threads["of"]) == keyframes  # the network's, when they come
    assert threads["of"].count(False) > 5
    monkeypatch.undo()
    list(pipeline.flush())
    live, replayed = pipeline.scene_map.dense.so_far, with_dense()[0].scene_map.dense.so_far
    assert live.keyframes == replayed.keyframes
    assert live.share > 0.8 * replayed.share


@pytest.mark.long
def test_a_device_that_fails_is_used_no_more(caplog):
    pipeline = opened()
    pipeline.scene_map.dense.device = "cuda:7"  # is not there
    run(pipeline, walk()[1][:12])
    assert pipeline.scene_map.dense.device == "cpu"
    assert caplog.text.count("depth is measured on the CPU from now on") == 1
    assert pipeline.scene_map.dense.so_far.measured > 2
    assert not pipeline.counters["keyframes_depth_failed"]


def test_an_interrupted_measurement_is_no_hang(monkeypatch):
    pipeline, camera, frames = opened(), *walk()
    for f in frames[:6]:
        list(pipeline.push(to_frame(camera, f)))

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as during:
        during.setattr(measuring, "search_depth", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(pipeline, frames[6:])
    pipeline.scene_map.finish_depth()
    assert pipeline.scene_map.finish_recording()
    assert pipeline.scene_map.dense.so_far.keyframes > 0


@pytest.mark.parametrize("live", long_after(1, [True, False]))
def test_a_job_that_fails_as_a_whole_costs_no_window(monkeypatch, caplog, live):
    """Nothing is measured, no window breaks, and memory stays bounded."""

    def fails(*args, **kwargs):
        raise LookupError("odd returns")

    monkeypatch.setattr(measuring.MeasureJob, "run", fails)
    monkeypatch.setattr(measuring, "KEPT", 3)
    monkeypatch.setattr(measuring, "LAST", 3)
    pipeline, (camera, frames) = opened(), walk()
    dense = pipeline.scene_map.dense
    dense.waits, results = not live, []
    for f in frames:
        results += pipeline.push(to_frame(camera, f))
        if dense._running is not None:
            futures.wait([dense._running], 60)
    assert len(dense.measurement._entries) < FRAMES / 2
    list(pipeline.flush())
    assert len(results) == FRAMES
    assert pipeline.counters["keyframes_depth_failed"] > 3
    assert "the depth of a keyframe is not measured: LookupError: odd returns" in caplog.text
    assert dense.so_far.keyframes == sum(r.keyframe for r in results)
    assert all(not growing.waiting for growing in pipeline.map.points._growing.values())


def test_all_searches_on_a_gpu_share_one_stream(monkeypatch):
    """Memory that one has freed is used by the next in the same stream only."""
    made, used = [], []
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: made.append(device) or len(made))
    monkeypatch.setattr(torch.cuda, "stream", lambda one: used.append(one) or nullcontext())
    monkeypatch.setattr(measuring.MeasureJob, "run", lambda *_, **__: measuring.JobResult({}, []))
    job = measuring.MeasureJob({}, {}, {}, {}, [], [])
    for _ in range(3):
        dense = DepthMapping(DenseConfig(), Counter(), "cuda:77")
        for _ in range(2):
            dense._run_on_device(job, lambda: False)
    assert made == ["cuda:77"]
    assert used == [1] * 6


def test_a_pause_has_time_for_what_was_dropped():
    dense = DepthMapping(DenseConfig(), Counter())
    assert dense.is_idle
    dense.waits = False
    frames = walk()[1][:8]
    poses = {k: (f.T_room_camera, 1.0) for k, f in enumerate(frames)}
    for k, f in enumerate(frames):
        dense.add_keyframe(dataclasses.replace(keyframe_of(f), id=k))
    dense.counters["keyframes_depth_skipped"] += dense.measurement.drop_waiting(2)
    assert dense.counters["keyframes_depth_skipped"] == 4
    while dense.goes_on:
        dense.pause(lambda one: poses[one.id], lambda _: PointsMaker(DepthConfig(), {}))
        if dense._running is not None:
            dense._running.result(60)
    assert not dense.is_idle  # a correction may move a keyframe that is still kept
    assert not dense.counters["keyframes_depth_skipped"]
    assert all(e.search is not None for e in dense.measurement._entries.values())


def test_a_pause_keeps_to_the_time_limit():
    dense = DepthMapping(DenseConfig(max_ms=100.0), Counter())
    dense.waits = False
    frames = walk()[1][:8]
    poses = {k: (f.T_room_camera, 1.0) for k, f in enumerate(frames)}
    for k, f in enumerate(frames):
        dense.add_keyframe(dataclasses.replace(keyframe_of(f), id=k))
    dense.so_far.rests = True
    while dense.goes_on:
        dense.pause(lambda one: poses[one.id], lambda _: PointsMaker(DepthConfig(), {}))
        if dense._running is not None:
            dense._running.result(60)
    assert not dense.so_far.searches
    assert dense.counters["keyframes_depth_skipped"] == len(frames)
