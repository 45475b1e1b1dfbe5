"""Aligns a window to views that are known already: a Sim(3) fitted to the overlap views.

All poses and lengths of overlap views are in the frame of odometry, ``local``.

An earlier window predicted depth and pose for the same pixels of an overlap view, so both
predictions are compared without a search for correspondences. Each overlap view gives three
measurements:

* the ratio of the two depths, robust over thousands of pixels, gives the scale;
* the two rotations of its camera give the rotation, also on a straight path, where camera centres
  do not determine the rotation about the path;
* the two camera centres give the translation, and also scale and rotation if they lie apart.

Points along the same rays hold no more information: what remains of their disagreement is depth
noise, which plain least squares over points would turn into rotation and translation. Errors of
pixels are correlated, errors of views hardly are. Therefore the uncertainty of a fit comes from
the disagreement of views, never from the number of pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.spatial.transform import Rotation

from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.map_table import OverlapView, sample
from da3_ros.types import Array, WindowEstimate

MIN_POINTS = 50  # known pixels that a view needs to measure the scale
INLIER_DISTANCE = 0.05  # distance over depth within which the points of a pixel agree
MIN_INLIERS = 0.25  # share of points within tolerance; a window with fewer is refused
# Log ratio of a view's scale to the window's; a larger one is a fault, not noise.
MAX_SCALE_DISAGREEMENT = 0.35
MAX_SCALE_STEP = 7.0  # log ratio of the units of two consecutive windows; more is a fault
BLOCKS = 4  # blocks along each side of an image, which may be wrong independently
BLOCK_POINTS = 8  # known pixels that a block needs to be compared
MAX_BAD_BLOCKS = 0.4  # share of blocks out of tolerance; from here on a window is refused
MAX_BAD_POSES = 0.5, 2  # the same for poses: share, and number
MAX_DOUBTS = 4  # refused less accepted windows, after which the learned tolerance is forgotten
LEARNED_QUANTILE = 0.4  # quantile of a window's blocks that the tolerance is learned from
MIN_TOLERANCE = 0.12  # misplacement over depth that a good network never has over a whole block
TOLERANCE_FACTOR = 3.0  # tolerance over the learned misplacement, for weaker networks
MAX_TOLERANCE = 0.35  # misplacement over depth beyond the noise of any network
HUBER_SIGMAS = 2.0  # standard deviations beyond which Huber's weights limit a view
ITERATIONS = 6
CONVERGED = 1e-5  # step, relative or in radians, that ends the iteration


@dataclass(frozen=True, eq=False)
class Alignment:
    """The similarity that places a window in ``local``, and how well it fits the overlap views."""

    T_local_window: Similarity
    accepted: bool
    rms: float  # units of local, over the inliers
    inliers: float  # share 0..1
    # [7, 7] of (log scale; rotation in local, rad; position of ``pivot`` in local, units of local)
    covariance: Array | None = None
    pivot: Array | None = None  # [3] in the window: weighted mean of the shared camera centres
    # [N, 7, 7] derivative of the fit by the measurement of overlap view n, units as above
    gains: Array | None = None
    residuals: Array | None = None  # [N, 7] of the overlap views, units as above; 0: not measured
    reason: str = ""  # why the window was refused; empty if it was accepted


class NoiseModel:
    """Variances of overlap views about the fit of their window, pooled over windows.

    One window has two or three overlap views, too few for a variance. Older windows fade.
    Kinds: log scale; rotation, rad; camera centre, over the median depth.
    """

    START = np.array([0.01, 0.005, 0.01]) ** 2  # before the first window
    START_COUNT = 2.0
    FLOOR = np.array([1e-5, 1e-6, 1e-6]) ** 2  # rounding of fp32
    FADE = 0.97

    def __init__(self) -> None:
        self._sum, self._count = self.START_COUNT * self.START, np.full(3, self.START_COUNT)

    @property
    def variance(self) -> Array:
        """Variance [3], per component, of one window's measurement of one view."""
        return np.maximum(self._sum / self._count, self.FLOOR)

    def add(self, squared_sum: Array, freedom: Array) -> None:
        """Adds sums of squares [3] with their degrees of freedom [3]."""
        self._sum = self.FADE * self._sum + squared_sum
        self._count = self.FADE * self._count + freedom


class ToleranceModel:
    """Tolerances for misplacement over depth, learned from the better blocks of accepted windows.

    Older windows fade.
    """

    START, START_COUNT, FADE = 0.09**2, 3.0, 0.95  # wide, until the network is known

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._sum, self._count = self.START_COUNT * self.START, self.START_COUNT
        self._doubts = 0
        self._tightest = MAX_TOLERANCE

    @property
    def block_tolerance(self) -> float:
        """Largest misplacement over depth of a good block."""
        usual = float(np.sqrt(self._sum / self._count))
        return min(max(MIN_TOLERANCE, TOLERANCE_FACTOR * usual), MAX_TOLERANCE)

    @property
    def point_tolerance(self) -> float:
        """Largest misplacement over depth of an inlier point.

        Doubts do not widen it: with a wider one, points would agree by chance.
        """
        return min(self.block_tolerance, self._tightest)

    def add(self, residual: Array) -> None:
        """Learns from the misplacements [B] of the blocks of an accepted window."""
        self._doubts = max(self._doubts - 1, 0)
        if len(residual):
            self._sum = self.FADE * self._sum + float(np.quantile(residual, LEARNED_QUANTILE)) ** 2
            self._count = self.FADE * self._count + 1

    def doubt(self) -> None:
        """Notes a refused window; forgets the learned tolerance when most windows are refused.

        Then the tolerance is wrong rather than the windows. It becomes wide again before
        consecutive refusals end a chain.
        """
        self._doubts += 1
        if self._doubts >= MAX_DOUBTS:
            tightest = self.point_tolerance
            self._forget()
            self._tightest = tightest


@dataclass(frozen=True, eq=False)
class _OverlapMeasurements:
    """Measurements of a window's similarity by N overlap views."""

    log_scale: Array  # [N], NaN where there is no depth
    R: Array  # [N, 3, 3] local from window
    local: Array  # [N, 3] camera centres in local
    window: Array  # [N, 3] camera centres in the window
    weight: Array  # [N] share of a measurement's variance that comes from the new window
    unit: float  # median depth, units of local: the error of camera centres is proportional to it


class WindowAligner:
    """Aligns windows to the views they share; its only state is how well windows fitted."""

    def __init__(self) -> None:
        self.noise_model = NoiseModel()
        self.tolerances = ToleranceModel()
        self._log_unit: float | None = None

    def forget_unit(self) -> None:
        """Forgets the last window's unit: the next window's unit is unrelated to it."""
        self._log_unit = None

    def align(
        self,
        overlap_views: Sequence[OverlapView],
        estimate: WindowEstimate,
        indices: Sequence[int],
        scale: tuple[float, float] | None = None,
    ) -> Alignment | None:
        """Aligns ``estimate`` to ``local`` by the overlap views.

        indices: index of each overlap view in the window. A view whose depth is NaN there
        contributes its pose only.
        scale: units of local per network unit and its relative standard deviation (0: exact, the
        fit is an SE(3)), where they are known; None: a free Sim(3).

        Returns None when neither depth nor ``scale`` determines the scale.
        """
        measured = _measure(overlap_views, estimate, indices)
        if scale is None and not np.isfinite(measured.log_scale).any():
            return None
        fit, covariance, pivot, (gains, residuals), squared_sum, freedom = _solve(
            measured, self.noise_model.variance, scale
        )
        distance, depth = _distances(fit, overlap_views, estimate, indices)
        blocks, poses = misplacements(fit, overlap_views, estimate, indices, measured.unit)
        reason = self._rejection_reason(fit, measured, distance / depth, blocks, poses)
        if not reason:
            self.tolerances.add(blocks)
            self.noise_model.add(squared_sum, freedom)
            self._log_unit = float(np.log(fit.scale))
        else:
            self.tolerances.doubt()
        close = distance < INLIER_DISTANCE * depth
        rms = float(np.sqrt(np.mean(distance[close] ** 2))) if close.any() else float("nan")
        inliers = float(close.mean()) if len(close) else 0.0
        return Alignment(
            fit, not reason, rms, inliers, covariance, pivot, gains, residuals, reason
        )

    def _rejection_reason(
        self,
        fit: Similarity,
        measured: _OverlapMeasurements,
        points: Array,
        blocks: Array,
        poses: Array,
    ) -> str:
        """Returns why a fit is refused, or an empty text.

        points [M], blocks [B], poses [N]: misplacements over depth of the shared points, and of
        blocks and views as ``misplacements`` returns them.
        """
        tolerance = self.tolerances.block_tolerance
        agree = float((points < self.tolerances.point_tolerance).mean()) if len(points) else 0.0
        if not agree >= MIN_INLIERS:
            return f"{100 * agree:.0f} % of the shared points agree"
        apart = np.nanmax(np.abs(measured.log_scale - np.log(fit.scale)), initial=0.0)
        if apart > MAX_SCALE_DISAGREEMENT:
            return f"overlap views disagree on the scale by a factor of {np.exp(apart):.2f}"
        broken = float((blocks > tolerance).mean()) if len(blocks) else 0.0
        if broken >= MAX_BAD_BLOCKS:
            return (
                f"{100 * broken:.0f} % of the shared image blocks are misplaced by more than "
                f"{100 * tolerance:.0f} % of their depth"
            )
        moved = int((poses > tolerance).sum())
        if moved >= max(MAX_BAD_POSES[0] * len(poses), MAX_BAD_POSES[1]):
            return f"{moved} of {len(poses)} shared cameras are misplaced"
        step = abs(np.log(fit.scale) - self._log_unit) if self._log_unit is not None else 0.0
        return (
            f"the scale jumps by a factor of {np.exp(step):.0f}" if step > MAX_SCALE_STEP else ""
        )


def half_sample_mode(x: Array) -> float:
    """Returns the half-sample mode of ``x`` [M]: the median of its densest eighth.

    Unlike the median it does not move with outliers of one sign, and tolerates more than half of
    them.
    """
    x = np.sort(x)
    for _ in range(3):
        half = (len(x) + 1) // 2
        start = int(np.argmin(x[half - 1 :] - x[: len(x) - half + 1]))
        x = x[start : start + half]
    return float(np.median(x))


def robust_mean(x: Array, weight: Array) -> float:
    """Returns the mean of ``x`` [M] weighted by ``weight`` [M], without outliers.

    IRLS with Tukey's weights, started at the half-sample mode. The width shrinks with the inliers
    (wide first), so that the noise need not be known. Weights are limited to twice their median: a
    few wrong pixels with a high confidence must not decide.
    """
    weight = np.minimum(weight, 2 * np.median(weight))
    centre = half_sample_mode(x)
    width = 3 * float(np.median(np.abs(x - centre)))
    for _ in range(ITERATIONS):
        residual = np.abs(x - centre)
        inside = residual < max(width, 1e-7)
        weights = weight[inside] * (1 - (residual[inside] / max(width, 1e-7)) ** 2) ** 2
        if not weights.sum() > 0:
            break
        centre = float((weights * x[inside]).sum() / weights.sum())
        width = min(width, 4.7 * 1.48 * float(np.median(residual[inside])))
    return centre


def _measure(
    overlap_views: Sequence[OverlapView], estimate: WindowEstimate, indices: Sequence[int]
) -> _OverlapMeasurements:
    poses = estimate.T_window_camera[list(indices)]
    known = np.array([a.T_local_camera for a in overlap_views])
    seen = np.array([a.observations for a in overlap_views], dtype=float)
    depths = [np.median(a.depth) for a in overlap_views if len(a.depth)]
    return _OverlapMeasurements(
        log_scale=np.array(
            [_log_scale(a, estimate, i) for a, i in zip(overlap_views, indices, strict=True)]
        ),
        R=known[:, :3, :3] @ poses[:, :3, :3].transpose(0, 2, 1),
        local=known[:, :3, 3],
        window=poses[:, :3, 3],
        weight=seen / (seen + 1),
        unit=float(np.median(depths)) if depths else 1.0,
    )


def _log_scale(overlap_view: OverlapView, estimate: WindowEstimate, index: int) -> float:
    """Returns the log of known depth over window depth; NaN if too few pixels have both."""
    window_depth = estimate.depth[index].reshape(-1)[overlap_view.pixels]
    window_confidence = estimate.confidence[index].reshape(-1)[overlap_view.pixels]
    good = np.isfinite(window_depth) & (window_depth > 0) & np.isfinite(window_confidence)
    if good.sum() < MIN_POINTS:
        return float("nan")
    ratio = np.log(overlap_view.depth[good] / window_depth[good])
    return robust_mean(ratio, np.minimum(window_confidence, overlap_view.confidence)[good])


def _solve(
    measured: _OverlapMeasurements, variance: Array, scale: tuple[float, float] | None
) -> tuple[Similarity, Array, Array, tuple[Array, Array], Array, Array]:
    """Fits all measurements together by iteratively reweighted Gauss-Newton.

    Returns the fit, its covariance, the pivot, (gains, residuals) (see Alignment), and per kind
    the sum of squared residuals and its degrees of freedom.
    """
    pivot = measured.weight @ measured.window / measured.weight.sum()
    log_scale, R, position = _start(measured, scale, pivot)
    for _ in range(ITERATIONS):
        residual, jacobian = _linearize(measured, log_scale, R, position, pivot)
        weights = _weights(measured, residual, variance)
        information = np.einsum("nij,nik,ni->jk", jacobian, jacobian, weights / variance[_KIND])
        gradient = np.einsum("nij,ni,ni->j", jacobian, residual, weights / variance[_KIND])
        if scale is not None:
            certainty = 1 / max(scale[1], 1e-6) ** 2
            information[0, 0] += certainty
            gradient[0] += certainty * (np.log(scale[0]) - log_scale)
        covariance = np.linalg.inv(information)
        step = covariance @ gradient
        log_scale += step[0]
        R = Rotation.from_rotvec(step[1:4]).as_matrix() @ R
        position = position + step[4:] * measured.unit
        if np.abs(step).max() < CONVERGED:
            break
    squared_sum, freedom = _disagreement(
        residual - jacobian @ step, jacobian, weights, variance, covariance
    )
    size = float(np.exp(log_scale))
    units = np.array([1, 1, 1, 1, *[measured.unit] * 3])
    fit = Similarity(size, R, position - size * R @ pivot)
    weighted = (jacobian * (weights / variance[_KIND])[:, :, None]).transpose(0, 2, 1)
    gains = units[:, None] * (covariance @ weighted) / units
    residuals = np.where(weights > 0, units * (residual - jacobian @ step), 0.0)
    return (
        fit,
        covariance * np.outer(units, units),
        pivot,
        (gains, residuals),
        squared_sum,
        freedom,
    )


_KIND = np.array([0, 1, 1, 1, 2, 2, 2])  # kind of each of the seven components of a measurement


def _start(
    measured: _OverlapMeasurements, scale: tuple[float, float] | None, pivot: Array
) -> tuple[float, Array, Array]:
    """Returns the initial log scale, rotation and position: medians, robust to one bad view."""
    known = measured.log_scale[np.isfinite(measured.log_scale)]
    log_scale = float(np.median(known)) if scale is None else float(np.log(scale[0]))
    agreement = np.einsum("iab,jab->ij", measured.R, measured.R)
    R = measured.R[int(np.argmax(np.sort(agreement, axis=1).sum(axis=1)))]
    offset = measured.local - np.exp(log_scale) * (measured.window - pivot) @ R.T
    return log_scale, R, np.median(offset, axis=0)


def _linearize(
    measured: _OverlapMeasurements, log_scale: float, R: Array, position: Array, pivot: Array
) -> tuple[Array, Array]:
    """Returns residuals [N, 7] and their derivatives [N, 7, 7] by (log scale, rotation,
    position)."""
    arm = np.exp(log_scale) * (measured.window - pivot) @ R.T / measured.unit
    count = len(arm)
    residual = np.empty((count, 7))
    residual[:, 0] = measured.log_scale - log_scale
    residual[:, 1:4] = Rotation.from_matrix(measured.R @ R.T).as_rotvec()
    residual[:, 4:] = (measured.local - position) / measured.unit - arm
    jacobian = np.tile(np.eye(7), (count, 1, 1))
    jacobian[:, 4:, 0] = arm
    # The cross product of a small rotation with the arm, by the rotation.
    jacobian[:, 4:, 1:4] = np.cross(np.eye(3), arm[:, None]).transpose(0, 2, 1)
    return residual, jacobian


def _weights(measured: _OverlapMeasurements, residual: Array, variance: Array) -> Array:
    """Returns Huber's weights [N, 7] per view and kind; 0 where there is no depth.

    Sets the residuals of missing depth to 0 in place.
    """
    missing = ~np.isfinite(residual)
    residual[missing] = 0.0
    weights = np.broadcast_to(measured.weight[:, None], residual.shape).copy()
    white = weights * residual**2 / variance[_KIND]
    for part in (slice(0, 1), slice(1, 4), slice(4, 7)):
        length = np.sqrt(white[:, part].mean(axis=1, keepdims=True))
        weights[:, part] *= HUBER_SIGMAS / np.maximum(length, HUBER_SIGMAS)
    weights[missing] = 0.0
    return weights


def _disagreement(
    residual: Array, jacobian: Array, weights: Array, variance: Array, covariance: Array
) -> tuple[Array, Array]:
    """Returns per kind the weighted sum of squares and the degrees of freedom (1 - leverage)."""
    leverage = (
        np.einsum("nij,jk,nik->ni", jacobian, covariance, jacobian) * weights / variance[_KIND]
    )
    freedom = np.where(weights > 0, np.maximum(1 - leverage, 0), 0)
    pick = np.eye(3)[_KIND]
    return (weights * residual**2).sum(axis=0) @ pick, freedom.sum(axis=0) @ pick


def misplacements(
    fit: Similarity,
    overlap_views: Sequence[OverlapView],
    estimate: WindowEstimate,
    indices: Sequence[int],
    unit: float,
) -> tuple[Array, Array]:
    """Returns the misplacements of the overlap views after the fit, relative to depth.

    For image blocks [B], by depth and pose together, and for each view with depth [N], by its pose
    alone. Dimensionless.

    A block's depths are compared by the median of their log ratios, which ignores single pixels
    but not a block that is wrong as a whole. The pose's part is relative to ``unit``, the median
    depth of all overlap views: position errors of a network scale with the whole scene, also for a
    camera that sees a near object.
    """
    blocks, poses = [np.zeros(0)], []
    for overlap_view, index in zip(overlap_views, indices, strict=True):
        if not len(overlap_view.depth):
            continue
        poses.append(_pose_residual(fit, overlap_view, estimate.T_window_camera[index], unit))
        window_depth = estimate.depth[index].reshape(-1)[overlap_view.pixels]
        good = np.isfinite(window_depth) & (window_depth > 0)
        ratio = np.log(
            overlap_view.depth[good] / (fit.scale * window_depth[good].astype(np.float64))
        )
        medians = block_medians(overlap_view.pixels[good], overlap_view.view.image.shape, ratio)
        blocks.append(np.hypot(medians, poses[-1]))
    return np.concatenate(blocks), np.array(poses)


def _pose_residual(
    fit: Similarity, overlap_view: OverlapView, T_window_camera: Array, unit: float
) -> float:
    """Returns the median displacement over ``unit``, by a shared camera's pose, of points at that
    depth."""
    some = sample(np.ones(len(overlap_view.depth), bool), BLOCKS**3)
    x = overlap_view.rays()[some]
    T, S = fit.pose(T_window_camera), overlap_view.T_local_camera
    moved = x @ (T[:3, :3] - S[:3, :3]).T + (T[:3, 3] - S[:3, 3]) / unit
    return float(np.median(np.linalg.norm(moved, axis=1)))


def block_medians(pixels: Array, shape: tuple[int, ...], values: Array) -> Array:
    """Returns the medians [B] of ``values`` [M] in image blocks with enough pixels.

    pixels [M]: flat indices of the values in an image of ``shape``.
    """
    row, column = np.divmod(pixels, shape[1])
    block = BLOCKS * (BLOCKS * row // shape[0]) + BLOCKS * column // shape[1]
    order = np.lexsort((values, block))
    count = np.bincount(block, minlength=BLOCKS**2)
    middle = (np.cumsum(count) - count + count // 2)[count >= BLOCK_POINTS]
    return np.asarray(values[order][middle])


def _distances(
    fit: Similarity,
    overlap_views: Sequence[OverlapView],
    estimate: WindowEstimate,
    indices: Sequence[int],
) -> tuple[Array, Array]:
    """Returns for all shared points the distance [M] of both predictions after the fit, and
    depth [M]."""
    distance, depth = [np.zeros(0)], [np.zeros(0)]
    for overlap_view, index in zip(overlap_views, indices, strict=True):
        window_depth = estimate.depth[index].reshape(-1)[overlap_view.pixels].astype(np.float64)
        good = np.isfinite(window_depth) & (window_depth > 0)
        if not good.any():
            continue
        rays = overlap_view.rays()[good]
        moved = fit.pose(estimate.T_window_camera[index])
        here = fit.scale * window_depth[good, None] * rays @ moved[:3, :3].T + moved[:3, 3]
        there = overlap_view.depth[good, None] * rays @ overlap_view.T_local_camera[:3, :3].T
        distance.append(np.linalg.norm(here - there - overlap_view.T_local_camera[:3, 3], axis=1))
        depth.append(overlap_view.depth[good])
    return np.concatenate(distance), np.concatenate(depth)
