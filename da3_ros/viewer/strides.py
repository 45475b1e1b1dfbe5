"""How densely each submap is shown, so that a browser gets a bounded number of points."""

from __future__ import annotations

import numpy as np

from da3_ros.types import Array


def chosen_strides(sizes: Array, distances: Array, most: int) -> Array:
    """Returns for each submap [N] which of its points are shown: every n-th one, n a power of two.

    sizes: points of each submap [N]. distances: from the camera [N]. Together at most ``most``
    points (and one of each submap) are shown. Half of the room is shared evenly; with the rest,
    the nearest submaps are shown whole.
    """
    sizes = np.asarray(sizes, np.int64)
    if sizes.sum() <= most:
        return np.ones(len(sizes), np.int64)
    stride, least = 2, -(-sizes // 2)
    while least.sum() > max(most // 2, len(sizes)):
        stride, least = 2 * stride, -(-sizes // (2 * stride))
    order = np.argsort(distances, kind="stable")
    more = np.cumsum(sizes[order] - least[order])
    strides = np.full(len(sizes), stride, np.int64)
    strides[order[more <= most - least.sum()]] = 1
    return strides
