"""The map's keyframes, adjusted together: in rendered rooms, and how the map moves by them."""

import dataclasses
import logging
import threading
from collections import Counter
from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from support.cases import long_after
from support.pipelines import to_frame

from da3_ros.config import config_from_parameters
from da3_ros.geometry.similarity import IDENTITY, Similarity
from da3_ros.mapping.frames import PoseInSubmap
from da3_ros.mapping.graph_solution import Correction, Moves, Node
from da3_ros.mapping.loop_closure import LoopClosure
from da3_ros.mapping.map_table import MapListener, MapTable
from da3_ros.mapping.pose_graph import Edge
from da3_ros.mapping.submap_spill import Submap
from da3_ros.pipeline import map_adjustment
from da3_ros.pipeline.map_adjustment import _AdjustmentJob, adjustment_of
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.refinement.bundle import Metre, PosePriors
from da3_ros.refinement.features import Features
from da3_ros.refinement.map_bundle import AdjustedMap, MapMatches, MapView
from da3_ros.refinement.measured_poses import UNKNOWN_METRE
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.evaluation import trajectory_error
from da3_ros.synthetic.truth import Noise, TruthSession

SIZE, FRAMES = (320, 240), 40
SMALL = (240, 180)
NOISE = Noise(smooth=0.1, per_frame=0.02, rotation_deg=0.3, translation=0.01)


@pytest.fixture(scope="module", autouse=True)
def often():
    """So that a short walk shows several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(map_adjustment, "EVERY", 4)
        yield


@pytest.fixture(scope="module")
def walk():
    camera = SyntheticCamera(103, SIZE, walk="strafe", frames=FRAMES, rate_hz=6)
    return camera, [camera[i] for i in range(28)]


@pytest.fixture(scope="module")
def small_walk():
    """The same with smaller images, where it does not matter how much better a map gets; the
    first adjustments are at frames 8 and 12."""
    camera = SyntheticCamera(103, SMALL, walk="strafe", frames=FRAMES, rate_hz=6)
    return camera, list(camera)


class Corrections(MapListener):
    """What a map's listeners are told."""

    def __init__(self, pipeline):
        self.pipeline, self.corrections, self.frames = pipeline, [], []
        pipeline.map.table.listeners.append(self)

    def on_correction(self, correction, before):
        self.corrections.append(correction)

    def on_refinement(self, frames):
        self.frames.append(list(frames))


def opened(walk, **values):
    settings = {
        "process_res": 168, "window.size": 6, "dense.enabled": False, "loop.enabled": False,
        "depth.min_confidence": 0.0, "map.remove_movers": False, **values,
    }  # fmt: skip
    pipeline = Pipeline(config_from_parameters(settings), TruthSession(walk[1], noise=NOISE))
    pipeline.told = Corrections(pipeline)
    return pipeline


def run(walk, pipeline, frames=None):
    results = []
    for f in walk[1] if frames is None else frames:
        results += pipeline.push(to_frame(walk[0], f))
    return results


def map_error(walk, pipeline):
    by = {p.stamp_ns: p.T_map_camera for p in pipeline.poses()}
    seen = [f for f in walk[1] if f.stamp_ns in by]
    return trajectory_error(
        np.array([by[f.stamp_ns] for f in seen]), np.array([f.T_room_camera for f in seen])
    )


@pytest.fixture(scope="module")
def adjusted(walk):
    pipeline = opened(walk)
    results = run(walk, pipeline)
    results += pipeline.flush()
    return pipeline, results


@pytest.fixture(scope="module")
def without(walk):
    pipeline = opened(walk, **{"refinement.map": False})
    results = run(walk, pipeline)
    results += pipeline.flush()
    return pipeline, results


def test_the_map_is_better_than_its_windows(walk, adjusted, without):
    assert adjusted[0].counters["map_adjustments"] >= 2
    assert "map_adjustments" not in without[0].counters
    one, other = (map_error(walk, p) for p in (adjusted[0], without[0]))
    print(one, other)
    assert one < 0.5 * other


def test_odometry_does_not_jump(walk, adjusted):
    """A step of odom is that of the camera, in one unit, also where the map moves."""
    _, results = adjusted
    true = {f.stamp_ns: f.T_room_camera for f in walk[1]}
    odom = np.array([(r.T_odom_map @ r.T_map_camera)[:3, 3] for r in results])
    there = np.array([true[r.stamp_ns][:3, 3] for r in results])
    steps, right = (np.linalg.norm(np.diff(x, axis=0), axis=1) for x in (odom, there))
    scale = np.median(steps[5:] / right[5:])
    assert np.abs(steps - scale * right).max() < 0.25 * scale * right.max()


def test_the_first_frame_stays_the_maps_origin(adjusted):
    first = next(iter(adjusted[0].poses()))
    np.testing.assert_allclose(first.T_map_camera, np.eye(4), atol=1e-9)


def test_everything_in_the_map_has_the_same_poses(adjusted):
    pipeline, _ = adjusted
    table = pipeline.map.table
    known = {(f.stamp_ns, f.camera): f for f in table.path.frames_of(pipeline.map.submaps, 10**6)}
    rows = [*table.shared.values(), *table.keyframes.values()]
    compared = 0
    for row in rows:
        frame = known.get((row.view.stamp_ns, row.view.camera))
        if frame is not None:
            assert frame.submap == row.submap
            np.testing.assert_allclose(row.T_submap_camera, frame.T_submap_camera, atol=1e-9)
            compared += 1
    assert compared > 10
    told = {f.stamp_ns: f for frames in pipeline.told.frames for f in frames}
    for (stamp, _), frame in known.items():
        if stamp in told:
            np.testing.assert_allclose(
                told[stamp].T_submap_camera, frame.T_submap_camera, atol=1e-9
            )
    assert pipeline.loops.closed == 0


@pytest.mark.long
@pytest.mark.usefixtures("solved_each_time")
def test_the_same_frames_give_the_same_map(small_walk):
    one, other = opened(small_walk), opened(small_walk)
    for pipeline in (one, other):
        run(small_walk, pipeline, small_walk[1][:14])
        list(pipeline.flush())
        assert len(pipeline.told.corrections) > 1
    for a, b in zip(one.poses(), other.poses(), strict=True):
        np.testing.assert_array_equal(a.T_map_camera, b.T_map_camera)


def test_live_frames_do_not_wait(small_walk, monkeypatch):
    """An adjustment in a thread is applied when it has ended; one of another map is not."""
    started, go = threading.Event(), threading.Event()
    work = map_adjustment.adjusted_map

    def slow(*args, **options):
        started.set()
        assert go.wait(60.0)
        return work(*args, **options)

    monkeypatch.setattr(map_adjustment, "adjusted_map", slow)
    pipeline = opened(small_walk)
    pipeline.scene_map.adjustment.waits = False
    frames = iter(small_walk[1])
    for f in frames:
        list(pipeline.push(to_frame(small_walk[0], f)))
        if started.is_set():
            break
    list(pipeline.push(to_frame(small_walk[0], next(frames))))  # delivered, while it works
    assert not pipeline.told.corrections
    go.set()
    pipeline.scene_map.adjustment._running[1].result(60.0)
    list(pipeline.push(to_frame(small_walk[0], next(frames))))
    assert [bool(c.adjusted) for c in pipeline.told.corrections] == [True]


@pytest.mark.long
@pytest.mark.parametrize("later", long_after(1, [0, 1]))
def test_the_metre_of_another_chain_is_neither_given_nor_taken(small_walk, monkeypatch, later):
    """Which has a unit of its own, and perhaps no submap yet."""
    given = []

    def with_metre(*args, metre, **options):
        given.append(metre)
        done = work(*args, metre=UNKNOWN_METRE, **options)
        return dataclasses.replace(done, metre=Metre(2.0, 0.01))

    work = map_adjustment.adjusted_map
    pipeline = opened(small_walk)
    for f in small_walk[1][:14]:
        list(pipeline.push(to_frame(small_walk[0], f)))
    monkeypatch.setattr(map_adjustment, "adjusted_map", with_metre)
    adjustment = pipeline.scene_map.adjustment
    adjustment._new, adjustment._fresh = map_adjustment.EVERY, True
    chain, known = pipeline.map.table.chain + later, Metre(1.0, 0.1)
    found = adjustment.end_window((), rigid=False, by_depth=False, metre=known, chain=chain)
    assert given == [UNKNOWN_METRE if later else known]
    assert (found.metre is None) == bool(later)


def test_an_adjustment_of_another_map_is_not_applied(small_walk, monkeypatch):
    go = threading.Event()
    work = map_adjustment.adjusted_map
    monkeypatch.setattr(
        map_adjustment, "adjusted_map",
        lambda *args, **options: go.wait(60.0) and work(*args, **options),
    )  # fmt: skip
    for what in ("reset", "correct"):
        go.clear()
        pipeline = opened(small_walk)
        adjustment = pipeline.scene_map.adjustment
        adjustment.waits = False
        frames = iter(small_walk[1])
        while adjustment._running is None:
            list(pipeline.push(to_frame(small_walk[0], next(frames))))
        running = adjustment._running[1]
        if what == "reset":
            pipeline.reset()
            assert adjustment._running is None
        else:
            T = pipeline.map.table.T_map_local
            pipeline.scene_map.correct(Correction(Moves((), ()), T, T, followed=True))
        pipeline.told.corrections.clear()
        go.set()
        running.result(60.0)
        list(pipeline.push(to_frame(small_walk[0], next(frames))))
        assert not pipeline.told.corrections
        assert what == "reset" or adjustment._running is not None or adjustment._all  # again
        if adjustment._running is not None:
            adjustment._running[1].result(60.0)


def test_a_failure_leaves_the_map_and_is_counted(small_walk, monkeypatch, caplog):
    def fails(*_, **__):
        raise np.linalg.LinAlgError("singular")

    monkeypatch.setattr(map_adjustment, "adjusted_map", fails)
    pipeline = opened(small_walk)
    with caplog.at_level(logging.ERROR):
        run(small_walk, pipeline, small_walk[1][:14])
    assert pipeline.counters["map_adjustments_failed"] > 0
    assert "the map is not adjusted: LinAlgError: singular" in caplog.text
    assert not pipeline.told.corrections
    assert pipeline.counters["processed"] == 14


@pytest.mark.parametrize("values", [
    {"refinement.map": False}, {"refinement.enabled": False},
    {"mode": "localization", "loop.enabled": True},
])  # fmt: skip
def test_off(small_walk, values):
    pipeline = opened(small_walk, **values)
    run(small_walk, pipeline, small_walk[1][:14])
    assert not pipeline.told.corrections
    assert not pipeline.scene_map.adjustment._keyframes


def test_a_followed_slam_owns_the_map(small_walk):
    pipeline = opened(small_walk)
    pipeline.scene_map.following.enabled = True
    run(small_walk, pipeline, small_walk[1][:14])
    assert not [c for c in pipeline.told.corrections if c.adjusted]


@pytest.mark.long
def test_a_saved_map_stays_as_it_is(small_walk):
    """New frames that are joined to it are not adjusted: what it holds has no features."""
    pipeline = opened(small_walk)
    run(small_walk, pipeline, small_walk[1][:14])
    saved = pipeline.snapshot()
    other = opened(small_walk)
    other.resume(saved)
    other.map.components_of_scene.current = 0  # as after a loop to it
    before = {s.id: s.T_map_submap for s in other.map.submaps.values()}
    run(small_walk, other, small_walk[1][14:28])
    assert not [c for c in other.told.corrections if c.adjusted]
    for id, T in before.items():
        assert other.map.submaps[id].T_map_submap.is_same(T)


@pytest.mark.long
def test_features_of_the_newest_keyframes_only(small_walk, monkeypatch):
    monkeypatch.setattr(map_adjustment, "MOST", 10)
    monkeypatch.setattr(map_adjustment, "NEWEST", 8)
    pipeline = opened(small_walk)
    run(small_walk, pipeline, small_walk[1][:26])
    adjustment = pipeline.scene_map.adjustment
    assert len(adjustment._keyframes) == 10
    kept = {k.id for k in adjustment._keyframes} | {k.id for k in adjustment._newest.values()}
    adjustment._job([], 10, [])
    assert {id for pair in adjustment._matches._pairs for id in pair} <= kept
    list(pipeline.flush())
    assert map_error(small_walk, pipeline) < 0.1


# How the map moves by its keyframes, without images


def placed(k):
    T = np.eye(4)
    T[:3, :3] = Rotation.from_euler("y", 3 * k, degrees=True).as_matrix()
    T[:3, 3] = 0.3 * k, 0.02 * k * k, 0.1 * k
    return T


def a_job(submaps, held=(), rigid=False, local=IDENTITY, movable=None):
    """Keyframes 0, 2, 4, ... of a way, in submaps whose frames are their first keyframes."""
    nothing = Features((1, 1), np.zeros((0, 2)), np.zeros((0, 128), np.uint8))
    ids = [2 * k for k in range(len(submaps))]
    views = [MapView(k, "", nothing, np.eye(3), placed(k), np.zeros(1)) for k in ids]
    first = {
        s: Similarity(
            1.0, placed(2 * submaps.index(s))[:3, :3], placed(2 * submaps.index(s))[:3, 3]
        )
        for s in sorted(set(submaps))
    }
    return _AdjustmentJob(
        views, MapMatches(), np.array(ids), np.array(submaps), first,
        sorted(first if movable is None else movable), local, 0, list(held),
        PosePriors.none(), rigid, True,
    )  # fmt: skip


def local_of(job):
    """Poses of submaps in the frame of odometry."""
    return {id: job.T_map_local.inverse() @ S for id, S in job.T_map_submap.items()}


def moved(poses):
    """What was found of keyframes."""
    return AdjustedMap(poses, 9, 0.1, 1.0)


def the_frames(job):
    out = []
    for k in range(2 * len(job.views) - 1):
        submap = int(job.submaps[k // 2])
        T = local_of(job)[submap].inverse().pose(placed(k))
        out.append(PoseInSubmap(k, "", submap, T))
    return out


def in_map(job, found, frame):
    """The pose of a frame in the map after an adjustment."""
    c = found.correction
    S = local_of(job)[frame.submap]
    if frame.submap in c.moves:
        S = c.moves[frame.submap] @ S
    return (c.T_map_local @ S).pose(frame.T_submap_camera)


SUBMAPS = [0] * 8 + [1] * 8 + [2] * 4


@pytest.mark.parametrize("scale", [1.0, 1.2])
def test_a_map_that_moves_as_one_keeps_its_shape(scale):
    job = a_job(SUBMAPS)
    move = Similarity(scale, Rotation.from_euler("xyz", [5, -8, 3], degrees=True).as_matrix(),
                      np.array([0.1, 0.3, -0.2]))  # fmt: skip
    done = moved({v.id: move.pose(v.T_local_camera) for v in job.views})
    found = adjustment_of(job, done, the_frames(job))
    for frame in found.frames:
        T = in_map(job, found, frame)  # the first one stays, and the unit is the new one
        np.testing.assert_allclose(T[:3, :3], placed(frame.stamp_ns)[:3, :3], atol=1e-9)
        np.testing.assert_allclose(T[:3, 3], scale * placed(frame.stamp_ns)[:3, 3], atol=1e-9)
    assert found.correction.adjusted == {0, 1, 2}
    assert 2 not in found.correction.moves  # the newest submap stays in the frame of odometry
    assert found.correction.T_map_local.scale == pytest.approx(scale)


def bent(k):
    """Another way of the same length: the camera turns twice as far, and goes up."""
    T = np.eye(4)
    T[:3, :3] = Rotation.from_euler("y", 6 * k, degrees=True).as_matrix()
    T[:3, 3] = 0.28 * k, 0.03 * k * k, 0.2 * k
    return T


def test_keyframes_are_where_they_were_measured_and_frames_between_them():
    job = a_job(SUBMAPS)
    done = moved({v.id: bent(v.id) for v in job.views})
    found = adjustment_of(job, done, the_frames(job))
    assert [f.stamp_ns for f in found.frames] == list(range(39))
    after = {f.stamp_ns: in_map(job, found, f) for f in found.frames}
    start = np.linalg.inv(bent(0))
    for k, T in after.items():
        there = np.linalg.inv(after[0]) @ T
        wanted = start @ bent(k)
        near = 1e-6 if k % 2 == 0 else 0.08
        np.testing.assert_allclose(there[:3, 3], wanted[:3, 3], atol=near)
        np.testing.assert_allclose(there[:3, :3], wanted[:3, :3], atol=near)


def test_the_newest_keyframe_stays_in_odometry():
    job = a_job(SUBMAPS)
    done = moved({v.id: bent(v.id) for v in job.views})
    later = PoseInSubmap(50, "", 2, local_of(job)[2].inverse().pose(placed(50)))
    frames = [*the_frames(job), later]
    found = adjustment_of(job, done, frames)
    for frame, before in zip(found.frames[-2:], (placed(38), placed(50)), strict=True):
        T = local_of(job)[2].pose(frame.T_submap_camera)
        np.testing.assert_allclose(T, before, atol=1e-9)


def test_what_is_not_measured_to_be_connected_stays_in_the_map():
    local = Similarity(1.3, Rotation.from_euler("z", 20, degrees=True).as_matrix(), np.ones(3))
    whole = a_job([0] * 4 + [1] * 4 + [2] * 4, local=local, movable={1, 2})
    job = dataclasses.replace(
        whole, views=whole.views[4:], stamps_ns=whole.stamps_ns[4:], submaps=whole.submaps[4:]
    )
    done = moved({v.id: bent(v.id) for v in job.views})
    found = adjustment_of(job, done, the_frames(whole)[8:])
    c = found.correction
    there = c.T_map_local @ c.moves[0] @ local_of(job)[0]
    stays = local @ local_of(job)[0]
    assert there.scale == pytest.approx(stays.scale)
    np.testing.assert_allclose(there.R, stays.R, atol=1e-9)
    np.testing.assert_allclose(there.t, stays.t, atol=1e-9)
    first = in_map(job, found, found.frames[0])  # as the first of those that have moved
    np.testing.assert_allclose(first, local.pose(placed(8)), atol=1e-9)
    assert all(f.submap in (1, 2) for f in found.frames)


@pytest.mark.parametrize("scale", [1.0, 1.2])
def test_a_metre_is_in_the_unit_of_the_newest_submap(scale):
    """Which stays in odometry, while the map takes the new unit."""
    job = a_job(SUBMAPS)
    poses = {v.id: Similarity(scale, np.eye(3), np.zeros(3)).pose(v.T_local_camera)
             for v in job.views}  # fmt: skip
    done = dataclasses.replace(moved(poses), metre=Metre(np.log(2.0 * scale), 0.01))
    found = adjustment_of(job, done, the_frames(job))
    assert found.metre.log == pytest.approx(np.log(2.0))
    assert found.metre.sigma == 0.01
    assert adjustment_of(job, moved(poses), the_frames(job)).metre is None


def test_submaps_of_a_map_in_metres_keep_their_size():
    job = a_job(SUBMAPS, rigid=True)
    grown = {v.id: placed(v.id) for v in job.views}
    for k, T in grown.items():
        T[:3, 3] *= 1 + 0.01 * k
    found = adjustment_of(job, moved(grown), the_frames(job))
    assert all(m.scale == pytest.approx(1.0) for m in found.correction.moves.values())
    assert found.correction.T_map_local.scale == pytest.approx(1.0)


def test_an_incredible_size_is_refused():
    job = a_job(SUBMAPS)
    shrunk = {v.id: placed(v.id) for v in job.views}
    for T in shrunk.values():
        T[:3, 3] *= 0.1
    assert adjustment_of(job, moved(shrunk), the_frames(job)) is None


@pytest.mark.long
def test_metres_do_not_grow_with_a_wrong_motion(small_walk):
    """The first motions may be far too long by the network; its depth gives the metres."""

    class TooFar(TruthSession):
        def infer(self, window):
            found = super().infer(window)
            found.T_window_camera[:, :3, 3] *= 1.3
            return found

    sizes = []
    for on in (False, True):
        pipeline = opened(small_walk, **{"refinement.map": on, "scale.source": "fixed"})
        pipeline = Pipeline(pipeline.config, TooFar(small_walk[1], noise=Noise(smooth=0.02)))
        results = run(small_walk, pipeline, small_walk[1][:16])
        true = {f.stamp_ns: f.depth for f in small_walk[1]}
        sizes.append([float(np.nanmedian(r.depth_m / resized(true[r.stamp_ns], r.depth_m)))
                      for r in results])  # fmt: skip
        assert bool(pipeline.counters["map_adjustments"]) == on
    without, adjusted = np.array(sizes)
    assert np.abs(np.diff(adjusted)).max() < 0.05
    assert abs(adjusted[-1] / without[0] - 1) < 0.05


def resized(depth, like):
    """The true depth at the pixels of a smaller image."""
    rows, columns = (
        (np.arange(n) * m / n + m / n / 2).astype(int)
        for n, m in zip(like.shape, depth.shape, strict=True)
    )
    return depth[np.ix_(rows, columns)]


@pytest.mark.long
def test_older_keyframes_stay_in_the_map(small_walk, monkeypatch):
    """Also those of a submap that has newer ones."""
    monkeypatch.setattr(map_adjustment, "NEWEST", 8)
    pipeline = opened(small_walk)
    before, checked = {}, 0
    for f in small_walk[1][:34]:
        count = len(pipeline.told.corrections)
        list(pipeline.push(to_frame(small_walk[0], f)))
        now = {p.stamp_ns: p.T_map_camera for p in pipeline.poses() if p.keyframe}
        if len(pipeline.told.corrections) > count and len(before) > 12:
            for stamp in sorted(before)[:-8]:
                np.testing.assert_allclose(now[stamp], before[stamp], atol=1e-9)
                checked += 1
        before = now
    assert checked > 4


@pytest.mark.long
def test_time_does_not_grow_with_frames_between_keyframes(small_walk, monkeypatch):
    """Of more than these, only keyframes are put where they were measured."""
    monkeypatch.setattr(map_adjustment, "MOST_FRAMES", 5)
    pipeline = opened(small_walk)
    run(small_walk, pipeline, small_walk[1][:34])
    keyframes = sum(p.keyframe for p in pipeline.poses())
    assert pipeline.told.frames
    moved = [frames for frames in pipeline.told.frames if len(frames) > 12]
    assert moved
    assert all(len(frames) <= keyframes + 5 for frames in moved)
    assert map_error(small_walk, pipeline) < 0.02


def test_what_loops_have_measured_stays():
    """Edges of odometry between submaps that have moved are measured anew; nothing else is."""
    table = MapTable()
    loops = LoopClosure(table)
    for id in range(4):
        table.add_submap(Submap(id, 0, Similarity(1.0, np.eye(3), np.array([float(id), 0, 0]))))
        loops._graph.add(id, np.full(3, 1e-4) if id else None, guessed=False)
    off = Similarity(1.0, np.eye(3), np.array([0.0, 0.3, 0.0]))
    loops._graph.add_loop(0, 3, off, np.full(3, 1e-4))
    before = {(e.first, e.second): e.measured for e in table.edges}
    up = Similarity(1.1, np.eye(3), np.array([0.0, 0.1, 0.0]))
    moves = Moves((Node(1, 1), Node(2, 2)), (up, up))
    table.correct(Correction(moves, IDENTITY, IDENTITY, adjusted=frozenset((1, 2, 3))))
    after = {(e.first, e.second): e.measured for e in table.edges}
    assert after[0, 3].is_same(before[0, 3])
    assert after[0, 1].is_same(before[0, 1])
    np.testing.assert_allclose(after[2, 3].t, [(3 - 2.2) / 1.1, -0.1 / 1.1, 0], atol=1e-9)
    np.testing.assert_allclose(after[1, 2].t, [1, 0, 0], atol=1e-9)
    assert loops.closed == 0


def test_a_loop_has_a_say_between_its_ends():
    """Also if the submaps have drifted since it was measured."""
    job = a_job(SUBMAPS)
    poses = local_of(job)
    drift = Similarity(1.0, np.eye(3), np.array([0.0, 0.2, 0.0]))
    measured = poses[0].inverse() @ drift @ poses[2]
    edge = Edge(0, 2, measured, np.array([0.01, 0.02, 0.03]), loop=True)
    others = [
        dataclasses.replace(edge, loop=False),
        dataclasses.replace(edge, second=7),  # no submap of the job
    ]
    priors = map_adjustment._loop_priors(job.views, job.submaps.tolist(), [*others, edge], poses)
    first, second = job.views[0], job.views[16]
    assert (priors.first.tolist(), priors.second.tolist()) == ([first.id], [second.id])
    there = drift.pose(second.T_local_camera)
    wanted = np.linalg.inv(first.T_local_camera) @ there
    np.testing.assert_allclose(priors.T_first_second[0], wanted, atol=1e-9)
    np.testing.assert_allclose(np.diag(priors.root[0])[:3], 1 / 0.02)
    np.testing.assert_allclose(np.diag(priors.root[0])[3:], 1 / 0.03)


@pytest.mark.long
def test_all_keyframes_count_after_a_loop(small_walk, monkeypatch):
    monkeypatch.setattr(map_adjustment, "NEWEST", 4)
    counts = []
    work = map_adjustment.adjusted_map

    def counted(views, *args, **options):
        counts.append(len(views))
        return work(views, *args, **options)

    monkeypatch.setattr(map_adjustment, "adjusted_map", counted)
    pipeline = opened(small_walk)
    run(small_walk, pipeline, small_walk[1][:20])
    assert counts
    assert max(counts) == 4
    T = pipeline.map.table.T_map_local
    pipeline.scene_map.correct(Correction(Moves((), ()), T, T, loops=((0, 1),)))
    run(small_walk, pipeline, small_walk[1][20:21])
    assert counts[-1] > 6


def test_keyframes_of_another_lens_are_not_settled(small_walk, monkeypatch):
    """Their distances have its error, where depth gives metres: also those that were being
    adjusted when it was corrected."""
    settled = []
    work = map_adjustment.adjusted_map

    def noted(*args, **options):
        settled.append(options["settled"])
        return work(*args, **options)

    monkeypatch.setattr(map_adjustment, "adjusted_map", noted)
    pipeline = opened(small_walk)
    run(small_walk, pipeline, small_walk[1][:14])
    assert settled[-1]
    adjustment = pipeline.scene_map.adjustment
    lens = SimpleNamespace(undistorted=lambda K, pixel: pixel, K=lambda K: K)
    job = adjustment._job((), map_adjustment.NEWEST, ())
    assert job.settled
    running = Future()
    running.set_result(adjustment._run(job))
    adjustment._running = job, running
    adjustment.correct(next(iter(adjustment._newest)), lens)
    assert adjustment._collect(0, wait=True) is not None
    count = len(settled)
    run(small_walk, pipeline, small_walk[1][14:15])
    assert settled[count] == frozenset()


def test_a_time_jump_begins_with_new_features(small_walk):
    """Frames of a recording that starts again have the stamps of earlier ones."""
    pipeline = opened(small_walk)
    run(small_walk, pipeline, small_walk[1][:20])
    adjustment = pipeline.scene_map.adjustment
    before = {k.id for k in adjustment._keyframes}
    assert len(before) > 6
    run(small_walk, pipeline, small_walk[1][:3])
    assert not before & {k.id for k in adjustment._keyframes}
    assert not before & {k.id for k in adjustment._newest.values()}


def test_a_loop_in_a_map_that_is_not_adjusted_is_forgotten():
    """Else the first window of a map that grows again would adjust all keyframes for it."""
    adjustment = map_adjustment.MapAdjustment(MapTable(), Counter())
    assert adjustment.is_empty
    adjustment.on_correction(SimpleNamespace(loops=[object()]), {})
    assert not adjustment.is_empty
    adjustment.forget_features()
    assert adjustment.is_empty
