"""Global poses as factors on the graph of submaps: held heading and drift, and honest errors."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from support.cases import long_after

from da3_ros.geometry.poses import invert_pose
from da3_ros.geometry.similarity import IDENTITY, Similarity
from da3_ros.mapping.anchors import Anchor, about_z, placement, solve_anchored
from da3_ros.mapping.graph_solution import Node, Problem
from da3_ros.mapping.levelling import Up
from da3_ros.mapping.pose_graph import Edge
from da3_ros.types import UNKNOWN_M2, UNKNOWN_RAD2, GlobalPose

COUNT = 24
# Of each submap relative to the one before: rotation, rad, and position, metres.
ODOMETRY = np.array([1e-6, 0.02, 0.05])
MOUNT = np.eye(4)
MOUNT[:3, :3] = Rotation.from_euler("x", -100, degrees=True).as_matrix()
MOUNT[:3, 3] = 0.1, 0.0, 0.4


def pose(x, y, yaw, z=0.0):
    T = np.eye(4)
    T[:3, :3] = Rotation.from_euler("z", yaw).as_matrix()
    T[:3, 3] = x, y, z
    return T


def way():
    """Poses of a robot's base on a bend."""
    turns = np.linspace(0, 2.0, COUNT)
    return [pose(8 * np.sin(t) + 100, 8 * (1 - np.cos(t)) - 50, t) for t in turns]


def noisy(T, sigmas, rng):
    """The pose with errors of position and of rotation about fixed axes."""
    out = T.copy()
    out[:3, 3] += sigmas[:3] * rng.standard_normal(3)
    out[:3, :3] = Rotation.from_rotvec(sigmas[3:] * rng.standard_normal(3)).as_matrix() @ T[:3, :3]
    return out


def graph(rng, odometry=ODOMETRY):
    """A problem in the frame of odometry, whose nodes have the errors of its edges."""
    cameras = [T @ MOUNT for T in way()]
    nodes, edges = [Similarity.from_pose(np.eye(4))], []
    for i in range(1, COUNT):
        step = invert_pose(cameras[i - 1]) @ cameras[i]
        turn = Rotation.from_rotvec(odometry[1] * rng.standard_normal(3)).as_matrix()
        step[:3, :3] = step[:3, :3] @ turn
        step[:3, 3] += odometry[2] * rng.standard_normal(3)
        measured = Similarity.from_pose(step)
        nodes.append(nodes[-1] @ measured)
        edges.append(Edge(i - 1, i, measured, odometry))
    ids = tuple(Node(i, i) for i in range(COUNT))
    return Problem(ids, tuple(nodes), edges, IDENTITY, True), dict(enumerate(nodes))


def anchor(i, sigmas, rng, off=(0, 0, 0)):
    """What is said of the base in submap ``i``; a sigma of inf is unknown."""
    known = np.where(np.isfinite(sigmas), sigmas, 0.0)
    T = noisy(way()[i], known, rng)
    T[:3, 3] += off
    unknown = np.repeat([UNKNOWN_M2, UNKNOWN_RAD2], 3)
    variance = np.where(np.isfinite(sigmas), np.square(known), unknown)
    if not np.isfinite(sigmas[5]):
        T[:3, :3] = np.eye(3)
    return Anchor(GlobalPose(i, T, np.diag(variance), MOUNT), i, np.eye(4))


def ups(degrees=0.3):
    """What is up at each node, in its axes, with the error of an IMU."""
    rng, found = np.random.default_rng(8), {}
    for i, T in enumerate(way()):
        wrong = Rotation.from_rotvec(np.radians(degrees) * rng.standard_normal(3)).as_matrix()
        found[i] = Up((T @ MOUNT)[2, :3] @ wrong, np.radians(degrees))
    return found


TAG = np.array([0.03, 0.03, 0.03, 0.02, 0.02, 0.02])
GNSS = np.array([0.3, 0.3, 0.8, np.inf, np.inf, np.inf])


def solved(problem, nodes, anchors, *, level=False, scale_sigma=0.0):
    bases = [a.base(nodes[a.submap]) for a in anchors]
    at = placement(bases, anchors, level=level)
    assert at is not None
    return solve_anchored(problem, IDENTITY, nodes, anchors, at, scale_sigma), at


def base_of(found, nodes, i):
    return (found.moves[i] @ nodes[i]).pose(np.eye(4)) @ invert_pose(MOUNT)


def off(T, true):
    return np.linalg.norm(T[:3, 3] - true[:3, 3])


@pytest.mark.parametrize("at", [(0,), (10,), (0, 12, 23), (3, 9, 15, 21)])
def test_a_map_lies_where_tags_have_it_and_drift_is_held(at):
    rng = np.random.default_rng(1)
    problem, nodes = graph(rng)
    found, _ = solved(problem, nodes, [anchor(i, TAG, rng) for i in at])
    for i in at:
        assert off(base_of(found, nodes, i), way()[i]) < 0.12
    assert off(base_of(found, nodes, COUNT - 1), way()[-1]) < (0.15 if 23 in at else 4.0)
    assert not any(found.wrong)
    assert all(found.bound)


@pytest.mark.parametrize("at", [(3,), (2, 20)])
def test_the_scale_counts_from_where_anchors_are(at):
    """As another scale moves the newest node: not in proportion to the distance from the map's
    origin, 100 m away."""
    rng = np.random.default_rng(5)
    problem, nodes = graph(rng)
    anchors = [anchor(i, TAG, rng) for i in at]
    found, _ = solved(problem, nodes, anchors)

    def grown(T):
        return replace(T, t=1.01 * T.t)

    larger = replace(
        problem, poses=tuple(map(grown, problem.poses)),
        edges=[replace(e, measured=grown(e.measured)) for e in problem.edges],
    )  # fmt: skip
    there = {i: grown(T) for i, T in nodes.items()}
    other, _ = solved(larger, there, anchors)
    newest = (found.moves[-1] @ nodes[COUNT - 1]).t
    moved = (other.moves[-1] @ there[COUNT - 1]).t - newest
    arm = newest - found.centre
    assert moved == pytest.approx(0.01 * arm, abs=0.02)
    assert (np.linalg.norm(arm) > 5) == (len(at) == 1)
    assert np.linalg.norm(arm) < 20


def level_graph(rng):
    """The same, in a map that is level but turned by half a radian."""
    problem, nodes = graph(rng)
    level = Similarity.from_pose(pose(2, 3, -0.5) @ MOUNT)
    return problem, nodes, level


def test_positions_alone_turn_a_level_map_once_they_are_apart():
    rng = np.random.default_rng(2)
    problem, nodes, level = level_graph(rng)
    there = {i: level @ T for i, T in nodes.items()}
    near = [anchor(i, GNSS, rng) for i in (0, 1)]
    assert placement([a.base(there[a.submap]) for a in near], near, level=True) is None
    far = [anchor(i, GNSS, rng) for i in range(0, COUNT, 2)]
    at = placement([a.base(there[a.submap]) for a in far], far, level=True)
    found = solve_anchored(problem, level, there, far, at)
    errors = [off(base_of(found, there, i), way()[i]) for i in range(COUNT)]
    assert np.sqrt(np.mean(np.square(errors))) < 1.0
    assert not any(found.wrong)
    assert placement([a.base(there[a.submap]) for a in far], far, level=False) is None


@pytest.mark.parametrize("wrong", [0, 2, 5])
def test_a_wrong_tag_is_named_and_not_followed(wrong):
    """Also the first one, by which the map was placed."""
    rng = np.random.default_rng(3)
    problem, nodes = graph(rng)
    at = [0, 4, 8, 12, 16, 20]
    anchors = [anchor(i, TAG, rng, (3, -4, 0) if k == wrong else (0, 0, 0))
               for k, i in enumerate(at)]  # fmt: skip
    found, _ = solved(problem, nodes, anchors)
    assert found.wrong == [k == wrong for k in range(6)]
    assert found.metres[wrong] == pytest.approx(5.0, abs=0.5)
    assert off(base_of(found, nodes, 16), way()[16]) < 0.3


def test_drift_within_a_submap_makes_no_anchor_wrong():
    """Two good tags in one submap, between which odometry has drifted by 0.15 m, three of its
    deviations."""
    rng = np.random.default_rng(6)
    problem, nodes = graph(rng)
    sure = TAG / 5
    at = [anchor(i, sure, rng) for i in (3, 4)]
    step = problem.edges[3].measured.pose(np.eye(4))
    step[:3, 3] += 0.15 * step[:3, 0]
    same = [at[0], replace(at[1], submap=3, T_submap_camera=step)]
    found, _ = solved(problem, nodes, same)
    assert found.wrong == [False, False]
    assert max(found.metres) < 0.02
    far = [at[0], replace(same[1], T_submap_camera=step @ pose(1, 0, 0))]
    assert any(solved(problem, nodes, far)[0].wrong)
    assert not any(solved(problem, nodes, far, scale_sigma=0.5)[0].wrong)


def test_a_wrong_scale_makes_no_anchor_wrong():
    """All ways are 3 % too long, three of their deviations: tags each 3 m, of 2 mm, would be off
    by 0.1 m."""
    rng = np.random.default_rng(7)
    problem, _ = graph(rng, np.array([1.0, 0.02, 0.02]) * ODOMETRY)

    def longer(T):
        return replace(T, t=1.03 * T.t)

    edges = [replace(e, measured=longer(e.measured)) for e in problem.edges]
    poses = tuple(map(longer, problem.poses))
    problem = replace(problem, poses=poses, edges=edges)
    nodes = dict(enumerate(poses))
    anchors = [anchor(i, TAG / 15, rng) for i in range(0, COUNT, 4)]
    assert any(solved(problem, nodes, anchors)[0].wrong)
    found, _ = solved(problem, nodes, anchors, scale_sigma=0.01)
    assert not any(found.wrong)
    assert max(found.metres) < 0.02


def test_a_way_is_as_uncertain_as_the_scale_beside_its_own_errors():
    """The newest node, 0.7 m after the last tag, over seeds."""
    values = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        problem, nodes = graph(rng)
        longer = 1 + 0.2 * rng.standard_normal()
        edges = [
            replace(e, measured=replace(e.measured, t=longer * e.measured.t))
            for e in problem.edges
        ]
        problem = replace(problem, edges=edges)
        anchors = [anchor(i, TAG, rng) for i in (0, 9, COUNT - 2)]
        found, _ = solved(problem, nodes, anchors, scale_sigma=0.2)
        now, true = found.moves[-1] @ nodes[COUNT - 1], way()[-1] @ MOUNT
        error = now.t - true[:3, 3]
        values.append(error @ np.linalg.solve(found.covariance[4:, 4:], error) / 3)
    assert 0.5 < np.mean(values) < 1.5


@pytest.mark.slow
@pytest.mark.parametrize("kind", long_after(1, ["tags", "gnss"]))
def test_errors_are_as_large_as_stated(kind):
    """NEES of the newest node's position and rotation, over seeds."""
    sigmas, at = (TAG, (0, 9)) if kind == "tags" else (GNSS, range(0, COUNT, 2))
    values = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        problem, nodes, level = level_graph(rng)
        there = {i: level @ T for i, T in nodes.items()}
        anchors = [anchor(i, sigmas, rng) for i in at]
        bases = [a.base(there[a.submap]) for a in anchors]
        start = placement(bases, anchors, level=kind == "gnss")
        found = solve_anchored(problem, level, there, anchors, start)
        now, true = found.moves[-1] @ there[COUNT - 1], way()[-1] @ MOUNT
        turn = Rotation.from_matrix(now.R @ true[:3, :3].T).as_rotvec()
        error = np.concatenate((turn, now.t - true[:3, 3]))
        values.append(error @ np.linalg.solve(found.covariance[1:, 1:], error) / 6)
    assert 0.6 < np.mean(values) < 1.5


def test_a_part_without_anchors_moves_with_the_one_before():
    rng = np.random.default_rng(4)
    problem, nodes = graph(rng)
    cut = [e for e in problem.edges if e.second != 12]
    apart = Problem(problem.nodes, problem.poses, cut, IDENTITY, True)
    found, _ = solved(apart, nodes, [anchor(2, TAG, rng)])
    assert found.bound == [True] * 12 + [False] * 12
    for move in found.moves[12:]:
        np.testing.assert_allclose(move.t, found.moves[11].t)


def test_the_turn_about_z_is_that_of_the_rotation():
    R = Rotation.from_euler("zyx", [0.7, 0.02, -0.01]).as_matrix()
    np.testing.assert_allclose(about_z(R), Rotation.from_euler("z", 0.7).as_matrix(), atol=0.02)


@pytest.mark.parametrize("by_gravity", [False, True])
def test_what_is_up_counts_beside_anchors(by_gravity):
    """A network bends the way by 1.5 degrees at each node, and states a tenth of that."""
    rng = np.random.default_rng(4)
    problem, _ = graph(rng, np.array([1e-6, 1e-4, 1e-3]))
    bend = Similarity(1.0, Rotation.from_euler("x", 1.5, degrees=True).as_matrix(), np.zeros(3))
    stated, nodes = np.array([1e-6, 2.6e-3, 1e-2]), [problem.poses[0]]
    edges = [replace(e, measured=e.measured @ bend, sigma=stated) for e in problem.edges]
    for e in edges:
        nodes.append(nodes[-1] @ e.measured)
    known = ups() if by_gravity else {}
    problem = replace(problem, poses=tuple(nodes), edges=edges, ups=known)
    nodes, given = dict(enumerate(nodes)), [anchor(i, GNSS, rng) for i in range(COUNT)]
    start = way()[0] @ MOUNT
    found = solve_anchored(problem, IDENTITY, nodes, given, start, by_gravity=by_gravity)
    up = [(base_of(found, nodes, i) @ invert_pose(way()[i]))[2, 2] for i in range(COUNT)]
    most = math.degrees(max(map(math.acos, up)))
    assert most < 1.5 if by_gravity else most > 3.0
    assert sum(found.wrong) == 0 or not by_gravity
