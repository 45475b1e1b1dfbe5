"""The graph of submaps in bounded memory: measurements between their poses, which it asks for.

A node is a run of consecutive submaps that move as one; a young node is a single submap. When
there are more than ``MAX_NODES``, two consecutive nodes are merged, those with the fewest submaps
first; their edges are kept and take over the variance of the edge between the two. The motion of
submaps within a node is lost. When there are more than ``MAX_LOOPS`` loops, the less certain one
of the two most redundant loops is forgotten. If no nodes can be merged (hundreds of chains
without a measured edge between them) the oldest node is forgotten; its points stay in the map.
Works on similarities and edges, not on keyframes.

Positions and lengths are in the frame of odometry (``local``, see ``MapTable``).
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import dijkstra

from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.graph_solution import Joint, Node, Problem, with_rigid_map
from da3_ros.mapping.levelling import Up, angle, common_up, mean_up
from da3_ros.mapping.map_table import MapTable
from da3_ros.mapping.pose_graph import Edge, Metric, Pivot, components
from da3_ros.types import Array

MAX_NODES = 256
MAX_LOOPS = 256
YOUNG = 8  # newest nodes that are never merged
MAX_LIVE, MAX_LIVE_LOOPS = 16, 64  # of a localized camera's own nodes, and of loops to them
LOOP_RELUCTANCE = 4  # factor on the size of a node with loops, so that it is merged later


@dataclass(frozen=True, eq=False)
class Absorbed:
    """Submaps whose node was merged into the node before, or forgotten."""

    first: int
    last: int
    # [3] of the edge between both nodes, at the point ``at``; None: forgotten
    variance: Array | None
    at: Array  # [3] the node's position


class _Paths:
    """The most certain paths between nodes."""

    def __init__(self, nodes: int, edges: Iterable[Edge], at: Mapping[int, int]) -> None:
        """at: index of a node by its first submap."""
        self._nodes = nodes
        self._before: dict[int, Array] = {}  # by root
        self.best: dict[tuple[int, int], Edge] = {}  # by the indices of both nodes, ascending
        for edge in edges:
            ends = at[edge.first], at[edge.second]
            key = (min(ends), max(ends))
            if key not in self.best or edge.sigma.sum() < self.best[key].sigma.sum():
                self.best[key] = edge

    def predecessors(self, root: int) -> Array:
        """Returns for each node the next one on the most certain path to ``root``; negative
        without a path.

        Kept, because the paths to a new keyframe are needed many times.
        """
        if root not in self._before:
            rows, columns = zip(*self.best, strict=True) if self.best else ((), ())
            cost = [float((e.sigma**2).sum()) for e in self.best.values()]
            shape = (self._nodes, self._nodes)
            graph = coo_matrix((cost, (rows, columns)), shape=shape).tocsr()
            _, self._before[root] = dijkstra(
                graph, directed=False, indices=root, return_predecessors=True
            )
        return self._before[root]


class SubmapGraph:
    """Nodes in the order of their submaps, and edges between them (by the node's first submap).

    Nodes of a read-only map stay as they are, and move as one body.
    """

    def __init__(self, submaps: MapTable) -> None:
        """submaps: with the poses of all nodes' first submaps; its nodes and edges are dropped."""
        self._submaps = submaps
        self.nodes, self._edges = submaps.nodes, submaps.edges  # changed in place
        self.nodes.clear()
        self._edges.clear()
        # Caches that hold until the graph changes; keys are indices of nodes.
        self._path_cache: dict[int | None, _Paths] = {}  # by the chain that is not tied
        self._loop_partners: dict[int, set[int]] = {}
        self._chain_cache: Array | None = None
        self._at: dict[int, int] = {}  # index of a node by its first submap
        self._ups: dict[int, Up] = {}  # by the first submap of a node

    def index(self, submap: int) -> int:
        """Returns the index of the node that a submap is in."""
        return bisect_right(self.nodes, submap, key=lambda node: node.first) - 1

    def node(self, submap: int) -> Node:
        """Returns the node that a submap is in."""
        return self.nodes[self.index(submap)]

    def pose(self, node: Node) -> Similarity:
        """Returns the pose of a node, which is that of its first submap."""
        return self._submaps.T_local_submap(node.first)

    def add(self, submap: int, variance: Array | None, guessed: bool) -> None:
        """Adds a submap, whose pose is known.

        variance: [3] of its pose relative to the last node (log scale, rotation, position); None:
        no edge. guessed: the edge is a guess, not aligned windows.
        """
        node = Node(submap, submap, guessed)
        if variance is not None and self.nodes:
            last = self.nodes[-1]
            before = self.pose(last)
            sigma = np.sqrt(variance) + 1e-6
            sigma[2] /= before.scale
            measured = before.inverse() @ self.pose(node)
            self._edges.append(Edge(last.first, submap, measured, sigma))
        self.nodes.append(node)
        self._changed()

    def set_up(self, submap: int, up: Up) -> None:
        """Sets what is up at the node that begins with a submap."""
        if submap in self._at:
            self._ups[submap] = up

    @property
    def knows_up(self) -> bool:
        """Whether any node knows what is up."""
        return bool(self._ups)

    def off_level(self, submap: int, up: Up, up_map: Array | None = None) -> float:
        """Returns the angle, rad, between what is up in the axes of a submap and what all nodes
        call so; if none knows it, ``up_map`` [3], up in the map; 0 without that."""
        ups = {self._at[first]: up for first, up in self._ups.items()}
        if ups:
            mean = common_up([self.pose(node) for node in self.nodes], ups)
        elif up_map is not None:
            mean = self._submaps.T_map_local.R.T @ up_map
        else:
            return 0.0
        return angle(self._submaps.T_local_submap(submap).R @ up.direction, mean)

    def forget_ups(self, since_ns: int) -> None:
        """Forgets what is up at nodes where it was measured since a stamp."""
        self._ups = {first: up for first, up in self._ups.items() if up.stamp_ns < since_ns}

    def tilt(self, up_map: Array | None = None) -> float:
        """Returns the largest angle, rad, between what a node calls up and ``up_map`` [3], up in
        the map, over its standard deviation; None: up is what all nodes call so. 0 if there is
        nothing to compare."""
        ups = {self._at[first]: up for first, up in self._ups.items()}
        if len(ups) < (2 if up_map is None else 1):
            return 0.0
        poses = [self.pose(node) for node in self.nodes]
        mean = common_up(poses, ups)
        if up_map is not None:
            mean = self._submaps.T_map_local.R.T @ up_map
        return max(
            float(np.linalg.norm(np.cross(poses[k].R @ up.direction, mean))) / up.sigma
            for k, up in ups.items()
        )

    def add_loop(
        self, old: int, new: int, drift: Similarity, variance: Array,
        centre: Array | None = None,
    ) -> None:  # fmt: skip
        """Adds a loop between the nodes of two submaps.

        drift: maps what moves with the new one to where the old one measures it. variance: [3] of
        that measurement, position at the new camera's ``centre`` [3]; None: at the new node.
        """
        first, second = self.node(old), self.node(new)
        there, here = self.pose(first), self.pose(second)
        units = np.array([1, 1, there.scale])
        centre = here.t if centre is None else centre
        pivot = Pivot(here.inverse().points(centre), np.sqrt(variance) / units)
        arm = float(np.linalg.norm(centre - here.t))
        sigma = np.sqrt(with_lever_arm(variance, arm)) / units
        measured = there.inverse() @ drift @ here
        self._edges.append(
            Edge(first.first, second.first, measured, sigma, loop=True, pivot=pivot)
        )
        most = MAX_LIVE_LOOPS if self._submaps.first_live else MAX_LOOPS
        if len(self._live_loops()) > most:
            self._forget_loop()
        self._changed()

    def _live_loops(self) -> list[Edge]:
        """Returns the loops that are not the map's own."""
        return [e for e in self._edges if e.loop and e.second >= self._submaps.first_live]

    def forget_live(self) -> None:
        """Forgets the nodes that are not the map's own."""
        self.nodes[:] = [n for n in self.nodes if n.first < self._submaps.first_live]
        self._edges[:] = [e for e in self._edges if e.second < self._submaps.first_live]
        self._changed()

    @property
    def map_size(self) -> int:
        """Number of the map's own nodes, which are the first ones."""
        return bisect_left(self.nodes, self._submaps.first_live, key=lambda node: node.first)

    def loop_partners(self, submap: int) -> set[int]:
        """Returns the indices of nodes that loops connect to the node of a submap."""
        if not self._loop_partners:
            self._loop_partners = {k: set() for k in range(len(self.nodes))}
            for edge in self._edges:
                if edge.loop:
                    first, second = self._at[edge.first], self._at[edge.second]
                    self._loop_partners[second].add(first)
                    self._loop_partners[first].add(second)
        return self._loop_partners[self.index(submap)]

    def _changed(self) -> None:
        """Forgets what holds until the graph changes, and what is up at nodes that are gone."""
        self._at = {node.first: k for k, node in enumerate(self.nodes)}
        self._path_cache.clear()
        self._loop_partners.clear()
        self._chain_cache = None
        self._ups = {first: up for first, up in self._ups.items() if first in self._at}

    def in_one_chain(self, submap: int, other: int) -> bool:
        """True if aligned windows connect two submaps, rather than loops, guesses or nothing."""
        first, second = self.index(submap), self.index(other)
        return bool(self._chains()[first] == self._chains()[second])

    def connected(self, submap: int, other: int) -> bool:
        """True if edges of any kind connect two submaps."""
        return self._path(self.index(submap), self.index(other)) is not None

    def is_measured(self, submap: int, other: int, untied: int | None = None) -> bool:
        """True if edges connect two submaps that are no guesses. untied: see
        ``drift_variance``."""
        gone = [] if untied is None else self.ties(untied)
        component = self._measured_components(gone)
        return bool(component[self.index(submap)] == component[self.index(other)])

    def _measured_components(self, without: Sequence[Edge] = ()) -> Array:
        """Returns the number of each node's component, by edges that are no guesses."""
        guessed = {n.first for n in self.nodes if n.guessed}
        measured = [
            dataclasses.replace(e, first=self._at[e.first], second=self._at[e.second])
            for e in self._edges
            if (e.loop or e.second not in guessed) and not any(e is one for one in without)
        ]
        return components(len(self.nodes), measured)

    def ties(self, submap: int) -> list[Edge]:
        """Returns the loops, but the map's own, that connect the chain of a submap to others."""
        chains, own = self._chains(), self._chains()[self.index(submap)]
        out = []
        for e in self._live_loops():
            ends = chains[self._at[e.first]], chains[self._at[e.second]]
            if own in ends and ends[0] != ends[1]:
                out.append(e)
        return out

    def untie(self, submap: int) -> None:
        """Forgets the loops that connect the chain of a submap to others."""
        gone = self.ties(submap)
        self._edges[:] = [e for e in self._edges if not any(e is one for one in gone)]
        self._changed()

    # Drift

    def drift_variance(
        self, first: int, second: int, point: Array, untied: int | None = None
    ) -> Array:
        """Returns the variance [3] at a point [3] along the most certain path between two nodes.

        first, second: indices of nodes. untied: a submap; paths use no loop that connects its
        chain to others. Variance of log scale, rotation and position; infinite if no edges connect
        the nodes.
        """
        path = self._path(first, second, untied)
        if path is None:
            return np.full(3, np.inf)
        if not path:
            return np.zeros(3)
        scale = np.array([self._submaps.T_local_submap(e.first).scale for e in path])
        at = np.array([self._submaps.T_local_submap(e.second).t for e in path])
        own = np.square([e.sigma for e in path])
        own[:, 2] *= scale**2
        arms = ((at - point) ** 2).sum(axis=1)
        own[:, 2] += arms * (own[:, 0] + own[:, 1])
        return np.asarray(own.sum(axis=0))

    def _path(self, first: int, second: int, untied: int | None = None) -> list[Edge] | None:
        """Returns the edges between two nodes whose sum of variances is least; None if there are
        none."""
        if first == second:
            return []
        paths = self._paths(untied)
        before, path, here = paths.predecessors(second), [], first
        while here != second:
            last = int(before[here])
            if last < 0:
                return None
            path.append(paths.best[min(last, here), max(last, here)])
            here = last
        return path

    def _paths(self, untied: int | None) -> _Paths:
        """Returns the paths along all edges, or without those that tie a submap's chain."""
        chain = None if untied is None else int(self._chains()[self.index(untied)])
        if chain not in self._path_cache:
            gone = [] if untied is None else self.ties(untied)
            edges = [e for e in self._edges if not any(e is one for one in gone)]
            self._path_cache[chain] = _Paths(len(self.nodes), edges, self._at)
        return self._path_cache[chain]

    # Bounds

    def enforce_limits(self) -> list[Absorbed]:
        """Merges or forgets nodes while there are too many; returns the nodes that are gone."""
        out, most = [], self.map_size + (MAX_LIVE if self._submaps.first_live else MAX_NODES)
        while len(self.nodes) > most:
            at = self._next_to_merge()
            out.append(self._forget_oldest() if at is None else self._merge(at))
            self._changed()
        return out

    def _next_to_merge(self) -> int | None:
        """Returns the index of the node to merge into the one before it; None if there is none."""
        ends = {end for e in self._edges if e.loop for end in (e.first, e.second)}
        before = {e.second: e.first for e in self._edges if not e.loop}
        best, fewest = None, np.inf
        for k in range(self.map_size + 1, len(self.nodes) - YOUNG):
            a, b = self.nodes[k - 1], self.nodes[k]
            size = (b.last + 1 - a.first) * (LOOP_RELUCTANCE if b.first in ends else 1)
            if before.get(b.first) == a.first and not b.guessed and size < fewest:
                best, fewest = k, size
        return best

    def _merge(self, k: int) -> Absorbed:
        a, b = self.nodes[k - 1], self.nodes[k]
        tie = next(e for e in self._edges if not e.loop and e.second == b.first)
        T_a, T_b = self.pose(a), self.pose(b)
        self._edges[:] = [
            reattached(e, a.first, b.first, T_a.inverse() @ T_b, tie)
            if b.first in (e.first, e.second)
            else e
            for e in self._edges
            if e is not tie and {e.first, e.second} != {a.first, b.first}
        ]
        self.nodes[k - 1 : k + 1] = [dataclasses.replace(a, last=b.last)]
        self._merge_ups(a.first, b.first, T_a.R.T @ T_b.R)
        variance = np.square(tie.sigma) * [1, 1, T_a.scale**2]
        return Absorbed(b.first, b.last, variance, T_b.t)

    def _merge_ups(self, a: int, b: int, R_a_b: Array) -> None:
        """Merges what is up at node ``b`` into node ``a``; first submaps."""
        ups = [self._ups.get(a)]
        if b in self._ups:
            ups.append(dataclasses.replace(self._ups[b], direction=R_a_b @ self._ups[b].direction))
        known = [up for up in ups if up is not None]
        if known:
            self._ups[a] = mean_up(known)

    def _forget_oldest(self) -> Absorbed:
        gone = self.nodes.pop(self.map_size)
        self._edges[:] = [e for e in self._edges if gone.first not in (e.first, e.second)]
        return Absorbed(gone.first, gone.last, None, self.pose(gone).t)

    def _forget_loop(self) -> None:
        """Forgets the less certain one of the two loops that connect the most similar nodes."""
        loops = self._live_loops()
        ends = np.array([[self._at[e.first], self._at[e.second]] for e in loops])
        chain = self._chains()[ends]
        apart = np.abs(ends[:, None] - ends[None]).sum(axis=2).astype(float)
        apart[(chain[:, None] != chain[None]).any(axis=2)] = np.inf
        apart[np.tri(len(loops), dtype=bool)] = np.inf
        i, j = np.unravel_index(int(np.argmin(apart)), apart.shape)
        gone = max((loops[i], loops[j]), key=lambda e: float(e.sigma.sum()))
        self._edges[:] = [e for e in self._edges if e is not gone]

    def _chains(self) -> Array:
        """Returns the number of each node's chain: aligned windows connect its nodes."""
        if self._chain_cache is None:
            tied = {e.second for e in self._edges if not e.loop}
            begins = [node.guessed or node.first not in tied for node in self.nodes]
            self._chain_cache = np.cumsum(begins)
        return self._chain_cache

    # Saved scenes

    @property
    def edges(self) -> tuple[Edge, ...]:
        """All edges; their ends are the first submaps of nodes."""
        return tuple(self._edges)

    def of_map(self) -> tuple[tuple[Node, ...], tuple[Edge, ...]]:
        """Returns nodes and edges; of a read-only map its own only."""
        if not self._submaps.first_live:
            return tuple(self.nodes), self.edges
        edges = tuple(e for e in self._edges if e.second < self._submaps.first_live)
        return tuple(self.nodes[: self.map_size]), edges

    def restore(self, nodes: Iterable[Node], edges: Iterable[Edge]) -> None:
        """Takes over the graph of a saved scene."""
        self.nodes[:], self._edges[:] = nodes, edges
        self._changed()

    def measure_anew(self, odometry_of: Collection[int] | None = None) -> None:
        """Takes the poses of nodes as measured by the edges between them; their uncertainty stays.

        odometry_of: only edges of odometry, between nodes of these submaps; None: all edges.
        """
        pose = {node.first: self.pose(node) for node in self.nodes}
        self._edges[:] = [
            dataclasses.replace(e, measured=pose[e.first].inverse() @ pose[e.second])
            if odometry_of is None
            or (not e.loop and e.first in odometry_of and e.second in odometry_of)
            else e
            for e in self._edges
        ]
        self._changed()

    # Solving

    def problem(
        self,
        metric: Metric,
        keep_unit: bool = False,
        joined: Joint | None = None,
        *,
        all_components: bool = False,
        levelled: bool = False,
        up_map: Array | None = None,
    ) -> Problem:
        """Returns what ``solve`` needs; a copy, because it may be solved on another thread."""
        loops = tuple((e.first, e.second) for e in self._edges if e.loop)
        nodes, edges = self.nodes, [e.whitened if e.pivot else e for e in self._edges]
        if self.map_size > 1:
            poses = [self.pose(node) for node in nodes]
            nodes, edges = with_rigid_map(nodes, poses, edges, self._submaps.first_live)
        at = {node.first: k for k, node in enumerate(nodes)}
        edges = [dataclasses.replace(e, first=at[e.first], second=at[e.second]) for e in edges]
        return Problem(
            tuple(nodes), tuple(map(self.pose, nodes)), edges, self._submaps.T_map_local, metric,
            keep_unit, loops, joined, all_components,
            # A read-only map stays as it is.
            {} if self.map_size > 1 else {at[first]: up for first, up in self._ups.items()},
            levelled, up_map,
        )  # fmt: skip

    def unmeasured(self, old: int, new: int) -> frozenset[int]:
        """Returns the nodes, by first submap, that measurements connect to the submap ``old``, if
        none connects them to ``new``."""
        component = self._measured_components()
        here = component[self.index(old)]
        if here == component[self.index(new)]:
            return frozenset()
        return frozenset(n.first for n, p in zip(self.nodes, component, strict=True) if p == here)

    def submaps_of_nodes(self) -> set[int]:
        """Returns the submaps whose poses it needs."""
        return {node.first for node in self.nodes}


def with_lever_arm(variance: Array, arm: float) -> Array:
    """Returns the variance [3] at distance ``arm``: rotation and scale errors add to position."""
    return variance + [0, 0, arm**2 * (variance[0] + variance[1])]


def reattached(edge: Edge, a: int, b: int, T_a_b: Similarity, tie: Edge) -> Edge:
    """Returns an edge of node ``b`` as an edge of node ``a``, into which ``b`` is merged.

    Two consecutive measurements of odometry are chained. A loop measures points that from now
    on move with ``a`` as they lie now. a, b: first submaps. tie: the edge between both.
    """
    if edge.first == b:
        to_b = T_a_b if edge.loop else tie.measured
        measured = to_b @ edge.measured
        arm = to_b.scale * float(np.linalg.norm(edge.measured.t))
        own = np.square(edge.sigma) * [1, 1, to_b.scale**2]
        variance = own + with_lever_arm(np.square(tie.sigma), arm)
        return dataclasses.replace(
            edge, first=a, measured=measured, sigma=np.sqrt(variance), pivot=None
        )
    back = T_a_b.inverse()
    measured = edge.measured @ back
    arm = edge.measured.scale * float(np.linalg.norm(back.t))
    # The tie's position is in the unit of ``a``; the edge's in the unit of its first node.
    went = np.square(tie.sigma) * [1, 1, measured.scale**2]
    variance = with_lever_arm(np.square(edge.sigma), arm) + with_lever_arm(went, arm)
    return dataclasses.replace(
        edge, second=a, measured=measured, sigma=np.sqrt(variance), pivot=None
    )
