"""Which returns of range sensors a camera sees, and in which pixels.

A sensor beside the camera sees surfaces that something nearer hides from the camera, and rain and
dust, which are single near returns. The depth of the image, of any unit, tells both from slanted
surfaces and from edges: distance over depth is about the same for all that the camera sees.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from da3_ros.geometry.projection import project
from da3_ros.types import Array, FloatImage

# Log ratio over the least one beside it, beyond which a return is hidden: more than depth errs.
HIDDEN = 0.3
# Difference of log ratios of one surface; least share of the returns beside one that are of its.
ALIKE, SUPPORT = 0.15, 0.2
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
    cells = pixels / min(max(side, LEAST_CELL), MOST_CELL)
    if len(z) > FEW:
        supported = _supported(cells, ratio)
        pixels, z, cells, ratio = (a[supported] for a in (pixels, z, cells, ratio))
    visible = ratio <= HIDDEN + _least_beside(cells.astype(int), ratio)
    return pixels[visible], z[visible]


def _supported(cells: Array, ratio: Array) -> NDArray[np.bool_]:
    """Returns which returns [N] have others of their surface beside them: drops of rain have drops
    beside them too, but at all distances."""
    places = np.column_stack([cells, ratio / ALIKE])
    alike, beside = (
        cKDTree(at).query_ball_point(at, 1.0, p=np.inf, return_length=True) - 1
        for at in (places, cells)
    )
    return np.asarray((alike > 0) & (alike >= SUPPORT * beside))


def _least_beside(cells: Array, ratio: Array) -> Array:
    """Returns the least ratio [N] of the returns in a return's cell and those around it."""
    if not len(ratio):
        return ratio
    column, row = cells.T + 1
    least = np.full((row.max() + 2, column.max() + 2), np.inf)
    np.minimum.at(least, (row, column), ratio)
    beside = [least[row + i - 1, column + j - 1] for i, j in np.ndindex(3, 3)]
    return np.asarray(np.min(beside, axis=0))
