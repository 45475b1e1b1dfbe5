"""Loops round a rendered corridor, on exact windows with noise."""

import dataclasses
import itertools
import logging
import types

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from scipy.stats import chi2
from support.ring import NOISE, SIZE, STEP_NS, DescribedTruth, descriptor_at, shifted, walked

from da3_ros.config import config_from_parameters
from da3_ros.geometry.poses import invert_pose
from da3_ros.geometry.similarity import IDENTITY, Similarity
from da3_ros.inference import WindowTooLargeError
from da3_ros.inference.interfaces import Memory
from da3_ros.mapping import loop_closure as loop_stage
from da3_ros.mapping import submap_graph
from da3_ros.mapping.graph_solution import Correction, Moves, Node, solve
from da3_ros.mapping.loop_candidates import LoopCandidates
from da3_ros.mapping.map_table import MapTable
from da3_ros.mapping.submap_spill import Submap
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic.evaluation import trajectory_error
from da3_ros.synthetic.truth import Noise, TruthSession
from da3_ros.types import Calibration, Frame, ResizeRule, ScaleMeasurement

pytest.importorskip("evo")
APART = np.array([40.0, 0.0, 0.0])


class ConfusedTruth(DescribedTruth):
    """Takes two similar places ``APART`` for one when both are in one window."""

    def infer(self, window):
        known = self._frames
        if window.new == 0:
            self._frames = {
                k: dataclasses.replace(f, T_room_camera=shifted(f, -APART))
                if f.T_room_camera[0, 3] > 20
                else f
                for k, f in known.items()
            }
        found = super().infer(window)
        self._frames = known
        return found


@pytest.fixture(scope="module")
def ring():
    return walked()


@pytest.fixture(scope="module")
def wide_ring():
    """The same way in larger steps."""
    return walked(140)


@pytest.fixture(scope="module")
def short_ring():
    """In still larger ones, where the amount of drift does not matter."""
    return walked(110)


@pytest.fixture(scope="module")
def closed(ring):
    """With points that later keyframes look through: loops move what they are seen from."""
    return run(ring, DescribedTruth(ring), **{"map.remove_movers": True})


@pytest.fixture(scope="module")
def unclosed(ring):
    """The same without loops."""
    return run(ring, DescribedTruth(ring), **{"loop.enabled": False})


def run(truth, session, metric_model=None, patient=True, **values):
    settings = {
        "process_res": 84, "window.size": 6, "map.voxel_m": 0.1, "loop.every": 2,
        "refinement.enabled": False, "hold_when_blind": False,  # images are black
        "map.remove_movers": False,
    }  # fmt: skip
    pipeline = Pipeline(config_from_parameters({**settings, **values}), session, metric_model)
    pipeline.loops.wait_for_solver = patient
    K = truth[0].K.copy()
    K[:2, 2] -= 0.5
    black, lens = np.zeros((*SIZE[::-1], 3), np.uint8), Calibration(*SIZE, K)
    results = []
    for f in truth:
        results += pipeline.push(Frame(f.stamp_ns, black, calibration=lens))
    return pipeline, results


def error(pipeline, truth):
    """ATE of the path as the map has it now."""
    ours = np.array([p.T_map_camera for p in pipeline.poses()])
    return trajectory_error(ours, np.array([f.T_room_camera for f in truth]))


@pytest.mark.long
@pytest.mark.slow
def test_a_condensed_ring_still_closes(ring, unclosed, monkeypatch):
    """Its first submaps are one node long before the camera is back."""
    monkeypatch.setattr(submap_graph, "MAX_NODES", 10)
    pipeline, _ = run(ring, DescribedTruth(ring))
    nodes = pipeline.loops._graph.nodes
    assert len(nodes) == 10 < nodes[-1].last + 1
    assert pipeline.loops.closed >= 1
    assert error(pipeline, ring) < 0.5 * error(unclosed[0], ring)


@pytest.mark.long
@pytest.mark.slow
def test_without_loops_the_drift_stays(ring, closed, unclosed):
    plain, _ = unclosed
    assert plain.session.verified == plain.loops.closed == 0
    assert error(closed[0], ring) < 0.5 * error(plain, ring)


@pytest.mark.slow
def test_coming_back_takes_the_drift_out_of_path_and_points(ring, closed):
    pipeline, results = closed
    assert pipeline.loops.closed >= 1
    true = np.array([f.T_room_camera for f in ring])
    odometry = np.array([r.T_odom_map @ r.T_map_camera for r in results])  # where drift stays
    assert error(pipeline, ring) < 0.5 * trajectory_error(odometry, true)
    moved = [p.T_map_submap for p in pipeline.map.submaps.values()]
    assert max(abs(np.log(m.scale)) for m in moved) > 1e-3  # points went along, in a new unit
    assert any(r.window.loop_closed for r in results)


@pytest.mark.slow
def test_odometry_never_jumps_and_the_map_does(closed):
    _, results = closed
    jump = next(i for i, r in enumerate(results) if r.window.loop_closed)
    in_odom = [r.T_odom_map @ r.T_map_camera for r in results]
    steps = [
        [np.linalg.norm(b[:3, 3] - a[:3, 3]) for a, b in itertools.pairwise(T)]
        for T in (in_odom, [r.T_map_camera for r in results])
    ]
    usual = max(np.delete(steps[0], jump - 1))
    assert steps[0][jump - 1] <= usual
    assert steps[1][jump - 1] > 2 * steps[0][jump - 1]
    turn = results[jump].T_odom_map
    np.testing.assert_allclose(turn[:3, :3] @ turn[:3, :3].T, np.eye(3), atol=1e-9)  # rigid


@pytest.mark.long
@pytest.mark.slow
def test_the_same_recording_gives_the_same_scene(ring, closed):
    again, _ = run(ring, DescribedTruth(ring), **{"map.remove_movers": True})
    first, second = closed[0], again
    assert first.loops.closed == second.loops.closed > 0
    np.testing.assert_array_equal(first.poses().rows, second.poses().rows)


@pytest.mark.long
@pytest.mark.slow
def test_a_live_stream_does_not_wait_for_the_graph(short_ring):
    pipeline, _ = run(short_ring, DescribedTruth(short_ring), patient=False)
    assert pipeline.loops.closed >= 1
    assert error(pipeline, short_ring) < 0.5


@pytest.mark.long
@pytest.mark.slow
def test_without_descriptors_no_place_is_verified(short_ring):
    pipeline, results = run(short_ring[:60], TruthSession(short_ring, noise=NOISE))
    assert len(results) == 60
    assert pipeline.loops.closed == 0


@pytest.mark.long
@pytest.mark.slow
def test_similar_rooms_are_not_joined(monkeypatch):
    """The network takes both for one; the scene cannot have drifted so far."""
    monkeypatch.setattr(
        LoopCandidates, "_can_overlap", lambda *_: True
    )  # which forbids even to look
    one = walked(60, 0.5, seed=2)
    gap = [
        dataclasses.replace(
            one[-1],
            stamp_ns=(60 + i + 1) * STEP_NS,
            T_room_camera=shifted(one[-1], APART * i / 20),
        )
        for i in range(20)
    ]
    twin = [
        dataclasses.replace(f, stamp_ns=f.stamp_ns + 80 * STEP_NS, T_room_camera=shifted(f, APART))
        for f in one
    ]
    truth = one + gap + twin
    descriptors = {f.stamp_ns: descriptor_at(f.T_room_camera) for f in one + gap}
    descriptors |= {
        t.stamp_ns: descriptor_at(f.T_room_camera) for f, t in zip(one, twin, strict=True)
    }
    session = ConfusedTruth(truth, 0, descriptors, Noise(0.01, 0.01, 0.003, 0.1, 0.005))
    pipeline, _ = run(truth, session)
    assert pipeline.loops.closed == 0
    assert pipeline.loops.refused > 0


@pytest.mark.long
@pytest.mark.slow
def test_a_window_that_is_too_large_loses_nothing(short_ring, caplog):
    class Small(DescribedTruth):
        def infer(self, window):
            if window.new == 0:
                raise WindowTooLargeError("no memory")
            return super().infer(window)

    with caplog.at_level(logging.WARNING):
        pipeline, results = run(short_ring, Small(short_ring))
    assert len(results) == len(short_ring)
    assert pipeline.loops.closed == 0
    assert "out of memory" in caplog.text


def test_an_unusable_prediction_is_no_loop(short_ring, caplog):
    class Broken(DescribedTruth):
        def infer(self, window):
            found = super().infer(window)
            if window.new == 0:
                found = dataclasses.replace(found, T_window_camera=np.full((6, 4, 4), np.nan))
            return found

    pipeline, results = run(short_ring, Broken(short_ring))
    assert len(results) == len(short_ring)
    assert pipeline.counters["loops_unusable"] > 0
    assert pipeline.loops.found == 0
    assert "loop-closure check skipped: the network's poses are not finite" in caplog.text


@pytest.mark.long
@pytest.mark.slow
def test_known_metres_stay(short_ring):
    """With a known scale the graph is rigid, and everything is published in metres."""

    class MetricModel:
        def measure(self, window, prediction):
            return dataclasses.replace(
                prediction, measure=ScaleMeasurement(1 / session.unit, 0.01)
            )

    session = DescribedTruth(short_ring)
    values = {"scale.source": "metric_model", "scale.metric_every": 1}
    pipeline, results = run(short_ring, session, MetricModel(), **values)
    assert pipeline.loops.closed >= 1
    assert {round(s.T_map_submap.scale, 9) for s in pipeline.map.submaps.values()} == {1.0}
    true = {f.stamp_ns: f.T_room_camera for f in short_ring}
    ours = {p.stamp_ns: p.T_map_camera for p in pipeline.poses()}
    first, last = short_ring[0].stamp_ns, short_ring[-1].stamp_ns
    here, there = (invert_pose(T[first]) @ T[last] for T in (ours, true))
    assert np.linalg.norm(here[:3, 3] - there[:3, 3]) < 0.5
    assert results[-1].scale.metric


@pytest.mark.long
@pytest.mark.slow
def test_a_loop_ties_a_chain_after_being_lost_to_the_rest(wide_ring):
    """Windows that nothing fits start a chain with a unit of its own; coming back mends it."""
    half = wide_ring[77].stamp_ns

    class Lost(DescribedTruth):
        def infer(self, window):
            found = super().infer(window)
            newest = window.views[-1].stamp_ns
            if half <= newest < half + 8 * STEP_NS:
                wild = np.exp(np.random.default_rng(newest % 97).uniform(-1, 1, len(found.depth)))
                depth = found.depth * wild[:, None, None].astype(np.float32)
                return dataclasses.replace(found, depth=depth)
            return found

    plain, _ = run(wide_ring, Lost(wide_ring), **{"loop.enabled": False})
    pipeline, results = run(wide_ring, Lost(wide_ring))
    assert results[-1].window.chain > 0
    assert pipeline.loops.closed >= 1
    assert error(pipeline, wide_ring) < 0.5 * error(plain, wide_ring)
    # Unknown until the loop: then its pose is known, and what it saw is one component with the
    # rest.
    assert plain.scene().unconnected >= 1
    assert not plain.map.pose_known
    assert pipeline.map.pose_known
    lost = [r for r in results if r.window.chain > 0]
    assert lost[0].covariance_map is None
    assert results[-1].covariance_map is not None
    assert all(r.covariance_odom is None for r in lost)


@pytest.mark.slow
def test_covariance_falls_at_loops_and_not_in_odometry(closed):
    _, results = closed
    jump = next(i for i, r in enumerate(results) if r.window.loop_closed)
    in_map, in_odom = (
        np.array([np.sqrt(np.trace(getattr(r, name)[:3, :3])) for r in results[1:]])
        for name in ("covariance_map", "covariance_odom")
    )
    np.testing.assert_allclose(in_map[: jump - 1], in_odom[: jump - 1], rtol=1e-6)
    assert in_map[jump + 1] < 0.7 * in_map[jump - 2]
    assert in_odom[jump + 1] > 0.9 * in_odom[jump - 2]
    assert in_map[-1] < 0.7 * in_odom[-1]
    assert all(np.linalg.eigvalsh(r.covariance_map).min() > 0 for r in results)


def test_covariance_is_in_the_axes_of_the_map(ring):
    """A correction by a loop turns the map against odometry."""
    pipeline, _ = run(ring[:20], DescribedTruth(ring), **{"loop.enabled": False})
    T = np.eye(4)
    T[:3, :3] = Rotation.from_rotvec([0, 0, np.pi / 2]).as_matrix()
    pipeline.map.table.set_poses({}, Similarity.from_pose(T))
    K = ring[0].K.copy()
    K[:2, 2] -= 0.5
    black, lens = np.zeros((*SIZE[::-1], 3), np.uint8), Calibration(*SIZE, K)
    (result,) = pipeline.push(Frame(ring[20].stamp_ns, black, calibration=lens))
    there = np.kron(np.eye(2), T[:3, :3])
    np.testing.assert_allclose(
        result.covariance_map, there @ result.covariance_odom @ there.T, rtol=1e-6, atol=1e-12
    )
    assert not np.allclose(result.covariance_map, result.covariance_odom, rtol=0.1)


@pytest.mark.long
@pytest.mark.slow
def test_after_a_loop_pose_errors_match_their_covariance(short_ring):
    """Squared errors of the map's poses over their covariance, over runs; one is right."""
    first, runs, found = invert_pose(short_ring[0].T_room_camera), 3, []
    for seed in range(runs):
        pipeline, results = run(short_ring, DescribedTruth(short_ring, seed=seed))
        unit = float(np.exp(np.random.default_rng(seed).normal(0, 0.5)))
        unit *= pipeline.map.submaps[0].T_map_submap.scale  # the map's is the newest's now
        last = max(i for i, r in enumerate(results) if r.window.loop_closed)
        values = []
        for r, f in zip(results[last:], short_ring[last:], strict=True):
            true = first @ f.T_room_camera
            turn = Rotation.from_matrix(r.T_map_camera[:3, :3] @ true[:3, :3].T).as_rotvec()
            off = np.concatenate([r.T_map_camera[:3, 3] - unit * true[:3, 3], turn])
            values.append(off @ np.linalg.solve(r.covariance_map, off) / 6)
        found.append(np.mean(values))
    low, high = chi2.ppf([0.025, 0.975], 6 * runs) / (6 * runs)
    assert low < np.mean(found) < high


class Halved(DescribedTruth, Memory):
    """Has memory for smaller images from the middle of the walk on."""

    memory, ran = property(lambda self: self), 0

    def fit(self, image, window, new):
        res = 84 if self.ran < 60 else 56
        return types.SimpleNamespace(rule=ResizeRule(res), window=window, new=new)

    def infer(self, window):
        self.ran += window.new > 0
        return super().infer(window)


@pytest.mark.long
@pytest.mark.slow
def test_loops_are_closed_across_a_change_of_the_images_size(short_ring):
    pipeline, results = run(short_ring, Halved(short_ring))
    assert {r.depth_m.shape for r in results} == {(70, 84), (42, 56)}
    assert {r.window.chain for r in results} == {0}
    assert pipeline.loops.closed >= 1


@pytest.mark.long
@pytest.mark.slow
def test_a_graph_that_cannot_be_solved_costs_no_frame(short_ring, monkeypatch, caplog):
    def fail(problem):
        raise np.linalg.LinAlgError("singular")

    monkeypatch.setattr(loop_stage, "solve", fail)
    with caplog.at_level(logging.ERROR):
        pipeline, results = run(short_ring, DescribedTruth(short_ring))
    assert len(results) == len(short_ring)
    assert pipeline.loops.closed == 0
    assert "could not be closed" in caplog.text


def test_what_was_loaded_stays_where_it_is():
    move = Similarity(1.1, np.eye(3), np.array([1.0, 0, 0]))
    moves = Moves((Node(5, 5),), (move,))
    T_map_local = Similarity(1.0, np.eye(3), np.array([0.0, 2, 0]))
    submaps = MapTable(Submap(id, 0, IDENTITY) for id in (2, 5, 6))
    submaps.correct(Correction(moves, T_map_local, IDENTITY))
    found = [submaps.submaps[id].T_map_submap.t for id in (2, 5, 6)]
    np.testing.assert_allclose(found[0], [0, 0, 0])  # of a loaded scene
    np.testing.assert_allclose(found[1], [1, 2, 0])
    np.testing.assert_allclose(found[2], [0, 2, 0])  # newer than the graph: with odometry


@pytest.mark.long
@pytest.mark.slow
def test_keyframes_of_loops_stay_within_the_maps_memory(wide_ring):
    pipeline, _ = run(
        wide_ring[:65], DescribedTruth(wide_ring), **{"map.memory_mb": 1, "map.keep_images": False}
    )
    assert 0 < pipeline.loops.keyframes.nbytes <= 2**18
    assert pipeline.map.limits.memory_mb == 1


@pytest.mark.slow
def test_a_correction_holds_its_loops_and_covariance(closed):
    problem = closed[0].loops._graph.problem(metric=False)
    found = solve(problem)
    assert found.loops
    assert all(old < new for old, new in found.loops)
    assert set(sum(found.loops, ())) <= {node.first for node in problem.nodes}
    np.testing.assert_allclose(found.covariance, found.covariance.T)
    assert np.linalg.eigvalsh(found.covariance).min() > 0
    way = [e for e in problem.edges if not e.loop]
    alone = solve(dataclasses.replace(problem, edges=way, loops=()))
    assert alone.loops == ()
    assert (np.diag(found.covariance) < 0.5 * np.diag(alone.covariance)).all()


def test_reset_forgets_loops(ring):
    pipeline, _ = run(ring[:10], DescribedTruth(ring))
    moved = Similarity(2.0, np.eye(3), np.ones(3))
    pipeline.map.table.set_poses({}, moved)  # as a loop leaves it
    pipeline.reset()
    assert pipeline.map.table.T_map_local is IDENTITY
