"""A smooth correction of a view's depth between its tracks.

The residuals of tracks (logarithm of a track's depth less that of the predicted one) are averaged
over neighbours in the image and in depth, so that nothing is averaged across depth edges. Tracks
decide by cross-validation whether, and by how much, the correction lowers the error of tracks that
it was not made from.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.ndimage import map_coordinates

from da3_ros.types import Array, FloatImage

WIDTH = 0.08  # of the kernel, standard deviation over the image's width
LOG_DEPTH = 0.1  # of the kernel, standard deviation of the logarithm of depth
SUPPORT = 2.0  # shrinks the correction where fewer typical tracks than this are near
FOLDS = 4
FEWEST = 24  # tracks
OUTLIER = 3.0  # robust standard deviations from the neighbours' mean
MIN_GAIN = 0.05  # share by which the error of held-out tracks must fall
MAX_LOG = 0.4  # largest correction
CELLS = 2.0  # cells of the grid per standard deviation of the kernel


@dataclass(frozen=True, eq=False)
class TrackResiduals:
    """Tracks in one view. M rows."""

    pixel: Array  # [M, 2] column and row, corner rule, pixels of the depth image
    log_depth: Array  # [M] logarithm of the predicted depth
    residual: Array  # [M] logarithm of the track's depth less the scaled prediction's
    sigma: Array  # [M] its standard deviation
    depth_sigma: float  # that of predicted depth


def correction(tracks: TrackResiduals, depth: FloatImage) -> FloatImage | None:
    """Returns the logarithm [h, w] to add to that of ``depth`` [h, w], 0 where depth is unknown.

    None if tracks do not support a correction.
    """
    known = np.isfinite(tracks.residual) & np.isfinite(tracks.log_depth)
    if known.sum() < FEWEST:
        return None
    at = _coordinates(tracks, depth.shape)[known]
    residual = tracks.residual[known]
    # A track that knows its depth no better than the network does adds little.
    weight = 1 / (1 + (tracks.sigma[known] / tracks.depth_sigma) ** 2)
    near = _kernel(at, at)
    np.fill_diagonal(near, 0.0)
    good = _inliers(near, residual, weight)
    if good.sum() < FEWEST:
        return None
    at, residual, weight, near = at[good], residual[good], weight[good], near[np.ix_(good, good)]
    common = float(weight @ residual) / (float(weight.sum()) + SUPPORT)
    residual = residual - common
    share = _supported_share(near, residual, weight)
    if share <= 0:
        return np.full(depth.shape, common, np.float32)
    return _on_image(at, residual, weight, share, depth) + np.float32(common)


def _coordinates(tracks: TrackResiduals, shape: tuple[int, ...]) -> Array:
    """Returns coordinates [M, 3] in standard deviations of the kernel."""
    width = WIDTH * max(shape)
    return np.column_stack((tracks.pixel / width, tracks.log_depth / LOG_DEPTH))


def _kernel(a: Array, b: Array) -> Array:
    square = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T
    return np.asarray(np.exp(-0.5 * np.maximum(square, 0.0)))


def _mean(near: Array, residual: Array, weight: Array) -> Array:
    """Returns the shrunk mean residuals [R] for kernel values [R, M]."""
    return np.asarray(near @ (weight * residual) / (near @ weight + SUPPORT))


def _inliers(near: Array, residual: Array, weight: Array) -> Array:
    """Returns the tracks [M] whose residual is like that of their neighbours."""
    limit = OUTLIER * 1.4826 * np.median(np.abs(residual - np.median(residual)))
    clipped = np.clip(residual, -limit, limit)
    off = np.abs(residual - _mean(near, clipped, weight))
    return np.asarray(off <= OUTLIER * 1.4826 * np.median(off) + 1e-9)


def _supported_share(near: Array, residual: Array, weight: Array) -> float:
    """Returns the factor 0..1 at which the correction fits held-out tracks best; 0: none."""
    fold = np.arange(len(residual)) % FOLDS
    predicted = np.zeros(len(residual))
    for k in range(FOLDS):
        out, rest = fold == k, fold != k
        predicted[out] = _mean(near[np.ix_(out, rest)], residual[rest], weight[rest])
    power = float(weight @ predicted**2)
    if power <= 0:
        return 0.0
    share = min(max(float(weight @ (predicted * residual)) / power, 0.0), 1.0)
    before, after = np.abs(residual), np.abs(residual - share * predicted)
    return share if float(weight @ after) < (1 - MIN_GAIN) * float(weight @ before) else 0.0


def _on_image(
    at: Array, residual: Array, weight: Array, share: float, depth: FloatImage
) -> FloatImage:
    """Returns the correction on the image, by interpolation in a grid of column, row and log
    depth."""
    height, width = depth.shape
    known = np.isfinite(depth) & (depth > 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        log_depth = np.where(known, np.log(depth.astype(np.float64)), 0.0) / LOG_DEPTH
    step = 1 / CELLS
    edge = WIDTH * max(depth.shape)
    low = at[:, 2].min() - 3.0
    columns = np.arange(0, width / edge + step, step)
    rows = np.arange(0, height / edge + step, step)
    layers = np.arange(low, at[:, 2].max() + 3.0 + step, step)
    kx, ky, kd = (
        _kernel(g[:, None], at[:, i : i + 1]) for i, g in enumerate((columns, rows, layers))
    )
    both = (ky[:, None] * kx[None]).reshape(-1, len(at))
    total = both @ (weight[:, None] * kd.T)
    mean = both @ ((weight * residual)[:, None] * kd.T) / (total + SUPPORT)
    grid = mean.reshape(len(rows), len(columns), len(layers))
    row, column = np.indices(depth.shape) + 0.5
    place = np.stack((row / edge / step, column / edge / step, (log_depth - low) / step))
    out = map_coordinates(grid, place.reshape(3, -1), order=1, mode="nearest", prefilter=False)
    out = np.clip(share * out.reshape(depth.shape), -MAX_LOG, MAX_LOG)
    return np.where(known, out, 0.0).astype(np.float32)
