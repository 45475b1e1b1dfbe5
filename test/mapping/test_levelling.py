"""What is up in the graph of submaps: how far edges bend, and how wrong an IMU is."""

import dataclasses
import math

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.levelling import (
    FEWEST,
    LEAST_SIGMA,
    Bend,
    SubmapUp,
    Up,
    bend_of,
    bent,
    common_up,
    mean_up,
)
from da3_ros.mapping.pose_graph import Edge

SIGMA = 0.3  # of ups, degrees


def up(x=0.0, y=0.0, sigma=SIGMA):
    """Up that is wrong by angles about x and y, degrees."""
    R = Rotation.from_rotvec(np.radians([x, y, 0.0])).as_matrix()
    return Up(R @ [0, 0, 1], math.radians(sigma))


def chain(errors):
    """Edges that state no turn, almost exactly, and what nodes call up, by errors [N, 2]."""
    straight = Similarity(1.0, np.eye(3), np.zeros(3))
    edges = [
        Edge(k, k + 1, straight, np.full(3, math.radians(1e-3))) for k in range(len(errors) - 1)
    ]
    return edges, {k: up(*error) for k, error in enumerate(errors)}


def noise(count, seed, degrees=SIGMA):
    return np.random.default_rng(seed).normal(0, degrees, (count, 2))


def steady(count, degrees):
    return np.arange(count)[:, None] * [degrees, 0.0]


def test_a_way_that_bends_ends_beside_where_it_would():
    measured = Similarity(1.0, np.eye(3), np.array([3.0, 0.0, 0.0]))
    loose = bent(Edge(0, 1, measured, np.array([0.01, 0.0, 0.1])), Bend(0.1))
    np.testing.assert_allclose(loose.sigma, [0.01, 0.1, np.hypot(0.1, 0.15)])
    loop = Edge(0, 1, measured, np.ones(3), loop=True)
    assert bent(loop, Bend(0.1)) is loop


@pytest.mark.parametrize("degrees", [0.3, 0.5])
def test_a_steady_bend_is_found(degrees):
    for seed in range(10):
        bend = bend_of(*chain(steady(12, degrees) + noise(12, seed)))
        assert degrees / 2 < math.degrees(bend.sigma) < 2 * degrees
        assert bend.factor == 1.0


def test_a_slow_bend_is_found_that_no_two_ups_show():
    found = [bend_of(*chain(steady(40, 0.1) + noise(40, seed))).sigma for seed in range(10)]
    assert 0.05 < math.degrees(np.median(found)) < 0.4


@pytest.mark.parametrize("size", [0.3, 1.0, 5.0])
def test_errors_of_an_imu_are_no_bend(size):
    """As many times as large as stated; they do not add up from submap to submap."""
    bends = [bend_of(*chain(noise(12, seed, size * SIGMA))) for seed in range(20)]
    assert sum(bend.sigma > 0 for bend in bends) <= 1
    assert 0.4 * size < np.median([bend.factor for bend in bends]) < max(1.6, 1.6 * size)


@pytest.mark.parametrize("at", [0, 6, 11])
def test_one_wrong_up_is_no_bend(at):
    for seed in range(10):
        errors = noise(12, seed)
        errors[at] += [8.0, 0.0]
        assert bend_of(*chain(errors)).sigma == 0.0


def test_few_ups_show_no_bend():
    assert bend_of(*chain(steady(5, 1.0))).sigma == 0.0
    assert bend_of(*chain(steady(7, 1.0))).sigma > 0.0


def test_a_bend_is_found_across_nodes_that_know_nothing_of_up():
    edges, ups = chain(steady(16, 0.4) + noise(16, 3))
    for k in (3, 4, 9):
        del ups[k]
    assert 0.2 < math.degrees(bend_of(edges, ups).sigma) < 0.8


def test_loops_and_gaps_between_chains_are_no_bend():
    """Nodes that no edge of odometry connects may differ by any angle."""
    edges, ups = chain(noise(12, 1))
    ups |= {k: up(20.0 + x, y) for k, (x, y) in zip(range(6, 12), noise(6, 2), strict=True)}
    cut = [e for e in edges if e.second != 6]
    assert bend_of(cut, ups).sigma == 0.0
    measured = Similarity(1.0, np.eye(3), np.zeros(3))
    loop = Edge(5, 6, measured, np.full(3, 1e-3), loop=True)
    assert bend_of([*cut, loop], ups).sigma == 0.0


def test_ups_that_are_sure_count_most():
    mean = mean_up([up(4.0, sigma=1.5), up(3.0, sigma=1.0), up(0.0, sigma=0.1)])
    assert math.degrees(math.acos(mean.direction[2])) < 0.1
    assert mean.sigma == LEAST_SIGMA
    assert mean_up([up(sigma=0.8), up(sigma=1.5)]).sigma == pytest.approx(math.radians(0.8))
    nodes = [Similarity(1.0, np.eye(3), np.zeros(3))] * 2
    both = common_up(nodes, {0: up(6.0, sigma=3.0), 1: up(sigma=0.3)})
    assert math.degrees(math.acos(both[2])) < 0.1


@pytest.mark.parametrize(
    ("errors", "bends"),
    [
        ([0.0, 0.1, 0.2, 0.3, 0.4], False),
        ([0.0, 0.2, 0.4, 0.6], True),
        ([0.0, 2.0, 2.0], False),  # too few
    ],
)
def test_a_submap_that_bends_ends(errors, bends):
    one = SubmapUp(0)
    for x in errors:
        one.ups.append(up(x, sigma=0.15))
    assert one.bends is bends


def test_a_submap_whose_ups_settle_does_not_bend():
    one = SubmapUp(0)
    for x, sigma in zip([1.5, 0.8, 0.4, 0.2, 0.0], [0.9, 0.5, 0.3, 0.2, 0.15], strict=True):
        one.ups.append(up(x, sigma=sigma))
    assert len([0.9, 0.5, 0.3, 0.2, 0.15]) > FEWEST
    assert not one.bends
    assert math.degrees(math.acos(one.mean.direction[2])) < 0.2


@pytest.mark.parametrize(("per_second", "slips"), [(0.2, False), (1.0, True)])
def test_what_turns_faster_than_a_network_bends_slips(per_second, slips):
    one, seen = SubmapUp(0), []
    for k in range(8):
        tilted = up(0.5 * k * per_second, sigma=0.2)
        one.ups.append(dataclasses.replace(tilted, stamp_ns=k * 500_000_000))
        seen.append(one.slips)
    assert any(seen) is slips
    assert not seen[1]
