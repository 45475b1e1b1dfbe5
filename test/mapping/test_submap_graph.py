"""The graph of submaps in bounded memory, against one that keeps everything."""

import itertools
import math
import pickle

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from support.submaps import add_keyframe, add_submap, table_of

from da3_ros.config import LoopConfig
from da3_ros.geometry.similarity import IDENTITY, Similarity
from da3_ros.mapping import submap_graph
from da3_ros.mapping.alignment import Alignment, WindowAligner
from da3_ros.mapping.descriptor_index import DescriptorIndex, whitened, whitening
from da3_ros.mapping.graph_solution import Joint, Moves, Node, Problem, solve
from da3_ros.mapping.levelling import Up
from da3_ros.mapping.loop_candidates import placed_ends
from da3_ros.mapping.loop_closure import DriftModel, Loop, LoopClosure
from da3_ros.mapping.loop_keyframes import PlacedKeyframe
from da3_ros.mapping.map_table import OverlapView
from da3_ros.mapping.pose_graph import Edge
from da3_ros.mapping.submap_graph import SubmapGraph
from da3_ros.mapping.submap_spill import Submap
from da3_ros.types import View

VARIANCE = np.array([2e-3, 1e-3, 5e-3]) ** 2
LOOP = np.array([5e-3, 3e-3, 1e-2]) ** 2
K = np.array([[20.0, 0, 14], [0, 20.0, 14], [0, 0, 1]])


def circle(count):
    """Submaps round a circle of ten metres."""
    angles = 2 * np.pi * np.arange(count) / count
    return [
        Similarity(
            1.0,
            Rotation.from_euler("z", a).as_matrix(),
            10 * np.array([np.cos(a), np.sin(a), 0]),
        )
        for a in angles
    ]


def drifted(true, rng):
    """The same as odometry has them."""
    out = [true[0]]
    for a, b in itertools.pairwise(true):
        seen, s = a.inverse() @ b, np.sqrt(VARIANCE)
        noise = Similarity(
            float(np.exp(s[0] * rng.normal())),
            Rotation.from_rotvec(s[1] * rng.normal(size=3)).as_matrix(),
            s[2] * rng.normal(size=3),
        )
        out.append(out[-1] @ seen @ noise)
    return out


def walked(poses, loops=()):
    """A graph of these poses, with true loops (old, new, seen)."""
    graph, absorbed = SubmapGraph(table_of(poses)), []
    for id in range(len(poses)):
        graph.add(id, VARIANCE if id else None, guessed=False)
        absorbed += graph.enforce_limits()
        for old, new, seen in loops:
            if new == id:
                graph.add_loop(old, new, seen, LOOP)
    return graph, absorbed


def seen_again(true, poses, old, new):
    """How the scene around ``new`` must move to lie to ``old`` as it truly does."""
    there = poses[old] @ true[old].inverse() @ true[new]
    return old, new, there @ poses[new].inverse()


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(submap_graph, "MAX_NODES", 40)
    monkeypatch.setattr(submap_graph, "MAX_LOOPS", 12)


def test_a_condensed_graph_closes_as_the_whole_one_does(monkeypatch):
    true = circle(240)
    poses = drifted(true, np.random.default_rng(3))
    loops = [seen_again(true, poses, k, 236 + k) for k in range(4)]
    whole = solve(walked(poses, loops)[0].problem(metric=False))
    monkeypatch.setattr(submap_graph, "MAX_NODES", 40)
    graph, absorbed = walked(poses, loops)
    assert len(graph.nodes) == 40
    assert len(absorbed) == 200
    found = solve(graph.problem(metric=False))
    ids = list(found.moves)
    assert ids == list(range(239))  # every submap moves, though not every one is a node
    away, size = [], []
    for id in ids:
        a, b = (m[id].points(poses[id].t) for m in (whole.moves, found.moves))
        away.append(np.linalg.norm(a - b))
        size.append(np.linalg.norm(a - poses[id].t))
    assert max(size) > 0.1
    assert np.sqrt(np.mean(np.square(away))) < 0.2 * np.sqrt(np.mean(np.square(size)))
    ratio = np.diag(found.covariance) / np.diag(whole.covariance)
    assert 0.5 < ratio.min() <= ratio.max() < 2


def test_a_condensed_way_drifts_as_the_whole_one_does(monkeypatch):
    poses = circle(240)
    wanted = walked(poses)[0].drift_variance(0, 239, poses[-1].t)
    monkeypatch.setattr(submap_graph, "MAX_NODES", 40)
    graph, _ = walked(poses)
    found = graph.drift_variance(0, len(graph.nodes) - 1, poses[-1].t)
    np.testing.assert_allclose(found, wanted, rtol=0.1)


@pytest.mark.usefixtures("small")
def test_what_a_merged_node_held_takes_the_variance_along():
    poses = circle(60)
    _, absorbed = walked(poses)
    assert all((a.variance >= VARIANCE * [1, 1, 0.9]).all() for a in absorbed)
    assert all(np.allclose(a.at, poses[a.first].t) for a in absorbed)


def test_a_loop_carried_to_other_nodes_grows_less_sure(monkeypatch):
    """By every tie between the submap that it was seen from and the one that stands for it."""
    poses = [Similarity(1.0, np.eye(3), np.array([float(k), 0, 0])) for k in range(100)]
    monkeypatch.setattr(submap_graph, "MAX_NODES", 11)
    graph, _ = walked(poses, [seen_again(poses, poses, 5, 50)])
    (loop,) = (e for e in graph._edges if e.loop)
    assert loop.second == graph.node(50).first < 50  # its node has become part of another one
    ties = 50 - loop.second
    np.testing.assert_allclose(np.square(loop.sigma[:2]), (LOOP + ties * VARIANCE)[:2], rtol=1e-2)
    assert loop.sigma[2] ** 2 > (LOOP + ties * VARIANCE)[2]
    assert loop.pivot is None  # it was that of another node


def test_two_loops_that_are_apart_show_the_size_of_a_chain():
    """Each knows its camera's position, and not how large the chain is."""
    turn = Rotation.from_rotvec([0.3, -0.2, 0.5]).as_matrix()
    poses = [
        Similarity(2.0, turn, np.array([1.0, 2, 3])),
        Similarity(0.5, turn.T, np.array([4.0, 0, 1])),
    ]
    true = Similarity(1.3, turn @ turn, np.array([0.5, 0.2, -1]))
    graph = SubmapGraph(table_of(poses))
    for id in (0, 1):
        graph.add(id, None, guessed=False)
    for at in ([0.0, 0, 0], [2.0, 1, 0]):
        centre = poses[1].points(np.array(at))
        off = Similarity(1.1 * true.scale, true.R, np.zeros(3))
        off = Similarity(off.scale, off.R, true.points(centre) - off.points(centre))
        graph.add_loop(0, 1, off, np.array([0.1, 0.002, 0.01]) ** 2, centre)
    loop = graph.edges[-1]
    np.testing.assert_allclose(loop.pivot.at, [2.0, 1, 0])
    np.testing.assert_allclose(loop.pivot.sigma, [0.1, 0.002, 0.005])  # units of the first node
    arm = 0.5 * np.sqrt(5)
    assert loop.sigma[2] == pytest.approx(np.hypot(0.01, arm * np.hypot(0.1, 0.002)) / 2)
    moves = solve(graph.problem(metric=False)).moves
    first = moves[0] @ poses[0]  # the newest one stays
    found = first.inverse() @ poses[1]
    wanted = poses[0].inverse() @ true @ poses[1]
    assert found.scale == pytest.approx(wanted.scale, rel=0.01)
    np.testing.assert_allclose(found.t, wanted.t, atol=0.02)


def test_a_loop_to_another_chain_is_not_forgotten(monkeypatch):
    """Nearly the same nodes, but only one loop ties the chain that nothing else does."""
    monkeypatch.setattr(submap_graph, "MAX_LOOPS", 2)
    poses = [Similarity(1.0, np.eye(3), np.array([float(k), 0, 0])) for k in range(20)]
    graph = SubmapGraph(table_of(poses))
    for id in range(len(poses)):
        graph.add(id, VARIANCE if id else None, guessed=id == 10)
    for old, new, doubt in ((2, 9, 1.0), (2, 10, 9.0), (0, 5, 2.0)):
        seen = seen_again(poses, poses, old, new)[2]
        graph.add_loop(old, new, seen, doubt * LOOP)
    left = {(e.first, e.second) for e in graph._edges if e.loop}
    assert left == {(2, 9), (2, 10)}


@pytest.mark.usefixtures("small")
def test_nodes_and_loops_are_bounded_and_ties_stay():
    true = circle(50)
    poses = true * 8  # round and round, without drift
    loops = [seen_again(poses, poses, k - 50, k) for k in range(50, 400, 2)]
    graph, _ = walked(poses, loops)
    assert len(graph.nodes) == 40
    problem = graph.problem(metric=False)
    assert sum(e.loop for e in problem.edges) <= 12
    found = solve(problem)
    assert found.loops
    assert len(found.moves) == 399
    for id in (0, 77, 390):  # all agree, nothing moves
        np.testing.assert_allclose(found.moves[id].points(poses[id].t), poses[id].t, atol=1e-6)


@pytest.mark.usefixtures("small")
def test_chains_without_a_join_are_forgotten_the_oldest_first():
    graph, gone = SubmapGraph(table_of([IDENTITY] * 100)), []
    for id in range(100):
        graph.add(id, None, guessed=False)
        gone += graph.enforce_limits()
    assert [a.first for a in gone] == list(range(60))
    assert all(a.variance is None for a in gone)


@pytest.mark.usefixtures("small")
def test_a_lost_stretch_is_never_within_a_node():
    """What lies before and after it may be moved apart by a loop."""
    graph, guesses = SubmapGraph(table_of(circle(120))), range(0, 120, 12)
    for id in range(120):
        graph.add(id, VARIANCE if id else None, guessed=id in guesses)
        graph.enforce_limits()
    firsts = {node.first for node in graph.nodes}
    assert set(guesses) <= firsts


@pytest.mark.long
@pytest.mark.slow
def test_a_hundred_loops_leave_rotations_rotations():
    """Each moves places by what they were: rounding must not grow threefold every time."""
    true = circle(12)
    graph, _ = walked(drifted(true, np.random.default_rng(0)))
    submaps = graph._submaps
    for k in range(100):
        turn = Rotation.from_rotvec([0, 0, 1e-3 * (-1) ** k]).as_matrix()
        now = [submaps.T_local_submap(i) for i in range(12)]
        bent = [Similarity(1.0, turn, np.zeros(3)) @ now[i] for i in range(12)]
        graph.add_loop(0, 11, bent[11] @ now[11].inverse(), LOOP)
        submaps.correct(solve(graph.problem(metric=False)))
    poses = [s.T_map_submap for s in submaps.submaps.values()]
    for R in (T.R for T in (submaps.T_map_local, *poses)):
        np.testing.assert_allclose(R @ R.T, np.eye(3), atol=1e-9)


def test_a_scene_is_not_shrunk_to_a_point():
    nodes = tuple(Node(i, i) for i in range(2))
    poses = tuple(Similarity(1.0, np.eye(3), np.array([i, 0.0, 0])) for i in range(2))
    loop = Edge(0, 1, Similarity(1e-3, np.eye(3), np.zeros(3)), np.full(3, 1e-3), loop=True)
    with pytest.raises(ValueError, match="size by a factor"):
        solve(Problem(nodes, poses, [loop], IDENTITY, metric=False))


@pytest.mark.parametrize("degrees", [0, 90, 150, 177, 180])
@pytest.mark.parametrize("metric", [True, False])
@pytest.mark.parametrize("first_live", [0, 4])
def test_an_unconnected_component_is_solved_whatever_its_rotation(degrees, metric, first_live):
    """Loops are robust, so that from a wrong guess the solver may end in a false minimum."""
    poses = circle(12)
    graph, _ = walked(poses[:4])
    graph._submaps.set_read_only(first_live)
    for k in (4, 5):  # a component that loops have joined
        graph._submaps.add_submap(Submap(k, 0, poses[k]))
        graph.add(k, None, False)
        for at in (2, 3):
            graph.add_loop(at, k, IDENTITY, LOOP)
    guess = Similarity(
        1.0, Rotation.from_rotvec([0, np.radians(degrees), 0]).as_matrix(), np.array([3.0, 1, 2])
    )
    newest = guess @ poses[6]  # a component of its own
    graph._submaps.add_submap(Submap(6, 0, newest))
    graph.add(6, None, False)
    drift = guess.inverse()  # from where the new one lies to where the old one measures it
    joined = graph.unmeasured(3, 6)
    assert joined == {0, 1, 2, 3, 4, 5}
    for at in (2, 3):
        graph.add_loop(at, 6, drift, LOOP)
    joint = Joint(drift, newest.t, joined)
    correction = solve(graph.problem(metric, True, joint))
    for k in range(6):
        found = correction.moves[k] @ poses[k]
        wanted = guess @ poses[k]
        np.testing.assert_allclose(found.t, wanted.t, atol=1e-4)
        np.testing.assert_allclose(found.R, wanted.R, atol=1e-4)
    T = correction.T_map_local  # the first one stays in the map
    np.testing.assert_allclose((T @ correction.moves[0] @ poses[0]).t, poses[0].t, atol=1e-6)
    assert not graph.unmeasured(3, 6)


def test_a_guessed_edge_is_no_measurement():
    graph, _ = walked(circle(12)[:3])
    graph._submaps.add_submap(Submap(3, 0, IDENTITY))
    graph.add(3, LOOP, True)
    assert graph.connected(0, 3)
    assert graph.unmeasured(0, 3) == {0, 1, 2}
    assert not graph.unmeasured(0, 2)


def test_a_rigid_map_moves_as_one_body():
    """Loops that contradict its shape do not bend it."""
    poses = circle(12)
    graph, _ = walked(poses[:6])
    graph._submaps.set_read_only(6)
    graph._submaps.add_submap(Submap(6, 0, poses[6]))
    graph.add(6, VARIANCE, False)
    rng = np.random.default_rng(0)
    for at in range(5):
        off = Similarity(1.0, np.eye(3), 0.05 * rng.normal(size=3))
        graph.add_loop(at, 6, off, LOOP)
    problem = graph.problem(True, True)
    assert [(n.first, n.last) for n in problem.nodes] == [(0, 5), (6, 6)]
    correction = solve(problem)
    assert len({id(correction.moves[k]) for k in range(6)}) == 1
    assert {old for old, _ in correction.loops} == {0, 1, 2, 3, 4}
    assert np.linalg.norm(correction.moves[0].t) > 1e-3


def test_a_localized_camera_leaves_a_map_as_it_is(monkeypatch):
    """Its own nodes and loops are merged and forgotten; those of the map are not."""
    monkeypatch.setattr(submap_graph, "MAX_LIVE", 4)
    monkeypatch.setattr(submap_graph, "MAX_LIVE_LOOPS", 3)
    monkeypatch.setattr(submap_graph, "YOUNG", 2)
    poses = circle(12)
    graph, _ = walked(poses, [(0, 11, IDENTITY)])
    graph._submaps.set_read_only(12)
    nodes, edges = graph.of_map()
    for k in range(12, 40):
        graph._submaps.add_submap(Submap(k, 0, poses[k % 12]))
        graph.add(k, None if k % 9 == 0 else VARIANCE, False)
        graph.enforce_limits()
        graph.add_loop(k % 12, k, IDENTITY, LOOP)
        assert len(graph.nodes) <= 12 + 4
        assert len([e for e in graph.edges if e.loop and e.second >= 12]) <= 3
        solve(graph.problem(True, True))
    assert graph.of_map() == (nodes, edges)
    graph.forget_live()
    assert tuple(graph.nodes) == nodes
    assert graph.edges == edges


def test_moves_name_the_submaps_of_each_node():
    a, b = (Similarity(s, np.eye(3), np.zeros(3)) for s in (2.0, 3.0))
    moves = Moves((Node(3, 5), Node(8, 8)), (a, b))
    assert list(moves) == [3, 4, 5, 8]
    assert len(moves) == 4
    assert (moves[4].scale, moves[8].scale) == (2.0, 3.0)
    assert not {2, 6, 9} & set(moves)


# What a camera's way leaves in memory ------------------------------------------------------------


def test_steps_in_sums_are_the_steps():
    rng = np.random.default_rng(0)
    steps, own, at = DriftModel(), 1e-4 * rng.random((50, 3)), 100 + rng.normal(size=(50, 3))
    for variance, camera in zip(own, at, strict=True):
        steps.add(variance, camera)
    point = at[-1]
    arms = ((at - point) ** 2).sum(axis=1)
    place = own[:, 2] + arms * (own[:, 0] + own[:, 1])
    wanted = [own[:, 0].sum(), own[:, 1].sum(), place.sum()]
    np.testing.assert_allclose(steps.variance_at(point), wanted, rtol=1e-9)


def still(stage, windows):
    fit = Alignment(
        Similarity(1.0, np.eye(3), np.zeros(3)), True, 0.0, 1.0, 1e-8 * np.eye(7), np.zeros(3)
    )
    for _ in range(windows):
        stage.add_window(fit, np.array([1.0, 2.0, 3.0]), 2.0)


def keyframe(stage, n, x=None):
    T = np.eye(4)
    T[0, 3] = n if x is None else x
    view = View(n, n, np.zeros((28, 28, 3), np.uint8), K)
    pixels = np.arange(784)
    depth = np.full(784, 2.0)
    look = np.random.default_rng(n).normal(size=64)
    add_submap(stage._submaps, n // 16, T)
    one = OverlapView(view, K, T, pixels, depth, depth, submap=n // 16)
    add_keyframe(stage, one, look)


def along(closer, count):
    """So many submaps of four keyframes, each with the window that brought it."""
    sure = np.diag([1e-3, *[3e-4] * 3, *[1e-3] * 3]) ** 2
    fit = Similarity(1.0, np.eye(3), np.zeros(3))
    begin = 4 * (closer.keyframes[-1].submap + 1) if len(closer.keyframes) else 0
    for n in range(begin, begin + 4 * count):
        T = np.eye(4)
        T[0, 3] = 0.4 * n
        closer.add_window(Alignment(fit, True, 0.0, 1.0, sure, np.zeros(3)), T[:3, 3])
        view = View(n, n, np.zeros((28, 28, 3), np.uint8), K)
        depth = np.full(784, 2.0)
        look = np.random.default_rng(n).normal(size=64)
        add_submap(closer._submaps, n // 4, T)
        shared = OverlapView(view, K, T, np.arange(784), depth, depth, submap=n // 4)
        add_keyframe(closer, shared, look)


def test_places_of_merged_submaps_grow_less_sure(monkeypatch):
    """By what drift was between their submap and the one that stands for it."""
    whole, closer = LoopClosure(), LoopClosure()
    along(whole, 40)
    monkeypatch.setattr(submap_graph, "MAX_NODES", 12)
    along(closer, 40)
    graph, merged = closer._graph, 0
    for before, now in zip(whole.keyframes, closer.keyframes, strict=True):
        way = graph.node(now.submap).first, now.submap
        merged += way[0] < way[1]
        wanted = before.variance_in_submap + whole._graph.drift_variance(
            *way, PlacedKeyframe.of(before, whole._submaps).centre
        )
        np.testing.assert_allclose(now.variance_in_submap[:2], wanted[:2], rtol=1e-2)
        assert now.variance_in_submap[2] > before.variance_in_submap[2] or way[0] == way[1]
    assert merged > 50


def test_loops_that_wait_grow_less_sure_with_their_places(monkeypatch):
    monkeypatch.setattr(submap_graph, "MAX_NODES", 12)
    closer = LoopClosure()
    along(closer, 20)
    old = next(p for p in closer.keyframes if p.submap == closer._graph.nodes[3].last)
    new = closer.keyframes[-1]
    closer._unconfirmed = [Loop(old.view.id, new.view.id, IDENTITY, LOOP)]
    along(closer, 40)
    (loop,) = closer._unconfirmed
    now = [end.keyframe for end in placed_ends(loop, closer._submaps)]
    assert (
        now[0].variance_in_submap + now[1].variance_in_submap
        > old.variance_in_submap + new.variance_in_submap
    ).all()


def test_a_camera_that_stands_still_takes_no_memory():
    stage = LoopClosure()
    keyframe(stage, 0)
    still(stage, 100)
    before = len(pickle.dumps(stage))
    still(stage, 20_000)
    assert len(pickle.dumps(stage)) == before


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_a_long_way_takes_bounded_memory(monkeypatch):
    monkeypatch.setattr("da3_ros.mapping.loop_keyframes.MAX_KEYFRAMES", 30)
    stage, held = LoopClosure(), []
    for n in range(16 * 180):
        still(stage, 1)
        keyframe(stage, n)
        stage.try_close_loop(n, LoopConfig(), 1, None, WindowAligner(), False)
        if n % 16 == 15:
            stage._submaps.keep(stage.submaps_in_use)  # as the map does
            held.append(len(pickle.dumps(stage)))
    assert max(held[150:]) < 1.02 * max(held[60:100])
    assert stage._graph.nodes[0].first == 0  # bounded by condensing, not by forgetting


def test_a_loop_that_waits_is_forgotten_with_its_keyframes():
    closer = LoopClosure()
    along(closer, 6)
    old, new = closer.keyframes[2], closer.keyframes[-1]
    closer._unconfirmed = [Loop(old.view.id, new.view.id, IDENTITY, LOOP)]
    assert closer._still_there(closer._unconfirmed) == closer._unconfirmed
    closer.keyframes.remove(old.view.id)
    assert closer._still_there(closer._unconfirmed) == []
    assert old.view.id not in closer._submaps.keyframes


@pytest.mark.parametrize("unit", [5.0, 0.2])
def test_drift_keeps_its_length_in_the_map_when_the_unit_changes(unit):
    """Of a lost camera, for example, whose new scale becomes known."""
    stage = LoopClosure()
    along(stage, 2)
    stage.start_chain(lost=True)
    point = PlacedKeyframe.of(stage.keyframes[-1], stage._submaps).centre
    before = stage._drift_model.variance_at(point)
    stage.change_unit(1 / unit, point)
    after = stage._drift_model.variance_at(point)
    np.testing.assert_allclose(after * [1, 1, unit**2], before, rtol=1e-9)


@pytest.mark.parametrize("now", [
    Similarity(2.0, np.eye(3), np.array([3.0, 0, 1])),
    Similarity(0.5, Rotation.from_rotvec([0, 1, 0]).as_matrix(), np.zeros(3)),
])  # fmt: skip
def test_a_correction_that_comes_late_moves_the_map_as_it_was_solved(now):
    """Meanwhile the unit of odometry has changed, or odometry has begun anew."""
    true = circle(12)
    poses = drifted(true, np.random.default_rng(0))
    loops = [seen_again(true, poses, 0, 11), seen_again(true, poses, 1, 11)]
    graph, _ = walked(poses, loops)
    submaps, late = graph._submaps, table_of(poses)
    correction = solve(graph.problem(metric=False))
    late.set_poses({}, now)
    submaps.correct(correction.at(submaps.T_map_local))
    moved = correction.at(now)
    late.correct(moved)
    for id in range(12):
        a, b = submaps.submaps[id].T_map_submap, late.submaps[id].T_map_submap
        np.testing.assert_allclose(b.t, a.t, atol=1e-9)
        np.testing.assert_allclose(b.R, a.R, atol=1e-9)
        assert b.scale == pytest.approx(a.scale)
    assert correction.at(IDENTITY) is correction
    newest = now.inverse() @ poses[11]
    np.testing.assert_allclose(late.T_local_submap(11).t, newest.t, atol=1e-9)  # stays
    P, Q, s = correction.covariance, moved.covariance, now.scale
    assert np.trace(Q[4:, 4:]) * s**2 == pytest.approx(np.trace(P[4:, 4:]))
    assert Q[0, 0] == pytest.approx(P[0, 0])


def test_switching_off_forgets_all_keyframes():
    closer = LoopClosure()
    along(closer, 6)
    assert len(closer._submaps.keyframes) == 24
    closer.set_enabled(False)
    assert not closer._submaps.keyframes
    closer.set_enabled(True)
    along(closer, 2)
    assert len(closer._submaps.keyframes) == len(closer.keyframes) == 8


def test_switched_off_nothing_is_remembered():
    stage = LoopClosure()
    stage.set_enabled(False)
    empty = len(pickle.dumps(stage))
    for n in range(100):
        still(stage, 3)
        keyframe(stage, n)
    stage._submaps.share(())
    stage._submaps.keep(stage.submaps_in_use)
    assert len(pickle.dumps(stage)) <= empty
    assert stage.keyframes.nbytes == 0


def test_switched_off_on_the_way_the_map_stays_corrected():
    stage, T = LoopClosure(), np.eye(4)
    T[0, 3] = 0.5
    for n in range(40):
        keyframe(stage, n)
    stage._submaps.set_poses({}, Similarity.from_pose(T))
    stage.refused = 7
    stage.set_enabled(False)
    np.testing.assert_array_equal(stage._submaps.T_map_local.t, T[:3, 3])
    assert (stage.keyframes.nbytes, stage.refused) == (0, 7)
    stage.set_enabled(True)
    keyframe(stage, 41)
    assert [n.first for n in stage._graph.nodes] == [2]


def test_places_of_a_forgotten_chain_are_forgotten(monkeypatch):
    monkeypatch.setattr(submap_graph, "MAX_NODES", 10)
    stage = LoopClosure()
    for n in range(0, 16 * 30, 8):
        if n % 16 == 0:
            stage.start_chain(lost=False)
        keyframe(stage, n)
    closer = stage
    assert {p.submap for p in closer.keyframes} == set(range(20, 30))
    assert len(closer.keyframes.similarity(closer.keyframes.ids[-1])) == len(closer.keyframes)


def test_likeness_kept_along_the_way_is_that_of_all_at_once():
    rng = np.random.default_rng(0)
    base = rng.normal(size=(12, 96))
    x = np.array([base[k % 12] + 0.3 * rng.normal(size=96) for k in range(150)])
    looks = DescriptorIndex()
    for k in range(len(x)):
        looks.add(x[k], lambda k=k: list(x[: k + 1]))
    white = whitened(x, whitening(x))
    wanted = white @ white[-1]
    assert np.corrcoef(looks.like(), wanted)[0, 1] > 0.95
    best = np.argsort(-looks.like())[1:6]
    assert set(best % 12) == {149 % 12}


def tilts(poses, true):
    """Angles, degrees, between up as submaps have it and where it is by the first one."""
    up = poses[0].R @ true[0].R.T @ [0, 0, 1]
    seen = [T.R @ t.R.T @ [0, 0, 1] for T, t in zip(poses, true, strict=True)]
    return np.degrees([np.linalg.norm(np.cross(up, one)) for one in seen])


def bent(true, degrees=1.0):
    """The same with a tilt that grows by some degrees from one to the next."""
    out = [true[0]]
    step = Similarity(
        1.0, Rotation.from_euler("y", degrees, degrees=True).as_matrix(), np.zeros(3)
    )
    for a, b in itertools.pairwise(true):
        out.append(out[-1] @ a.inverse() @ b @ step)
    return out


def with_ups(true, poses, sigma, rng=None):
    """A graph of these poses in which each node knows what is up."""
    graph, _ = walked(poses)
    for node, T in zip(graph.nodes, true, strict=True):
        noise = np.zeros(3) if rng is None else sigma * rng.normal(size=3)
        up = Rotation.from_rotvec(noise).as_matrix() @ T.R.T @ [0, 0, 1]
        graph.set_up(node.first, Up(up, sigma))
    return graph


def solved(graph, poses, **options):
    correction = solve(graph.problem(metric=True, **options))
    moves = [correction.local_move(n.first) for n in graph.nodes]
    return [T if m is None else m @ T for m, T in zip(moves, poses, strict=True)], correction


def test_what_is_up_straightens_a_way_that_bends():
    """A straight way of 40 m that odometry bends by a tenth of a degree from submap to submap."""
    true = [Similarity(1.0, np.eye(3), np.array([i, 0.0, 0.0])) for i in range(40)]
    poses = bent(true, 0.1)
    graph = with_ups(true, poses, np.radians(0.2))
    assert graph.tilt() > 5
    after, correction = solved(graph, poses, levelled=True)
    assert correction.levelled
    assert tilts(poses, true).max() > 3.8
    assert tilts(after, true).max() < 1.0
    ends = [(T[0].inverse() @ T[-1]).t[2] for T in (true, poses, after)]
    assert abs(ends[1] - ends[0]) > 1.2
    assert abs(ends[2] - ends[0]) < 0.3
    # The newest submap stays in the frame of odometry.
    np.testing.assert_allclose(after[-1].R, poses[-1].R)


def test_edges_that_state_too_little_do_not_keep_a_way_bent():
    """Windows that fit each other exactly, so that edges state a thousandth of a degree."""
    true = [Similarity(1.0, np.eye(3), np.array([i, 0.0, 0.0])) for i in range(12)]
    poses, sure = bent(true, 0.5), np.array([1e-12, math.radians(1e-3) ** 2, 1e-12])
    graph = SubmapGraph(table_of(poses))
    for k in range(len(poses)):
        graph.add(k, sure, guessed=False)
        graph.set_up(k, Up(true[k].R.T @ [0, 0, 1], math.radians(0.3)))
    after, _ = solved(graph, poses, levelled=True)
    assert tilts(poses, true).max() > 5.4
    assert tilts(after, true).max() < 0.5


def test_the_map_turns_to_what_is_up_in_it_where_that_is_given():
    """As far as it tilts: its first submap stays at its place, and keeps its heading."""
    true = circle(8)
    turn = Rotation.from_euler("xy", [4, -3], degrees=True).as_matrix()
    poses = [Similarity(1.0, turn @ T.R, turn @ T.t) for T in true]
    graph = with_ups(true, poses, 0.005)
    table = graph._submaps
    assert np.degrees(0.005 * graph.tilt(np.array([0.0, 0, 1]))) == pytest.approx(5.0, abs=0.1)
    correction = solve(graph.problem(metric=True, up_map=np.array([0.0, 0, 1])))
    table.correct(correction)
    for id, T in enumerate(true):
        up = table.submaps[id].T_map_submap.R @ T.R.T @ [0, 0, 1]
        np.testing.assert_allclose(up, [0, 0, 1], atol=1e-5)
    np.testing.assert_allclose(table.submaps[0].T_map_submap.t, poses[0].t, atol=1e-9)
    assert graph.tilt(np.array([0.0, 0, 1])) < 0.01


def test_what_is_up_in_the_newest_nodes_is_forgotten():
    true = circle(6)
    graph = with_ups(true, true, 0.01)
    assert graph.off_level(5, Up(true[5].R.T @ [0, 0, 1], 0.01)) < 1e-6
    tilted = Rotation.from_euler("x", 0.1).as_matrix() @ [0, 0, 1]
    assert graph.off_level(5, Up(true[5].R.T @ tilted, 0.01)) == pytest.approx(0.1)
    for k, T in enumerate(true):
        graph.set_up(k, Up(T.R.T @ [0, 0, 1], 0.01, stamp_ns=k))
    graph.forget_ups(4)
    assert sorted(graph.problem(metric=True).ups) == [0, 1, 2, 3]


def test_what_is_up_says_nothing_of_heading_place_or_scale():
    """Yaw, and all of a way that is level already, stay as odometry has them."""
    true = circle(14)
    rng = np.random.default_rng(3)
    poses = [true[0]]
    for a, b in itertools.pairwise(true):
        yaw = Rotation.from_euler("z", 0.05 * rng.normal()).as_matrix()
        noise = Similarity(1.0, yaw, 0.1 * rng.normal(size=3))
        poses.append(poses[-1] @ a.inverse() @ b @ noise)
    graph = with_ups(true, poses, np.radians(0.2))
    assert graph.tilt() < 0.1
    after, _ = solved(graph, poses)
    for a, b in zip(poses, after, strict=True):
        np.testing.assert_allclose(a.R, b.R, atol=1e-5)
        np.testing.assert_allclose(a.t, b.t, atol=1e-4)


def test_what_is_up_is_merged_with_nodes(monkeypatch):
    monkeypatch.setattr(submap_graph, "MAX_NODES", 10)
    true = circle(24)
    poses = bent(true, 0.3)
    graph = SubmapGraph(table_of(poses))
    for k, T in enumerate(true):
        graph.add(k, VARIANCE, guessed=False)
        graph.set_up(k, Up(T.R.T @ [0, 0, 1], 0.01))
        graph.enforce_limits()
    assert len(graph.nodes) == 10
    ups = graph.problem(metric=True).ups
    assert len(ups) == 10
    for k, up in ups.items():
        np.testing.assert_allclose(np.linalg.norm(up.direction), 1.0)
        # Within a node poses are as they were, bent by a little.
        assert true[graph.nodes[k].first].R @ up.direction @ [0, 0, 1] > np.cos(np.radians(3))


def test_errors_of_what_is_up_are_those_that_are_stated():
    """Over seeds, the tilt left is as large as the covariance of the ends says."""
    true, squares = circle(16), []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        poses = drifted(true, rng)
        graph = with_ups(true, poses, 0.002, rng)
        after, correction = solved(graph, poses)
        error = (true[0].inverse() @ true[-1]).R.T @ (after[0].inverse() @ after[-1]).R
        tilt = Rotation.from_matrix(error).as_rotvec()
        variance = np.diag(correction.covariance)[1:3]
        squares.append((tilt[:2] ** 2 / variance).mean())
    assert 0.4 < np.mean(squares) < 2.0


# What is up by an IMU that was wrong

S = 10**9
UP_MAP = np.array([0.0, 0.0, 1.0])


def called_up(closer, seconds, degrees=0.0, submap=0):
    """Adds what is up in a submap at a time, wrong by an angle; returns whether it counts. The
    axes of the submap are those of the map."""
    direction = Rotation.from_euler("x", degrees, degrees=True).as_matrix()[:, 2]
    up = Up(direction, math.radians(0.5), round(seconds * S))
    return closer.add_up(submap, up, UP_MAP) is not None


def test_what_is_up_counts_again_once_it_agrees_with_the_map_from_before():
    closer = LoopClosure()
    along(closer, 2)
    assert called_up(closer, 1.0)
    closer.doubt_up(20 * S, 25 * S, level=True)
    assert closer.up_is_doubted
    assert not closer.problem().ups
    assert not called_up(closer, 21.0, 10.0)
    assert called_up(closer, 22.0, 1.0)
    assert not closer.up_is_doubted


def test_a_doubt_ends_by_itself():
    """Else a map that was levelled wrongly would never be right, nor a bent one be held."""
    closer = LoopClosure()
    along(closer, 2)
    closer.doubt_up(20 * S, 5 * S, level=True)
    assert not called_up(closer, 29.0, 10.0)
    assert called_up(closer, 31.0, 10.0)
    assert not closer.up_is_doubted


def test_where_nothing_was_known_before_it_counts_at_once():
    closer = LoopClosure()
    along(closer, 2)
    assert called_up(closer, 18.0, 10.0)
    closer.doubt_up(20 * S, 5 * S)
    assert not closer.up_is_doubted
    assert called_up(closer, 20.1)
    assert list(closer.problem().ups) == [0]


def test_what_was_up_in_the_same_submap_before_the_fault_stays():
    closer = LoopClosure()
    along(closer, 2)
    for seconds in (1.0, 2.0, 19.0):
        assert called_up(closer, seconds)
    closer.doubt_up(20 * S, 5 * S)
    assert closer.up_is_doubted
    assert closer.problem().ups[0].stamp_ns == 2 * S


def test_up_that_turns_faster_than_networks_bend_slips():
    closer = LoopClosure()
    along(closer, 2)
    slow, fast = (Up(Rotation.from_euler("x", angle, degrees=True).as_matrix()[:, 2],
                     math.radians(0.5), 10 * S) for angle in (4.0, 8.0))  # fmt: skip
    assert called_up(closer, 0.0)
    assert not closer.add_up(0, slow).slips
    before = closer.problem().ups[0].direction
    assert closer.add_up(0, fast).slips
    np.testing.assert_array_equal(closer.problem().ups[0].direction, before)
