"""A saved scene is found again: by frames of another session, in metres where it has them."""

import dataclasses
import itertools
import shutil

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from support.cases import long_after
from support.journals import changed_in, records_of, rewritten
from support.ring import DescribedTruth, descriptor_at, shifted, walked
from support.sessions import LATER, errors, found_at, later, opened, push, resumed, saved

from da3_ros.config import config_from_parameters
from da3_ros.export.recognition_file import NODE, load_recognition
from da3_ros.export.scene_file import load_scene
from da3_ros.geometry.poses import T_ROS_MAP, invert_pose
from da3_ros.keyframe_store.journal import JournalReader
from da3_ros.keyframe_store.store import JOURNAL
from da3_ros.mapping import loop_closure
from da3_ros.mapping.loop_candidates import LoopCandidates
from da3_ros.mapping.loop_closure import LoopClosure
from da3_ros.mapping.loop_keyframes import PlacedKeyframe
from da3_ros.mapping.pose_hint import PoseHint
from da3_ros.pipeline import window_steps
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.pipeline.window_inference import WindowInference
from da3_ros.pipeline.window_steps import PoseSearch
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.evaluation import fit_poses
from da3_ros.synthetic.renderer import render_batch
from da3_ros.synthetic.rooms import stack_rooms
from da3_ros.synthetic.truth import Noise
from da3_ros.types import Frame


@pytest.fixture(scope="module")
def ring():
    return walked(100, 0.6)


@pytest.fixture(scope="module")
def metric_folder(ring, tmp_path_factory):
    pipeline = opened(ring[:70], metric=True)
    push(pipeline, ring[:70])
    return saved(pipeline, tmp_path_factory.mktemp("metric"))


@pytest.fixture(scope="module")
def plain_folder(ring, tmp_path_factory):
    pipeline = opened(ring[:70])
    push(pipeline, ring[:70])
    return saved(pipeline, tmp_path_factory.mktemp("plain"))


@pytest.mark.long
def test_a_metric_map_is_entered_where_the_camera_is(metric_folder, ring):
    again = later(ring[30:60])
    pipeline = resumed(metric_folder, ring, again, metric=True)
    poses = {id: s.T_map_submap for id, s in pipeline.map.submaps.items()}
    results = push(pipeline, again)
    at = found_at(pipeline, results)
    assert at is not None
    assert at < 15
    assert {s.component for s in pipeline.map.submaps.values()} == {0}
    for id, pose in poses.items():  # the map is where it was
        now = pipeline.map.submaps[id].T_map_submap
        np.testing.assert_allclose(now.t, pose.t, atol=0.15)
        assert now.scale == pytest.approx(pose.scale)
    after = errors(results, again, ring[0].T_room_camera)[at:]
    assert np.median(after[:, 0]) < 0.15
    assert np.median(after[:, 1]) < 2.0
    before = errors(results, again, ring[0].T_room_camera)[:at]
    assert before[:, 0].min() > 1.0  # a guess: the last pose of the map


@pytest.mark.long
def test_odometry_goes_on_when_the_place_is_found(metric_folder, ring):
    again = later(ring[30:60])
    results = push(resumed(metric_folder, ring, again, metric=True), again)
    T = [r.T_odom_map @ r.T_map_camera for r in results if r.scale.metric]
    steps = [np.linalg.norm((invert_pose(a) @ b)[:3, 3]) for a, b in itertools.pairwise(T)]
    assert max(steps) < 3 * np.median(steps)


@pytest.mark.long
def test_metres_are_taken_from_the_map(metric_folder, ring):
    again = later(ring[30:60])
    pipeline = resumed(metric_folder, ring, again)
    results = push(pipeline, again)
    at = next(i for i, r in enumerate(results) if r.scale.metric)
    assert not any(r.scale.metric for r in results[:at])
    assert {r.scale.source for r in results[at:]} == {"map"}
    assert all(0 < r.scale.sigma < 0.1 for r in results[at:])
    true = {f.stamp_ns: f.depth for f in again}
    ratios = [np.nanmedian(r.depth_m / true[r.stamp_ns]) for r in results[at:]]
    np.testing.assert_allclose(ratios, 1.0, atol=0.1)
    after = errors(results, again, ring[0].T_room_camera)[at:]
    assert np.median(after[:, 0]) < 0.2
    assert pipeline.snapshot().metric
    # A jump of time: the scale is unknown until the camera is found again.
    back = [dataclasses.replace(f, stamp_ns=f.stamp_ns - LATER // 2) for f in again]
    pipeline.session._frames |= {("", f.stamp_ns): f for f in back}
    pipeline.session.descriptors |= {f.stamp_ns: descriptor_at(f.T_room_camera) for f in back}
    results = push(pipeline, back)
    assert not results[0].scale.metric
    assert not pipeline.map.pose_known or results[-1].scale.metric
    assert results[-1].scale.source == "map"


@pytest.mark.long
def test_a_map_without_metres_gives_its_unit(plain_folder, ring):
    again = later(ring[30:60])
    pipeline = resumed(plain_folder, ring, again)
    sizes = {id: s.T_map_submap.scale for id, s in pipeline.map.submaps.items()}
    results = push(pipeline, again)
    assert pipeline.map.pose_known
    assert not any(r.scale.metric for r in results)
    first = min(sizes)
    assert pipeline.map.submaps[first].T_map_submap.scale == pytest.approx(sizes[first])
    # What both saw has one size: depth now over depth then, of the same camera.
    then = {r.stamp_ns + LATER: r.depth_m for r in push(opened(ring[:70]), ring[:70])}
    ratio = np.nanmedian(results[-1].depth_m / then[results[-1].stamp_ns])
    assert ratio == pytest.approx(1.0, abs=0.1)


def test_another_place_is_never_joined(metric_folder, ring):
    other = [
        dataclasses.replace(f, T_room_camera=shifted(f, np.array([60.0, 0, 0])))
        for f in later(walked(40, 0.25, seed=5))
    ]
    pipeline = resumed(metric_folder, ring, other, metric=True)
    for f, same in zip(other, ring[:40], strict=True):  # it looks the same
        pipeline.session.descriptors[f.stamp_ns] = descriptor_at(same.T_room_camera)
    push(pipeline, other)
    assert pipeline.loops.refused > 2  # it was looked at
    assert not pipeline.map.pose_known


@pytest.mark.parametrize("size", long_after(1, [(168, 140), ((84, 56),)]))
def test_images_of_another_size_find_the_place(metric_folder, ring, size):
    again = later(ring[30:60])
    pipeline = resumed(metric_folder, ring, again, metric=True)
    results = push(pipeline, again, size)
    assert found_at(pipeline, results) is not None


@pytest.mark.long
def test_a_found_scene_is_saved_with_what_was_loaded(metric_folder, ring, tmp_path):
    again = later(ring[30:60])
    values = {"metric": True, "map.remove_movers": True}
    pipeline = resumed(metric_folder, ring, again, **values)
    push(pipeline, again)
    old, folder = load_scene(metric_folder), saved(pipeline, tmp_path)
    new = load_scene(folder)
    assert len(new.recognition.keyframes) > len(old.recognition.keyframes)
    for a, b in zip(old.recognition.keyframes, new.recognition.keyframes):  # noqa: B905
        assert a.view.stamp_ns == b.view.stamp_ns
        for x, y in zip(a.loaded().arrays, b.loaded().arrays, strict=True):
            np.testing.assert_array_equal(x, y)
    # Third session, where only the second one was.
    third = [dataclasses.replace(f, stamp_ns=f.stamp_ns + LATER) for f in again]
    results = push(last := resumed(folder, [*ring, *again], third, 5, metric=True), third)
    assert found_at(last, results) is not None
    assert np.median(errors(results[-5:], third, ring[0].T_room_camera)[:, 0]) < 0.5


def test_a_saved_keyframe_comes_back_as_it_was(ring, tmp_path):
    pipeline = opened(ring[:20], metric=True)
    push(pipeline, ring[:20])
    before = pipeline.snapshot().recognition
    after = load_scene(saved(pipeline, tmp_path)).recognition
    assert after.model == before.model == "da3-small"
    assert len(before.keyframes) == len(after.keyframes) > 2
    for a, b in zip(before.keyframes, after.keyframes, strict=True):
        a, b = (
            PlacedKeyframe(k.loaded(), known.T_map_submap[k.submap])
            for k, known in ((a, before), (b, after))
        )
        x, y = a.view, b.view
        np.testing.assert_allclose(x.T_local_camera, y.T_local_camera, atol=1e-9)
        np.testing.assert_allclose(x.depth, y.depth, rtol=1e-6)
        np.testing.assert_allclose(x.confidence, y.confidence, rtol=1e-6)
        np.testing.assert_array_equal(x.pixels, y.pixels)
        np.testing.assert_allclose(x.K, y.K)
        assert x.view.camera == y.view.camera
        np.testing.assert_allclose(a.variance, b.variance)
        assert b.depth == pytest.approx(a.depth)
        assert np.abs(x.view.image.astype(int) - y.view.image).max() <= 8
    assert [n.first for n in before.nodes] == [n.first for n in after.nodes]
    for id, T in after.T_map_submap.items():
        np.testing.assert_allclose(before.T_map_submap[id].t, T.t)
    assert [(e.first, e.second) for e in before.edges] == [
        (e.first, e.second) for e in after.edges
    ]


def places_of(folder):
    """Where the keyframes begin in a scene's file, their graph, and what follows."""
    kinds = {}
    for at, description, _ in records_of(folder / JOURNAL):
        kinds.setdefault(description["kind"], at)
    return kinds["loop keyframe"], kinds["recognition"], kinds["contents"]


def recognition_in(folder):
    return load_recognition(JournalReader(folder / JOURNAL), places_of(folder)[1], {})


@pytest.mark.long
def test_damage_costs_keyframes_not_the_scene(metric_folder, ring, tmp_path, caplog):
    """A byte anywhere in the records is wrong."""
    begin, graph, end = places_of(metric_folder)
    data = (metric_folder / JOURNAL).read_bytes()
    whole = len(recognition_in(metric_folder).keyframes)
    file = tmp_path / JOURNAL
    found = []
    for at in [*np.random.default_rng(0).integers(begin, end, 60), graph + 60, graph + 150]:
        damaged = bytearray(data)
        damaged[at] ^= 0x41
        file.write_bytes(damaged)
        try:
            known = load_recognition(JournalReader(file), graph, {})
        except ValueError:
            found.append(0)
            continue
        found.append(len(known.keyframes))
        for keyframe in known.keyframes:
            keyframe.loaded()
    assert set(found) == {0, whole - 1}
    caplog.clear()
    loaded = load_scene(tmp_path)  # with the last damage
    assert loaded.recognition is None
    assert len(loaded.scene()) == len(load_scene(metric_folder).scene())
    assert caplog.text.count("the locations of the scene in") == 1


def test_numbers_that_cannot_be_are_refused(metric_folder, tmp_path):
    def refused(change, words="invalid"):
        folder = shutil.copytree(metric_folder, tmp_path / "s", dirs_exist_ok=True)
        rewritten(folder, change)
        with pytest.raises(ValueError, match=words):
            recognition_in(folder)
        assert load_scene(folder).recognition is None

    def with_nan(description, data):
        if description["kind"] == "loop keyframe":
            data = data[:20] + np.float64(np.nan).tobytes() + data[28:]  # K
        return description, data

    def without_nodes(description, data):
        if description["kind"] == "recognition":
            data = data[description["nodes"] * NODE.itemsize :]
            description["nodes"] = 0
        return description, data

    refused(with_nan, "a pose is invalid")
    refused(changed_in("loop keyframe", samples=10**9), "samples is invalid")
    refused(without_nodes, "an edge is invalid")
    refused(changed_in("recognition", nodes=10**9), "the size of its record")
    refused(changed_in("recognition", nodes=-1), "the size of its record")
    refused(changed_in("recognition", keyframes=1), "the number of keyframes")

    def elsewhere(description, data):  # a keyframe that is no such record
        if description["kind"] == "recognition":
            begin = len(data) - 8 * description["keyframes"]
            data = data[:begin] + np.array(0, "<i8").tobytes() + data[begin + 8 :]
        return description, data

    def twice(description, data):  # else few bytes could name one a million times
        if description["kind"] == "recognition":
            data = data[:-8] + data[-16:-8]
        return description, data

    def a_large_node(description, data):
        if description["kind"] == "recognition":
            rows = np.frombuffer(data[: description["nodes"] * NODE.itemsize], NODE).copy()
            rows["last"][-1] = 2**31 - 1
            data = rows.tobytes() + data[rows.nbytes :]
        return description, data

    refused(elsewhere, "the kind of a record")
    refused(twice, "the order of keyframes")
    refused(a_large_node, "a node is invalid")


def test_looking_in_vain_becomes_rare(metric_folder, ring, monkeypatch):
    """It costs a window each time; a hint brings it back."""
    monkeypatch.setattr(loop_closure, "EAGER_LOOKS", 4)
    again = later(ring[30:60])
    pipeline = resumed(metric_folder, ring, again, metric=True, **{"loop.every": 7})
    monkeypatch.setattr(LoopClosure, "_verify", lambda *_: False)
    tries, run_loop = [], WindowInference.run_loop

    def noted(self, window):
        tries.append(window.id)
        return run_loop(self, window)

    monkeypatch.setattr(WindowInference, "run_loop", noted)
    push(pipeline, again[:24])
    apart = np.diff(tries)
    assert len(tries) > 5
    assert min(apart[4:]) >= 7
    assert min(apart[:3]) < 7
    pipeline.pose_search.narrow(PoseHint.on_map(0.0, 0.0, 1e3))
    count = len(tries)
    push(pipeline, again[24:])
    assert len(tries) - count > 2


def test_another_model_looks_for_no_place(metric_folder, ring, tmp_path):
    again = later(ring[30:40])
    pipeline = opened(again, metric=True, model="da3-tiny")
    said = pipeline.resume(load_scene(metric_folder))
    assert "by the model da3-small only" in said
    assert not pipeline.loops.recognition(1.0).keyframes
    push(pipeline, again)


def test_a_file_that_ends_later_costs_a_candidate(metric_folder, ring, tmp_path, caplog):
    again = later(ring[30:60])
    pipeline = resumed(metric_folder, ring, again, metric=True)

    def fail(index):
        raise OSError("unplugged")

    for keyframe in pipeline.loops.recognition(1.0).keyframes:
        keyframe.file.arrays = fail
    results = push(pipeline, again)
    assert len(results) == len(again)
    assert "cannot be read" in caplog.text
    assert not pipeline.map.pose_known


def looked_at(pipeline, monkeypatch):
    """The old keyframes that are verified."""
    found, candidate = [], LoopCandidates.next

    def noted(self, *args):
        old = candidate(self, *args)
        if old is not None:
            found.append(old)
        return old

    monkeypatch.setattr(LoopCandidates, "next", noted)
    return found


@pytest.mark.parametrize("near", [True, False])
def test_a_hint_restricts_the_search(metric_folder, ring, monkeypatch, near):
    again = later(ring[30:50])
    pipeline = resumed(metric_folder, ring, again, metric=True)
    T_ros_room = pipeline.scene_map.T_ros_map @ invert_pose(ring[0].T_room_camera)
    at = (T_ros_room @ ring[35 if near else 0].T_room_camera)[:2, 3]
    pipeline.pose_search.narrow(PoseHint.on_map(*at, 0.25))
    looks = looked_at(pipeline, monkeypatch)
    push(pipeline, again)
    own = min(s.id for s in pipeline.map.submaps.values() if s.chain > 0)
    true = {f.stamp_ns: f.T_room_camera[:3, 3] for f in ring}
    there = ring[35 if near else 0].T_room_camera[:3, 3]
    sight = 2 * np.nanmedian(ring[0].depth)
    away = [np.linalg.norm(true[k.view.stamp_ns] - there) for k in looks if k.submap < own]
    assert all(distance < 4 * 0.25 + sight for distance in away)
    assert (len(away) > 1) == near  # what is there looks different
    assert pipeline.map.pose_known == near


def test_a_hint_ends_after_a_while(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(window_steps.time, "monotonic", lambda: now[0])
    search = PoseSearch()
    hint = PoseHint.on_map(0, 0, 1)
    search.narrow(hint)
    now[0] = window_steps.HINT_S - 1
    assert search.hint is hint
    now[0] = window_steps.HINT_S + 1
    assert search.hint is None


def test_the_time_of_a_search_is_that_of_its_stamps():
    search = PoseSearch()
    search.add(5 * 10**9, known=True)
    assert np.isnan(search.seconds)
    search.add(6 * 10**9, known=False)
    search.add(8 * 10**9, known=False)
    assert search.seconds == 2
    search.add(9 * 10**9, known=True)
    search.add(20 * 10**9, known=True)
    assert search.seconds == 3  # the last one's
    search.add(30 * 10**9, known=False)
    assert search.seconds == 0
    search.add(10**9, known=False)  # the clock was set back
    search.add(2 * 10**9, known=False)
    assert search.seconds == 1


def test_while_the_pose_is_looked_for_less_motion_makes_a_keyframe():
    search, less = PoseSearch(), window_steps.SEARCH_MOTION
    search.add(0, known=True, keyframe=True)
    assert search.motion == 1.0
    search.add(1, known=False, keyframe=True)
    for k in range(2, window_steps.SEARCH_KEYFRAMES + 1):
        assert search.motion == less
        search.add(k, known=False)  # a frame that is none
        search.add(k, known=False, keyframe=True)
    assert search.motion == 1.0  # it may be in no known place
    search.add(200, known=True)
    search.add(201, known=False)
    assert search.motion == less
    search.add(202, known=True)
    assert search.motion == 1.0


def test_a_slow_camera_is_found_after_little_motion(metric_folder, ring, monkeypatch):
    again = later(walked(2000, 0.6, part=slice(800, 860)))
    sooner = resumed(metric_folder, ring, again, metric=True)
    results = push(sooner, again)
    found = found_at(sooner, results)
    assert errors(results, again, ring[0].T_room_camera)[-1, 0] < 0.2
    monkeypatch.setattr(window_steps, "SEARCH_MOTION", 1.0)
    usual = resumed(metric_folder, ring, again, metric=True)
    before = found_at(usual, push(usual, again))
    assert before is None or 2 * found < before


def seen_beside(frames, camera, aside):
    """Frames of another session, from poses beside those of the first one."""
    step = np.eye(4)
    step[:3, :3] = Rotation.from_euler("y", 4.0, degrees=True).as_matrix()
    step[:3, 3] = aside
    poses = np.array([f.T_room_camera @ step for f in frames])
    K = frames[0].K
    seen = render_batch(stack_rooms([camera.room] * len(poses)), poses, K, (336, 252))
    return [
        dataclasses.replace(
            f, stamp_ns=f.stamp_ns + LATER, image=seen.image[i].numpy(),
            depth=seen.depth[i].numpy(), T_room_camera=poses[i],
        )
        for i, f in enumerate(frames)
    ]  # fmt: skip


def test_the_pose_in_a_saved_scene_is_measured_by_tracks(tmp_path):
    """By the windows of such a network alone the camera is 4 mm off."""
    camera = SyntheticCamera(42, (336, 252), walk="strafe", frames=20, rate_hz=1.5)
    frames = list(camera)
    again = seen_beside(frames[4:14], camera, (0.1, 0.02, 0.1))
    config = config_from_parameters({
        "model": "da3-tiny", "window.size": 6, "process_res": 224, "map.voxel_m": 0.02,
        "dense.enabled": False,
    })  # fmt: skip
    session = DescribedTruth(
        [*frames, *again], noise=Noise(smooth=0.2, rotation_deg=4.0, translation=0.1)
    )

    def run(pipeline, some):
        out = []
        for f in some:
            frame = Frame(f.stamp_ns, f.image, "camera", calibration=camera.calibration)
            out += pipeline.push(frame)
        return out

    first = Pipeline(config, session)
    run(first, frames)
    folder = saved(first, tmp_path)
    fit = fit_poses(
        np.array([p.T_map_camera for p in first.poses()]),
        np.array([f.T_room_camera for f in frames]),
    )
    second = Pipeline(config, session)
    second.resume(load_scene(folder))
    results = run(second, again)
    at = found_at(second, results)
    true = {f.stamp_ns: f.T_room_camera for f in again}
    found = [invert_pose(true[r.stamp_ns]) @ fit.pose(r.T_map_camera) for r in results[at:]]
    away = np.linalg.norm([T[:3, 3] for T in found], axis=1)
    assert at < 8
    assert away.max() < 0.0027


def test_a_hint_is_a_place_on_the_ground():
    T = np.eye(4)
    T[:3, :3] = T_ROS_MAP[:3, :3]  # optical axes: y is down
    T[:3, 3] = 1.0, 2.0, 3.0
    hint = PoseHint.on_map(3.0, 2.0, 0.5).moved(T, 2.0)
    assert hint.sigma == 1.0
    at = np.array([0.0, -8.0, 4.0])  # 2 m ahead, 8 units above
    assert hint.allows(at, 0.0)
    assert hint.allows(at + [4.5, 0, 0], 1.0)
    assert not hint.allows(at + [5.5, 0, 0], 1.0)


@pytest.mark.long
@pytest.mark.parametrize("metric", [True, False])
def test_a_looping_bag_joins_its_own_beginning(ring, metric):
    """Its stamps jump back: a new component, which is recognised where the first one was."""
    pipeline = opened(ring[:60], metric=metric)
    push(pipeline, ring[:60])
    again = push(pipeline, ring[5:35])
    assert again[0].covariance_map is None
    assert pipeline.map.pose_known
    assert {s.component for s in pipeline.map.submaps.values()} == {0}
    assert 0 < pipeline.pose_search.seconds < 2.9
    here = {r.stamp_ns: r.T_map_camera for r in again[-8:]}
    there = {p.stamp_ns: p.T_map_camera for p in pipeline.poses()}  # of both laps
    last = ring[34]
    T = invert_pose(there[ring[0].stamp_ns]) @ here[last.stamp_ns]
    true = invert_pose(ring[0].T_room_camera) @ last.T_room_camera
    unit = 1.0 if metric else np.nanmedian(again[-1].depth_m / last.depth)
    assert np.linalg.norm(T[:3, 3] / unit - true[:3, 3]) < 0.5
    assert len(again) == 30


@pytest.mark.long
def test_a_gap_of_an_hour_is_joined_where_the_camera_comes_back(ring):
    """The camera was switched off, and carried back."""
    back = [
        dataclasses.replace(f, stamp_ns=f.stamp_ns - 10**13) for f in ring[10:40]
    ]  # a clock that was set back begins a new component, as a gap does
    pipeline = opened([*ring[:70], *back])
    push(pipeline, ring[:70])
    before = {id: s.T_map_submap.t for id, s in pipeline.map.submaps.items()}
    push(pipeline, back)
    assert pipeline.map.pose_known
    for id, t in before.items():
        assert np.linalg.norm(pipeline.map.submaps[id].T_map_submap.t - t) < 0.5
