"""Brings submaps to one scene again after a loop: a robust least-squares graph of similarities.

Nodes are submaps, each a similarity that says where its middle comes to lie. Edges say where one
lies as seen from another: the way that the camera went, and loops. Loops have a limited say
(Cauchy), since one that is wrong must not bend the whole scene. One node stays where it is: in
Sim(3) only what it is compared with can say how large a scene is.

Gauss-Newton with damping (Levenberg-Marquardt) on sparse normal equations; a graph holds hundreds
of nodes, not millions. gtsam solves the same graphs and checks this one in the tests; it has no
wheels for Python 3.10, and two solvers would give two answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_matrix, diags, identity
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import splu, spsolve
from scipy.spatial.transform import Rotation

from da3_ros.geometry.similarity import Similarity
from da3_ros.types import Array

ITERATIONS = 50
SETTLED = 1e-8  # relative fall of the cost that ends the search
STEP = 1e-6  # of numeric derivatives
DOUBT = 3.0  # standard deviations per component from where on a loop's say falls
UNKNOWNS = 7  # log scale, rotation (in the node's axes), place


@dataclass(frozen=True, eq=False)
class Edge:
    """Where node ``second`` lies in the axes and the unit of node ``first``."""

    first: int
    second: int
    measured: Similarity
    sigma: Array  # [3] of log scale, rotation (rad), place (units of ``first``)
    loop: bool = False  # loops may be wrong


@dataclass(frozen=True, eq=False)
class Solution:
    """Where nodes lie, and how far each edge is from it."""

    nodes: list[Similarity]
    off: Array  # [E] standard deviations (root mean square of the seven components)


def optimize(
    nodes: Sequence[Similarity], edges: Sequence[Edge], *, fixed: int, metric: bool = False
) -> Solution:
    """Places of all ``nodes`` that agree best with all ``edges``.

    fixed: index of the node that stays. metric: scales are known and stay, the graph is an SE(3)
    one. Nodes that no edge ties to the fixed one stay where they are.
    """
    graph = _Graph(nodes, edges, fixed, metric)
    return Solution(graph.solve(), np.sqrt((graph.residual() ** 2).mean(axis=1)))


def parts(count: int, edges: Sequence[Edge]) -> Array:
    """Of each of ``count`` nodes the number of its part [count]: edges tie the nodes of one."""
    ends = ([e.first for e in edges], [e.second for e in edges])
    graph = coo_matrix((np.ones(len(edges)), ends), shape=(count, count))
    return np.asarray(connected_components(graph, directed=False)[1])


def marginal(
    nodes: Sequence[Similarity], edges: Sequence[Edge], *, fixed: int, of: int, metric: bool
) -> Array:
    """Covariance [7, 7] of node ``of`` where node ``fixed`` is known, at a solution ``nodes``.

    Of (log scale; rotation, rad, and place, both in the axes and the unit that nodes are given
    in), to first order, with the say that robust weights leave to loops. metric: as ``optimize``;
    the scale's row and column are zero. Raises ValueError where no edges tie the two.
    """
    part = parts(len(nodes), edges)
    if part[of] != part[fixed]:
        raise ValueError(f"no edges tie nodes {fixed} and {of}")
    graph = _Graph(nodes, edges, fixed, metric)
    graph.free = graph.free[part[graph.free // UNKNOWNS] == part[of]]
    wanted = np.flatnonzero(graph.free // UNKNOWNS == of)
    out = np.zeros((UNKNOWNS, UNKNOWNS))
    if of == fixed:
        return out
    information, _ = graph.normal(graph.residual())
    columns = np.zeros((len(graph.free), len(wanted)))
    columns[wanted, np.arange(len(wanted))] = 1.0
    known = graph.free[wanted] % UNKNOWNS
    out[np.ix_(known, known)] = splu(information.tocsc()).solve(columns)[wanted]
    axes = np.eye(UNKNOWNS)
    axes[1:4, 1:4] = nodes[of].R  # the graph turns a node in its own axes
    return np.asarray(axes @ (out + out.T) @ axes.T / 2)


class _Graph:
    """Nodes and edges as arrays."""

    def __init__(
        self, nodes: Sequence[Similarity], edges: Sequence[Edge], fixed: int, metric: bool
    ) -> None:
        self.log_scale = np.log([n.scale for n in nodes])
        self.R = np.array([n.R for n in nodes]).reshape(-1, 3, 3)
        self.t = np.array([n.t for n in nodes], float).reshape(-1, 3)
        self.first = np.array([e.first for e in edges], dtype=np.int64)
        self.second = np.array([e.second for e in edges], dtype=np.int64)
        self.loop = np.array([e.loop for e in edges], dtype=bool)
        self.said_log = np.log([e.measured.scale for e in edges])
        self.said_R = np.array([e.measured.R for e in edges]).reshape(-1, 3, 3)
        self.said_t = np.array([e.measured.t for e in edges], float).reshape(-1, 3)
        sigma = np.array([e.sigma for e in edges], float).reshape(-1, 3)
        self.weight = 1 / sigma[:, [0, 1, 1, 1, 2, 2, 2]]
        free = np.ones((len(nodes), UNKNOWNS), bool)
        free[fixed] = False
        free[:, 0] &= not metric
        self.free = np.flatnonzero(free)

    def residual(self, first: Array | None = None, second: Array | None = None) -> Array:
        """Whitened [E, 7], with the ends of all edges moved by [7]."""
        (si, Ri, ti), (sj, Rj, tj) = (
            self._moved(index, step)
            for index, step in ((self.first, first), (self.second, second))
        )
        back = Ri.transpose(0, 2, 1)
        turn = self.said_R.transpose(0, 2, 1) @ back @ Rj
        place = np.einsum("nij,nj->ni", back, tj - ti) / np.exp(si)[:, None]
        off = np.column_stack(
            (
                sj - si - self.said_log,
                Rotation.from_matrix(turn).as_rotvec(),
                place - self.said_t,
            )
        )
        return np.asarray(off * self.weight)

    def _moved(self, index: Array, step: Array | None) -> tuple[Array, Array, Array]:
        s, R, t = self.log_scale[index], self.R[index], self.t[index]
        if step is None:
            return s, R, t
        return s + step[0], R @ Rotation.from_rotvec(step[1:4]).as_matrix(), t + step[4:]

    def _derivative(self) -> tuple[Array, Array]:
        """Of the residual by both ends, each [E, 7, 7]."""
        steps = STEP * np.eye(UNKNOWNS)
        by_first = [self.residual(s) - self.residual(-s) for s in steps]
        by_second = [self.residual(None, s) - self.residual(None, -s) for s in steps]
        return (
            np.stack(by_first, axis=2) / (2 * STEP),
            np.stack(by_second, axis=2) / (2 * STEP),
        )

    def _cost(self, residual: Array) -> float:
        length = (residual**2).sum(axis=1)
        doubt = UNKNOWNS * DOUBT**2
        return float(np.where(self.loop, doubt * np.log1p(length / doubt), length).sum())

    def normal(self, residual: Array) -> tuple[coo_matrix, Array]:
        """Normal matrix and right-hand side of the unknowns that are free."""
        doubt = UNKNOWNS * DOUBT**2
        say = np.where(self.loop, 1 / (1 + (residual**2).sum(axis=1) / doubt), 1.0)
        jacobian = np.concatenate(self._derivative(), axis=2)  # [E, 7, 14]
        columns = UNKNOWNS * np.stack((self.first, self.second), axis=1)[:, :, None]
        columns = (columns + np.arange(UNKNOWNS)).reshape(len(say), -1)  # [E, 14]
        blocks = np.einsum("eri,erj,e->eij", jacobian, jacobian, say)
        size = UNKNOWNS * len(self.log_scale)
        rows = np.broadcast_to(columns[:, :, None], blocks.shape)
        matrix = coo_matrix(
            (blocks.ravel(), (rows.ravel(), rows.transpose(0, 2, 1).ravel())), shape=(size, size)
        )
        right = np.zeros(size)
        np.add.at(right, columns, -np.einsum("eri,er,e->ei", jacobian, residual, say))
        return matrix.tocsr()[self.free][:, self.free], right[self.free]

    def solve(self) -> list[Similarity]:
        """Move the nodes until no step helps."""
        damping, residual = 1e-6, self.residual()
        cost = self._cost(residual)
        for _ in range(ITERATIONS if len(self.free) and len(residual) else 0):
            matrix, right = self.normal(residual)
            before = (self.log_scale.copy(), self.R.copy(), self.t.copy())
            while damping < 1e6:
                self._move(self._step(matrix, right, damping))
                residual = self.residual()
                now = self._cost(residual)
                if now <= cost:
                    break
                self.log_scale, self.R, self.t = (x.copy() for x in before)
                residual, damping = self.residual(), 10 * damping
            else:
                break
            fall, cost, damping = cost - now, now, max(damping / 10, 1e-9)
            if fall <= SETTLED * max(cost, 1e-12):
                break
        values = zip(np.exp(self.log_scale), self.R, self.t, strict=True)
        return [Similarity(float(s), R, t) for s, R, t in values]

    @staticmethod
    def _step(matrix: coo_matrix, right: Array, damping: float) -> Array:
        # The small constant keeps nodes that no edge holds where they are.
        damped = matrix + diags(damping * matrix.diagonal()) + 1e-12 * identity(matrix.shape[0])
        return np.asarray(spsolve(damped.tocsc(), right))

    def _move(self, step: Array) -> None:
        full = np.zeros(UNKNOWNS * len(self.log_scale))
        full[self.free] = step
        by_node = full.reshape(-1, UNKNOWNS)
        self.log_scale = self.log_scale + by_node[:, 0]
        self.R = self.R @ Rotation.from_rotvec(by_node[:, 1:4]).as_matrix()
        self.t = self.t + by_node[:, 4:]
