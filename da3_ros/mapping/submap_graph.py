"""The graph of submaps in bounded memory: the place of each submap, and measurements between them.

A node is a run of consecutive submaps that move as one; a young node is a single submap. When
there are more than ``MAX_NODES``, two consecutive nodes are merged, those with the fewest submaps
first; their edges are kept and take over the variance of the edge between the two. The motion of
submaps within a node is lost. When there are more than ``MAX_LOOPS`` loops, the less certain one
of the two most redundant loops is forgotten. If no nodes can be merged (hundreds of segments
without a measured edge between them) the oldest node is forgotten; its points stay in the map.
Works on similarities and edges, not on keyframes.

``place`` is the similarity that places a submap or node in the ``vo`` frame.
"""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import dijkstra

from da3_ros.geometry.similarity import Similarity, orthonormal
from da3_ros.mapping.pose_graph import Edge, Metric, marginal, optimize, parts
from da3_ros.types import Array

MAX_NODES = 256
MAX_LOOPS = 256
YOUNG = 8  # newest nodes that are never merged
MAX_LOG_SCALE = 3.0  # log of the largest credible change of a submap's size
MAX_LIVE, MAX_LIVE_LOOPS = 16, 64  # of a localized camera's own nodes, and of loops to them
LOOP_RELUCTANCE = 4  # factor on the size of a node with loops, so that it is merged later


@dataclass(frozen=True, eq=False)
class Node:
    """Submaps ``first`` to ``last`` (by id), which move as one."""

    first: int
    last: int
    place: Similarity  # of the first submap in the vo frame
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
class Absorbed:
    """Submaps whose node was merged into the node before, or forgotten."""

    first: int
    last: int
    # [3] of the edge between both nodes (scene units), at the point ``at``; None: forgotten
    variance: Array | None
    at: Array  # [3] the node's position


@dataclass(frozen=True, eq=False)
class Correction:
    """Moves of the older submaps, in the vo frame, that a solved graph asks for."""

    moves: Moves  # submaps that it does not hold stay
    T_scene_vo: Array  # [4, 4] keeps the first submap at its place in the map
    # (older, newer) submap of every loop in the graph: their parts become one
    loops: tuple[tuple[int, int], ...] = ()
    # [7, 7] of the newest submap's place relative to the first submap that edges connect it to:
    # (log scale; rotation, rad; position, scene units), in the axes of the vo frame
    covariance: Array | None = None
    unit: float = 1.0  # factor on all lengths of the vo frame, after the moves
    followed: bool = False  # another SLAM asks for it: its places replace what edges measured


@dataclass(frozen=True, eq=False)
class Joint:
    """A loop between parts whose place relative to each other was not measured."""

    drift: Similarity  # maps what moves with the new submap to where the old one measures it
    at: Array  # [3] where it was measured
    nodes: frozenset[int]  # of the old part, by first submap


@dataclass(frozen=True, eq=False)
class Problem:
    """A graph to be solved."""

    nodes: tuple[Node, ...]
    edges: list[Edge]  # between indices of nodes
    T_scene_vo: Array
    metric: Metric
    keep_unit: bool = False  # whether the oldest submap keeps its size in the scene
    loops: tuple[tuple[int, int], ...] = ()  # (older, newer) node of every loop, by first submap
    joined: Joint | None = None  # what the newest loop has joined; None: what was connected
    all_parts: bool = False  # whether parts without edges to the newest submap are solved too


class SubmapGraph:
    """Nodes in the order of their submaps, and edges between them (by the node's first submap).

    Nodes of submaps before ``first_live`` are a read-only map: they stay as they are, and move as
    one body.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._edges: list[Edge] = []
        self.first_live = 0  # id of a submap; 0: the graph is no map
        # Caches that hold until the graph changes; keys are indices of nodes.
        self._predecessor_cache: dict[int, Array] = {}
        self._best_edges: dict[tuple[int, int], Edge] = {}
        self._loop_partners: dict[int, set[int]] = {}
        self._segment_cache: Array | None = None
        self._at: dict[int, int] = {}  # index of a node by its first submap

    def index(self, submap: int) -> int:
        """Returns the index of the node that a submap is in."""
        return bisect_right(self.nodes, submap, key=lambda node: node.first) - 1

    def node(self, submap: int) -> Node:
        """Returns the node that a submap is in."""
        return self.nodes[self.index(submap)]

    def add(self, submap: int, place: Similarity, variance: Array | None, guessed: bool) -> None:
        """Adds a submap.

        variance: [3] of its place relative to the last node (log scale, rotation, position in
        scene units); None: no edge. guessed: the edge is a guess, not aligned windows.
        """
        if variance is not None and self.nodes:
            last = self.nodes[-1]
            sigma = np.sqrt(variance) + 1e-6
            sigma[2] /= last.place.scale
            self._edges.append(Edge(last.first, submap, last.place.inverse() @ place, sigma))
        self.nodes.append(Node(submap, submap, place, guessed))
        self._changed()

    def add_loop(self, old: int, new: int, drift: Similarity, variance: Array) -> None:
        """Adds a loop between the nodes of two submaps.

        drift: maps the scene around the new one to where the old one measures it. variance: [3] of
        the new node's place in that measurement.
        """
        first, second = self.node(old), self.node(new)
        sigma = np.sqrt(variance) / [1, 1, first.place.scale]
        measured = first.place.inverse() @ drift @ second.place
        self._edges.append(Edge(first.first, second.first, measured, sigma, loop=True))
        most = MAX_LIVE_LOOPS if self.first_live else MAX_LOOPS
        if len(self._live_loops()) > most:
            self._forget_loop()
        self._changed()

    def _live_loops(self) -> list[Edge]:
        """Returns the loops that are not the map's own."""
        return [e for e in self._edges if e.loop and e.second >= self.first_live]

    def forget_live(self) -> None:
        """Forgets the nodes that are not the map's own."""
        self.nodes = [n for n in self.nodes if n.first < self.first_live]
        self._edges = [e for e in self._edges if e.second < self.first_live]
        self._changed()

    @property
    def _map_size(self) -> int:
        """Number of the map's own nodes, which are the first ones."""
        return bisect_left(self.nodes, self.first_live, key=lambda node: node.first)

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
        self._at = {node.first: k for k, node in enumerate(self.nodes)}
        self._predecessor_cache.clear()
        self._best_edges.clear()
        self._loop_partners.clear()
        self._segment_cache = None

    def in_one_segment(self, submap: int, other: int) -> bool:
        """True if aligned windows connect two submaps, rather than loops, guesses or nothing."""
        first, second = self.index(submap), self.index(other)
        return bool(self._segments()[first] == self._segments()[second])

    def connected(self, submap: int, other: int) -> bool:
        """True if edges of any kind connect two submaps."""
        return self._path(self.index(submap), self.index(other)) is not None

    # Drift

    def drift_variance(self, first: int, second: int, point: Array) -> Array:
        """Returns the variance [3] at a point [3] along the most certain path between two nodes.

        first, second: indices of nodes. Variance of log scale, rotation, and position in scene
        units; infinite if no edges connect the nodes.
        """
        path = self._path(first, second)
        if path is None:
            return np.full(3, np.inf)
        if not path:
            return np.zeros(3)
        scale = np.array([self.nodes[self._at[e.first]].place.scale for e in path])
        at = np.array([self.nodes[self._at[e.second]].place.t for e in path])
        own = np.square([e.sigma for e in path])
        own[:, 2] *= scale**2
        arms = ((at - point) ** 2).sum(axis=1)
        own[:, 2] += arms * (own[:, 0] + own[:, 1])
        return np.asarray(own.sum(axis=0))

    def _path(self, first: int, second: int) -> list[Edge] | None:
        """Returns the edges between two nodes whose sum of variances is least; None if there are
        none."""
        if first == second:
            return []
        before, path, here = self._predecessors(second), [], first
        while here != second:
            last = int(before[here])
            if last < 0:
                return None
            path.append(self._best_edges[min(last, here), max(last, here)])
            here = last
        return path

    def _predecessors(self, root: int) -> Array:
        """Returns for each node the next one on the most certain path to ``root``; negative
        without a path.

        Cached, because the paths to a new keyframe are needed many times.
        """
        if not self._best_edges:
            for edge in self._edges:
                ends = self._at[edge.first], self._at[edge.second]
                key = (min(ends), max(ends))
                if (
                    key not in self._best_edges
                    or edge.sigma.sum() < self._best_edges[key].sigma.sum()
                ):
                    self._best_edges[key] = edge
        if root not in self._predecessor_cache:
            rows, columns = zip(*self._best_edges, strict=True) if self._best_edges else ((), ())
            cost = [float((e.sigma**2).sum()) for e in self._best_edges.values()]
            shape = (len(self.nodes), len(self.nodes))
            graph = coo_matrix((cost, (rows, columns)), shape=shape).tocsr()
            _, before = dijkstra(graph, directed=False, indices=root, return_predecessors=True)
            self._predecessor_cache[root] = before
        return self._predecessor_cache[root]

    # Bounds

    def enforce_limits(self) -> list[Absorbed]:
        """Merges or forgets nodes while there are too many; returns the nodes that are gone."""
        out, most = [], self._map_size + (MAX_LIVE if self.first_live else MAX_NODES)
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
        for k in range(self._map_size + 1, len(self.nodes) - YOUNG):
            a, b = self.nodes[k - 1], self.nodes[k]
            size = (b.last + 1 - a.first) * (LOOP_RELUCTANCE if b.first in ends else 1)
            if before.get(b.first) == a.first and not b.guessed and size < fewest:
                best, fewest = k, size
        return best

    def _merge(self, k: int) -> Absorbed:
        a, b = self.nodes[k - 1], self.nodes[k]
        tie = next(e for e in self._edges if not e.loop and e.second == b.first)
        self._edges = [
            self._reattached(e, a, b, tie) if b.first in (e.first, e.second) else e
            for e in self._edges
            if e is not tie and {e.first, e.second} != {a.first, b.first}
        ]
        self.nodes[k - 1 : k + 1] = [dataclasses.replace(a, last=b.last)]
        variance = np.square(tie.sigma) * [1, 1, a.place.scale**2]
        return Absorbed(b.first, b.last, variance, b.place.t)

    @staticmethod
    def _reattached(edge: Edge, a: Node, b: Node, tie: Edge) -> Edge:
        """Returns an edge of node ``b`` as an edge of node ``a``, into which ``b`` is merged.

        Two consecutive measurements of odometry are chained. A loop measures points that from now
        on move with ``a`` as they lie now.
        """
        if edge.first == b.first:
            to_b = a.place.inverse() @ b.place if edge.loop else tie.measured
            measured = to_b @ edge.measured
            arm = to_b.scale * float(np.linalg.norm(edge.measured.t))
            own = np.square(edge.sigma) * [1, 1, to_b.scale**2]
            variance = own + with_lever_arm(np.square(tie.sigma), arm)
            return dataclasses.replace(
                edge, first=a.first, measured=measured, sigma=np.sqrt(variance)
            )
        back = b.place.inverse() @ a.place
        measured = edge.measured @ back
        arm = edge.measured.scale * float(np.linalg.norm(back.t))
        # The tie's position is in the unit of ``a``; the edge's in the unit of its first node.
        went = np.square(tie.sigma) * [1, 1, measured.scale**2]
        variance = with_lever_arm(np.square(edge.sigma), arm) + with_lever_arm(went, arm)
        return dataclasses.replace(
            edge, second=a.first, measured=measured, sigma=np.sqrt(variance)
        )

    def _forget_oldest(self) -> Absorbed:
        gone = self.nodes.pop(self._map_size)
        self._edges = [e for e in self._edges if gone.first not in (e.first, e.second)]
        return Absorbed(gone.first, gone.last, None, gone.place.t)

    def _forget_loop(self) -> None:
        """Forgets the less certain one of the two loops that connect the most similar nodes."""
        loops = self._live_loops()
        ends = np.array([[self._at[e.first], self._at[e.second]] for e in loops])
        segment = self._segments()[ends]
        apart = np.abs(ends[:, None] - ends[None]).sum(axis=2).astype(float)
        apart[(segment[:, None] != segment[None]).any(axis=2)] = np.inf
        apart[np.tri(len(loops), dtype=bool)] = np.inf
        i, j = np.unravel_index(int(np.argmin(apart)), apart.shape)
        gone = max((loops[i], loops[j]), key=lambda e: float(e.sigma.sum()))
        self._edges = [e for e in self._edges if e is not gone]

    def _segments(self) -> Array:
        """Returns the number of each node's segment: aligned windows connect its nodes."""
        if self._segment_cache is None:
            tied = {e.second for e in self._edges if not e.loop}
            begins = [node.guessed or node.first not in tied for node in self.nodes]
            self._segment_cache = np.cumsum(begins)
        return self._segment_cache

    # Saved scenes

    @property
    def edges(self) -> tuple[Edge, ...]:
        """All edges; their ends are the first submaps of nodes."""
        return tuple(self._edges)

    def of_map(self) -> tuple[tuple[Node, ...], tuple[Edge, ...]]:
        """Returns nodes and edges; of a read-only map its own only."""
        if not self.first_live:
            return tuple(self.nodes), self.edges
        edges = tuple(e for e in self._edges if e.second < self.first_live)
        return tuple(self.nodes[: self._map_size]), edges

    def restore(self, nodes: Iterable[Node], edges: Iterable[Edge]) -> None:
        """Takes over the graph of a saved scene."""
        self.nodes, self._edges = list(nodes), list(edges)
        self._changed()

    def rescale(self, factor: float) -> None:
        """Takes over that lengths are ``factor`` times what they were."""
        by = Similarity(factor, np.eye(3), np.zeros(3))
        self.nodes = [dataclasses.replace(n, place=by @ n.place) for n in self.nodes]
        self._changed()

    def measure_anew(self) -> None:
        """Takes the places of all nodes as measured by all edges; their uncertainty stays."""
        place = {node.first: node.place for node in self.nodes}
        self._edges = [
            dataclasses.replace(e, measured=place[e.first].inverse() @ place[e.second])
            for e in self._edges
        ]
        self._changed()

    # Solving

    def problem(
        self,
        T_scene_vo: Array,
        metric: Metric,
        keep_unit: bool = False,
        joined: Joint | None = None,
        *,
        all_parts: bool = False,
    ) -> Problem:
        """Returns what ``solve`` needs; a copy, because it may be solved on another thread."""
        loops = tuple((e.first, e.second) for e in self._edges if e.loop)
        nodes, edges = self.nodes, self._edges
        if self._map_size > 1:
            nodes, edges = self._with_rigid_map()
        at = {node.first: k for k, node in enumerate(nodes)}
        edges = [dataclasses.replace(e, first=at[e.first], second=at[e.second]) for e in edges]
        return Problem(
            tuple(nodes), edges, T_scene_vo.copy(), metric, keep_unit, loops, joined, all_parts
        )

    def _with_rigid_map(self) -> tuple[list[Node], list[Edge]]:
        """Returns the graph with the map's nodes as one."""
        size = self._map_size
        first, edges = self.nodes[0], []
        for e in self._edges:
            if e.second < self.first_live:
                continue
            if e.first < self.first_live:  # measured in the axes and the unit of a node
                to_node = first.place.inverse() @ self.nodes[self._at[e.first]].place
                sigma = e.sigma * [1, 1, to_node.scale]
                e = dataclasses.replace(
                    e, first=first.first, measured=to_node @ e.measured, sigma=sigma
                )
            edges.append(e)
        return [dataclasses.replace(first, last=self.first_live - 1), *self.nodes[size:]], edges

    def unmeasured(self, old: int, new: int) -> frozenset[int]:
        """Returns the nodes, by first submap, that measurements connect to the submap ``old``, if
        none connects them to ``new``."""
        guessed = {n.first for n in self.nodes if n.guessed}
        measured = [
            dataclasses.replace(e, first=self._at[e.first], second=self._at[e.second])
            for e in self._edges
            if e.loop or e.second not in guessed
        ]
        part = parts(len(self.nodes), measured)
        here = part[self.index(old)]
        if here == part[self.index(new)]:
            return frozenset()
        return frozenset(n.first for n, p in zip(self.nodes, part, strict=True) if p == here)

    def apply(self, moves: Mapping[int, Similarity]) -> None:
        """Moves the nodes whose submaps move."""
        self.nodes = [
            dataclasses.replace(n, place=moves[n.first] @ n.place) if n.first in moves else n
            for n in self.nodes
        ]
        self._changed()


def with_lever_arm(variance: Array, arm: float) -> Array:
    """Returns the variance [3] at distance ``arm``: rotation and scale errors add to position."""
    return variance + [0, 0, arm**2 * (variance[0] + variance[1])]


def solve(problem: Problem) -> Correction:
    """Solves for the places of all submaps in the vo frame; the newest one stays.

    Submaps that no edges connect to the newest one keep their place in the scene. Raises
    ValueError if the solution is not credible: contradicting loops can shrink a part of the scene
    to a point.
    """
    nodes, edges = [node.place for node in problem.nodes], problem.edges
    newest, part = len(nodes) - 1, parts(len(nodes), edges)
    here = part == part[newest]
    anchors = {int(p): int(np.argmax(part == p)) for p in part} | {int(part[newest]): newest}
    fixed = _fixed(problem, part, anchors)
    found = optimize(_start(problem, part), edges, fixed=fixed, metric=problem.metric).nodes
    back = {p: nodes[a] @ found[a].inverse() for p, a in anchors.items()}
    found = [back[int(p)] @ one for one, p in zip(found, part, strict=True)]
    moves = tuple(now @ before.inverse() for now, before in zip(found, nodes, strict=True))
    most = max(abs(math.log(move.scale)) if move.scale > 0 else math.inf for move in moves)
    if not most < MAX_LOG_SCALE:
        raise ValueError(f"submaps would change their size by a factor of {math.exp(most):.3g}")
    oldest = int(np.argmax(here))
    unit = 1 / moves[oldest].scale if problem.keep_unit else 1.0
    # The scene keeps its origin: the first submap keeps its pose in it, and vo moves.
    T = problem.T_scene_vo
    place = T[:3, :3] @ nodes[0].t + T[:3, 3]
    out = np.eye(4)
    out[:3, :3] = orthonormal(T[:3, :3] @ nodes[0].R @ found[0].R.T)
    out[:3, 3] = place - out[:3, :3] @ found[0].t * unit
    # What no edges connect to the newest submap keeps its place and size in the scene.
    scaled = Similarity(unit, np.eye(3), np.zeros(3))
    stays = (Similarity.from_pose(out) @ scaled).inverse() @ Similarity.from_pose(T)
    moves = tuple(
        m if near else stays @ m if problem.all_parts else stays
        for m, near in zip(moves, here, strict=True)
    )
    sure = marginal(found, edges, fixed=oldest, of=newest, metric=problem.metric)
    return Correction(Moves(problem.nodes[:-1], moves[:-1]), out, problem.loops, sure, unit)


def _fixed(problem: Problem, part: Array, anchors: Mapping[int, int]) -> list[int]:
    """Returns one node of each part that is held: its anchor, unless only others have a known
    size."""
    sized = np.broadcast_to(problem.metric, len(part))
    out = []
    for number, anchor in anchors.items():
        known = np.flatnonzero(sized & (part == number))
        out.append(anchor if sized[anchor] or not len(known) else int(known[0]))
    return out


def _start(problem: Problem, part: Array) -> list[Similarity]:
    """Returns the places where the solution is looked for.

    A guessed place may be wrong by any rotation, from which the solver could end in a false
    minimum: what a loop has joined starts where the loop puts it. Known sizes stay.
    """
    nodes, joined = [node.place for node in problem.nodes], problem.joined
    old = np.array([joined is not None and n.first in joined.nodes for n in problem.nodes])
    if joined is None or not old.any():
        return nodes
    sized, drift = np.broadcast_to(problem.metric, len(nodes)), joined.drift
    new = (part == part[np.argmax(old)]) & ~old
    if (sized & old).any() and (sized & new).any():
        R = drift.R
        drift = Similarity(1.0, R, drift.points(joined.at) - R @ joined.at)
    if (sized & old).any():
        return [drift @ n if is_new else n for n, is_new in zip(nodes, new, strict=True)]
    return [drift.inverse() @ n if is_old else n for n, is_old in zip(nodes, old, strict=True)]
