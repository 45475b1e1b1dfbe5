"""The pose graph on walks in a circle, against the truth and against gtsam."""

import itertools

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from da3_ros.mapping.alignment import Similarity
from da3_ros.mapping.pose_graph import Edge, optimize

SIGMA = np.array([0.02, 0.01, 0.02])
LOOP = np.array([0.005, 0.003, 0.01])


def circle(count):
    """Submaps on the way round, each looking along it."""
    angles = 2 * np.pi * np.arange(count) / count
    return [
        Similarity(
            1.0,
            Rotation.from_euler("z", a).as_matrix(),
            3 * np.array([np.cos(a), np.sin(a), 0.1 * np.sin(3 * a)]),
        )
        for a in angles
    ]


def disturbed(one, sigma, rng):
    return Similarity(
        one.scale * np.exp(sigma[0] * rng.normal()),
        one.R @ Rotation.from_rotvec(sigma[1] * rng.normal(size=3)).as_matrix(),
        one.t + sigma[2] * rng.normal(size=3),
    )


def after(first, seen):
    """Where an edge says that its second node lies."""
    return Similarity(
        first.scale * seen.scale, first.R @ seen.R, first.scale * first.R @ seen.t + first.t
    )


def walk(count=40, seed=0, metric=False, loops=((0, -1),)):
    """True places, places along the way as drift makes them, and all edges."""
    rng = np.random.default_rng(seed)
    sigma, certain = SIGMA.copy(), LOOP.copy()
    if metric:
        sigma[0] = certain[0] = 1e-9
    true = circle(count)
    ways = [disturbed(Edge.seen(a, b), sigma, rng) for a, b in itertools.pairwise(true)]
    edges = [Edge(i, i + 1, way, sigma) for i, way in enumerate(ways)]
    drifted = [true[0]]
    for way in ways:
        drifted.append(after(drifted[-1], way))
    for first, second in loops:
        first, second = first % count, second % count
        seen = disturbed(Edge.seen(true[first], true[second]), certain, rng)
        edges.append(Edge(first, second, seen, certain, loop=True))
    return true, drifted, edges


def off(nodes, true, fixed):
    """Largest distance of a node's place, seen from the fixed node."""
    a = [Edge.seen(nodes[fixed], n).t for n in nodes]
    b = [Edge.seen(true[fixed], n).t for n in true]
    return np.linalg.norm(np.array(a) - np.array(b), axis=1).max()


@pytest.mark.parametrize("metric", [False, True])
def test_a_loop_takes_the_drift_out(metric):
    true, drifted, edges = walk(metric=metric)
    found = optimize(drifted, edges, fixed=39, metric=metric)
    ends = [Edge.seen(nodes[39], nodes[0]).t for nodes in (true, drifted, found.nodes)]
    before, now = (np.linalg.norm(e - ends[0]) for e in ends[1:])
    assert now < before / 5
    assert off(found.nodes, true, 39) < 0.6 * off(drifted, true, 39)
    if metric:
        assert all(n.scale == pytest.approx(1) for n in found.nodes)


def test_without_loops_nothing_moves():
    _, drifted, edges = walk(loops=())
    found = optimize(drifted, edges, fixed=0)
    for a, b in zip(found.nodes, drifted, strict=True):
        np.testing.assert_allclose(a.t, b.t, atol=1e-9)


def test_the_fixed_node_stays():
    _, drifted, edges = walk()
    found = optimize(drifted, edges, fixed=39)
    assert found.nodes[39].scale == pytest.approx(drifted[39].scale)
    np.testing.assert_allclose(found.nodes[39].t, drifted[39].t)
    assert abs(found.nodes[0].scale - drifted[0].scale) > 1e-3


def test_a_wrong_loop_is_outvoted():
    loops = ((0, -1), (1, -2), (0, -3), (2, -1))
    true, drifted, edges = walk(loops=loops)
    good = optimize(drifted, edges, fixed=39)
    wrong = Similarity(1.0, np.eye(3), np.array([4.0, 0, 0]))
    edges.append(Edge(5, 25, wrong, LOOP, loop=True))
    found = optimize(drifted, edges, fixed=39)
    assert off(found.nodes, true, 39) < 1.3 * off(good.nodes, true, 39) + 0.02
    assert found.off[-1] > 10 > found.off[:-1].max()  # and it is told apart


def test_a_node_without_edges_stays():
    _, drifted, edges = walk(count=10)
    alone = Similarity(2.0, np.eye(3), np.array([9.0, 9, 9]))
    found = optimize([*drifted, alone], edges, fixed=9)
    np.testing.assert_allclose(found.nodes[-1].t, alone.t)
    assert found.nodes[-1].scale == pytest.approx(2.0)


def test_one_submap_alone_needs_no_graph():
    found = optimize([circle(3)[0]], [], fixed=0)
    assert found.nodes[0].scale == 1.0


@pytest.mark.parametrize("seed", range(3))
def test_gtsam_finds_the_same(seed):
    gtsam = pytest.importorskip("gtsam", minversion=None)
    if not hasattr(gtsam, "BetweenFactorSimilarity3"):
        pytest.skip("this gtsam has no Sim(3) factors")
    _, drifted, edges = walk(count=15, seed=seed)
    graph, start = gtsam.NonlinearFactorGraph(), gtsam.Values()

    def theirs(one):
        return gtsam.Similarity3(gtsam.Rot3(one.R), one.t / one.scale, one.scale)

    for key, node in enumerate(drifted):
        start.insert(key, theirs(node))
    tight = gtsam.noiseModel.Isotropic.Sigma(7, 1e-6)
    graph.add(gtsam.PriorFactorSimilarity3(14, theirs(drifted[14]), tight))
    for e in edges:
        sigma = e.sigma[[1, 1, 1, 2, 2, 2, 0]]
        graph.add(
            gtsam.BetweenFactorSimilarity3(
                e.first, e.second, theirs(e.measured), gtsam.noiseModel.Diagonal.Sigmas(sigma)
            )
        )
    solved = gtsam.LevenbergMarquardtOptimizer(graph, start).optimize()
    found = optimize(drifted, edges, fixed=14).nodes
    moved = max(np.linalg.norm(a.t - b.t) for a, b in zip(found, drifted, strict=True))
    for key, ours in enumerate(found):
        their = solved.atSimilarity3(key)
        place = their.scale() * np.asarray(their.translation())
        # Both weigh the same errors, in coordinates that differ to second order.
        assert np.linalg.norm(place - ours.t) < 0.1 * moved
        assert their.scale() == pytest.approx(ours.scale, abs=0.02)
