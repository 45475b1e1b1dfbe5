"""The pose graph on walks in a circle, against the truth and against gtsam."""

import dataclasses
import itertools

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from da3_ros.geometry.similarity import IDENTITY, Similarity
from da3_ros.mapping.graph_solution import Node, with_rigid_map
from da3_ros.mapping.pose_graph import (
    Edge,
    Pivot,
    _GraphArrays,
    components,
    marginal,
    optimize,
)

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


def walk(count=40, seed=0, metric=False, loops=((0, -1),)):
    """True places, places along the way as drift makes them, and all edges."""
    rng = np.random.default_rng(seed)
    sigma, certain = SIGMA.copy(), LOOP.copy()
    if metric:
        sigma[0] = certain[0] = 1e-9
    true = circle(count)
    ways = [disturbed(a.inverse() @ b, sigma, rng) for a, b in itertools.pairwise(true)]
    edges = [Edge(i, i + 1, way, sigma) for i, way in enumerate(ways)]
    drifted = [true[0]]
    for way in ways:
        drifted.append(drifted[-1] @ way)
    for first, second in loops:
        first, second = first % count, second % count
        seen = disturbed(true[first].inverse() @ true[second], certain, rng)
        edges.append(Edge(first, second, seen, certain, loop=True))
    return true, drifted, edges


@pytest.mark.parametrize("pivots", [True, False])
def test_two_looks_that_are_apart_show_the_size(pivots):
    """Each knows where it is, and not how large the second node is."""
    turn = Rotation.from_rotvec([0.1, 0.2, 0.3]).as_matrix()
    true = Similarity(2.0, turn, np.array([1.0, 2, 3]))
    own, edges = np.array([0.1, 0.002, 0.01]), []
    for at in (np.zeros(3), np.array([3.0, 1, 0])):
        measured = Similarity(2.2, turn, np.zeros(3))
        measured = Similarity(2.2, turn, true.points(at) - measured.points(at))
        sigma = np.hypot(own, [0, 0, 0.1 * 2.2 * np.linalg.norm(at)])
        edge = Edge(0, 1, measured, sigma, loop=True, pivot=Pivot(at, own))
        edges.append(edge.whitened if pivots else edge)
    found = optimize([IDENTITY, edges[0].measured], edges, fixed=0).nodes[1]
    assert found.scale == pytest.approx(2.0 if pivots else 2.2, rel=0.01)
    if pivots:
        np.testing.assert_allclose(found.points(np.ones(3)), true.points(np.ones(3)), atol=0.02)


def test_a_pivot_tells_how_far_its_point_is_from_where_it_was_measured():
    rng = np.random.default_rng(2)
    base, own = disturbed(circle(4)[1], [0.5, 0.5, 0.5], rng), np.array([0.1, 0.02, 0.03])
    measured = disturbed(circle(4)[2], [0.3, 0.3, 0.3], rng)
    pivot = Pivot(rng.normal(size=3), own)
    edge = Edge(0, 1, measured, SIGMA, loop=True, pivot=pivot).whitened
    for _ in range(5):
        seen = disturbed(measured, [1e-4, 1e-4, 1e-4], rng)
        found = _GraphArrays([base, base @ seen], [edge], 0, False, None).residual()[0]
        turn = Rotation.from_matrix(measured.R.T @ seen.R).as_rotvec()
        away = seen.points(pivot.at) - measured.points(pivot.at)
        wanted = np.concatenate(([np.log(seen.scale / measured.scale)], turn, away))
        np.testing.assert_allclose(found, wanted / own[[0, 1, 1, 1, 2, 2, 2]], atol=1e-5)


def test_a_pivot_counts_the_same_in_the_axes_of_another_node():
    rng = np.random.default_rng(0)
    poses = [disturbed(one, [0.5, 0.5, 0.5], rng) for one in circle(3)]
    pivot = Pivot(rng.normal(size=3), np.array([0.1, 0.02, 0.03]))
    measured = disturbed(poses[1].inverse() @ poses[2], SIGMA, rng)
    edge = Edge(1, 2, measured, SIGMA, loop=True, pivot=pivot).whitened
    nodes = [Node(k, k) for k in range(3)]
    _, (moved,) = with_rigid_map(nodes, poses, [edge], first_live=2)
    assert moved.first == 0
    own, now = (_GraphArrays(poses, [e], 0, False, None).residual() for e in (edge, moved))
    np.testing.assert_allclose(now, own, rtol=1e-6)


def test_derivatives_equal_finite_differences():
    """Also of edges with a whitening, and far from what they measure."""
    _, drifted, edges = walk(6, seed=3, loops=[(0, -1), (1, 4)])
    rng = np.random.default_rng(1)
    nodes = [disturbed(n.scaled(1.3), [0.3, 0.8, 0.5], rng) for n in drifted]
    edges[2] = dataclasses.replace(edges[2], whitening=rng.normal(size=(7, 7)))
    exact, step = _GraphArrays(nodes, edges, 0, False, None).derivative(), 1e-6
    for node in range(len(nodes)):
        for unknown in range(7):
            ends = []
            for sign in (-1, 1):
                graph = _GraphArrays(nodes, edges, 0, False, None)
                graph.free = np.arange(7 * len(nodes))
                graph._move(sign * step * np.eye(len(graph.free))[7 * node + unknown])
                ends.append(graph.residual())
            numeric = (ends[1] - ends[0]) / (2 * step)
            for edge, one in enumerate(edges):
                found = (one.first == node) * exact[edge, :, unknown]
                found = found + (one.second == node) * exact[edge, :, 7 + unknown]
                size = np.abs(exact[edge]).max()
                np.testing.assert_allclose(found, numeric[edge], atol=1e-6 * size)


def off(nodes, true, fixed):
    """Largest distance of a node's place, seen from the fixed node."""
    a = [(nodes[fixed].inverse() @ n).t for n in nodes]
    b = [(true[fixed].inverse() @ n).t for n in true]
    return np.linalg.norm(np.array(a) - np.array(b), axis=1).max()


@pytest.mark.parametrize("metric", [False, True])
def test_a_loop_takes_the_drift_out(metric):
    true, drifted, edges = walk(metric=metric)
    found = optimize(drifted, edges, fixed=39, metric=metric)
    ends = [(nodes[39].inverse() @ nodes[0]).t for nodes in (true, drifted, found.nodes)]
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
    assert found.residuals[-1] > 10 > found.residuals[:-1].max()  # and it is distinguished


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


def straight(count, sigma):
    """A chain along x in one unit, with nothing but its own drift."""
    nodes = [Similarity(1.0, np.eye(3), np.array([i, 0.0, 0.0])) for i in range(count)]
    edges = [
        Edge(i, i + 1, a.inverse() @ b, sigma)
        for i, (a, b) in enumerate(itertools.pairwise(nodes))
    ]
    return nodes, edges


def test_the_covariance_of_a_chain_is_what_its_arms_give():
    s, r, t = sigma = np.array([0.01, 0.02, 0.03])
    count = 6
    nodes, edges = straight(count, sigma)
    found = marginal(nodes, edges, fixed=0, of=count - 1, metric=False)
    arms = np.arange(count - 1)  # from a joint that turns and scales to the end; the first 0
    steps = count - 1
    assert found[0, 0] == pytest.approx(steps * s**2, rel=1e-4)
    np.testing.assert_allclose(np.diag(found)[1:4], steps * r**2, rtol=1e-4)
    along = steps * t**2 + s**2 * (arms**2).sum()
    across = steps * t**2 + r**2 * (arms**2).sum()
    np.testing.assert_allclose(np.diag(found)[4:], [along, across, across], rtol=1e-4)
    assert found[0, 4] == pytest.approx(s**2 * arms.sum(), rel=1e-4)
    assert found[3, 5] == pytest.approx(r**2 * arms.sum(), rel=1e-4)  # a yaw moves y


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("metric", [False, True])
def test_the_covariance_is_the_spread_of_solutions(metric):
    """120 draws with the same sigmas: what is asked is how the newest lies to the first."""
    count, errors = 8, []
    for seed in range(120):
        true, drifted, edges = walk(count, seed, metric, loops=((0, -1), (1, -2)))
        nodes = optimize(drifted, edges, fixed=count - 1, metric=metric).nodes
        seen, wanted = nodes[0].inverse() @ nodes[-1], true[0].inverse() @ true[-1]
        turn = Rotation.from_matrix(seen.R @ wanted.R.T).as_rotvec()
        off = [np.log(seen.scale / wanted.scale), *turn, *(seen.t - wanted.t)]
        errors.append(np.concatenate((off[:1], true[0].R @ off[1:4], true[0].R @ off[4:])))
    covariance = marginal(true, edges, fixed=0, of=count - 1, metric=metric)
    spread = np.cov(np.array(errors).T, bias=True)
    free = slice(1, 7) if metric else slice(0, 7)
    if metric:
        assert not covariance[0].any()
        assert not covariance[:, 0].any()
    ratio = np.diag(spread)[free] / np.diag(covariance)[free]
    assert 0.75 < ratio.min() <= ratio.max() < 1.35
    nees = np.linalg.solve(covariance[free, free], np.array(errors)[:, free].T).T
    nees = (nees * np.array(errors)[:, free]).sum(axis=1) / covariance[free, free].shape[0]
    assert 0.9 < nees.mean() < 1.1


def test_a_component_that_nothing_ties_has_no_covariance():
    nodes, edges = straight(4, SIGMA)
    assert components(5, edges).tolist() == [0, 0, 0, 0, 1]
    with pytest.raises(ValueError, match="no edges connect"):
        marginal([*nodes, nodes[0]], edges, fixed=0, of=4, metric=False)
    np.testing.assert_allclose(
        marginal([*nodes, nodes[0]], edges, fixed=0, of=3, metric=False),
        marginal(nodes, edges, fixed=0, of=3, metric=False),
    )


def test_gtsam_gives_the_same_covariance():
    gtsam = pytest.importorskip("gtsam", minversion=None)
    if not hasattr(gtsam, "BetweenFactorSimilarity3"):
        pytest.skip("this gtsam has no Sim(3) factors")
    count = 12
    true = circle(count)
    edges = [Edge(i, i + 1, true[i].inverse() @ true[i + 1], SIGMA) for i in range(count - 1)]
    edges.append(Edge(1, count - 2, true[1].inverse() @ true[count - 2], LOOP, loop=True))
    graph, values = gtsam.NonlinearFactorGraph(), gtsam.Values()

    def theirs(one):
        return gtsam.Similarity3(gtsam.Rot3(one.R), one.t / one.scale, one.scale)

    for key, node in enumerate(true):
        values.insert(key, theirs(node))
    tight = gtsam.noiseModel.Isotropic.Sigma(7, 1e-7)
    graph.add(gtsam.PriorFactorSimilarity3(0, theirs(true[0]), tight))
    for e in edges:
        # Their errors are in coordinates of the measured place: ours, carried over numerically.
        chart = charted(gtsam, theirs(e.measured))
        spread = chart @ np.diag(e.sigma[[0, 1, 1, 1, 2, 2, 2]] ** 2) @ chart.T
        noise = gtsam.noiseModel.Gaussian.Covariance(spread)
        graph.add(gtsam.BetweenFactorSimilarity3(e.first, e.second, theirs(e.measured), noise))
    last = theirs(true[-1])
    chart = np.linalg.inv(charted(gtsam, last))
    wanted = chart @ gtsam.Marginals(graph, values).marginalCovariance(count - 1) @ chart.T
    axes = np.eye(7)
    axes[1:4, 1:4] = true[-1].R
    found = marginal(true, edges, fixed=0, of=count - 1, metric=False)
    np.testing.assert_allclose(found, axes @ wanted @ axes.T, atol=1e-3 * np.abs(found).max())


def charted(gtsam, at):
    """Derivative [7, 7] of their tangent by ours: (log scale; rotation in the node's; place)."""
    columns = []
    for step in 1e-5 * np.eye(7):
        ends = []
        for sign in (1, -1):
            scale = at.scale() * np.exp(sign * step[0])
            R = at.rotation().matrix() @ Rotation.from_rotvec(sign * step[1:4]).as_matrix()
            place = at.scale() * np.asarray(at.translation()) + sign * step[4:]
            there = gtsam.Similarity3(gtsam.Rot3(R), place / scale, scale)
            ends.append(np.asarray(at.localCoordinates(there)))
        columns.append((ends[0] - ends[1]) / 2e-5)
    return np.array(columns).T
