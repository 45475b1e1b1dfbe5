"""How densely each submap is shown, so that a browser gets a bounded number of points."""

from __future__ import annotations

import numpy as np

from da3_ros.types import Array


def chosen_strides(sizes: Array, distances: Array, most: int) -> Array:
    """Returns for each submap [N] which of its points are shown: every n-th one, n a power of two.

    sizes: points of each submap [N]. distances: from the camera [N]. Together at most ``most``
    points (and one of each submap) are shown. Half of the room is shared evenly; with the rest,
    the nearest submaps are shown more densely, whole if they fit.
    """
    sizes = np.asarray(sizes, np.int64)
    if sizes.sum() <= most:
        return np.ones(len(sizes), np.int64)
    stride, least = 2, -(-sizes // 2)
    while least.sum() > max(most // 2, len(sizes)):
        stride, least = 2 * stride, -(-sizes // (2 * stride))
    order, room = np.argsort(distances, kind="stable"), most - least.sum()
    strides, finer = np.full(len(sizes), stride, np.int64), 1
    while finer < stride and len(order):
        more = np.cumsum(-(-sizes[order] // finer) - least[order])
        count = int(np.searchsorted(more, room, "right"))
        strides[order[:count]] = finer
        room -= more[count - 1] if count else 0
        order, finer = order[count:], 2 * finer
    return strides
