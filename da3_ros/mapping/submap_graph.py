"""The graph of submaps in bounded memory: where each lies, and what ties it to others.

A node is a stretch of submaps that move as one: a single submap where it is young. When there are
more than ``MOST_NODES``, two neighbours on the way become one node, those that together hold the
fewest submaps first; their edges are carried over and take the variance of the edge that goes.
What that forgets: how two submaps of one node may move against each other. Of more than
``MOST_LOOPS`` loops the less certain one of the two that say most nearly the same is forgotten.
Where nothing can be merged (hundreds of segments without a join) the oldest node is forgotten, and
the map keeps its points where they are. Knows similarities and edges, no keyframes.
"""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import dijkstra

from da3_ros.geometry.similarity import Similarity, orthonormal
from da3_ros.mapping.pose_graph import Edge, marginal, optimize, parts
from da3_ros.types import Array

MOST_NODES = 256
MOST_LOOPS = 256
YOUNG = 8  # newest nodes that are never merged
MOST_SCALE = 3.0  # log of what no drift and no lost stretch does to a submap's size
RELUCTANT = 4  # a node that loops end in is merged as if it held so many times its submaps


@dataclass(frozen=True, eq=False)
class Node:
    """Submaps ``first`` to ``last`` (by id), which move as one."""

    first: int
    last: int
    place: Similarity  # of the first in the vo frame
    guessed: bool = False  # its tie to the node before is no join of windows


@dataclass(frozen=True, eq=False)
class Moves(Mapping[int, Similarity]):
    """How submaps move, by id; those of one node alike."""

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

    def each(self, change: Callable[[Similarity], Similarity]) -> Moves:
        """The same submaps, every move changed."""
        return Moves(self.nodes, tuple(map(change, self.moves)))


@dataclass(frozen=True, eq=False)
class Absorbed:
    """Submaps whose node is no more: it has become part of the one before, or is forgotten."""

    first: int
    last: int
    variance: Array | None  # [3] of the tie that went (scene units), about ``at``; None: forgotten
    at: Array  # [3] where the node was


@dataclass(frozen=True, eq=False)
class Correction:
    """How older parts of the scene must move, in the vo frame."""

    moves: Moves  # of submaps; those that it does not hold stay
    T_scene_vo: Array  # [4, 4] keeps the first submap where the map has it
    # (older, newer) submap of every loop in the graph: what it ties is one scene from now on
    joined: tuple[tuple[int, int], ...] = ()
    # [7, 7] of the newest submap's place relative to the first one that edges tie it to: (log
    # scale; rotation, rad; place, scene units), in the axes of the vo frame
    covariance: Array | None = None


@dataclass(frozen=True, eq=False)
class Problem:
    """A graph to be solved, and what its answer is about."""

    nodes: tuple[Node, ...]
    edges: list[Edge]  # between indices of nodes
    T_scene_vo: Array
    metric: bool


class SubmapGraph:
    """Nodes in the order of their submaps, and edges between them (by the node's first submap)."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._edges: list[Edge] = []
        self._trees: dict[int, Array] = {}  # surest ways from a node, until the graph changes
        self._surest: dict[tuple[int, int], Edge] = {}  # by pairs of indices, likewise
        self._looped: dict[int, set[int]] = {}  # nodes that loops tie to a newer one, likewise
        self._at: dict[int, int] = {}  # index of a node by its first submap

    def index(self, submap: int) -> int:
        """Of the node that a submap is in."""
        return bisect_right(self.nodes, submap, key=lambda node: node.first) - 1

    def node(self, submap: int) -> Node:
        """The node that a submap is in."""
        return self.nodes[self.index(submap)]

    def add(self, submap: int, place: Similarity, variance: Array | None, guessed: bool) -> None:
        """One more submap. variance: [3] of its place as the last one sees it (log scale,
        rotation, place in scene units); None: nothing ties it. guessed: no window does."""
        if variance is not None and self.nodes:
            last = self.nodes[-1]
            sigma = np.sqrt(variance) + 1e-6
            sigma[2] /= last.place.scale
            self._edges.append(Edge(last.first, submap, last.place.inverse() @ place, sigma))
        self.nodes.append(Node(submap, submap, place, guessed))
        self._changed()

    def tie(self, old: int, new: int, seen: Similarity, variance: Array) -> None:
        """A loop between the nodes of two submaps. seen: maps the scene around the new one to
        where the old one says that it is; variance: [3] of the new node's place in that."""
        first, second = self.node(old), self.node(new)
        sigma = np.sqrt(variance) / [1, 1, first.place.scale]
        measured = first.place.inverse() @ seen @ second.place
        self._edges.append(Edge(first.first, second.first, measured, sigma, loop=True))
        if sum(edge.loop for edge in self._edges) > MOST_LOOPS:
            self._forget_loop()
        self._changed()

    def looped(self, submap: int) -> set[int]:
        """Indices of older nodes that loops tie to the node of a submap."""
        if not self._looped:
            self._looped = {k: set() for k in range(len(self.nodes))}
            for edge in self._edges:
                if edge.loop:
                    self._looped[self._at[edge.second]].add(self._at[edge.first])
        return self._looped[self.index(submap)]

    def _changed(self) -> None:
        self._at = {node.first: k for k, node in enumerate(self.nodes)}
        self._trees.clear()
        self._surest.clear()
        self._looped.clear()

    # Drift

    def drift(self, first: int, second: int, point: Array) -> Array:
        """Variance [3] that the surest way between two nodes (indices) gives a point [3] of the
        scene: log scale, rotation, place in scene units. Infinite where nothing ties them."""
        way = self._way(first, second)
        if way is None:
            return np.full(3, np.inf)
        if not way:
            return np.zeros(3)
        scale = np.array([self.nodes[self._at[e.first]].place.scale for e in way])
        at = np.array([self.nodes[self._at[e.second]].place.t for e in way])
        own = np.square([e.sigma for e in way])
        own[:, 2] *= scale**2
        arms = ((at - point) ** 2).sum(axis=1)
        own[:, 2] += arms * (own[:, 0] + own[:, 1])
        return np.asarray(own.sum(axis=0))

    def _way(self, first: int, second: int) -> list[Edge] | None:
        """Edges from one node to another with the least variance together."""
        if first == second:
            return []
        before, way, here = self._tree(second), [], first
        while here != second:
            last = int(before[here])
            if last < 0:
                return None
            way.append(self._surest[min(last, here), max(last, here)])
            here = last
        return way

    def _tree(self, root: int) -> Array:
        """Of each node the next one on the surest way to ``root``; negative where there is none.

        A new keyframe asks for the ways to itself again and again."""
        if not self._surest:
            for edge in self._edges:
                ends = self._at[edge.first], self._at[edge.second]
                key = (min(ends), max(ends))
                if key not in self._surest or edge.sigma.sum() < self._surest[key].sigma.sum():
                    self._surest[key] = edge
        if root not in self._trees:
            rows, columns = zip(*self._surest, strict=True) if self._surest else ((), ())
            cost = [float((e.sigma**2).sum()) for e in self._surest.values()]
            shape = (len(self.nodes), len(self.nodes))
            graph = coo_matrix((cost, (rows, columns)), shape=shape).tocsr()
            _, before = dijkstra(graph, directed=False, indices=root, return_predecessors=True)
            self._trees[root] = before
        return self._trees[root]

    # Bounds

    def bound(self) -> list[Absorbed]:
        """Merge or forget nodes while there are too many; what has become of whose submaps."""
        out = []
        while len(self.nodes) > MOST_NODES:
            at = self._most_mergeable()
            out.append(self._forget_oldest() if at is None else self._merge(at))
            self._changed()
        return out

    def _most_mergeable(self) -> int | None:
        """Index of the node that should become part of the one before it."""
        ends = {end for e in self._edges if e.loop for end in (e.first, e.second)}
        ways = {e.second: e.first for e in self._edges if not e.loop}
        best, fewest = None, np.inf
        for k in range(1, len(self.nodes) - YOUNG):
            a, b = self.nodes[k - 1], self.nodes[k]
            size = (b.last + 1 - a.first) * (RELUCTANT if b.first in ends else 1)
            if ways.get(b.first) == a.first and not b.guessed and size < fewest:
                best, fewest = k, size
        return best

    def _merge(self, k: int) -> Absorbed:
        a, b = self.nodes[k - 1], self.nodes[k]
        tie = next(e for e in self._edges if not e.loop and e.second == b.first)
        self._edges = [
            self._carried(e, a, b, tie) if b.first in (e.first, e.second) else e
            for e in self._edges
            if e is not tie and {e.first, e.second} != {a.first, b.first}
        ]
        self.nodes[k - 1 : k + 1] = [dataclasses.replace(a, last=b.last)]
        variance = np.square(tie.sigma) * [1, 1, a.place.scale**2]
        return Absorbed(b.first, b.last, variance, b.place.t)

    @staticmethod
    def _carried(edge: Edge, a: Node, b: Node, tie: Edge) -> Edge:
        """An edge of node ``b`` as one of ``a``, which takes its place.

        Along the way two measurements in a row make one. A loop is about points that from now on
        move with ``a`` as they lie now.
        """
        if edge.first == b.first:
            to_b = a.place.inverse() @ b.place if edge.loop else tie.measured
            measured = to_b @ edge.measured
            arm = to_b.scale * float(np.linalg.norm(edge.measured.t))
            own = np.square(edge.sigma) * [1, 1, to_b.scale**2]
            variance = own + added(np.square(tie.sigma), arm)
            return dataclasses.replace(
                edge, first=a.first, measured=measured, sigma=np.sqrt(variance)
            )
        back = b.place.inverse() @ a.place
        measured = edge.measured @ back
        arm = edge.measured.scale * float(np.linalg.norm(back.t))
        # The tie's own place is in the unit of ``a``; here it counts in that of the edge's first.
        went = np.square(tie.sigma) * [1, 1, measured.scale**2]
        variance = added(np.square(edge.sigma), arm) + added(went, arm)
        return dataclasses.replace(
            edge, second=a.first, measured=measured, sigma=np.sqrt(variance)
        )

    def _forget_oldest(self) -> Absorbed:
        gone = self.nodes.pop(0)
        self._edges = [e for e in self._edges if gone.first not in (e.first, e.second)]
        return Absorbed(gone.first, gone.last, None, gone.place.t)

    def _forget_loop(self) -> None:
        """Of the two loops that tie the most nearly same nodes, the less certain one goes."""
        loops = [e for e in self._edges if e.loop]
        ends = np.array([[self._at[e.first], self._at[e.second]] for e in loops])
        stretch = self._stretches()[ends]
        apart = np.abs(ends[:, None] - ends[None]).sum(axis=2).astype(float)
        apart[(stretch[:, None] != stretch[None]).any(axis=2)] = np.inf
        apart[np.tri(len(loops), dtype=bool)] = np.inf
        i, j = np.unravel_index(int(np.argmin(apart)), apart.shape)
        gone = max((loops[i], loops[j]), key=lambda e: float(e.sigma.sum()))
        self._edges = [e for e in self._edges if e is not gone]

    def _stretches(self) -> Array:
        """Of each node the number of its segment: windows join the nodes of one."""
        tied = {e.second for e in self._edges if not e.loop}
        begins = [node.guessed or node.first not in tied for node in self.nodes]
        return np.cumsum(begins)

    # Solving

    def problem(self, T_scene_vo: Array, metric: bool) -> Problem:
        """What ``solve`` needs; a copy, so that it may take its time on another thread."""
        edges = [
            dataclasses.replace(e, first=self._at[e.first], second=self._at[e.second])
            for e in self._edges
        ]
        return Problem(tuple(self.nodes), edges, T_scene_vo.copy(), metric)

    def apply(self, moves: Mapping[int, Similarity]) -> None:
        """Move the nodes whose submaps move."""
        self.nodes = [
            dataclasses.replace(n, place=moves[n.first] @ n.place) if n.first in moves else n
            for n in self.nodes
        ]
        self._changed()


def added(variance: Array, arm: float) -> Array:
    """Variance [3] at the end of an arm: turns and scales move what is far away."""
    return variance + [0, 0, arm**2 * (variance[0] + variance[1])]


def solve(problem: Problem) -> Correction:
    """Places of all submaps in the vo frame that agree best; the newest stays.

    Raises ValueError where the best is nothing to believe: loops that contradict each other can
    shrink a part of the scene to a point.
    """
    nodes, edges = [node.place for node in problem.nodes], problem.edges
    newest = len(nodes) - 1
    found = optimize(nodes, edges, fixed=newest, metric=problem.metric).nodes
    moves = tuple(now @ before.inverse() for now, before in zip(found, nodes, strict=True))
    most = max(abs(math.log(move.scale)) if move.scale > 0 else math.inf for move in moves)
    if not most < MOST_SCALE:
        raise ValueError(f"submaps would change their size by a factor of {math.exp(most):.3g}")
    # The scene keeps its origin: the first submap lies and looks as before, vo moves in it.
    T = problem.T_scene_vo
    place = T[:3, :3] @ nodes[0].t + T[:3, 3]
    out = np.eye(4)
    out[:3, :3] = orthonormal(T[:3, :3] @ nodes[0].R @ found[0].R.T)
    out[:3, 3] = place - out[:3, :3] @ found[0].t
    ids = [node.first for node in problem.nodes]
    joined = tuple((ids[e.first], ids[e.second]) for e in edges if e.loop)
    part = parts(len(nodes), edges)
    oldest = int(np.argmax(part == part[newest]))
    sure = marginal(found, edges, fixed=oldest, of=newest, metric=problem.metric)
    return Correction(Moves(problem.nodes[:-1], moves[:-1]), out, joined, sure)
