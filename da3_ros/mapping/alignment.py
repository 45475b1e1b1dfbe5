"""Places a window among views that are known already: a Sim(3) from the views it shares.

``ref`` is the coordinate frame of these shared views: a segment, or ``vo`` (see ``shared_view``).

A shared frame was seen before from the very same pixels, so that everything about it can be
compared without any search. Each gives three measurements of where the window lies:

* the ratio of the two depths, robust over thousands of pixels, says the scale;
* the two rotations of its camera say the rotation: also when driving straight, where camera
  centres leave the turn about the line open;
* the two camera centres say the rest: also scale and rotation, as far as they lie apart.

Points of the same pixels along the same rays hold no more than that: where they disagree beyond
the ratio it is depth noise, which plain least squares over points turns into rotation and shift.
Errors of pixels hang together, those of frames hardly do. So how far frames disagree is what says
how sure a fit is, never how many pixels there were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.spatial.transform import Rotation

from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.shared_view import SharedView, sample
from da3_ros.types import Array, Prediction

MIN_POINTS = 50  # known pixels without which a frame says nothing about scale
INLIER = 0.05  # distance over depth within which the points of a pixel agree
MIN_INLIERS = 0.25  # share of points within what is usual, without which a window is refused
FRAMES_APART = 0.35  # log ratio between a frame's scale and the window's that no noise explains
SCALE_STEP = 7.0  # log ratio of the units of two windows that no network would make
BLOCKS = 4  # along each side of an image: parts that may be wrong on their own
BLOCK_POINTS = 8  # known pixels without which a block says nothing
BROKEN = 0.4  # share of blocks that disagree from which on a window is refused
BROKEN_POSES = 0.5, 2  # the same of poses: share, and number
DOUBTS = 4  # refused windows, less accepted ones, after which what was learned may be wrong
BETTER = 0.4  # share of blocks that what is usual is learned from
DISAGREES = 0.12  # misplacement over depth that a good network never has over a whole block
UNUSUAL = 3.0  # and times what is usual for a network that is not good
NEVER = 0.35  # misplacement that is no noise of any network
PATIENCE = 2.0  # standard deviations from where on a frame's say is limited (Huber)
ITERATIONS = 6
SETTLED = 1e-5  # a smaller step, relative or in radians, is the last one


@dataclass(frozen=True, eq=False)
class Alignment:
    """A window's place among the views it shares, and how well it fits."""

    T_ref_window: Similarity
    accepted: bool
    rms: float  # units of ref, over the inliers
    inliers: float  # share 0..1
    # [7, 7] of (log scale; rotation in ref, rad; where ``about`` comes to lie, units of ref)
    covariance: Array | None = None
    about: Array | None = None  # [3] in the window: the middle of the shared cameras
    # [N, 7, 7] by how much an error of what shared view n measures moves the fit, units as above
    gains: Array | None = None
    residuals: Array | None = None  # [N, 7] of the shared views, units as above; 0: not measured
    reason: str = ""  # why it was refused


class Spread:
    """How far frames of one window disagree with its fit: variances, pooled over windows.

    One window has two or three frames' worth of disagreement, too few for a variance. Older
    windows fade. Kinds: log scale; rotation, rad; camera centre, over the median depth.
    """

    START = np.array([0.01, 0.005, 0.01]) ** 2  # before anything was seen
    START_COUNT = 2.0
    FLOOR = np.array([1e-5, 1e-6, 1e-6]) ** 2  # of numbers in fp32
    FADE = 0.97

    def __init__(self) -> None:
        self._sum, self._count = self.START_COUNT * self.START, np.full(3, self.START_COUNT)

    @property
    def variance(self) -> Array:
        """Variance [3] per component of what one window says of one frame."""
        return np.maximum(self._sum / self._count, self.FLOOR)

    def add(self, squares: Array, freedom: Array) -> None:
        """Add sums of squares [3] over that many degrees of freedom [3]."""
        self._sum = self.FADE * self._sum + squares
        self._count = self.FADE * self._count + freedom


class Usual:
    """How far the better blocks of windows that fit are off, over depth; older windows fade."""

    START, START_COUNT, FADE = 0.09**2, 3.0, 0.95  # patient, until a network is known

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._sum, self._count = self.START_COUNT * self.START, self.START_COUNT
        self._doubts = 0
        self._surest = NEVER

    @property
    def tolerance(self) -> float:
        """What a block may be off by."""
        usual = float(np.sqrt(self._sum / self._count))
        return min(max(DISAGREES, UNUSUAL * usual), NEVER)

    @property
    def of_points(self) -> float:
        """What single points may be off by: doubts do not widen it, or chance would do."""
        return min(self.tolerance, self._surest)

    def add(self, off: Array) -> None:
        """Learn from the blocks [B] of a window that fits."""
        self._doubts = max(self._doubts - 1, 0)
        if len(off):
            self._sum = self.FADE * self._sum + float(np.quantile(off, BETTER)) ** 2
            self._count = self.FADE * self._count + 1

    def doubt(self) -> None:
        """A window was refused. When most are, it is not they that are unusual: be patient again,
        before so many refusals in a row end a segment."""
        self._doubts += 1
        if self._doubts >= DOUBTS:
            surest = self.of_points
            self._forget()
            self._surest = surest


@dataclass(frozen=True, eq=False)
class _Measured:
    """What N shared frames say of a window's place."""

    log_scale: Array  # [N], NaN where there is no depth
    R: Array  # [N, 3, 3] ref from window
    ref: Array  # [N, 3] camera centres in ref
    window: Array  # [N, 3] camera centres in the window
    weight: Array  # [N] share of a measurement's variance that is the new window's own
    unit: float  # units of ref: median depth, in which centres are as uncertain as everywhere


class WindowAligner:
    """Aligns windows to the views they share; remembers only how well they fitted."""

    def __init__(self) -> None:
        self.spread = Spread()
        self.usual = Usual()
        self._log_unit: float | None = None

    def lift(self) -> None:
        """The next window's unit has nothing to do with the last one's."""
        self._log_unit = None

    def join(
        self,
        anchors: Sequence[SharedView],
        prediction: Prediction,
        indices: Sequence[int],
        scale: tuple[float, float] | None = None,
    ) -> Alignment | None:
        """Place ``prediction`` in ``ref`` by the views it shares.

        indices: where in the window each anchor stands. A frame whose depth is NaN there gives
        its pose alone.
        scale: units of ref per network unit and its relative standard deviation (0: exact, the fit
        is an SE(3)), where they are known; None: a free Sim(3).

        Returns None when neither a frame's depth nor ``scale`` tells the scale.
        """
        measured = _measure(anchors, prediction, indices)
        if scale is None and not np.isfinite(measured.log_scale).any():
            return None
        fit, covariance, about, (gains, residuals), squares, freedom = _solve(
            measured, self.spread.variance, scale
        )
        distance, depth = _distances(fit, anchors, prediction, indices)
        blocks, poses = misplaced(fit, anchors, prediction, indices, measured.unit)
        reason = self._fault(fit, measured, distance / depth, blocks, poses)
        if not reason:
            self.usual.add(blocks)
            self.spread.add(squares, freedom)
            self._log_unit = float(np.log(fit.scale))
        else:
            self.usual.doubt()
        close = distance < INLIER * depth
        rms = float(np.sqrt(np.mean(distance[close] ** 2))) if close.any() else float("nan")
        inliers = float(close.mean()) if len(close) else 0.0
        return Alignment(
            fit, not reason, rms, inliers, covariance, about, gains, residuals, reason
        )

    def _fault(
        self, fit: Similarity, measured: _Measured, points: Array, blocks: Array, poses: Array
    ) -> str:
        """Why a fit cannot be believed, or an empty text.

        By how much of their depth it misplaces shared points [M], and blocks [B] and frames [N] as
        ``misplaced`` has them.
        """
        tolerance = self.usual.tolerance
        agree = float((points < self.usual.of_points).mean()) if len(points) else 0.0
        if not agree >= MIN_INLIERS:
            return f"{100 * agree:.0f} % of the shared points agree"
        apart = np.nanmax(np.abs(measured.log_scale - np.log(fit.scale)), initial=0.0)
        if apart > FRAMES_APART:
            return f"shared frames disagree about the scale by a factor of {np.exp(apart):.2f}"
        broken = float((blocks > tolerance).mean()) if len(blocks) else 0.0
        if broken >= BROKEN:
            return (
                f"{100 * broken:.0f} % of what the shared frames show is off by more than "
                f"{100 * tolerance:.0f} % of its depth"
            )
        moved = int((poses > tolerance).sum())
        if moved >= max(BROKEN_POSES[0] * len(poses), BROKEN_POSES[1]):
            return f"{moved} of {len(poses)} shared cameras are not where they were"
        step = abs(np.log(fit.scale) - self._log_unit) if self._log_unit is not None else 0.0
        return f"scale steps by a factor of {np.exp(step):.0f}" if step > SCALE_STEP else ""


def densest(x: Array) -> float:
    """The middle of the narrowest interval that holds an eighth of ``x`` [M], by halving.

    Unlike the median it does not move with outliers of one sign, and withstands more than half.
    """
    x = np.sort(x)
    for _ in range(3):
        half = (len(x) + 1) // 2
        start = int(np.argmin(x[half - 1 :] - x[: len(x) - half + 1]))
        x = x[start : start + half]
    return float(np.median(x))


def robust_mean(x: Array, weight: Array) -> float:
    """Mean of ``x`` [M] by ``weight`` [M] without outliers: IRLS, Tukey, from the densest part.

    The width follows the inliers down (graduated: wide first), so that nothing has to be known
    about the noise. A weight says at most twice what the median weight says: a few pixels that
    are wrong and sure of it shall not decide.
    """
    weight = np.minimum(weight, 2 * np.median(weight))
    centre = densest(x)
    width = 3 * float(np.median(np.abs(x - centre)))
    for _ in range(ITERATIONS):
        off = np.abs(x - centre)
        inside = off < max(width, 1e-7)
        say = weight[inside] * (1 - (off[inside] / max(width, 1e-7)) ** 2) ** 2
        if not say.sum() > 0:
            break
        centre = float((say * x[inside]).sum() / say.sum())
        width = min(width, 4.7 * 1.48 * float(np.median(off[inside])))
    return centre


def _measure(
    anchors: Sequence[SharedView], prediction: Prediction, indices: Sequence[int]
) -> _Measured:
    poses = prediction.T_window_camera[list(indices)]
    known = np.array([a.T_ref_camera for a in anchors])
    seen = np.array([a.observations for a in anchors], dtype=float)
    depths = [np.median(a.depth) for a in anchors if len(a.depth)]
    return _Measured(
        log_scale=np.array(
            [_log_scale(a, prediction, i) for a, i in zip(anchors, indices, strict=True)]
        ),
        R=known[:, :3, :3] @ poses[:, :3, :3].transpose(0, 2, 1),
        ref=known[:, :3, 3],
        window=poses[:, :3, 3],
        weight=seen / (seen + 1),
        unit=float(np.median(depths)) if depths else 1.0,
    )


def _log_scale(anchor: SharedView, prediction: Prediction, index: int) -> float:
    """Log of known depth over window depth, NaN where too few pixels know both."""
    ours = prediction.depth[index].reshape(-1)[anchor.pixels]
    sure = prediction.confidence[index].reshape(-1)[anchor.pixels]
    good = np.isfinite(ours) & (ours > 0) & np.isfinite(sure)
    if good.sum() < MIN_POINTS:
        return float("nan")
    ratio = np.log(anchor.depth[good] / ours[good])
    return robust_mean(ratio, np.minimum(sure, anchor.confidence)[good])


def _solve(
    measured: _Measured, variance: Array, scale: tuple[float, float] | None
) -> tuple[Similarity, Array, Array, tuple[Array, Array], Array, Array]:
    """Iteratively reweighted Gauss-Newton of all measurements together.

    Returns the fit, its covariance, the point it is about, its gains and residuals (see
    Alignment), and per kind the sum of squares and the degrees of freedom that the frames'
    disagreement leaves.
    """
    about = measured.weight @ measured.window / measured.weight.sum()
    log_scale, R, place = _start(measured, scale, about)
    for _ in range(ITERATIONS):
        residual, jacobian = _linearize(measured, log_scale, R, place, about)
        say = _say(measured, residual, variance)
        information = np.einsum("nij,nik,ni->jk", jacobian, jacobian, say / variance[_KIND])
        gradient = np.einsum("nij,ni,ni->j", jacobian, residual, say / variance[_KIND])
        if scale is not None:
            certainty = 1 / max(scale[1], 1e-6) ** 2
            information[0, 0] += certainty
            gradient[0] += certainty * (np.log(scale[0]) - log_scale)
        covariance = np.linalg.inv(information)
        step = covariance @ gradient
        log_scale += step[0]
        R = Rotation.from_rotvec(step[1:4]).as_matrix() @ R
        place = place + step[4:] * measured.unit
        if np.abs(step).max() < SETTLED:
            break
    squares, freedom = _disagreement(
        residual - jacobian @ step, jacobian, say, variance, covariance
    )
    size = float(np.exp(log_scale))
    units = np.array([1, 1, 1, 1, *[measured.unit] * 3])
    fit = Similarity(size, R, place - size * R @ about)
    weighted = (jacobian * (say / variance[_KIND])[:, :, None]).transpose(0, 2, 1)
    gains = units[:, None] * (covariance @ weighted) / units
    left = np.where(say > 0, units * (residual - jacobian @ step), 0.0)
    return fit, covariance * np.outer(units, units), about, (gains, left), squares, freedom


_KIND = np.array([0, 1, 1, 1, 2, 2, 2])  # of the seven numbers that a frame measures


def _start(
    measured: _Measured, scale: tuple[float, float] | None, about: Array
) -> tuple[float, Array, Array]:
    """Log scale, rotation and place to begin with: medians, which one bad frame cannot move."""
    known = measured.log_scale[np.isfinite(measured.log_scale)]
    log_scale = float(np.median(known)) if scale is None else float(np.log(scale[0]))
    turns = np.einsum("iab,jab->ij", measured.R, measured.R)
    R = measured.R[int(np.argmax(np.sort(turns, axis=1).sum(axis=1)))]
    offset = measured.ref - np.exp(log_scale) * (measured.window - about) @ R.T
    return log_scale, R, np.median(offset, axis=0)


def _linearize(
    measured: _Measured, log_scale: float, R: Array, place: Array, about: Array
) -> tuple[Array, Array]:
    """Residuals [N, 7] and their derivatives [N, 7, 7] by (log scale, rotation, place)."""
    arm = np.exp(log_scale) * (measured.window - about) @ R.T / measured.unit
    count = len(arm)
    residual = np.empty((count, 7))
    residual[:, 0] = measured.log_scale - log_scale
    residual[:, 1:4] = Rotation.from_matrix(measured.R @ R.T).as_rotvec()
    residual[:, 4:] = (measured.ref - place) / measured.unit - arm
    jacobian = np.tile(np.eye(7), (count, 1, 1))
    jacobian[:, 4:, 0] = arm
    # The cross product of a small rotation with the arm, by the rotation.
    jacobian[:, 4:, 1:4] = np.cross(np.eye(3), arm[:, None]).transpose(0, 2, 1)
    return residual, jacobian


def _say(measured: _Measured, residual: Array, variance: Array) -> Array:
    """Weights [N, 7]: Huber's for each frame and kind; none, and no residual, for no depth."""
    missing = ~np.isfinite(residual)
    residual[missing] = 0.0
    say = np.broadcast_to(measured.weight[:, None], residual.shape).copy()
    white = say * residual**2 / variance[_KIND]
    for part in (slice(0, 1), slice(1, 4), slice(4, 7)):
        length = np.sqrt(white[:, part].mean(axis=1, keepdims=True))
        say[:, part] *= PATIENCE / np.maximum(length, PATIENCE)
    say[missing] = 0.0
    return say


def _disagreement(
    residual: Array, jacobian: Array, say: Array, variance: Array, covariance: Array
) -> tuple[Array, Array]:
    """Per kind: weighted sum of squares, and degrees of freedom left by the fit (1 - leverage)."""
    leverage = np.einsum("nij,jk,nik->ni", jacobian, covariance, jacobian) * say / variance[_KIND]
    freedom = np.where(say > 0, np.maximum(1 - leverage, 0), 0)
    pick = np.eye(3)[_KIND]
    return (say * residual**2).sum(axis=0) @ pick, freedom.sum(axis=0) @ pick


def misplaced(
    fit: Similarity,
    anchors: Sequence[SharedView],
    prediction: Prediction,
    indices: Sequence[int],
    unit: float,
) -> tuple[Array, Array]:
    """By how much of its depth the fit misplaces what shared frames show: the blocks of all that
    have depth [B], and what the pose of each frame alone makes of it [N].

    A block's depth is compared by the median of log ratios: pixels that are anything leave it
    alone, a part of the picture that is wrong as a whole does not. To that comes where the
    camera's pose puts what it sees, its place over ``unit``, the median depth of all that is
    shared: how sure a network is of places scales with the whole scene, also of a camera that
    looks at something near. No number here has a unit.
    """
    blocks, poses = [np.zeros(0)], []
    for anchor, index in zip(anchors, indices, strict=True):
        if not len(anchor.depth):
            continue
        poses.append(_pose_off(fit, anchor, prediction.T_window_camera[index], unit))
        ours = prediction.depth[index].reshape(-1)[anchor.pixels]
        good = np.isfinite(ours) & (ours > 0)
        ratio = np.log(anchor.depth[good] / (fit.scale * ours[good].astype(np.float64)))
        medians = block_medians(anchor.pixels[good], anchor.view.image.shape, ratio)
        blocks.append(np.hypot(medians, poses[-1]))
    return np.concatenate(blocks), np.array(poses)


def _pose_off(fit: Similarity, anchor: SharedView, T_window_camera: Array, unit: float) -> float:
    """How far a shared camera's pose moves what it sees at the depth ``unit``; the median."""
    some = sample(np.ones(len(anchor.depth), bool), BLOCKS**3)
    x = anchor.rays()[some]
    T, S = fit.pose(T_window_camera), anchor.T_ref_camera
    moved = x @ (T[:3, :3] - S[:3, :3]).T + (T[:3, 3] - S[:3, 3]) / unit
    return float(np.median(np.linalg.norm(moved, axis=1)))


def block_medians(pixels: Array, shape: tuple[int, ...], values: Array) -> Array:
    """Medians [B] of ``values`` [M] at ``pixels`` (flat) in the blocks of an image with enough."""
    row, column = np.divmod(pixels, shape[1])
    block = BLOCKS * (BLOCKS * row // shape[0]) + BLOCKS * column // shape[1]
    order = np.lexsort((values, block))
    count = np.bincount(block, minlength=BLOCKS**2)
    middle = (np.cumsum(count) - count + count // 2)[count >= BLOCK_POINTS]
    return np.asarray(values[order][middle])


def _distances(
    fit: Similarity, anchors: Sequence[SharedView], prediction: Prediction, indices: Sequence[int]
) -> tuple[Array, Array]:
    """Of all shared points after the fit: how far apart both say they are, and depth [M]."""
    distance, depth = [np.zeros(0)], [np.zeros(0)]
    for anchor, index in zip(anchors, indices, strict=True):
        ours = prediction.depth[index].reshape(-1)[anchor.pixels].astype(np.float64)
        good = np.isfinite(ours) & (ours > 0)
        if not good.any():
            continue
        rays = anchor.rays()[good]
        moved = fit.pose(prediction.T_window_camera[index])
        here = fit.scale * ours[good, None] * rays @ moved[:3, :3].T + moved[:3, 3]
        there = anchor.depth[good, None] * rays @ anchor.T_ref_camera[:3, :3].T
        distance.append(np.linalg.norm(here - there - anchor.T_ref_camera[:3, 3], axis=1))
        depth.append(anchor.depth[good])
    return np.concatenate(distance), np.concatenate(depth)
