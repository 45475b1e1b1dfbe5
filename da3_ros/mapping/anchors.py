"""Anchors: poses of the robot that something outside knows, as factors on the map's graph.

An anchor (a tag, GNSS, a dock) says where the robot's base was at a time, with a covariance. Pure
functions; poses are in the axes of the published map (``ros``), metres. No ROS.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import chdtri  # scipy.stats takes 0.4 s to import

from da3_ros.geometry.poses import invert_pose
from da3_ros.geometry.similarity import IDENTITY, Similarity
from da3_ros.mapping.graph_solution import Problem
from da3_ros.mapping.levelling import Bend, Up, bend_of, bent, level_node, z_is_up
from da3_ros.mapping.pose_graph import Edge, components, marginal, optimize
from da3_ros.types import UNKNOWN_RAD2, Array, GlobalPose

RIGID = np.array([1e-4, 1e-4, 1e-4])  # least sigma of a base in its submap: for the solver
WRONG = 1e-4  # probability of a misfit as large by chance, from which on an anchor is wrong
KNOWN_RAD = 0.3  # largest standard deviation of an orientation that places a map
UPRIGHT_RAD = 0.05  # of what is up at the oldest anchor, where none says it
GROWTH = 1e-3  # by which lengths grow, to see what a new scale moves
MOST_TRIED = 24  # anchors that are tried to place a map
DRIFT = 0.05  # of odometry over the way, while a map is placed
AGREE = 3.0  # standard deviations


@dataclass(frozen=True, eq=False)
class HeldAnchor:
    """A global pose, and the frame of the path beside which the camera was at that time."""

    given: GlobalPose
    submap: int
    frame: tuple[int, str]  # stamp and camera; a keyframe if there is one
    T_frame_camera: Array  # [4, 4] in the unit of the submap


@dataclass(frozen=True, eq=False)
class Anchor:
    """A global pose, and where the map has the camera at that time, for one solution."""

    given: GlobalPose
    submap: int
    T_submap_camera: Array  # [4, 4] in the unit of the submap

    @property
    def rotation_sigmas(self) -> Array:
        """Standard deviations [3] of the rotation about the map's axes, rad."""
        return np.sqrt(np.diag(self.given.covariance)[3:])

    @property
    def says_up(self) -> bool:
        """Whether it says what is up."""
        return bool((self.rotation_sigmas[:2] ** 2 < UNKNOWN_RAD2 / 2).all())

    @property
    def sigma_m(self) -> float:
        """Standard deviation of the position, of the largest of the ground's axes, metres."""
        return float(np.sqrt(np.diag(self.given.covariance)[:2].max()))

    def base(self, T_ros_submap: Similarity) -> Array:
        """Returns ``T_ros_base`` [4, 4] as the map has it."""
        T: Array = T_ros_submap.pose(self.T_submap_camera) @ invert_pose(self.given.T_base_camera)
        return T


@dataclass(frozen=True, eq=False)
class Anchored:
    """A graph that was solved with anchors."""

    moves: list[Similarity]  # of the nodes, in ``ros``
    wrong: list[bool]  # of each anchor, whether it does not fit
    metres: list[float]  # of each anchor, how far the map is from it
    covariance: Array  # [7, 7] of the newest node's pose, log scale first, in ``ros``
    bound: list[bool]  # of each node, whether anchors are connected to it
    # [3] the place from which a new scale moves the newest node: anchors hold the map there
    centre: Array


def placement(bases: Sequence[Array], anchors: Sequence[Anchor], *, level: bool) -> Array | None:
    """Returns the transform [4, 4] that moves a map to where most anchors have it; None: they do
    not say it yet.

    bases: of each anchor, its ``T_ros_base`` as the map has it. level: the map's z is up, so that
    it only turns about it, and two positions say how far.
    """
    best: tuple[float, Array] | None = None
    for i, T in _candidates(bases, anchors, level=level):
        fits = 0.0
        for base, anchor in zip(bases, anchors, strict=True):
            way = float(np.linalg.norm(base[:3, 3] - bases[i][:3, 3]))
            off = float(np.linalg.norm((T @ base - anchor.given.T_ros_base)[:2, 3]))
            fits += off < AGREE * math.hypot(anchor.sigma_m, anchors[i].sigma_m, DRIFT * way)
        if best is None or fits > best[0]:
            best = fits, T
    return None if best is None else best[1]


def _candidates(
    bases: Sequence[Array], anchors: Sequence[Anchor], *, level: bool
) -> list[tuple[int, Array]]:
    """Returns transforms that bring an anchor, by index, to its place."""
    some = sorted({*np.linspace(0, len(anchors) - 1, MOST_TRIED).round().astype(int).tolist()})
    out = []
    for i in some:
        if (anchors[i].rotation_sigmas < KNOWN_RAD).all():
            T = anchors[i].given.T_ros_base @ invert_pose(bases[i])
            R = about_z(T[:3, :3]) if level else T[:3, :3]
            out.append((i, _turned(R, bases[i], anchors[i])))
    if out or not level:
        return out
    for i in some:
        for j in some:
            way, wanted = (
                (T[j][:3, 3] - T[i][:3, 3])[:2]
                for T in (bases, [a.given.T_ros_base for a in anchors])
            )
            sigma = math.hypot(anchors[i].sigma_m, anchors[j].sigma_m)
            if i < j and sigma < KNOWN_RAD * min(np.linalg.norm(way), np.linalg.norm(wanted)):
                turn = math.atan2(wanted[1], wanted[0]) - math.atan2(way[1], way[0])
                out.append((i, _turned(_z(turn), bases[i], anchors[i])))
    return out


def _turned(R: Array, base: Array, anchor: Anchor) -> Array:
    """Returns the transform [4, 4] with a rotation that brings a base to its anchor."""
    T = np.eye(4)
    T[:3, :3] = R
    T[:3, 3] = anchor.given.T_ros_base[:3, 3] - R @ base[:3, 3]
    return T


def about_z(R: Array) -> Array:
    """Returns the rotation [3, 3] about z that is nearest to ``R``."""
    return _z(math.atan2(R[1, 0] - R[0, 1], R[0, 0] + R[1, 1]))


def _z(turn: float) -> Array:
    c, s = math.cos(turn), math.sin(turn)
    return np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])


def solve_anchored(
    problem: Problem, T_ros_local: Similarity, submaps: Mapping[int, Similarity],
    anchors: Sequence[Anchor], placed: Array, scale_sigma: float = 0.0, *,
    by_gravity: bool = False,
) -> Anchored:  # fmt: skip
    """Returns how the nodes of a graph move to fit its edges, what is up and the anchors best.

    submaps: ``T_ros_submap`` of the anchors' submaps. placed: [4, 4] moves the map near its place
    first. scale_sigma: relative standard deviation of the metres per unit, by which ways may be
    wrong. by_gravity: z of ``ros`` is what the nodes call up. Sizes stay. Anchors have robust
    weights, as loops have: one that does not fit is wrong.
    """
    before = [T_ros_local @ pose for pose in problem.poses]
    near = Similarity.from_pose(placed)
    nodes, first = [near @ T for T in before], [node.first for node in problem.nodes]
    bend = bend_of(problem.edges, problem.ups)
    count, edges, at = len(nodes), [bent(e, bend) for e in problem.edges], []
    every = [IDENTITY, *nodes]  # the map's origin, the nodes, and the bases
    drift = _drift(count, edges)
    edges = [
        replace(_stretched(e, scale_sigma), first=e.first + 1, second=e.second + 1) for e in edges
    ]
    upright = not (by_gravity or any(a.says_up for a in anchors))
    for anchor in anchors:
        k = bisect_right(first, anchor.submap) - 1
        base = Similarity.from_pose(placed @ anchor.base(submaps[anchor.submap]))
        base = replace(base, scale=nodes[k].scale)
        way = float(np.linalg.norm(anchor.T_submap_camera[:3, 3]))
        way *= submaps[anchor.submap].scale / nodes[k].scale
        sigma = np.hypot(RIGID * [1.0, 1.0, 1.0 / nodes[k].scale], drift[k].over(way))
        sigma[2] = math.hypot(sigma[2], scale_sigma * way)
        edges.append(Edge(k + 1, len(every), nodes[k].inverse() @ base, sigma))
        edges.append(_factor(anchor, base, len(every), upright=upright and anchor is anchors[0]))
        at.append(len(edges) - 1)
        every.append(base)
    component, bases = components(len(every), edges), slice(count + 1, len(every))
    ups = {k + 1: up for k, up in problem.ups.items() if component[k + 1] == component[0]}
    level = _level(every, edges, ups, bend, by_gravity=by_gravity)
    found = optimize(every, edges, fixed=0, metric=True, level=level)
    misfits = found.residuals[at] * math.sqrt(7)
    wrong = [float(m) > _most(a) for m, a in zip(misfits, anchors, strict=True)]
    metres = [
        float(np.linalg.norm(T.t - a.given.T_ros_base[:3, 3]))
        for T, a in zip(found.nodes[bases], anchors, strict=True)
    ]
    bound = [bool(c == component[0]) for c in component[1 : count + 1]]
    newest = max((k for k, b in enumerate(bound) if b), default=0)
    sure = marginal(found.nodes, edges, fixed=0, of=newest + 1, metric=True, level=level)
    moves = [now @ was.inverse() for now, was in zip(found.nodes[1:], before, strict=False)]
    moves = _with_unbound(moves, bound, near)
    centre = _centre(found.nodes, edges, newest + 1, level)
    return Anchored(moves, wrong, metres, sure, bound, centre)


def _level(
    nodes: list[Similarity], edges: list[Edge], ups: Mapping[int, Up], bend: Bend, *,
    by_gravity: bool,
) -> int | None:  # fmt: skip
    """Adds a level node, and edges to it from the nodes that know up; returns its index. None:
    they are too few to compare."""
    if len(ups) < (1 if by_gravity else 2):
        return None
    level = len(nodes)
    node, tilts = level_node(nodes, ups, bend)
    nodes.append(node)
    edges += [*tilts, z_is_up(0, level)] if by_gravity else tilts
    return level


def _stretched(edge: Edge, scale_sigma: float) -> Edge:
    """Returns an edge between nodes whose way may also be too long or too short, by an error of
    the scale."""
    W = edge.whitening
    if W is None:
        W = np.diag(1.0 / np.repeat(edge.sigma, [1, 3, 3]))
    along = W[:, 4:] @ (scale_sigma * edge.measured.t)
    square = float(along @ along)
    if edge.loop or not square > 0:
        return edge
    # A square root of the inverse of (the covariance + its outer product before whitening)
    less = (1.0 - 1.0 / math.sqrt(1.0 + square)) / square
    return replace(edge, whitening=W - less * np.outer(along, along @ W))


@dataclass(frozen=True, eq=False)
class _NodeDrift:
    """What odometry gathers within a node, in the node's unit."""

    sigma: Array  # [3] standard deviations of log scale (zero: sizes stay), rotation and position
    way: float  # over which it gathers them

    def over(self, way: float) -> Array:
        """Returns the standard deviations [3] of log scale, rotation and position of a way."""
        return np.asarray(self.sigma * math.sqrt(min(way / self.way, 1.0)))


def _drift(count: int, edges: Sequence[Edge]) -> list[_NodeDrift]:
    """Returns the drift in each node: that of the edge to the next one, else of that before."""
    out = [_NodeDrift(np.zeros(3), 1.0)] * count
    for e in edges:
        way = float(np.linalg.norm(e.measured.t))
        if e.loop or e.second != e.first + 1 or not way > 0:
            continue
        sigma = e.sigma
        if e.whitening is not None:
            variances = np.diag(np.linalg.pinv(e.whitening.T @ e.whitening))
            sigma = np.sqrt([variances[0], variances[1:4].mean(), variances[4:].mean()])
        out[e.first] = out[e.second] = _NodeDrift(sigma * [0.0, 1.0, 1.0], way)
    return out


def _centre(
    nodes: Sequence[Similarity], edges: Sequence[Edge], of: int, level: int | None
) -> Array:  # fmt: skip
    """Returns the place [3] from which node ``of`` of a solved graph moves by a new scale: in
    proportion to the distance from it."""
    grown = [
        replace(e, measured=replace(e.measured, t=(1 + GROWTH) * e.measured.t)) if e.first else e
        for e in edges
    ]
    moved = optimize(nodes, grown, fixed=0, metric=True, level=level).nodes[of]
    return np.asarray(nodes[of].t - (moved.t - nodes[of].t) / GROWTH)


def _with_unbound(
    moves: Sequence[Similarity], bound: Sequence[bool], near: Similarity
) -> list[Similarity]:
    """Returns the moves of all nodes; those that no anchor is connected to move with the node
    before."""
    out: list[Similarity] = []
    for move, is_bound in zip(moves, bound, strict=True):
        out.append(move if is_bound else out[-1] if out else near)
    return out


def _factor(anchor: Anchor, base: Similarity, index: int, *, upright: bool) -> Edge:
    """Returns the edge from the map's origin to the base at an anchor's time.

    base: where it nearly is. upright: what is up there counts as known.
    """
    covariance, R = anchor.given.covariance.copy(), anchor.given.T_ros_base[:3, :3]
    if not anchor.says_up:
        R = base.R
        covariance[3:, :], covariance[:, 3:] = 0.0, 0.0
        up = UPRIGHT_RAD**2 if upright else UNKNOWN_RAD2
        covariance[3:, 3:] = np.diag([up, up, UNKNOWN_RAD2])
    J = np.zeros((7, 7))  # of (log scale; rotation in the base's axes; position)
    J[0, 0] = 1.0
    J[1:4, 4:], J[4:, 1:4] = R.T, np.eye(3)
    full = np.zeros((7, 7))
    full[0, 0], full[1:, 1:] = 1e6, covariance
    whitening = np.linalg.cholesky(np.linalg.inv(J @ full @ J.T)).T
    measured = Similarity(base.scale, R, anchor.given.T_ros_base[:3, 3])
    return Edge(0, index, measured, np.ones(3), loop=True, whitening=whitening)


def _most(anchor: Anchor) -> float:
    """Returns the largest misfit of an anchor that is not wrong, standard deviations."""
    known = int((np.diag(anchor.given.covariance) < UNKNOWN_RAD2 / 2).sum())
    return math.sqrt(float(chdtri(max(known, 1), WRONG)))
