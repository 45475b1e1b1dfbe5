"""Solves a graph of submaps for their poses, after a loop; the newest one stays in ``local``."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from da3_ros.geometry.poses import turn_between
from da3_ros.geometry.similarity import Similarity, orthonormal
from da3_ros.mapping.levelling import Up, common_up, with_level
from da3_ros.mapping.pose_graph import UNKNOWNS, Edge, Metric, components, marginal, optimize
from da3_ros.types import Array

MAX_LOG_SCALE = 3.0  # log of the largest credible change of a submap's size


@dataclass(frozen=True, eq=False)
class Node:
    """Submaps ``first`` to ``last`` (by id), which move as one; its frame is that of the first."""

    first: int
    last: int
    guessed: bool = False  # the edge to the node before is a guess, not aligned windows


@dataclass(frozen=True, eq=False)
class Moves(Mapping[int, Similarity]):
    """Moves of submaps, by id; all submaps of a node have one move."""

    nodes: tuple[Node, ...]  # in the order of their ids
    moves: tuple[Similarity, ...]

    def __getitem__(self, id: int) -> Similarity:
        at = bisect_right(self.nodes, id, key=lambda node: node.first) - 1
        if at < 0 or id > self.nodes[at].last:
            raise KeyError(id)
        return self.moves[at]

    def __iter__(self) -> Iterator[int]:
        """All ids, the oldest first."""
        return (id for node in self.nodes for id in range(node.first, node.last + 1))

    def __len__(self) -> int:
        return sum(node.last + 1 - node.first for node in self.nodes)

    def transformed(self, change: Callable[[Similarity], Similarity]) -> Moves:
        """Returns the moves with ``change`` applied to each."""
        return Moves(self.nodes, tuple(map(change, self.moves)))


@dataclass(frozen=True, eq=False)
class Correction:
    """Moves of the older submaps, in the frame of odometry, that a solved graph asks for."""

    moves: Moves  # submaps that it does not hold stay
    T_map_local: Similarity  # keeps the first submap where it is in the map
    before: Similarity  # ``T_map_local`` for which it was solved
    # (older, newer) submap of every loop in the graph: their components become one
    loops: tuple[tuple[int, int], ...] = ()
    # [7, 7] of the newest submap's pose relative to the first submap that edges connect it to:
    # (log scale; rotation, rad; position, units), in the frame of odometry
    covariance: Array | None = None
    levelled: bool = False  # only what is up asks for it
    followed: bool = False  # another SLAM asks for it: its poses replace what edges measured
    adjusted: frozenset[int] = frozenset()  # submaps whose keyframes ask for it; likewise
    anchored: bool = False  # global poses of the robot ask for it

    def local_move(self, submap: int) -> Similarity | None:
        """Returns how a submap moves in the frame of odometry; None: it stays there. Submaps older
        than those of the correction stay in the map."""
        if submap in self.moves:
            return self.moves[submap]
        is_older = 0 <= submap < next(iter(self.moves), 0)
        return self.T_map_local.inverse() @ self.before if is_older else None

    def at(self, T_map_local: Similarity) -> Correction:
        """Returns the correction for a frame of odometry that has changed since it was solved: by
        another unit, or by a new beginning. It moves submaps in the map by the same."""
        if T_map_local.is_same(self.before):
            return self
        D = self.before.inverse() @ T_map_local  # from the frame now to that of then
        moves = self.moves.transformed(lambda move: D.inverse() @ move @ D)
        covariance = self.covariance
        if covariance is not None:
            J = np.zeros((7, 7))
            J[0, 0], J[1:4, 1:4], J[4:, 4:] = 1.0, D.R.T, D.R.T / D.scale
            covariance = J @ covariance @ J.T
        return replace(
            self, moves=moves, T_map_local=self.T_map_local @ D, before=T_map_local,
            covariance=covariance,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Joint:
    """A loop between components: no pose of one relative to the other was measured before."""

    drift: Similarity  # maps what moves with the new submap to where the old one measures it
    at: Array  # [3] where it was measured
    nodes: frozenset[int]  # of the old component, by first submap


@dataclass(frozen=True, eq=False)
class Problem:
    """A graph to be solved; poses are in the frame of odometry."""

    nodes: tuple[Node, ...]
    poses: tuple[Similarity, ...]  # of the nodes
    edges: list[Edge]  # between indices of nodes
    T_map_local: Similarity
    metric: Metric
    keep_unit: bool = False  # whether the oldest submap keeps its size in the map
    loops: tuple[tuple[int, int], ...] = ()  # (older, newer) node of every loop, by first submap
    joined: Joint | None = None  # what the newest loop has joined; None: what was connected
    all_components: bool = False  # or only the newest submap's
    ups: Mapping[int, Up] = field(default_factory=dict)  # by the index of a node
    levelled: bool = False  # whether it is solved for these alone
    up_map: Array | None = None  # [3] up in the map; None: the oldest submap keeps its tilt


def with_rigid_map(
    nodes: Sequence[Node], poses: Sequence[Similarity], edges: Sequence[Edge], first_live: int
) -> tuple[list[Node], list[Edge]]:
    """Returns a graph with the nodes of submaps before ``first_live`` as one; the ends of edges
    are first submaps. poses: of all nodes."""
    of_map = {n.first: T for n, T in zip(nodes, poses, strict=True) if n.first < first_live}
    first, out = nodes[0], []
    for e in edges:
        if e.second < first_live:
            continue
        if e.first < first_live:  # measured in the axes and the unit of a node
            to_node = poses[0].inverse() @ of_map[e.first]
            sigma = e.sigma * [1, 1, to_node.scale]
            whitening = e.whitening
            if whitening is not None:
                back = np.eye(UNKNOWNS)
                back[4:, 4:] = to_node.R.T / to_node.scale
                whitening = whitening @ back
            e = replace(
                e, first=first.first, measured=to_node @ e.measured, sigma=sigma,
                whitening=whitening,
            )  # fmt: skip
        out.append(e)
    return [replace(first, last=first_live - 1), *nodes[len(of_map) :]], out


def solve(problem: Problem) -> Correction:
    """Solves for the poses of all submaps in the frame of odometry; the newest one stays.

    Submaps that no edges connect to the newest one keep their pose in the map. Raises ValueError
    if the solution is not credible: contradicting loops can shrink a part of the map to a point.
    """
    nodes, edges = list(problem.poses), problem.edges
    newest, component = len(nodes) - 1, components(len(nodes), edges)
    here = component == component[newest]
    anchors = {int(p): int(np.argmax(component == p)) for p in component} | {
        int(component[newest]): newest
    }
    fixed = _fixed(problem, component, anchors)
    start, metric, level = _start(problem, component), problem.metric, None
    ups = {k: up for k, up in problem.ups.items() if here[k]}
    if len(ups) > 1 or (ups and problem.up_map is not None):
        start, edges, level = with_level(start, edges, ups)
        metric = np.append(np.broadcast_to(metric, len(nodes)), True)
    found = optimize(start, edges, fixed=fixed, metric=metric, level=level).nodes
    whole, found = found, found[: len(nodes)]
    back = {p: nodes[a] @ found[a].inverse() for p, a in anchors.items()}
    found = [back[int(p)] @ one for one, p in zip(found, component, strict=True)]
    moves = tuple(now @ before.inverse() for now, before in zip(found, nodes, strict=True))
    most = max(abs(math.log(move.scale)) if move.scale > 0 else math.inf for move in moves)
    if not most < MAX_LOG_SCALE:
        raise ValueError(f"submaps would change their size by a factor of {math.exp(most):.3g}")
    oldest = int(np.argmax(here))
    # The map keeps its origin: the first submap keeps its pose in it, and ``local`` moves.
    T = problem.T_map_local
    scale = T.scale / moves[oldest].scale if problem.keep_unit else T.scale
    R = orthonormal(T.R @ nodes[0].R @ found[0].R.T)
    if level is not None and problem.up_map is not None and here[0]:
        R = turn_between(R @ common_up(found, ups), problem.up_map) @ R
    T_map_local = Similarity(scale, R, T.points(nodes[0].t) - scale * R @ found[0].t)
    # What no edges connect to the newest submap keeps its pose and size in the map.
    stays = T_map_local.inverse() @ T
    moves = tuple(
        m if near else stays @ m if problem.all_components else stays
        for m, near in zip(moves, here, strict=True)
    )
    whole = [*found, *whole[len(found) :]]
    sure = marginal(whole, edges, fixed=oldest, of=newest, metric=metric, level=level)
    corrected = Moves(problem.nodes[:-1], moves[:-1])
    return Correction(corrected, T_map_local, T, problem.loops, sure, levelled=problem.levelled)


def _fixed(problem: Problem, component: Array, anchors: Mapping[int, int]) -> list[int]:
    """Returns one node of each component that is held: its anchor, unless only others have a known
    size."""
    sized = np.broadcast_to(problem.metric, len(component))
    out = []
    for number, anchor in anchors.items():
        known = np.flatnonzero(sized & (component == number))
        out.append(anchor if sized[anchor] or not len(known) else int(known[0]))
    return out


def _start(problem: Problem, component: Array) -> list[Similarity]:
    """Returns the poses from which the solution is looked for.

    The pose of an unconnected component may be wrong by any rotation, from which the solver could
    end in a false minimum: what a loop has joined starts where the loop puts it. Known sizes stay.
    """
    nodes, joined = list(problem.poses), problem.joined
    old = np.array([joined is not None and n.first in joined.nodes for n in problem.nodes])
    if joined is None or not old.any():
        return nodes
    sized, drift = np.broadcast_to(problem.metric, len(nodes)), joined.drift
    new = (component == component[np.argmax(old)]) & ~old
    if (sized & old).any() and (sized & new).any():
        R = drift.R
        drift = Similarity(1.0, R, drift.points(joined.at) - R @ joined.at)
    if (sized & old).any():
        return [drift @ n if is_new else n for n, is_new in zip(nodes, new, strict=True)]
    return [drift.inverse() @ n if is_old else n for n, is_old in zip(nodes, old, strict=True)]
