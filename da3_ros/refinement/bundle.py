"""Bundle adjustment: poses, points and a depth scale per view, from observations and priors.

Levenberg-Marquardt in float64. Points are eliminated (Schur complement), so that each step solves
for the views only. Robust weights by Huber for image positions and relative poses, by Cauchy for
depths. Works on arrays; no network, no images.

``local`` is the coordinate frame of poses and points. A view's error vector is (rotation, rad,
about its own axes; position in local; log scale of its depth).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.spatial.transform import Rotation

from da3_ros.geometry.lens import CENTRE_X, CENTRE_Y, FOCAL, K1, K2, with_lens
from da3_ros.geometry.poses import cross_matrices, inverse_right_jacobian
from da3_ros.types import Array

# Measured relative poses of views: priors of a bundle, by network, robot, rig and gyro.

NETWORK, ROBOT, RIG, GYRO = range(4)  # who has measured a relative pose


@dataclass(frozen=True, eq=False)
class PosePriors:
    """Measured relative poses of pairs of views. P rows.

    The error of a pose is (rotation, rad, in the axes of the second view; position in those of the
    first one).
    """

    first: Array  # [P] id or index of a view, int
    second: Array  # [P] the same of another view, int
    T_first_second: Array  # [P, 4, 4], units of local
    root: Array  # [P, 6, 6] root of the inverse covariance of the errors; 0: unknown
    source: Array  # [P] NETWORK, ROBOT, RIG or GYRO

    @staticmethod
    def isotropic(
        first: Array, second: Array, T: Array, rotation: Array, position: Array, source: int
    ) -> PosePriors:
        """Returns priors with standard deviations [P] that are equal in all axes; inf: unknown."""
        sigma = np.repeat(np.stack((rotation, position), axis=1), 3, axis=1)
        root = np.eye(6) / sigma[:, None, :]
        return PosePriors(first, second, T, root, np.full(len(first), source))

    @staticmethod
    def none() -> PosePriors:
        """Returns an empty set."""
        i = np.zeros(0, int)
        return PosePriors(i, i, np.zeros((0, 4, 4)), np.zeros((0, 6, 6)), i)

    @staticmethod
    def joined(parts: Sequence[PosePriors]) -> PosePriors:
        """Returns the priors of all parts."""
        return PosePriors(
            np.concatenate([p.first for p in parts]),
            np.concatenate([p.second for p in parts]),
            np.concatenate([p.T_first_second for p in parts]),
            np.concatenate([p.root for p in parts]),
            np.concatenate([p.source for p in parts]),
        )

    def indexed(self, used: Sequence[int]) -> PosePriors:
        """Returns the priors between used views, by their indices in place of their ids."""
        at = {id: k for k, id in enumerate(used)}
        ends = zip(self.first.tolist(), self.second.tolist(), strict=True)
        kept = np.array([a in at and b in at for a, b in ends], bool)
        rest = self.where(kept)
        first, second = (
            np.array([at[i] for i in ids.tolist()], int) for ids in (rest.first, rest.second)
        )
        return replace(rest, first=first, second=second)

    def where(self, mask: Array) -> PosePriors:
        """Returns the priors of a mask [P]."""
        fields = (self.first, self.second, self.T_first_second, self.root, self.source)
        return PosePriors(*(values[mask] for values in fields))


def pose_prior_terms(
    Ri: Array, ci: Array, Rj: Array, cj: Array, T_ij: Array
) -> tuple[Array, Array, Array]:
    """Returns residuals [P, 6] (rotation, position) of relative poses, and their derivatives
    [P, 6, 6] by (rotation, position) of the first and of the second view."""
    count = len(ci)
    RiT = Ri.transpose(0, 2, 1)
    Rij = RiT @ Rj
    rotation = Rotation.from_matrix(T_ij[:, :3, :3].transpose(0, 2, 1) @ Rij).as_rotvec()
    position = np.einsum("pij,pj->pi", RiT, cj - ci)
    r = np.concatenate((rotation, position - T_ij[:, :3, 3]), axis=1)
    Jr = inverse_right_jacobian(rotation)
    Ji, Jj = np.zeros((count, 6, 6)), np.zeros((count, 6, 6))
    Jj[:, :3, :3], Ji[:, :3, :3] = Jr, -Jr @ Rij.transpose(0, 2, 1)
    Ji[:, 3:, :3] = cross_matrices(position)
    Ji[:, 3:, 3:], Jj[:, 3:, 3:] = -RiT, RiT
    return r, Ji, Jj


SIZE = 7  # components of a view's error: rotation, position, log scale
ROTATION, POSITION, SCALE = slice(0, 3), slice(3, 6), 6
HUBER = 2.0  # standard deviations of an image position beyond which Huber's weights limit it
CAUCHY = 2.0  # the same for depths, by Cauchy's weights
START_DAMPING, MAX_DAMPING = 1e-4, 1e6
LEAST = 1e-10  # damping of points, as a share of what they know
HARDLY = 100.0  # factor on standard deviations of what shall not count
FEW = 100  # unknowns up to which points are eliminated at once
CONVERGED = 1e-4  # relative decrease of the cost that ends the iteration


@dataclass(frozen=True)
class Metre:
    """The length of a metre in local, as far as it is known."""

    log: float  # its logarithm; units of local
    sigma: float  # standard deviation of that; inf: unknown


@dataclass(frozen=True, eq=False)
class Observations:
    """Image positions of points, and the depths that the network predicted there. O rows, sorted
    by point."""

    view: Array  # [O] index of the view, int
    point: Array  # [O] index of the point, int
    pixel: Array  # [O, 2] column and row, corner rule
    sigma: Array  # [O] standard deviation of a position, pixels
    log_depth: Array  # [O] logarithm of the predicted depth, units of local; NaN: unknown
    depth_sigma: Array  # [O] its standard deviation
    # [O, 2] unit vectors of positions that count only across an edge, NaN of others; None: all
    normal: Array | None = None

    def where(self, mask: Array) -> Observations:
        """Returns the observations of a mask [O]."""
        return Observations(
            self.view[mask], self.point[mask], self.pixel[mask], self.sigma[mask],
            self.log_depth[mask], self.depth_sigma[mask],
            None if self.normal is None else self.normal[mask],
        )  # fmt: skip

    def across(self) -> Array | None:
        """Returns the projections [O, 2, 2] to what counts of a position; None: all."""
        if self.normal is None:
            return None
        out = self.normal[:, :, None] * self.normal[:, None]
        return np.where(np.isfinite(out), out, np.eye(2))


@dataclass(frozen=True, eq=False)
class Bundle:
    """V views, N points, their observations, and priors."""

    T_local_camera: Array  # [V, 4, 4]
    log_scale: Array  # [V] log of true over predicted depth
    K: Array  # [V, 3, 3] corner rule
    points: Array  # [N, 3] in local
    free: Array  # [V] bool; poses and scales of other views are held
    observations: Observations
    scale_prior: Array  # [V] expected log_scale
    scale_sigma: Array  # [V] its standard deviation
    poses: PosePriors = field(default_factory=PosePriors.none)
    # Number of each view's lens if that is not known exactly; -1: it is, as K says.
    lens: Array | None = None
    # Standard deviations of the errors of such lenses: of the first L of geometry.lens's five.
    lens_sigma: tuple[float, ...] = (0.05,)
    lens_start: Array | None = None  # [G, L] errors where the solution starts; None: zero
    # With it, positions of the rig's priors are in metres; without, in local.
    metre_prior: Metre | None = None
    log_metre: float = 0.0  # where the solution starts

    @property
    def lens_count(self) -> int:
        """Number G of lenses that are not known exactly."""
        return 0 if self.lens is None else int(self.lens.max(initial=-1)) + 1

    def typical_log_depth(self) -> Array:
        """Returns the logarithms [O] of the points' depths in the views that see them."""
        o = self.observations
        T = self.T_local_camera[o.view]
        z = np.einsum("oi,oi->o", self.points[o.point] - T[:, :3, 3], T[:, :3, 2])
        return np.asarray(np.log(np.maximum(z, 1e-9)))


@dataclass(frozen=True, eq=False)
class Adjusted:
    """A solved bundle."""

    bundle: Bundle
    reprojection: Array  # [O] distances to the observed positions, pixels; inf: behind the camera
    depth_residual: Array  # [O] log depth less the view's scaled prediction; NaN: no depth
    # [D, D] of the errors of free views, of lenses and of the metre, points eliminated
    information: Array
    cost: float
    steps: int
    lens: Array  # [G, L] errors of the lenses; ``bundle.K`` has those of FOCAL to CENTRE_Y

    def depth_sigma(self) -> float:
        """Returns the robust standard deviation of the depth residuals; NaN with few of them."""
        known = np.abs(self.depth_residual[np.isfinite(self.depth_residual)])
        return 1.4826 * float(np.median(known)) if len(known) >= 20 else float("nan")

    def covariance(self) -> Array | None:
        """Returns the covariance [7 F, 7 F] of the free views' errors, with the held ones exact;
        None if the observations do not determine them."""
        inverse = self._inverse
        return None if inverse is None else np.asarray(inverse[: self._size, : self._size])

    def by_held(self) -> Array:
        """Returns the derivatives [7 F, 7 H] of the free views' errors by those of the held ones,
        where all lenses are known.

        Raises LinAlgError if the observations do not determine them.
        """
        b = self.bundle
        everything = replace(b, free=np.ones(len(b.free), bool))
        free = np.repeat(b.free, SIZE)
        free = np.append(free, np.ones(len(self.information) - free.sum(), bool))
        coupled = _information(everything)[np.ix_(free, ~free)]
        return -cho_solve(cho_factor(self.information), coupled)[: self._size]

    def by_network(self) -> Array:
        """Returns the derivatives [7 F, 7 F] of the free views' errors by those that depths and
        priors together ask for: zero where tracks alone determine a view, one where nothing else
        does. All lenses are known.

        Raises LinAlgError if the observations do not determine the views.
        """
        b, o = self.bundle, self.bundle.observations
        # Depths stay with hardly any weight: they hold points whose rays are parallel.
        only_tracks = replace(
            b, observations=replace(o, depth_sigma=HARDLY * o.depth_sigma),
            scale_prior=b.log_scale, scale_sigma=HARDLY * b.scale_sigma, poses=PosePriors.none(),
        )  # fmt: skip
        by_tracks = cho_solve(cho_factor(self.information), _information(only_tracks))
        return (np.eye(len(by_tracks)) - by_tracks)[: self._size, : self._size]

    def focal_sigma(self) -> Array:
        """Returns the standard deviations [G] of the logarithms of unknown focal lengths; inf if
        not determined."""
        each = np.diagonal(self.lens_covariance(), axis1=1, axis2=2)
        return np.asarray(np.sqrt(each[:, FOCAL]))

    def lens_covariance(self) -> Array:
        """Returns the covariances [G, L, L] of the errors of lenses; inf if not determined."""
        count, size = self.lens.shape
        if self._inverse is None:
            return np.full((count, size, size), np.inf)
        first = self._size + size * np.arange(count)
        blocks = [self._inverse[at : at + size, at : at + size] for at in first.tolist()]
        return np.array(blocks).reshape(count, size, size)

    def metre(self) -> Metre | None:
        """Returns the metre that observations and priors have found; None: they do not."""
        if self.bundle.metre_prior is None or self._inverse is None:
            return None
        variance = float(self._inverse[-1, -1])
        known = 0 < variance < math.inf
        return Metre(self.bundle.log_metre, math.sqrt(variance)) if known else None

    def sigma_in_metres(self, by_views: Array) -> float:
        """Returns the standard deviation of the logarithm of a length in metres; inf: not
        determined.

        by_views: [7 F] derivatives of the logarithm in local by the errors of the free views.
        """
        inverse = self._inverse
        if inverse is None or self.bundle.metre_prior is None:
            return math.inf
        by_all = np.zeros(len(inverse))
        by_all[: self._size], by_all[-1] = by_views, -1.0
        return math.sqrt(max(float(by_all @ inverse @ by_all), 0.0))

    @property
    def _size(self) -> int:
        return SIZE * int(self.bundle.free.sum())

    @functools.cached_property
    def _inverse(self) -> Array | None:
        try:
            return np.asarray(
                cho_solve(cho_factor(self.information), np.eye(len(self.information)))
            )
        except (np.linalg.LinAlgError, ValueError):
            return None


def _information(bundle: Bundle) -> Array:
    """Returns the information [7 F, 7 F] of the free views' errors, points eliminated."""
    solver = _Solver(bundle)
    return solver.reduced(solver.linearize(_State.of(bundle)), 0.0)[0]


def adjust(bundle: Bundle, max_steps: int) -> Adjusted:
    """Minimises the robust cost in at most ``max_steps`` steps."""
    solver = _Solver(bundle)
    state = _State.of(bundle)
    terms = solver.linearize(state)
    damping, steps = START_DAMPING, 0
    for steps in range(1, max_steps + 1):  # noqa: B007
        step = solver.step(terms, damping)
        moved = None if step is None else state.moved(step, solver)
        after = None if moved is None else solver.linearize(moved)
        if moved is None or after is None or not after.cost < terms.cost:
            damping *= 10
            if damping > MAX_DAMPING:
                break
            continue
        decrease = terms.cost - after.cost
        state, terms = moved, after
        damping = max(damping / 5, 1e-9)
        if decrease < CONVERGED * terms.cost:
            break
    return solver.result(state, terms, steps)


@dataclass(frozen=True, eq=False)
class _State:
    R: Array  # [V, 3, 3] local from camera
    c: Array  # [V, 3]
    s: Array  # [V]
    X: Array  # [N, 3]
    # [C] what is common to views: L errors of each of G lenses, and the logarithm of the metre if
    # rig priors are in it
    common: Array

    @staticmethod
    def of(b: Bundle) -> _State:
        common = np.zeros(b.lens_count * len(b.lens_sigma))
        if b.lens_start is not None:
            common = b.lens_start.ravel()
        if b.metre_prior is not None:
            common = np.append(common, b.log_metre)
        T = b.T_local_camera
        return _State(T[:, :3, :3], T[:, :3, 3], b.log_scale, b.points, common)

    def moved(self, step: tuple[Array, Array, Array], solver: _Solver) -> _State:
        views, points, common = step
        R, c, s = self.R.copy(), self.c.copy(), self.s.copy()
        at = solver.free
        R[at] = R[at] @ Rotation.from_rotvec(views[:, ROTATION]).as_matrix()
        c[at] += views[:, POSITION]
        s[at] += views[:, SCALE]
        return _State(R, c, s, self.X + points, self.common + common)


@dataclass(frozen=True, eq=False)
class _Rows:
    """Whitened residuals of all observations (column, row, log depth), and derivatives."""

    x: Array  # [O, 3] points in the axes of the cameras
    r: Array  # [O, 3]
    Jx: Array  # [O, 3, 3] by x
    JX: Array  # [O, 3, 3] by the point in local
    depth_root: Array  # [O] root of the weight of the depth
    Jl: Array | None  # [O, 3, L] by the errors of the lens; None: all are known


@dataclass(frozen=True, eq=False)
class _Terms:
    """Normal equations and residuals of a state."""

    cost: float
    H: Array  # [D, D] of views and of what is common to them; D = 7 F + C
    g: Array  # [D]
    Hp: Array  # [N, 3, 3]
    gp: Array  # [N, 3]
    W: Array  # [M, 7, 3] by view and point, of the observations of free views
    Wc: Array  # [C, N, 3] by what is common, and point
    distance: Array  # [O]
    depth_residual: Array  # [O]


class _Solver:
    """The parts of a bundle that do not change from step to step."""

    def __init__(self, bundle: Bundle) -> None:
        self.b = bundle
        o = bundle.observations
        self.across = o.across()
        self.free = np.flatnonzero(bundle.free)
        self.slot = np.full(len(bundle.free), -1)
        self.slot[self.free] = np.arange(len(self.free))
        self.starts = np.flatnonzero(np.diff(o.point, prepend=-1))
        self.seen = o.point[self.starts]
        row = self.slot[o.view]
        self.mine = np.flatnonzero(row >= 0)  # observations of free views
        order = np.argsort(row[self.mine], kind="stable")
        self.by_view = self.mine[order]
        rows = row[self.by_view]
        self.view_starts = np.flatnonzero(np.diff(rows, prepend=-1))
        self.view_rows = rows[self.view_starts]
        self.order = order  # of ``mine``, by view
        self.groups, self.errors = bundle.lens_count, len(bundle.lens_sigma)
        self.common = self.groups * self.errors + (bundle.metre_prior is not None)
        self.size = SIZE * len(self.free) + self.common

    @functools.cached_property
    def _pairs(self) -> tuple[Array, Array, Array, Array, Array]:
        """Pairs of ``mine`` that see one point, by the pair of their views: the blocks of the
        reduced matrix, below its diagonal. First ones, second ones, where blocks begin, rows and
        columns of these."""
        point = self.b.observations.point[self.mine]
        slot = self.slot[self.b.observations.view[self.mine]]
        begin = np.searchsorted(point, point)  # sorted: the first observation of each one's point
        count = np.arange(len(point)) - begin + 1
        first = np.repeat(np.arange(len(point)), count)
        second = np.arange(len(first)) - np.repeat(np.cumsum(count) - count - begin, count)
        high, low = np.maximum(slot[first], slot[second]), np.minimum(slot[first], slot[second])
        swapped = slot[first] < slot[second]
        first, second = np.where(swapped, second, first), np.where(swapped, first, second)
        key = high * max(1, len(self.free)) + low
        by_block = np.argsort(key, kind="stable")
        starts = np.flatnonzero(np.diff(key[by_block], prepend=-1))
        at = by_block[starts]
        return first[by_block], second[by_block], starts, high[at], low[at]

    # Residuals -----------------------------------------------------------------------------------

    def linearize(self, state: _State) -> _Terms:
        b, o = self.b, self.b.observations
        R, K = state.R[o.view], b.K[o.view]
        x = np.einsum("oji,oj->oi", R, state.X[o.point] - state.c[o.view])
        front = x[:, 2] > 1e-6
        z = np.where(front, x[:, 2], 1.0)
        a = x[:, :2] / z[:, None]
        fx, fy = K[:, 0, 0], K[:, 1, 1]
        lens = None
        if self.groups:
            lens = _seen_through_lens(a, K, self.lenses(state)[o.view])
            offset = lens.pixel - o.pixel
        else:
            offset = np.stack((fx * a[:, 0] + K[:, 0, 2], fy * a[:, 1] + K[:, 1, 2]), 1) - o.pixel
        if self.across is not None:
            offset = (self.across @ offset[..., None])[..., 0]
        distance = np.where(front, np.linalg.norm(offset, axis=1), np.inf)
        white = np.where(front, distance, 0.0) / o.sigma
        weight = np.where(front, np.minimum(1.0, HUBER / np.maximum(white, 1e-12)), 0.0)
        cost = float(
            np.where(
                front,
                np.where(white < HUBER, white**2, 2 * HUBER * white - HUBER**2),
                BEHIND,
            ).sum()
        )
        deep = np.isfinite(o.log_depth) & front
        depth_residual = np.where(deep, np.log(z) - o.log_depth - state.s[o.view], np.nan)
        d = np.where(deep, depth_residual, 0.0) / o.depth_sigma
        cost += float((CAUCHY**2 * np.log1p((d / CAUCHY) ** 2)).sum())
        depth_weight = np.where(deep, 1 / (1 + (d / CAUCHY) ** 2), 0.0)
        # Whitened residuals [O, 3], and derivatives by the camera's coordinates of the point.
        root, depth_root = np.sqrt(weight) / o.sigma, np.sqrt(depth_weight) / o.depth_sigma
        r = np.empty((len(z), 3))
        r[:, :2] = offset * root[:, None]
        r[:, 2] = d * np.sqrt(depth_weight)
        Jx = np.zeros((len(z), 3, 3))
        if lens is None:
            Jx[:, 0, 0] = root * fx / z
            Jx[:, 1, 1] = root * fy / z
            Jx[:, 0, 2] = -root * fx * a[:, 0] / z
            Jx[:, 1, 2] = -root * fy * a[:, 1] / z
        else:
            Jx[:, :2, :2] = (root / z)[:, None, None] * lens.by_direction
            Jx[:, :2, 2] = -(Jx[:, :2, :2] @ a[..., None])[..., 0]
        Jx[:, 2, 2] = depth_root / z
        Jl = None
        if lens is not None:
            Jl = np.zeros((len(z), 3, self.errors))
            Jl[:, :2] = root[:, None, None] * lens.by_lens[..., : self.errors]
        if self.across is not None:
            Jx[:, :2] = self.across @ Jx[:, :2]
            if Jl is not None:
                Jl[:, :2] = self.across @ Jl[:, :2]
        row = _Rows(x, r, Jx, Jx @ R.transpose(0, 2, 1), depth_root, Jl)
        return self._normal_equations(state, row, cost, distance, depth_residual)

    def lenses(self, state: _State) -> Array:
        """Returns the errors [V, 5] of the views' lenses; 0 where a lens is known."""
        b, count = self.b, self.groups * self.errors
        assert b.lens is not None
        own = state.common[:count].reshape(self.groups, self.errors)[np.maximum(b.lens, 0)]
        out = np.zeros((len(b.lens), K2 + 1))
        out[:, : self.errors] = np.where((b.lens >= 0)[:, None], own, 0.0)
        return out

    def _normal_equations(
        self, state: _State, row: _Rows, cost: float, distance: Array, depth_residual: Array
    ) -> _Terms:
        N, count = len(self.free), len(self.b.points)
        Hp, gp = np.zeros((count, 3, 3)), np.zeros((count, 3))
        Hp[self.seen] = np.add.reduceat(row.JX.transpose(0, 2, 1) @ row.JX, self.starts)
        gp[self.seen] = np.add.reduceat(np.einsum("oij,oi->oj", row.JX, row.r), self.starts)
        at = self.by_view
        Jv = np.zeros((len(at), 3, SIZE))
        Jv[:, :, ROTATION] = np.cross(row.Jx[at], row.x[at, None])
        Jv[:, :, POSITION] = -row.JX[at]
        Jv[:, 2, SCALE] = -row.depth_root[at]
        Hv, gv = np.zeros((N, SIZE, SIZE)), np.zeros((N, SIZE))
        W, Wc = np.zeros((len(at), SIZE, 3)), np.zeros((self.common, count, 3))
        if len(at):
            JvT = Jv.transpose(0, 2, 1)
            Hv[self.view_rows] = np.add.reduceat(JvT @ Jv, self.view_starts)
            gv[self.view_rows] = np.add.reduceat(
                (JvT @ row.r[at, :, None])[..., 0], self.view_starts
            )
            W[self.order] = JvT @ row.JX[at]
        H, g = np.zeros((self.size, self.size)), np.zeros(self.size)
        for i in range(N):
            part = slice(SIZE * i, SIZE * (i + 1))
            H[part, part] = Hv[i]
        g[: SIZE * N] = gv.ravel()
        if self.groups:
            cost += self._add_lenses(state, row, Jv, H, g, Wc)
        cost += self._add_scale_priors(state, H, g)
        cost += self._add_pose_priors(state, H, g)
        return _Terms(cost, H, g, Hp, gp, W, Wc, distance, depth_residual)

    def _add_lenses(
        self, state: _State, row: _Rows, Jv: Array, H: Array, g: Array, Wc: Array
    ) -> float:
        """Adds the errors of lenses to the equations, in position; returns their cost."""
        b, o, count = self.b, self.b.observations, self.errors
        sigma = np.array(b.lens_sigma)
        residual = state.common[: self.groups * count].reshape(self.groups, count) / sigma
        assert b.lens is not None
        assert row.Jl is not None
        group = b.lens[o.view]
        at, begin = self.by_view, SIZE * len(self.free)
        columns = (self.view_rows[:, None] * SIZE + np.arange(SIZE)).ravel()
        for k in range(self.groups):
            own = slice(count * k, count * (k + 1))
            rows = slice(begin + count * k, begin + count * (k + 1))
            J = np.where((group == k)[:, None, None], row.Jl, 0.0)
            H[rows, rows] += np.einsum("oil,oim->lm", J, J) + np.diag(1 / sigma**2)
            g[rows] += np.einsum("oil,oi->l", J, row.r) + residual[k] / sigma
            by_point = J.transpose(0, 2, 1) @ row.JX
            Wc[own, self.seen] = np.add.reduceat(by_point, self.starts).transpose(1, 0, 2)
            if len(at):
                cross = Jv.transpose(0, 2, 1) @ J[at]
                sums = np.add.reduceat(cross, self.view_starts).reshape(-1, count)
                H[columns, rows] += sums
                H[rows, columns] += sums.T
        return float((residual**2).sum())

    def _add_scale_priors(self, state: _State, H: Array, g: Array) -> float:
        b = self.b
        residual = (state.s - b.scale_prior)[self.free] / b.scale_sigma[self.free]
        weight = 1 / (1 + (residual / CAUCHY) ** 2)
        rows = SIZE * np.arange(len(self.free)) + SCALE
        H[rows, rows] += weight / b.scale_sigma[self.free] ** 2
        g[rows] += weight * residual / b.scale_sigma[self.free]
        return float((CAUCHY**2 * np.log1p((residual / CAUCHY) ** 2)).sum())

    def _add_pose_priors(self, state: _State, H: Array, g: Array) -> float:
        p, metre = self.b.poses, self.b.metre_prior
        cost_of_metre = 0.0
        T = p.T_first_second
        by_metre = np.zeros((len(p.first), 6))
        if metre is not None:
            cost_of_metre = self._add_metre_prior(metre, state, H, g)
            rig = p.source == RIG
            T = T.copy()
            T[rig, :3, 3] *= np.exp(state.common[-1])
            by_metre[rig, 3:] = -T[rig, :3, 3]
        if not len(p.first):
            return cost_of_metre
        r, Ji, Jj = pose_prior_terms(
            state.R[p.first], state.c[p.first], state.R[p.second], state.c[p.second], T
        )
        r, Ji, Jj = (p.root @ r[..., None])[..., 0], p.root @ Ji, p.root @ Jj
        by_metre = (p.root @ by_metre[..., None])[..., 0]
        length = np.linalg.norm(r.reshape(-1, 2, 3), axis=2)
        weight = np.minimum(1.0, HUBER / np.maximum(length, 1e-12))
        cost = np.where(length < HUBER, length**2, 2 * HUBER * length - HUBER**2).sum()
        root = np.repeat(np.sqrt(weight), 3, axis=1)
        r, Ji, Jj = r * root, Ji * root[..., None], Jj * root[..., None]
        by_metre *= root
        for k, (i, j) in enumerate(zip(self.slot[p.first], self.slot[p.second], strict=True)):
            ends = [(at, J[k]) for at, J in ((i, Ji), (j, Jj)) if at >= 0]
            for at, J in ends:
                rows = slice(SIZE * at, SIZE * at + 6)
                g[rows] += J.T @ r[k]
                for other, J2 in ends:
                    H[rows, SIZE * other : SIZE * other + 6] += J.T @ J2
                if metre is not None:
                    H[rows, -1] += J.T @ by_metre[k]
                    H[-1, rows] += J.T @ by_metre[k]
        if metre is not None:
            H[-1, -1] += (by_metre**2).sum()
            g[-1] += (by_metre * r).sum()
        return float(cost) + cost_of_metre

    @staticmethod
    def _add_metre_prior(metre: Metre, state: _State, H: Array, g: Array) -> float:
        residual = (float(state.common[-1]) - metre.log) / metre.sigma
        H[-1, -1] += 1 / metre.sigma**2
        g[-1] += residual / metre.sigma
        return residual**2

    # Steps ---------------------------------------------------------------------------------------

    def reduced(self, terms: _Terms, damping: float) -> tuple[Array, Array, Array]:
        """Returns the reduced matrix [D, D] and gradient [D], and the inverse point blocks."""
        Hp = terms.Hp.copy()
        diagonal = np.einsum("nii->ni", Hp)
        # A point without parallax and depth has no distance, and its block no inverse.
        diagonal += damping * diagonal + LEAST * diagonal.sum(axis=1, keepdims=True) + 1e-12
        inverse = np.linalg.inv(Hp)
        H, g = terms.H.copy(), terms.g.copy()
        H[np.diag_indices(self.size)] *= 1 + damping
        if self.size <= FEW:
            self._eliminate_at_once(terms, inverse, H, g)
        elif len(self.mine):
            self._eliminate(terms, inverse, H, g)
        return H, g, inverse

    def _eliminate_at_once(self, terms: _Terms, inverse: Array, H: Array, g: Array) -> None:
        """As ``_eliminate``, with all points of all views in one matrix: faster for few views."""
        point = self.b.observations.point[self.mine]
        slot = self.slot[self.b.observations.view[self.mine]]
        W = np.zeros((len(inverse), self.size, 3))
        W[point[:, None], SIZE * slot[:, None] + np.arange(SIZE)] = terms.W
        W[:, self.size - self.common :] = terms.Wc.transpose(1, 0, 2)
        flat = self.size, 3 * len(inverse)  # also without any free view
        flatY = (W @ inverse).transpose(1, 0, 2).reshape(flat)
        H -= flatY @ W.transpose(1, 0, 2).reshape(flat).T
        g -= flatY @ terms.gp.ravel()

    def _eliminate(self, terms: _Terms, inverse: Array, H: Array, g: Array) -> None:
        """Subtracts what points contribute to matrix and gradient, in position."""
        point, N = self.b.observations.point[self.mine], SIZE * len(self.free)
        Y = terms.W @ inverse[point]
        first, second, starts, high, low = self._pairs
        sums = np.add.reduceat(Y[first] @ terms.W[second].transpose(0, 2, 1), starts)
        views = H[:N, :N].reshape(len(self.free), SIZE, len(self.free), SIZE)
        views[high, :, low] -= sums
        other = high != low
        views[low[other], :, high[other]] -= sums[other].transpose(0, 2, 1)
        by_point = (Y @ terms.gp[point, :, None])[..., 0]
        g[:N].reshape(-1, SIZE)[self.view_rows] -= np.add.reduceat(
            by_point[self.order], self.view_starts
        )
        for k, Wc in enumerate(terms.Wc):
            Yc = np.einsum("ni,nij->nj", Wc, inverse)
            g[N + k] -= float((Yc * terms.gp).sum())
            H[N + k, N:] -= np.einsum("nj,cnj->c", Yc, terms.Wc)
            cross = np.einsum("mij,mj->mi", Y, Wc[point])[self.order]
            sums = np.zeros((len(self.free), SIZE))
            sums[self.view_rows] = np.add.reduceat(cross, self.view_starts)
            H[N + k, :N] -= sums.ravel()
            H[:N, N + k] -= sums.ravel()

    def step(self, terms: _Terms, damping: float) -> tuple[Array, Array, Array] | None:
        """Returns steps of views [F, 7], points [N, 3] and what is common [C]; None: singular."""
        try:
            S, g, inverse = self.reduced(terms, damping)
            dv = cho_solve(cho_factor(S), -g)
        except (np.linalg.LinAlgError, ValueError):
            return None
        N = SIZE * len(self.free)
        back = terms.gp + np.einsum("c,cnj->nj", dv[N:], terms.Wc)
        if len(self.mine):
            point = self.b.observations.point[self.mine]
            own = dv[:N].reshape(-1, SIZE)[self.slot[self.b.observations.view[self.mine]]]
            begins = np.flatnonzero(np.diff(point, prepend=-1))
            sums = np.add.reduceat((own[:, None] @ terms.W)[:, 0], begins)
            back[point[begins]] += sums
        dX = -np.einsum("nij,nj->ni", inverse, back)
        return dv[:N].reshape(-1, SIZE), dX, dv[N:]

    def result(self, state: _State, terms: _Terms, steps: int) -> Adjusted:
        b = self.b
        T = np.tile(np.eye(4), (len(b.free), 1, 1))
        T[:, :3, :3], T[:, :3, 3] = state.R, state.c
        K, log_metre = b.K, b.log_metre
        if self.groups:
            K = with_lens(K, self.lenses(state))
        if b.metre_prior is not None:
            log_metre = float(state.common[-1])
        S, *_ = self.reduced(terms, 0.0)
        done = replace(
            b, T_local_camera=T, log_scale=state.s, points=state.X, K=K, log_metre=log_metre
        )
        lens = state.common[: self.groups * self.errors].reshape(self.groups, self.errors)
        return Adjusted(
            done, terms.distance, terms.depth_residual, S, terms.cost, steps, lens
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _SeenThroughLens:
    """Where directions are in images whose lenses are not as K says."""

    pixel: Array  # [O, 2]
    by_direction: Array  # [O, 2, 2] derivatives of the pixel by the direction
    by_lens: Array  # [O, 2, 5] derivatives of the pixel by the errors of the lens


def _seen_through_lens(a: Array, K: Array, lens: Array) -> _SeenThroughLens:
    """Returns where lenses show directions.

    a: [O, 2] directions (x/z, y/z). K: [O, 3, 3]. lens: [O, 5] errors of their lenses."""
    stated = np.stack((K[:, 0, 0], K[:, 1, 1]), 1)
    K = with_lens(K, lens)
    f, centre = np.stack((K[:, 0, 0], K[:, 1, 1]), 1), K[:, :2, 2]
    square = (a**2).sum(1)
    bent = 1 + square * (lens[:, K1] + square * lens[:, K2])
    seen = f * bent[:, None] * a
    slope = 2 * lens[:, K1] + 4 * square * lens[:, K2]
    by_direction = slope[:, None, None] * a[:, :, None] * a[:, None] + (
        bent[:, None, None] * np.eye(2)
    )
    by_lens = np.zeros((len(a), 2, K2 + 1))
    by_lens[:, :, FOCAL] = seen
    by_lens[:, 0, CENTRE_X], by_lens[:, 1, CENTRE_Y] = stated.T
    by_lens[:, :, K1] = f * square[:, None] * a
    by_lens[:, :, K2] = square[:, None] * by_lens[:, :, K1]
    return _SeenThroughLens(centre + seen, f[:, :, None] * by_direction, by_lens)


BEHIND = 100.0  # cost of a point behind its camera
