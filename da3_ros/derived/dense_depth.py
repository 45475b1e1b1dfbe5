"""Measured depth of keyframes: which neighbours are compared, what they agree on, what is between.

A pixel is measured where its depth and that of neighbours, each found for itself by `plane_sweep`,
show one point. The others keep the network's depth, times the correction of what is measured
around them: near in the image and in depth, so that nothing is carried across an edge.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.derived.plane_sweep import SweepView, coarse_search, sweep
from da3_ros.geometry.projection import backproject
from da3_ros.types import Array, DenseDepth, FloatImage

MOST = 6  # neighbours
ROTATION_DEG = 35.0  # largest between neighbours
BASELINE = 0.01, 0.6  # of neighbours, over the median depth
BEST_BASELINE = 0.12
OVERLAP = 0.4  # smallest share of a view that its neighbour sees
SAME_K = 1e-3  # relative difference of the intrinsics of one calibration
# Pixels of the shorter side, and of the image: with fewer, poses are too bad to compare images.
LEAST_SIDE, LEAST_PIXELS = 56, 4500
AGREE, AGREE_PX = 0.01, 0.2  # difference of depths of one point: log, or pixels if that is more
AGREEING = 2  # neighbours
LEAST_DISPARITY = 4.0  # pixels per unit of log depth: with less, all depths agree
LEAST_SHARE = 0.05  # of a view: fewer pixels say nothing of the others
# Of the pixels that neighbours could confirm: fewer agree by chance where poses are wrong.
LEAST_CONFIRMED = 0.45
SPECKLE, SPECKLE_STEP = 25, 0.04  # pixels; least step of log depth to what is around
PIXEL_NOISE = 0.15  # of a match, pixels
MOST_SIGMA = 0.05  # relative deviation beyond which nothing is measured: poses may be wrong
CELL, BIN = 12, 0.12  # of the correction: pixels, and log depth
SCALES = 1, 2, 4, 8, 16, 64  # of its grids: coarser ones far from what is measured
# Of pixels that are not measured: windows and steps of log depth that are edges; the least
# deviation, and the one where nothing was found to estimate it by.
EDGE_PX, EDGE_STEP = 13, 0.15
LEAST_SIGMA, UNMEASURED = 0.01, 0.1
# So many pixels say as much as one that is alone, and so many such ones speak for ``UNMEASURED``.
PATCH, PRIOR = EDGE_PX**2, 0.5
# Far from what is measured, over so many pixels, a correction errs by so many times what the
# corrections of an image differ by: where nothing is measured, networks err most.
FAR_PX, FAR = 24.0, 2.0
# Views whose poses are right differ by so much (log depth or pixels), robustly; more than GROSS is
# another surface. The variance of the error is so many times what is over that.
MATCH, MATCH_PX, GROSS, POSE_SHARE = 0.0065, 0.12, 0.1, 2.0
LEAST_SEEN = 100  # pixels, to estimate a deviation
# Of the tolerance of agreement: so many times the usual difference, at most; none above the worst,
# which is larger in images larger than these, pixels: poses and lenses err by angles.
WIDER, WIDEST, WORST, WORST_SIDE = 4.0, 4.0, 1.35, 252
# Of measured pixels a few show another surface. The deviation of log depth that they give all of
# them, and those that all neighbours contradict; times how much wider the tolerance is.
OUTLIERS, CONTRADICTED = 0.004, 0.06
OCCLUDED = 0.25  # weight of a neighbour that sees a nearer surface: it may hide the point


def choose_neighbours(
    T: Array, K: Array, depths: Sequence[float], shapes: Sequence[tuple[int, ...]],
    cameras: Sequence[str], index: int,
) -> list[int]:  # fmt: skip
    """Returns indices of the neighbours of view ``index``, the best first.

    T: [V, 4, 4] poses in one frame. K: [V, 3, 3]. depths: medians; 0: of a view without depth,
    which is no neighbour. shapes: (height, width); those of neighbours are equal, and there
    are none of an image that is too small. cameras: names. Poses do not relate two views of a
    camera if another calibration came between them.
    """
    shape = shapes[index]
    if depths[index] <= 0 or min(shape) < LEAST_SIDE or math.prod(shape) < LEAST_PIXELS:
        return []
    T_view_other = np.linalg.inv(T[index]) @ T
    baseline = np.linalg.norm(T_view_other[:, :3, 3], axis=1) / depths[index]
    cosine = (np.trace(T_view_other[:, :3, :3], axis1=1, axis2=2) - 1) / 2
    angle = np.degrees(np.arccos(np.clip(cosine, -1, 1)))
    near = (BASELINE[0] < baseline) & (baseline < BASELINE[1]) & (angle < ROTATION_DEG)
    near &= [d > 0 and other == shape for d, other in zip(depths, shapes, strict=True)]
    same_K = np.isclose(K, K[index], rtol=SAME_K).all(axis=(1, 2))
    near &= same_K | [camera != cameras[index] for camera in cameras]
    near[index] = False
    height, width = shape
    v, u = np.mgrid[0:height:8j, 0:width:8j]
    pixels = np.stack([u.ravel(), v.ravel(), np.ones(64)])
    points = np.linalg.inv(K[index]) @ pixels * depths[index]
    scored = []
    for j in np.flatnonzero(near).tolist():
        back = np.linalg.inv(T_view_other[j])
        seen = K[j] @ (back[:3, :3] @ points + back[:3, 3:])
        x, y = seen[:2] / np.maximum(seen[2], 1e-9)
        inside = (seen[2] > 0) & (x >= 0) & (y >= 0) & (x < width) & (y < height)
        if inside.mean() >= OVERLAP:
            scored.append((abs(np.log(baseline[j] / BEST_BASELINE)), j))
    return [j for _, j in sorted(scored)[:MOST]]


@dataclass(frozen=True, eq=False)
class Search:
    """What the search in one view has found."""

    depth: FloatImage  # [h, w]; NaN where it says nothing, also of what neighbours have found
    decided: NDArray[np.bool_]  # [h, w] where the images decide it; less than where it is finite
    disparity: NDArray[np.float16]  # [N, h, w] pixels in each neighbour per unit of log depth

    def scaled(self, unit: float) -> Search:
        """Returns it with lengths ``unit`` times as long."""
        return replace(self, depth=self.depth * np.float32(unit))


def search_depth(
    view: SweepView, neighbours: Sequence[SweepView], network: FloatImage, device: str = "cpu"
) -> Search:
    """Returns what the images say around the network's depth [h, w]."""
    known = np.isfinite(network) & (network > 0)
    given = np.where(known, network, np.median(network[known])).astype(np.float32)
    given = _centred(view, neighbours, given, device)
    swept = sweep(view, neighbours, given, device=device)
    depth = (given * np.exp(swept.log_factor.cpu().numpy())).astype(np.float32)
    # Without bound at the plane of a neighbour's camera, which a car drives through.
    disparity = np.minimum(swept.disparity.cpu().numpy(), np.finfo(np.float16).max)
    return Search(
        np.where(known & swept.confirms.cpu().numpy(), depth, np.float32(np.nan)),
        known & swept.distinct.cpu().numpy(), disparity.astype(np.float16),
    )  # fmt: skip


def _centred(
    view: SweepView, neighbours: Sequence[SweepView], depth: FloatImage, device: str
) -> FloatImage:
    """Returns depth [h, w] with the smooth correction that small images show.

    A network that is wrong by more than the range of the search is wrong so in whole surfaces.
    """
    log, small, clear = coarse_search(view, neighbours, depth, device)
    if clear.sum() < LEAST_SHARE * clear.size:
        return depth
    smooth = smooth_correction(small, log, clear, np.ones_like(clear))
    factor = np.exp(cv2.resize(smooth, depth.shape[::-1], interpolation=cv2.INTER_LINEAR))
    return np.asarray(depth * factor, np.float32)


def confirmed_depth(
    view: SweepView, network: FloatImage, own: Search,
    neighbours: Mapping[int, tuple[SweepView, Search]],
) -> DenseDepth:  # fmt: skip
    """Returns depth as ``dense_depth``: measured where neighbours confirm what was decided, by the
    mean of what they and the view itself have found.

    neighbours: those that were searched too, by their number in the view's own search.
    """
    disparity = own.disparity[list(neighbours)].astype(np.float32)
    swept = np.where(own.decided, own.depth, np.float32(np.nan))
    others = [(other, search.depth) for other, search in neighbours.values()]
    return dense_depth(network, swept, differences(view, swept, others), disparity)


def differences(
    view: SweepView, depth: FloatImage, others: Sequence[tuple[SweepView, FloatImage]]
) -> Array:
    """Returns by how much neighbours see each point farther away [N, h, w], in log depth; NaN
    where they do not see it.

    others: with their depth.
    """
    points = backproject(depth, view.K)
    out = np.empty((len(others), *depth.shape), np.float32)
    for k, (other, their) in enumerate(others):
        T = np.linalg.inv(other.T_frame_camera) @ view.T_frame_camera
        at = points @ T[:3, :3].T.astype(np.float32) + T[:3, 3].astype(np.float32)
        with np.errstate(invalid="ignore", divide="ignore"):
            z = at[..., 2]
            x = other.K[0, 0] * at[..., 0] / z + other.K[0, 2] - 0.5
            y = other.K[1, 1] * at[..., 1] / z + other.K[1, 2] - 0.5
            seen = cv2.remap(
                their, x.astype(np.float32), y.astype(np.float32), cv2.INTER_LINEAR,
                borderMode=cv2.BORDER_CONSTANT, borderValue=float("nan"),
            )  # fmt: skip
            out[k] = np.log(seen / z)
    return np.where(np.isfinite(out), out, np.float32(np.nan))


def agreement(apart: Array, disparity: Array) -> Array:
    """Returns how well neighbours show the same point [N, h, w]: 1 exactly, over 0 within the
    tolerance, negative beyond it; 0 where a neighbour does not see it or could not tell.

    apart: as of ``differences``. disparity: [N, h, w] pixels per unit of log depth.
    """
    close = 1 - np.abs(apart) / _tolerance(disparity)
    return np.where(np.isfinite(close) & (disparity >= LEAST_DISPARITY), close, 0)


def _tolerance(disparity: Array) -> Array:
    """Returns the difference of log depths at which two depths of one point agree."""
    return np.maximum(AGREE, AGREE_PX / np.maximum(disparity, 1e-6))


def dense_depth(
    network: FloatImage, swept: FloatImage, apart: Array, disparity: Array
) -> DenseDepth:
    """Returns depth measured where neighbours agree, and corrected elsewhere; if they agree in too
    few pixels, the network's.

    network, swept: [h, w] depth; swept NaN where the images do not decide it. apart, disparity:
    [N, h, w] as in ``agreement``.
    """
    known = np.isfinite(network) & (network > 0)
    decided = known & np.isfinite(swept)
    agree = agreement(apart, disparity)
    wider = _widening(agree, disparity)
    there = (agree != 0) & (agree > 1 - wider)
    sigma = _match_sigma(agree, there, disparity)
    through, before = _against(apart, agree, there)
    step = max(SPECKLE_STEP, 2 * AGREE * wider)  # two depths of one surface may differ so
    measured = _measured(known, swept, there, disparity, step) & (sigma <= MOST_SIGMA)
    # Each search errs for itself: their mean is a third nearer than one of them.
    swept = swept * np.exp(np.where(there, apart, 0).sum(axis=0) / (1 + there.sum(axis=0)))
    depth, rest = network.copy(), np.full(network.shape, UNMEASURED, np.float32)
    if measured.any():
        log = np.zeros(network.shape, np.float32)
        log[measured] = np.log(swept[measured] / network[measured])
        correction = smooth_correction(
            np.where(known, network, 1.0), log, measured, known & ~measured
        )
        depth[known] = (network * np.exp(correction))[known]
        confirmed = there.any(axis=0)
        near = _rest_sigma(depth, swept, decided & ~confirmed, known)
        carried = _carried_sigma(log[measured], measured | (decided & confirmed))
        rest = np.sqrt(near**2 + carried**2)
        # What one neighbour confirms is not called measured, but better than what is carried.
        depth[decided & confirmed] = swept[decided & confirmed]
    depth[measured] = swept[measured]
    sigma = np.where(
        measured, np.sqrt(sigma**2 + wider**2 * _outliers(there, through, before)), rest
    )
    return DenseDepth(
        depth, np.where(np.isfinite(depth), sigma, np.nan).astype(np.float32), measured
    )


def nothing_measured(network: FloatImage) -> DenseDepth:
    """Returns the network's depth [h, w] as depth of which no pixel is measured."""
    sigma = np.where(np.isfinite(network), np.float32(UNMEASURED), np.float32(np.nan))
    return DenseDepth(network, sigma, np.zeros(network.shape, bool))


def _widening(agree: Array, disparity: Array) -> float:
    """Returns by what factor the tolerance of agreement is larger: in real images matches, lenses
    and poses are less exact than in rendered ones. Where views differ by much more, poses are
    wrong, and it is not."""
    apart = 1 - agree
    seen = (agree != 0) & (apart * _tolerance(disparity) < GROSS)
    if seen.sum() < LEAST_SEEN:
        return 1.0
    usual = float(np.median(apart[seen]))
    worst = WORST * max(1.0, max(agree.shape[1:]) / WORST_SIDE)
    return 1.0 if usual > worst else min(max(1.0, WIDER * usual), WIDEST)


def _match_sigma(agree: Array, there: NDArray[np.bool_], disparity: Array) -> Array:
    """Returns the deviation of measured log depth [h, w] by the matches and by the poses.

    there: [N, h, w] which neighbours confirm it.
    """
    information = (np.where(there, disparity, 0) ** 2).sum(axis=0) / PIXEL_NOISE**2
    # The view's own image is in all of them: more neighbours do not remove its noise.
    return np.sqrt(2 / np.maximum(information, 1e-12) + _pose_variance(agree, disparity))


def _against(apart: Array, agree: Array, there: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Returns how many neighbours look through a point [h, w], and how many see something before
    it, of those that could see it and do not confirm it."""
    against = (agree != 0) & ~there
    return (against & (apart > 0)).sum(axis=0), (against & (apart < 0)).sum(axis=0)


def _outliers(there: NDArray[np.bool_], through: Array, before: Array) -> Array:
    """Returns the variance of log depth [h, w] by pixels that show another surface than was found.

    Their share is that of the neighbours that contradict the depth (``_against``).
    """
    share = (through + OCCLUDED * before) / np.maximum(1, there.sum(axis=0) + through + before)
    return np.asarray(OUTLIERS**2 + CONTRADICTED**2 * share)


def _pose_variance(agree: Array, disparity: Array) -> float:
    """Returns the variance of log depth by wrong poses: by what views differ more than matches do.

    Neighbours share a part of the error of poses, so that what they differ by is less than it.
    """
    excess = []
    for close, pixels in zip(agree, disparity, strict=True):
        apart = (1 - close) * _tolerance(pixels)
        seen = (close != 0) & (apart < GROSS)
        if seen.sum() > LEAST_SEEN:
            usual = max(MATCH, MATCH_PX / float(np.median(pixels[seen])))
            excess.append(max(0.0, (1.48 * float(np.median(apart[seen]))) ** 2 - usual**2))
    return POSE_SHARE * float(np.median(excess)) if excess else 0.0


def _rest_sigma(
    depth: FloatImage, swept: FloatImage, unconfirmed: NDArray[np.bool_], known: NDArray[np.bool_]
) -> FloatImage:
    """Returns the deviation of corrected log depth [h, w], at edges of depth and elsewhere.

    By what was found there but not confirmed: measured pixels are where depth is easy, and say
    too little of the others. Where little was found, ``UNMEASURED`` counts too.
    """
    log = np.log(np.where(known, depth, np.median(depth[known]))).astype(np.float32)
    kernel = np.ones((EDGE_PX, EDGE_PX), np.uint8)
    edge = cv2.dilate(log, kernel) - cv2.erode(log, kernel) > EDGE_STEP
    out = np.full(depth.shape, UNMEASURED, np.float32)
    for there in (edge, ~edge):
        ones = unconfirmed & there
        error = np.log(swept[ones]) - log[ones]
        variance = np.sum(error**2) / PATCH + PRIOR * UNMEASURED**2
        out[there] = max(LEAST_SIGMA, math.sqrt(variance / (len(error) / PATCH + PRIOR)))
    return out


def _carried_sigma(corrections: Array, there: NDArray[np.bool_]) -> FloatImage:
    """Returns by how much a correction errs that is carried to a pixel [h, w] from where it is
    known, log depth.

    corrections: [M] log, of measured pixels. there: [h, w] pixels that have one of their own.
    """
    distance = cv2.distanceTransform((~there).astype(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_5)
    return np.asarray(FAR * np.std(corrections) * np.sqrt(1 - np.exp(-distance / FAR_PX)))


def _measured(
    known: NDArray[np.bool_], swept: FloatImage, agree: NDArray[np.bool_], disparity: Array,
    step: float,
) -> NDArray[np.bool_]:  # fmt: skip
    """Returns where enough neighbours agree [h, w]; nowhere if they may do so by chance.

    step: of log depth, beyond which a few pixels are another surface than what is around.
    """
    decided = known & np.isfinite(swept)
    measured = decided & (agree.sum(axis=0) >= AGREEING)
    steps = np.full(swept.shape, -32768, np.int16)
    steps[measured] = np.clip(np.log(swept[measured]) * 1000, -30000, 30000)
    cv2.filterSpeckles(steps, -32768, SPECKLE, 1000 * step)
    measured &= steps > -32768
    could = decided & ((disparity >= LEAST_DISPARITY).sum(axis=0) >= AGREEING)
    if measured.sum() < max(LEAST_SHARE * known.sum(), LEAST_CONFIRMED * could.sum()):
        measured[:] = False
    return measured


def smooth_correction(
    network: FloatImage, log: FloatImage, measured: NDArray[np.bool_], wanted: NDArray[np.bool_]
) -> FloatImage:
    """Returns the log correction [h, w] of wanted pixels by measured ones near them, in image and
    depth.

    A bilateral grid (Chen, Paris and Durand 2007); far from what is measured, coarser ones.
    """
    height, width = network.shape
    level = np.log(network)
    level = (level - level.min()) / BIN
    v, u = np.mgrid[0:height, 0:width].astype(np.float32)
    out, missing = np.zeros_like(log), wanted.copy()
    for scale in SCALES:
        at = [v / (CELL * scale) + 1, u / (CELL * scale) + 1, level / scale + 1]
        shape = [int(a.max()) + 3 for a in at]
        flat = np.ravel_multi_index([np.rint(a[measured]).astype(int) for a in at], shape)
        size = int(np.prod(shape))
        weight = np.bincount(flat, minlength=size).reshape(shape).astype(np.float32)
        value = np.bincount(flat, log[measured], size).reshape(shape).astype(np.float32)
        weight, value = blurred(weight), blurred(value)
        here = [a[missing] for a in at]
        w, x = sampled(weight, here), sampled(value, here)
        enough = w > 1e-3
        chosen = np.flatnonzero(missing)[enough]
        out.ravel()[chosen] = x[enough] / w[enough]
        missing.ravel()[chosen] = False
        if not missing.any():
            break
    out[missing] = np.median(log[measured])
    return out


def blurred(grid: Array) -> Array:
    """Returns a grid [A, B, C] with each cell averaged with those beside it."""
    for axis in range(3):
        grid = np.moveaxis(grid, axis, 0)
        padded = np.pad(grid, ((1, 1), (0, 0), (0, 0)))
        grid = np.moveaxis(0.25 * padded[:-2] + 0.5 * padded[1:-1] + 0.25 * padded[2:], 0, axis)
    return grid


def sampled(grid: Array, at: Sequence[Array]) -> Array:
    """Returns the values [P] of a grid at fractional indices, [P] for each axis, linear between
    cells."""
    low = [a.astype(int) for a in at]
    part = [a - b for a, b in zip(at, low, strict=True)]
    out = np.zeros(len(at[0]), np.float32)
    for corner in np.ndindex(2, 2, 2):
        weight = np.ones_like(out)
        for p, c in zip(part, corner, strict=True):
            weight = weight * (p if c else 1 - p)
        out += weight * grid[tuple(b + c for b, c in zip(low, corner, strict=True))]
    return out
