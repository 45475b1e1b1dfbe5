"""Localization in a read-only map: it stays as it is, memory is constant, drift is corrected."""

import dataclasses
import itertools
import threading

import numpy as np
import pytest
from support import floors
from support.cases import long_after
from support.ring import SIZE, STEP_NS, descriptor_at, walked
from support.sessions import LATER, errors, opened, push, resumed, saved

from da3_ros.config import config_from_parameters
from da3_ros.export.scene_file import load_scene, save_scene
from da3_ros.geometry.poses import invert_pose
from da3_ros.live.map_fault import map_fault
from da3_ros.mapping import loop_closure, submap_graph
from da3_ros.mapping import submaps as submap_store
from da3_ros.mapping.loop_closure import LoopClosure
from da3_ros.mapping.pose_hint import PoseHint
from da3_ros.parameter_schema import ConfigError
from da3_ros.synthetic.truth import Noise

FRAMES = 110
SHAKY = Noise(0.01, 0.01, 0.01, 1.0, 0.03)
LOCALIZE = {"mode": "localization"}


@pytest.fixture(scope="module")
def ring():
    """One round; the last frame is beside the first one."""
    return walked(FRAMES, 1.0)


@pytest.fixture(scope="module")
def known(ring):
    """The frames of the map: one round and a little more."""
    return [*ring, *rounds(ring, 1, first_ns=ring[-1].stamp_ns + STEP_NS)[:25]]


@pytest.fixture(scope="module")
def mapped(known):
    pipeline = opened(known, metric=True)
    push(pipeline, known)
    assert pipeline.loops.closed
    return pipeline


@pytest.fixture(scope="module")
def folder(mapped, tmp_path_factory):
    return saved(mapped, tmp_path_factory.mktemp("map"))


def rounds(ring, count, first_ns=LATER):
    """The frames of further rounds."""
    return [
        dataclasses.replace(f, stamp_ns=first_ns + (n * len(ring) + i) * STEP_NS)
        for n in range(count)
        for i, f in enumerate(ring)
    ]


@pytest.mark.parametrize("count", long_after(1, [1, 2, 3]))
def test_the_camera_is_followed_for_rounds_and_the_map_stays(folder, known, ring, tmp_path, count):
    walk = rounds(ring, count)[20:-20]
    values = {**LOCALIZE, "map.remove_movers": True}
    pipeline = resumed(folder, known, walk, metric=True, **values)
    before = pipeline.snapshot()
    results = push(pipeline, walk[:30])
    assert pipeline.map.pose_known
    revision = pipeline.map.revision
    results += push(pipeline, walk[30:])
    assert pipeline.loops.closed > 5
    found = errors(results, walk, ring[0].T_room_camera)
    known = np.array([r.covariance_map is not None for r in results])
    assert known.sum() > 0.9 * len(walk)
    assert np.median(found[known, 0]) < 0.15
    assert np.percentile(found[known, 0], 95) < 0.4
    assert np.median(found[known, 1]) < 1.0
    after = pipeline.snapshot()
    assert pipeline.map.revision == revision  # nothing to show anew
    for old, new in zip(before.submaps, after.submaps, strict=True):
        np.testing.assert_array_equal(old.cloud.xyz, new.cloud.xyz)
        assert old.T_map_submap.t.tolist() == new.T_map_submap.t.tolist()
        assert old.T_map_submap.R.tolist() == new.T_map_submap.R.tolist()
    np.testing.assert_array_equal(before.poses.rows, after.poses.rows)
    save_scene(after, tmp_path / "again")
    assert len(after.recognition.keyframes) == len(before.recognition.keyframes)
    assert len(after.recognition.nodes) == len(before.recognition.nodes)
    assert load_scene(tmp_path / "again").recognition.keyframes


@pytest.mark.long
@pytest.mark.slow
def test_the_grid_of_a_read_only_map_is_that_of_the_cameras_storey(known, ring, tmp_path):
    mapped = opened(known, metric=True)
    floors.push(mapped, known, size=SIZE)
    before = mapped.scene_map.occupancy(finished=True)
    folder, walk = saved(mapped, tmp_path / "map"), rounds(ring, 1)[20:60]

    def grid(height):
        def level(T_room_camera):
            T = floors.level_of(T_room_camera)
            T[2, 3] += height
            return T

        pipeline = resumed(folder, known, walk, metric=True, **LOCALIZE)
        floors.push(pipeline, walk, level=level, size=SIZE)
        assert pipeline.map.pose_known
        assert len(pipeline.snapshot().floor.views) == len(mapped.snapshot().floor.views)
        return pipeline.scene_map.occupancy()

    assert (grid(0.0).cells >= 0).sum() == pytest.approx((before.cells >= 0).sum(), rel=0.02)
    assert grid(3.0) is None  # of a storey in which nobody was


@pytest.mark.long
def test_drift_is_corrected_which_odometry_alone_would_keep(folder, known, ring, monkeypatch):
    walk = rounds(ring, 3)[20:]

    def typical():
        pipeline = resumed(folder, known, walk, metric=True, noise=SHAKY, **LOCALIZE)
        results = push(pipeline, walk)
        return np.median(errors(results, walk, ring[0].T_room_camera)[-60:, 0]), pipeline

    corrected, pipeline = typical()
    looks = pipeline.loops.closed
    tried = LoopClosure.try_close_loop

    def until_found(self, *args):
        if self.closed == 0:
            tried(self, *args)

    monkeypatch.setattr(LoopClosure, "try_close_loop", until_found)
    drifted, _ = typical()
    assert looks > 5
    assert corrected < drifted / 2


@pytest.mark.long
def test_memory_and_tables_do_not_grow(folder, known, ring, monkeypatch):
    """After the camera was found: submaps, nodes, edges, keyframes, descriptors."""
    monkeypatch.setattr(submap_store, "MAX_SUBMAPS", 4)
    monkeypatch.setattr(submap_graph, "MAX_LIVE", 6)
    monkeypatch.setattr(submap_graph, "YOUNG", 2)
    monkeypatch.setattr(submap_graph, "MAX_LIVE_LOOPS", 8)
    walk = rounds(ring, 3)
    pipeline = resumed(folder, known, walk, metric=True, **LOCALIZE)
    own = len(pipeline.loops.recognition(1.0).nodes)
    keyframes = len(pipeline.loops.recognition(1.0).keyframes)
    closure, sizes = pipeline.loops, set()
    for start in range(0, len(walk), 10):
        push(pipeline, walk[start : start + 10])
        graph = closure._graph
        assert len(graph.nodes) - own <= 6
        assert len(graph._live_loops()) <= 8
        live = len(closure.keyframes) - keyframes
        assert live <= 16 * loop_closure.LIVE_SUBMAPS
        assert len(closure.keyframes.similarity(closure.keyframes.ids[-1])) == len(
            closure.keyframes
        )
        assert len(pipeline.map.live.submaps) <= 4
        assert len(pipeline.map.table.submaps) <= 2 * (own + 64)
        assert len(pipeline.map.components_of_scene._begins) <= 3
        sizes.add(pipeline.map.nbytes - pipeline.map.table.live_path.nbytes)
    assert pipeline.map.pose_known
    assert len(sizes) == 1
    # The path: all poses, those of submaps that left too.
    poses = pipeline.poses()
    assert [p.stamp_ns for p in poses] == [f.stamp_ns for f in walk[2:]]  # without a scale yet
    true = {f.stamp_ns: invert_pose(ring[0].T_room_camera) @ f.T_room_camera for f in walk}
    away = [np.linalg.norm(p.T_map_camera[:3, 3] - true[p.stamp_ns][:3, 3]) for p in poses]
    assert np.median(away[30:]) < 0.2


def test_the_path_shows_no_unconnected_component(folder, known, ring):
    other = [dataclasses.replace(f, stamp_ns=f.stamp_ns + 5 * LATER) for f in ring[:12]]
    pipeline = resumed(folder, known, other, metric=True, **LOCALIZE)
    for f in other:  # looks like nothing that was seen
        pipeline.session.descriptors[f.stamp_ns] = -descriptor_at(f.T_room_camera + 50)
    results = push(pipeline, other)
    assert not pipeline.map.pose_known
    assert len(pipeline.path()) == 0
    assert len(pipeline.poses()) == len(results) - sum(not r.scale.metric for r in results)
    assert pipeline.map.view.path_scene(np.eye(4)).components == (1,)
    assert len(pipeline.map.view.thinned(10**6, np.eye(4)).cloud()) > 1000  # the map is shown


@pytest.mark.long
def test_the_mode_changes_while_frames_arrive(ring, tmp_path):
    """Mapping, then localization in what was mapped, then mapping again."""
    walk = rounds(ring, 2, first_ns=ring[-1].stamp_ns + 10**8)
    pipeline = opened([*ring, *walk], metric=True)
    results = push(pipeline, ring)
    submaps = dict(pipeline.map.submaps)
    points = len(pipeline.map)
    mapping = pipeline.config
    pipeline.reconfigure(dataclasses.replace(mapping, mode="localization"))
    results += push(pipeline, walk[:FRAMES])
    assert len(pipeline.map) == points
    assert dict(pipeline.map.submaps) == submaps
    assert pipeline.map.pose_known
    assert pipeline.loops.closed > 2
    pipeline.reconfigure(mapping)
    results += push(pipeline, walk[FRAMES:])
    assert len(pipeline.map) > points
    assert {s.component for s in pipeline.map.submaps.values()} == {0}
    assert len(results) == 3 * FRAMES
    steps = [
        np.linalg.norm((invert_pose(a.T_odom_map @ a.T_map_camera) @ b.T_odom_map
                        @ b.T_map_camera)[:3, 3])
        for a, b in itertools.pairwise(results)
    ]  # fmt: skip
    assert max(steps[5:]) < 4 * np.median(steps)
    found = errors(results[-60:], walk, ring[0].T_room_camera)
    assert np.median(found[:, 0]) < 0.4
    # What was saved can be continued: ids of submaps that had no points are not used again.
    again = load_scene(saved(pipeline, tmp_path))
    later = opened([*ring, *walk], metric=True)
    later.resume(again)
    last = [dataclasses.replace(f, stamp_ns=f.stamp_ns + 9 * LATER) for f in ring[:30]]
    later.session._frames |= {("", f.stamp_ns): f for f in last}
    later.session.descriptors |= {f.stamp_ns: descriptor_at(f.T_room_camera) for f in last}
    push(later, last)
    assert later.map.pose_known


@pytest.mark.long
def test_a_loop_that_is_being_solved_corrects_the_map_before_it_is_read_only(known, monkeypatch):
    """Live, the solver is another thread's."""
    solve, begun, go = loop_closure.solve, threading.Event(), threading.Event()

    def slow(problem):
        begun.set()
        assert go.wait(60)
        return solve(problem)

    monkeypatch.setattr(loop_closure, "solve", slow)
    pipeline = opened(known, metric=True)
    pipeline.loops.wait_for_solver = False
    for f in known:
        push(pipeline, [f])
        if begun.is_set():
            break
    assert pipeline.loops.closed == 0
    graph, submaps = pipeline.loops._graph, pipeline.map.table

    def off():
        """How far the loops are from the map."""
        loops = [e for e in graph.edges if e.loop]
        assert loops
        poses = [[submaps.T_local_submap(id) for id in (e.first, e.second)] for e in loops]
        pairs = zip(loops, poses, strict=True)
        return max(np.linalg.norm((a @ e.measured).t - b.t) for e, (a, b) in pairs)

    before = off()
    threading.Timer(0.3, go.set).start()
    pipeline.reconfigure(dataclasses.replace(pipeline.config, mode="localization"))
    assert pipeline.loops.closed == 1
    assert off() < 0.6 * before


def test_a_camera_that_was_carried_is_found_anew(folder, known, ring):
    """After a time jump: half a round away, and turned by half a turn."""
    first, second = rounds(ring, 1)[20:50], rounds(ring, 1, first_ns=LATER // 2)[70:100]
    pipeline = resumed(folder, known, [*first, *second], metric=True, **LOCALIZE)
    push(pipeline, first)
    assert pipeline.map.pose_known
    results = push(pipeline, second)  # the stamps jump back
    assert results[0].covariance_map is None
    assert pipeline.map.pose_known
    found = errors(results[-8:], second, ring[0].T_room_camera)
    assert np.median(found[:, 0]) < 0.3


@pytest.mark.long
def test_a_hint_makes_a_localized_camera_look_anew(folder, known, ring):
    walk = rounds(ring, 1)[20:80]
    pipeline = resumed(folder, known, walk, metric=True, **LOCALIZE)
    push(pipeline, walk[:30])
    assert pipeline.map.pose_known
    T = pipeline.scene_map.T_ros_map @ invert_pose(ring[0].T_room_camera)
    x, y = (T @ walk[30].T_room_camera)[:2, 3]
    assert pipeline.look_near(PoseHint.on_map(x, y, 1.0))
    assert not pipeline.map.pose_known
    results = push(pipeline, walk[30:])
    assert results[0].covariance_map is None
    assert pipeline.map.pose_known
    odom = [r.T_odom_map @ r.T_map_camera for r in results]
    steps = [np.linalg.norm((invert_pose(a) @ b)[:3, 3]) for a, b in itertools.pairwise(odom)]
    assert max(steps) < 4 * np.median(steps)
    found = errors(results[-8:], walk, ring[0].T_room_camera)
    assert np.median(found[:, 0]) < 0.5


def test_a_hint_does_not_split_a_growing_map(mapped):
    assert not mapped.look_near(PoseHint.on_map(0, 0, 1.0))
    assert mapped.map.pose_known
    assert mapped.pose_search.hint is not None  # its keyframes are compared there
    mapped.pose_search.note_found(1)
    assert mapped.pose_search.hint is not None
    mapped.pose_search.note_found(1)
    assert mapped.pose_search.hint is None


def test_localization_without_a_map_is_told_once(ring, caplog):
    pipeline = opened(ring[:20], **LOCALIZE)
    results = push(pipeline, ring[:20])
    assert len(results) == 20
    assert caplog.text.count("there is no map") == 1
    assert len(pipeline.map) == 0
    assert all(r.covariance_map is None for r in results)


def test_a_map_in_which_no_place_can_be_found_is_a_fault(folder, known, ring):
    pipeline = opened(ring[:20], **LOCALIZE)
    assert "there is no map: load one (map.load" in map_fault(pipeline)
    push(pipeline, ring[:20])
    assert "there is no map" in map_fault(pipeline)
    mapping = dataclasses.replace(pipeline.config, mode="mapping")
    pipeline.reconfigure(mapping)
    assert map_fault(pipeline) == ""

    walk = rounds(ring, 1)[20:26]
    pipeline = resumed(folder, known, walk, metric=True, **LOCALIZE)
    assert map_fault(pipeline) == ""
    push(pipeline, walk)
    assert map_fault(pipeline) == ""
    unrecognised = dataclasses.replace(pipeline.snapshot(), recognition=None)
    pipeline.resume(unrecognised)
    assert "no keyframes that recognise its locations" in map_fault(pipeline)


def test_localization_needs_loops():
    with pytest.raises(ConfigError, match=r"loop\.enabled is false"):
        config_from_parameters({"mode": "localization", "loop.enabled": False})


@pytest.mark.long
def test_scale_of_a_map_without_own_source_is_corrected_by_each_loop(folder, known, ring):
    """Without a source metres come from the map alone, and drift of scale is measured by loops."""
    walk = rounds(ring, 2)[20:]
    pipeline = resumed(folder, known, walk, **LOCALIZE)
    results = push(pipeline, walk)
    true = {f.stamp_ns: f.depth for f in walk}
    metric = [r for r in results if r.scale.metric]
    assert len(metric) > 0.8 * len(walk)
    ratios = np.array([np.nanmedian(r.depth_m / true[r.stamp_ns]) for r in metric])
    assert np.abs(ratios[-100:] - 1).max() < 0.1
    first = load_scene(folder).submaps[0].T_map_submap
    assert pipeline.map.submaps[0].T_map_submap.scale == first.scale


def unlike(pipeline, frames):
    """Makes frames look like nothing that the map has, but like each other."""
    for f in frames:
        pipeline.session.descriptors[f.stamp_ns] = -descriptor_at(f.T_room_camera + 50)


@pytest.mark.long
def test_a_place_that_was_never_found_is_not_known_when_the_map_grows_again(ring, tmp_path):
    """What was localized only is no part of the scene that is saved."""
    first = opened(ring[:40], metric=True)
    push(first, ring[:40])
    folder = saved(first, tmp_path)
    other = rounds(ring, 1, first_ns=5 * LATER)[50:90]
    pipeline = resumed(folder, ring, other, metric=True, **LOCALIZE)
    unlike(pipeline, other)
    push(pipeline, other[:30])
    pipeline.reconfigure(dataclasses.replace(pipeline.config, mode="mapping"))
    push(pipeline, other[30:])
    assert not pipeline.map.pose_known
    (tmp_path / "again").mkdir()
    again = load_scene(saved(pipeline, tmp_path / "again"))
    ids = {s.id for s in again.submaps}
    assert {n.first for n in again.recognition.nodes} <= ids
    assert {k.submap for k in again.recognition.keyframes} <= ids
    third = rounds(ring, 1, first_ns=9 * LATER)[50:90]
    last = opened([*ring, *other, *third], 5, metric=True)
    last.resume(again)
    unlike(last, [*other, *third])
    results = push(last, third)
    assert last.loops.closed > 0  # it is where the second session was
    assert not last.map.pose_known
    assert all(r.covariance_map is None for r in results)


def test_a_map_that_begins_after_localization_has_a_known_pose(ring):
    pipeline = opened(ring[:40], metric=True, **LOCALIZE)
    push(pipeline, ring[:10])
    assert pipeline.look_near(PoseHint.on_map(0, 0, 1.0))
    push(pipeline, ring[10:15])
    pipeline.reconfigure(dataclasses.replace(pipeline.config, mode="mapping"))
    results = push(pipeline, ring[15:40])
    assert {s.component for s in pipeline.map.submaps.values()} == {0}
    assert results[-1].covariance_map is not None


def test_limits_do_not_cut_a_read_only_map(folder, known):
    limits = {"map.max_points": 1000, "map.radius_m": 0.5}
    pipeline = resumed(folder, known, known, metric=True, **LOCALIZE, **limits)
    assert len(pipeline.map) == sum(len(s.cloud) for s in load_scene(folder).submaps) > 1000


@pytest.mark.long
def test_components_that_were_never_found_leave_no_trace(folder, known, ring):
    """Each jump of the clock begins one."""
    walks = [rounds(ring, 1, first_ns=(90 - n) * LATER)[:34] for n in range(8)]
    pipeline = resumed(folder, known, [f for walk in walks for f in walk], metric=True, **LOCALIZE)
    sizes = []
    for walk in walks:
        unlike(pipeline, walk)
        push(pipeline, walk)
        sizes.append(len(pipeline.map.components_of_scene._begins))
    assert not pipeline.map.pose_known
    assert max(sizes) <= submap_store.MAX_SUBMAPS + 2


def test_a_map_that_recognises_nothing_is_named(ring, caplog):
    pipeline = opened(ring[:30], metric=True, **{"loop.enabled": False})
    push(pipeline, ring[:20])
    values = dataclasses.replace(pipeline.config.loop, enabled=True)
    pipeline.reconfigure(dataclasses.replace(pipeline.config, mode="localization", loop=values))
    push(pipeline, ring[20:30])
    assert caplog.text.count("no keyframes that recognise its locations") == 1
