"""Corrects submaps after a loop: robust least squares on a graph of similarities.

Nodes are submaps, each with the similarity that places it. Edges are measurements of one node
relative to another: odometry, and loops. Loops have robust weights (Cauchy), because a wrong loop
must not bend the whole scene. One node is fixed, which in Sim(3) also fixes the scale.

Gauss-Newton with damping (Levenberg-Marquardt) on sparse normal equations; a graph holds hundreds
of nodes, not millions. gtsam solves the same graphs and checks this one in the tests; it has no
wheels for Python 3.10, and two solvers would give two answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix, diags, identity
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import splu, spsolve
from scipy.spatial.transform import Rotation

from da3_ros.geometry.poses import cross_matrices, inverse_right_jacobian
from da3_ros.geometry.similarity import Similarity
from da3_ros.types import Array

ITERATIONS = 50
CONVERGED = 1e-8  # relative decrease of the cost that ends the iteration
LOOP_SIGMAS = 3.0  # scale of Cauchy's weights: standard deviations per component
UNKNOWNS = 7  # log scale, rotation (in the node's axes), position
TILT = np.array([False, True, True, False, False, False, False])
Metric = bool | NDArray[np.bool_]  # whether scales are known: of all nodes, or of each [N]


@dataclass(frozen=True, eq=False)
class Pivot:
    """Where a node was measured: its position is known better there than at its origin."""

    at: Array  # [3] in the axes and the unit of node ``second``
    sigma: Array  # [3] of log scale, rotation, and position there (units of ``first``)

    def whitening(self, measured: Similarity) -> Array:
        """Returns the square root [7, 7] of the information of an edge, see ``Edge``."""
        moved = np.eye(UNKNOWNS)  # of the position there, by what the node does
        arm = measured.scale * measured.R
        moved[4:, 0], moved[4:, 1:4] = arm @ self.at, -arm @ cross_matrices(self.at[None])[0]
        return np.asarray(moved / self.sigma[[0, 1, 1, 1, 2, 2, 2], None])


@dataclass(frozen=True, eq=False)
class Edge:
    """A measurement of node ``second`` in the axes and the unit of node ``first``."""

    first: int
    second: int
    measured: Similarity
    sigma: Array  # [3] of log scale, rotation (rad), position (units of ``first``)
    loop: bool = False  # may be wrong, so that its weight is robust
    # [7, 7] square root of the information of log scale, rotation (in the axes of ``second``) and
    # position; None: by ``sigma``
    whitening: Array | None = None
    pivot: Pivot | None = None  # gives the whitening once the edge is solved; None: unknown

    @property
    def whitened(self) -> Edge:
        """The edge with the whitening that its pivot gives."""
        assert self.pivot is not None
        return replace(self, whitening=self.pivot.whitening(self.measured), pivot=None)


@dataclass(frozen=True, eq=False)
class Solution:
    """Poses of the nodes, and the residual of each edge."""

    nodes: list[Similarity]
    residuals: Array  # [E] in standard deviations (root mean square of the seven components)


def optimize(
    nodes: Sequence[Similarity], edges: Sequence[Edge], *, fixed: int | Sequence[int],
    metric: Metric = False, level: int | None = None,
) -> Solution:  # fmt: skip
    """Solves for the poses of all ``nodes`` that fit all ``edges`` best.

    fixed: index of the node that stays, or of several: one of each component that edges connect.
    metric: scales are known and stay, poses are in SE(3); of all nodes, or of each [N]. level:
    index of a node that only says what is up: z of its axes, in which it turns; None: there is
    none.
    """
    graph = _GraphArrays(nodes, edges, fixed, metric, level)
    return Solution(graph.solve(), np.sqrt((graph.residual() ** 2).mean(axis=1)))


def components(count: int, edges: Sequence[Edge]) -> Array:
    """Returns the number of the component of each node [count]; edges connect the nodes of a
    component."""
    ends = ([e.first for e in edges], [e.second for e in edges])
    graph = coo_matrix((np.ones(len(edges)), ends), shape=(count, count))
    return np.asarray(connected_components(graph, directed=False)[1])


def marginal(
    nodes: Sequence[Similarity], edges: Sequence[Edge], *, fixed: int, of: int, metric: Metric,
    level: int | None = None,
) -> Array:  # fmt: skip
    """Returns the covariance [7, 7] of node ``of`` relative to node ``fixed``, at a solution.

    Of (log scale; rotation, rad; position), in the axes and the unit of ``nodes``, to first order,
    with loops at their robust weights. metric, level: as in ``optimize``; where the scale is
    known, its row and column are zero. Raises ValueError if no edges connect the two.
    """
    component = components(len(nodes), edges)
    if component[of] != component[fixed]:
        raise ValueError(f"no edges connect nodes {fixed} and {of}")
    graph = _GraphArrays(nodes, edges, fixed, metric, level)
    graph.free = graph.free[component[graph.free // UNKNOWNS] == component[of]]
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


class _GraphArrays:
    """Nodes and edges as arrays."""

    def __init__(
        self, nodes: Sequence[Similarity], edges: Sequence[Edge], fixed: int | Sequence[int],
        metric: Metric, level: int | None,
    ) -> None:  # fmt: skip
        self.log_scale = np.log([n.scale for n in nodes])
        self.R = np.array([n.R for n in nodes]).reshape(-1, 3, 3)
        self.t = np.array([n.t for n in nodes], float).reshape(-1, 3)
        self.first = np.array([e.first for e in edges], dtype=np.int64)
        self.second = np.array([e.second for e in edges], dtype=np.int64)
        self.loop = np.array([e.loop for e in edges], dtype=bool)
        self.measured_log_scale = np.log([e.measured.scale for e in edges])
        self.measured_R = np.array([e.measured.R for e in edges]).reshape(-1, 3, 3)
        self.measured_t = np.array([e.measured.t for e in edges], float).reshape(-1, 3)
        sigma = np.array([e.sigma for e in edges], float).reshape(-1, 3)
        self.weight = 1 / sigma[:, [0, 1, 1, 1, 2, 2, 2]]
        self.whitened = np.flatnonzero([e.whitening is not None for e in edges])
        whitening = [e.whitening for e in edges if e.whitening is not None]
        self.whitening = np.array(whitening).reshape(-1, UNKNOWNS, UNKNOWNS)
        free = np.ones((len(nodes), UNKNOWNS), bool)
        free[np.array(fixed)] = False
        free[:, 0] &= np.logical_not(metric)
        if level is not None:
            free[level] = TILT
        self.free = np.flatnonzero(free)

    def _seen(self) -> tuple[Array, Array]:
        """Returns rotation [E, 3, 3] and position [E, 3] of each edge's second node, in the axes
        and the unit of its first one."""
        back = self.R[self.first].transpose(0, 2, 1)
        way = self.t[self.second] - self.t[self.first]
        unit = np.exp(self.log_scale[self.first])
        return back @ self.R[self.second], np.einsum("nij,nj->ni", back, way) / unit[:, None]

    def residual(self) -> Array:
        """Returns whitened residuals [E, 7]."""
        return self._whitened(self._plain_residual(*self._seen())[:, :, None])[:, :, 0]

    def _plain_residual(self, R: Array, t: Array) -> Array:
        """Returns residuals [E, 7] of the edges, whose second nodes are seen there (``_seen``)."""
        log_scale = self.log_scale[self.second] - self.log_scale[self.first]
        turn = Rotation.from_matrix(self.measured_R.transpose(0, 2, 1) @ R).as_rotvec()
        return np.column_stack((log_scale - self.measured_log_scale, turn, t - self.measured_t))

    def _whitened(self, columns: Array) -> Array:
        """Returns columns [E, 7, N], each as a residual in standard deviations."""
        out = columns * self.weight[:, :, None]
        out[self.whitened] = self.whitening @ columns[self.whitened]
        return np.asarray(out)

    def derivative(self) -> Array:
        """Returns the derivative [E, 7, 14] of ``residual`` by the first and the second node: by
        log scale, rotation in the node's own axes, and position."""
        R, t = self._seen()
        turned = inverse_right_jacobian(self._plain_residual(R, t)[:, 1:4])
        moved = self.R[self.first].transpose(0, 2, 1)
        moved = moved / np.exp(self.log_scale[self.first])[:, None, None]
        out = np.zeros((len(R), UNKNOWNS, 2 * UNKNOWNS))
        first, second = out[:, :, :UNKNOWNS], out[:, :, UNKNOWNS:]
        first[:, 0, 0], second[:, 0, 0] = -1.0, 1.0
        first[:, 1:4, 1:4], second[:, 1:4, 1:4] = -turned @ R.transpose(0, 2, 1), turned
        first[:, 4:, 0], first[:, 4:, 1:4] = -t, cross_matrices(t)
        first[:, 4:, 4:], second[:, 4:, 4:] = -moved, moved
        return self._whitened(out)

    def _cost(self, residual: Array) -> float:
        length = (residual**2).sum(axis=1)
        cauchy = UNKNOWNS * LOOP_SIGMAS**2
        return float(np.where(self.loop, cauchy * np.log1p(length / cauchy), length).sum())

    def normal(self, residual: Array) -> tuple[coo_matrix, Array]:
        """Returns the normal matrix and right-hand side of the free unknowns."""
        cauchy = UNKNOWNS * LOOP_SIGMAS**2
        weights = np.where(self.loop, 1 / (1 + (residual**2).sum(axis=1) / cauchy), 1.0)
        jacobian = self.derivative()
        columns = UNKNOWNS * np.stack((self.first, self.second), axis=1)[:, :, None]
        columns = (columns + np.arange(UNKNOWNS)).reshape(len(weights), -1)  # [E, 14]
        blocks = np.einsum("eri,erj,e->eij", jacobian, jacobian, weights)
        size = UNKNOWNS * len(self.log_scale)
        rows = np.broadcast_to(columns[:, :, None], blocks.shape)
        matrix = coo_matrix(
            (blocks.ravel(), (rows.ravel(), rows.transpose(0, 2, 1).ravel())), shape=(size, size)
        )
        right = np.zeros(size)
        np.add.at(right, columns, -np.einsum("eri,er,e->ei", jacobian, residual, weights))
        return matrix.tocsr()[self.free][:, self.free], right[self.free]

    def solve(self) -> list[Similarity]:
        """Moves the nodes until the cost converges; returns their poses."""
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
            if fall <= CONVERGED * max(cost, 1e-12):
                break
        values = zip(np.exp(self.log_scale), self.R, self.t, strict=True)
        return [Similarity(float(s), R, t) for s, R, t in values]

    @staticmethod
    def _step(matrix: coo_matrix, right: Array, damping: float) -> Array:
        # The small constant keeps nodes without edges in place.
        damped = matrix + diags(damping * matrix.diagonal()) + 1e-12 * identity(matrix.shape[0])
        return np.asarray(spsolve(damped.tocsc(), right))

    def _move(self, step: Array) -> None:
        full = np.zeros(UNKNOWNS * len(self.log_scale))
        full[self.free] = step
        by_node = full.reshape(-1, UNKNOWNS)
        self.log_scale = self.log_scale + by_node[:, 0]
        self.R = self.R @ Rotation.from_rotvec(by_node[:, 1:4]).as_matrix()
        self.t = self.t + by_node[:, 4:]
