"""Which returns of range sensors a camera sees, and in which pixels.

A sensor beside the camera sees surfaces that something nearer hides from the camera, and rain and
dust, which are single near returns. The depth of the image, of any unit, tells both from slanted
surfaces and from edges: distance over depth is about the same for all that the camera sees.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from da3_ros.geometry.projection import project
from da3_ros.types import Array, FloatImage

# Log ratio over the least one beside it, beyond which a return is hidden: more than depth errs.
HIDDEN = 0.3
# Levels of the log ratio, of which two beside each other are of one surface, and those that are
# told apart on both sides of the median; least share of the returns beside one that are of its.
ALIKE, MOST_LEVELS, SUPPORT = 0.1, 30, 0.2
FEW = 30  # returns in an image, up to which none can be told to be alone
LEAST_CELL, MOST_CELL = 3.0, 24.0  # sides of the cells that are "beside", pixels


def visible_returns(points: FloatImage, K: Array, depth: FloatImage) -> tuple[Array, Array]:
    """Returns pixels [M, 2] (column, row; corner rule) and z-depths [M] of the returns [N, 3], in
    the camera's optical axes, that an image shows: no nearer surface beside one hides it, it is
    not alone, and depth is known there.

    K: [3, 3] corner rule. depth: [h, w] of the image, in any unit.
    """
    height, width = depth.shape
    points = points.astype(np.float64)
    pixels, z = project(points, K), points[:, 2]
    with np.errstate(invalid="ignore"):
        inside = np.flatnonzero(((pixels >= 0) & (pixels < (width, height))).all(axis=1))
    column, row = pixels[inside].astype(int).T
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.log(z[inside] / depth[row, column])
    kept = inside[np.isfinite(ratio)]
    pixels, z, ratio = pixels[kept], z[kept], ratio[np.isfinite(ratio)]
    side = 1.5 * math.sqrt(height * width / max(len(z), 1))
    cells = (pixels / min(max(side, LEAST_CELL), MOST_CELL)).astype(int) + 1
    if len(z) > FEW:
        supported = _supported(cells, ratio)
        pixels, z, cells, ratio = (a[supported] for a in (pixels, z, cells, ratio))
    visible = ratio <= HIDDEN + _least_beside(cells, ratio)
    return pixels[visible], z[visible]


def _supported(cells: NDArray[np.int64], ratio: Array) -> NDArray[np.bool_]:
    """Returns which returns [N] have others of their surface beside them: drops of rain have drops
    beside them too, but at all distances.

    cells: [N, 2] column and row, from 1 upwards.
    """
    level = np.rint((ratio - np.median(ratio)) / ALIKE)
    level = (np.clip(level, -MOST_LEVELS, MOST_LEVELS) + MOST_LEVELS + 1).astype(int)
    at = (cells[:, 1], cells[:, 0], level)
    count = np.zeros([axis.max() + 2 for axis in at], np.int32)
    np.add.at(count, at, 1)
    beside = _sum_of_three(_sum_of_three(count, 0), 1)
    alike = _sum_of_three(beside, 2)[at] - 1
    others = beside.sum(axis=2)[at[:2]] - 1
    return np.asarray((alike > 0) & (alike >= SUPPORT * others))


def _sum_of_three(values: NDArray[np.int32], axis: int) -> NDArray[np.int32]:
    """Returns each value plus those before and behind it along an axis."""
    out, end = values.copy(), values.shape[axis]
    first, last = ([slice(None)] * values.ndim for _ in range(2))
    first[axis], last[axis] = slice(0, end - 1), slice(1, end)
    out[tuple(first)] += values[tuple(last)]
    out[tuple(last)] += values[tuple(first)]
    return out


def _least_beside(cells: NDArray[np.int64], ratio: Array) -> Array:
    """Returns the least ratio [N] of the returns in a return's cell and those around it."""
    if not len(ratio):
        return ratio
    column, row = cells.T
    least = np.full((row.max() + 2, column.max() + 2), np.inf)
    np.minimum.at(least, (row, column), ratio)
    beside = [least[row + i - 1, column + j - 1] for i, j in np.ndindex(3, 3)]
    return np.asarray(np.min(beside, axis=0))
