"""Which returns of range sensors a camera sees, and in which pixels.

A sensor beside the camera sees surfaces that something nearer hides from the camera, and rain and
dust, which are single near returns.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from da3_ros.geometry.projection import project
from da3_ros.types import Array, FloatImage

HIDDEN = 0.1  # log distance behind a surface beside it, beyond which a return is hidden
FEW = 30  # returns in an image, up to which none can be told to be alone
LEAST_CELL, MOST_CELL = 3.0, 24.0  # sides of the cells that are "beside", pixels


def visible_returns(
    points: FloatImage, K: Array, shape: tuple[int, int]
) -> tuple[Array, Array]:  # fmt: skip
    """Returns pixels [M, 2] (column, row; corner rule) and z-depths [M] of the returns [N, 3], in
    the camera's optical axes, that an image of ``shape`` (h, w) shows: no nearer surface beside
    one hides it, and it is not alone. K: [3, 3] corner rule."""
    height, width = shape
    points = points.astype(np.float64)
    pixels, z = project(points, K), points[:, 2]
    with np.errstate(invalid="ignore"):
        inside = ((pixels >= 0) & (pixels < (width, height))).all(axis=1)
    pixels, z = pixels[inside], z[inside]
    side = 1.5 * math.sqrt(height * width / max(len(z), 1))
    cells = pixels / min(max(side, LEAST_CELL), MOST_CELL)
    if len(z) > FEW:
        supported = _supported(cells, z)
        pixels, z, cells = pixels[supported], z[supported], cells[supported]
    visible = z <= math.exp(HIDDEN) * _nearest_beside(cells.astype(int), z)
    return pixels[visible], z[visible]


def _supported(cells: Array, z: Array) -> NDArray[np.bool_]:
    """Returns which returns [N] have another one beside them at about their distance."""
    places = np.column_stack([cells, np.log(z) / HIDDEN])
    near = cKDTree(places).query_ball_point(places, 1.0, p=np.inf, return_length=True)
    return np.asarray(near > 1)


def _nearest_beside(cells: Array, z: Array) -> Array:
    """Returns the least distance [N] of the returns in a return's cell and those around it."""
    if not len(z):
        return z
    column, row = cells.T + 1
    nearest = np.full((row.max() + 2, column.max() + 2), np.inf)
    np.minimum.at(nearest, (row, column), z)
    beside = [nearest[row + i - 1, column + j - 1] for i, j in np.ndindex(3, 3)]
    return np.asarray(np.min(beside, axis=0))
