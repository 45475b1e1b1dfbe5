"""Depth of a keyframe with the returns of range sensors: exact at their pixels, smooth between.

Between returns the depth gets their correction of it, near in the image and in depth, so that
nothing is carried across an edge. What images have measured stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.derived.dense_depth import BIN, CELL, UNMEASURED, blurred, sampled
from da3_ros.geometry.visible_returns import visible_returns
from da3_ros.types import Array, DenseDepth, FloatImage

SIGMA = 0.01  # relative deviation of a return, and of where it is in the image
EDGE_PX, EDGE = 5, 0.15  # depth that differs by more (log) within so many pixels is an edge
SIGMA_EDGE_PX = 13  # the same, of deviations
SURFACES = 1.0  # of log depth, between the two surfaces of an edge at most
OUTLIER, LEAST_OUTLIER = 3.0, 0.1  # robust deviations of a correction from those around, and log
SCALES = 1, 2, 4, 8, 16  # of the grids of corrections, in cells of ``dense_depth``
# Weight, in returns, of what a coarser grid says in a finer one, and of no correction in the
# coarsest; of a pixel that images have measured.
PRIOR, PRIOR_FAR, MEASURED = 0.5, 4.0, 0.05
FEWEST = 20  # returns that tell how well they predict each other
LEAST_SIGMA = 0.01  # of a pixel between returns


@dataclass(frozen=True, eq=False)
class Observed:
    """Returns in the pixels of an image, at most one in each: the nearest."""

    row: NDArray[np.int64]  # [M]
    column: NDArray[np.int64]  # [M]
    depth: Array  # [M] in the unit of the keyframe's depth

    def of(self, kept: NDArray[np.bool_]) -> Observed:
        """Returns those that are kept [M]."""
        return Observed(self.row[kept], self.column[kept], self.depth[kept])


def observed(points: FloatImage, K: Array, network: FloatImage, metres: float) -> Observed:
    """Returns the returns [N, 3], camera's axes, metres, that a keyframe shows.

    K: [3, 3] corner rule. network: [h, w] its depth. metres: per unit of that.
    """
    pixels, z = visible_returns(points, K, network)
    order = np.argsort(z, kind="stable")
    column, row = np.floor(pixels[order]).astype(np.int64).T
    _, first = np.unique(row * network.shape[1] + column, return_index=True)
    return Observed(row[first], column[first], z[order][first] / metres)


def with_returns(
    network: FloatImage, dense: DenseDepth | None, returns: Observed
) -> tuple[DenseDepth | None, int]:
    """Returns a keyframe's depth with the returns that fit it, and how many pixels they are.

    network: [h, w] the network's depth. dense: what images have measured; None: nothing. The
    depth is None if there is nothing either way.
    """
    if dense is None:
        sigma = np.where(np.isfinite(network), np.float32(UNMEASURED), np.float32(np.nan))
        before = DenseDepth(network, sigma, np.zeros(network.shape, bool))
    else:
        before = dense
    known = np.isfinite(before.depth) & (before.depth > 0)
    level = _log_depth(before.depth, known)
    returns = returns.of(known[returns.row, returns.column])
    log = (np.log(returns.depth) - level[returns.row, returns.column]).astype(np.float32)
    corrections = _Corrections(level, before.measured)
    # Beside an edge either surface may be in the pixel: others are not corrected by it.
    at_edge = _edges(level, known, EDGE_PX)[returns.row, returns.column]
    fits = ~at_edge
    fits[~at_edge] = _fitting(corrections, returns.of(~at_edge), log[~at_edge])
    exact = returns.of(fits | (at_edge & (np.abs(log) < SURFACES)))
    if not len(exact.depth):
        return dense, 0
    between = known & ~before.measured
    out = _between(before, between, level, corrections, returns.of(fits), log[fits])
    out.depth[exact.row, exact.column] = exact.depth
    out.sigma[exact.row, exact.column] = SIGMA
    out.measured[exact.row, exact.column] = True
    return out, len(exact.depth)


def _between(
    before: DenseDepth, between: NDArray[np.bool_], level: FloatImage, corrections: _Corrections,
    returns: Observed, log: FloatImage,
) -> DenseDepth:  # fmt: skip
    """Returns a copy with corrected depth in some pixels [h, w], and its deviation."""
    at = np.flatnonzero(between)
    correction, near = corrections.at(returns, log, at)
    depth, sigma = before.depth.copy(), before.sigma.copy()
    depth.ravel()[at] *= np.exp(correction)
    # Returns say nothing of how wrong it is where one surface ends.
    smooth = ~_edges(level, between | before.measured, SIGMA_EDGE_PX).ravel()[at]
    share = np.where(smooth, near / (1 + near), 0)
    after = _predicted_sigma(corrections, returns, log)
    sigma.ravel()[at] = np.sqrt((1 - share) * sigma.ravel()[at] ** 2 + share * after**2)
    return DenseDepth(depth, sigma, before.measured.copy())


def _log_depth(depth: FloatImage, known: NDArray[np.bool_]) -> FloatImage:
    level = np.log(np.where(known, depth, 1)).astype(np.float32)
    level[~known] = np.median(level[known]) if known.any() else 0
    return level


def _edges(level: FloatImage, known: NDArray[np.bool_], size: int) -> NDArray[np.bool_]:
    """Returns in which windows of ``size`` pixels [h, w] the depth has an edge, or ends."""
    kernel = np.ones((size, size), np.uint8)
    step = cv2.dilate(level, kernel) - cv2.erode(level, kernel) > EDGE
    return np.asarray(step | (cv2.erode(known.astype(np.uint8), kernel) == 0))


class _Corrections:
    """Corrections of log depth by returns near in the image and in depth: bilateral grids, from
    coarse to fine, each of which is held by the coarser one where it has few returns."""

    def __init__(self, level: FloatImage, measured: NDArray[np.bool_]) -> None:
        """level: [h, w] log depth. measured: [h, w] pixels whose correction is none."""
        self.width, self._measured = level.shape[1], np.flatnonzero(measured)
        self._depth = ((level - level.min()) / BIN).ravel()

    def at(self, returns: Observed, log: FloatImage, pixels: Array) -> tuple[Array, Array]:
        """Returns the log corrections of pixels, flat indices [P], and the returns [P] near them,
        weighted by how near.

        log: [M] corrections of the returns.
        """
        own = returns.row * self.width + returns.column
        places = np.concatenate([own, self._measured])
        weights = np.concatenate([np.ones(len(own)), np.full(len(self._measured), MEASURED)])
        values = np.concatenate([log, np.zeros(len(self._measured))]) * weights
        out, near = np.zeros(len(pixels), np.float32), np.zeros(len(pixels), np.float32)
        for scale in reversed(SCALES):
            there, here = self._cells(places, scale), self._cells(pixels, scale)
            shape = [int(max(a.max(initial=0), b.max(initial=0))) + 3
                     for a, b in zip(there, here, strict=True)]  # fmt: skip
            flat = np.ravel_multi_index([np.rint(a).astype(int) for a in there], shape)
            size = int(np.prod(shape))
            sums = (np.bincount(flat, v, size).reshape(shape) for v in (weights, values))
            w, x = (sampled(blurred(one.astype(np.float32)), here) for one in sums)
            prior = np.float32(PRIOR_FAR if scale == SCALES[-1] else PRIOR)
            # A grid's blur gives one return a weight of 1/8 at its own pixel.
            out = (8 * x + prior * out) / (8 * w + prior)
            near = np.maximum(near, 8 * w / scale**2)
        return out, near

    def _cells(self, pixels: Array, scale: int) -> Sequence[Array]:
        row, column = np.divmod(pixels, self.width)
        depth = self._depth[pixels]
        return [row / (CELL * scale) + 1, column / (CELL * scale) + 1, depth / scale + 1]


def _fitting(corrections: _Corrections, returns: Observed, log: FloatImage) -> NDArray[np.bool_]:
    """Returns which returns [M] are corrected as those around them: not what moves, or rain."""
    kept = np.ones(len(log), bool)
    if len(log) < FEWEST:
        return np.asarray(np.abs(log - np.median(log)) < 2 * LEAST_OUTLIER) if len(log) else kept
    rest = log - corrections.at(returns, log, returns.row * corrections.width + returns.column)[0]
    usual = 1.4826 * float(np.median(np.abs(rest)))
    return np.asarray(np.abs(rest) < max(OUTLIER * usual, LEAST_OUTLIER))


def _predicted_sigma(corrections: _Corrections, returns: Observed, log: FloatImage) -> float:
    """Returns the deviation of log depth between returns: by how much half of them err at the
    others."""
    if len(log) < FEWEST:
        return UNMEASURED
    half = np.arange(len(log)) % 2 == 0
    others = returns.of(~half)
    at = others.row * corrections.width + others.column
    error = log[~half] - corrections.at(returns.of(half), log[half], at)[0]
    return max(LEAST_SIGMA, float(np.sqrt(np.mean(error**2))))
