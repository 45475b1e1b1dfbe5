"""A view's depth at some of its pixels, by the tracks around them.

For one distance that a sensor measures, unlike for the depth of an image, the error that a network
has just there must not remain. So nothing is cross-validated or held back: a Gaussian process of
the network's error, smooth in the image and in log depth, is solved from the residuals of tracks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from da3_ros.types import Array, FloatImage

WIDTH, LOG_DEPTH = 0.12, 0.3  # standard deviations of the kernel: of the image's width, log depth
SMOOTH, COMMON = 0.05, 0.05  # standard deviations of the network's error: local, and of a view
LEAST_SIGMA = 0.01  # of a track's log depth
MOST = 300  # tracks
STEPS, FAR = 4, 2.0  # of the robust fit; deviations from which on a track counts less
STEP = 4  # pixels from one place where the error is computed to the next; more of
PLACES = 64  # large images, which have at most so many along the longer side
# Deviations of the local error, beyond which it is none of the network: tracks on what moves agree
# with each other, and not with the rest.
BELIEVED = 4.0
FEWEST = 8  # tracks


@dataclass(frozen=True, eq=False)
class TrackResiduals:
    """Tracks in one view. M rows."""

    pixel: Array  # [M, 2] column and row, corner rule, pixels of the depth image
    log_depth: Array  # [M] logarithm of the predicted depth
    residual: Array  # [M] logarithm of the track's depth less the scaled network's
    sigma: Array  # [M] its standard deviation
    depth_sigma: float  # that of predicted depth


def error_near_tracks(tracks: TrackResiduals, depth: FloatImage) -> FloatImage | None:
    """Returns what the logarithm of true depth is more than that of ``depth`` [h, w]; None of too
    few tracks. NaN: what tracks say there is more than a network errs."""
    usable = np.isfinite(tracks.residual) & np.isfinite(tracks.log_depth)
    chosen = np.flatnonzero(usable)
    chosen = chosen[:: max(1, -(-len(chosen) // MOST))]
    if len(chosen) < FEWEST:
        return None
    scale = np.array([WIDTH * max(depth.shape), WIDTH * max(depth.shape), LOG_DEPTH])
    at = np.column_stack((tracks.pixel, tracks.log_depth))[chosen] / scale
    weights = _weights(at, tracks.residual[chosen], np.hypot(tracks.sigma[chosen], LEAST_SIGMA))
    height, width = depth.shape
    step = max(STEP, -(-max(depth.shape) // PLACES))
    rows, columns = (np.arange(step // 2, n, step) for n in (height, width))
    log_depth = _log_depth(depth)[np.ix_(rows, columns)]
    y, x = np.meshgrid(rows + 0.5, columns + 0.5, indexing="ij")
    places = np.column_stack((x.ravel(), y.ravel(), log_depth.ravel())) / scale
    common = COMMON**2 * weights.sum()
    local = (_kernel(places, at) @ weights).reshape(log_depth.shape) - common
    coarse = np.where(np.abs(local) <= BELIEVED * SMOOTH, common + local, np.nan)
    nearest = np.minimum(np.arange(height) // step, len(rows) - 1)
    beside = np.minimum(np.arange(width) // step, len(columns) - 1)
    return np.asarray(coarse[np.ix_(nearest, beside)], np.float32)


def _log_depth(depth: FloatImage) -> FloatImage:
    known = np.isfinite(depth) & (depth > 0)
    middle = float(np.median(depth[known])) if known.any() else 1.0
    return np.log(np.where(known, depth, np.float32(middle)))


def _kernel(a: Array, b: Array) -> Array:
    """Returns the covariance [A, B] of the network's error at places [A, 3] and [B, 3]."""
    square = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T
    return np.asarray(COMMON**2 + SMOOTH**2 * np.exp(-0.5 * np.maximum(square, 0.0)))


def _weights(at: Array, residual: Array, sigma: Array) -> NDArray[np.float64]:
    """Returns the weights [M] of the kernels of tracks; wrong tracks count less."""
    covariance, variance = _kernel(at, at), sigma**2
    weights = np.zeros(len(at))
    for _ in range(STEPS):
        off = (residual - covariance @ weights) / (FAR * sigma)
        # Before the first fit the network's error is in it, too.
        doubt = 1 + off**2 if weights.any() else np.ones(len(at))
        weights = np.linalg.solve(covariance + np.diag(variance * doubt), residual)
    return np.asarray(weights)
