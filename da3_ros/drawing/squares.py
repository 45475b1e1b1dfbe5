"""Squares in a picture, of which the nearest one is seen in each pixel."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.types import Array

# Sides of squares in pixels: each takes a pass over the picture.
SIDES_PX = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16, 20, 24, 32, 48])


@dataclass(frozen=True, eq=False)
class Squares:
    """What is drawn of a surface."""

    pixels: NDArray[np.float32]  # [N, 2] middles
    depth: NDArray[np.float32]  # [N]
    side: NDArray[np.float32]  # [N] pixels, rounded up to one of SIDES_PX
    rgb: NDArray[np.uint8]  # [N, 3]

    def nearest(
        self, size: tuple[int, int], near: float, largest: float
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the indices [M] of squares in the picture, and for each of its pixels [H, W] the
        number of the nearest one among them, from 1; 0: none.

        near: least depth. largest: side of the largest square, pixels.
        """
        sides = SIDES_PX[largest >= SIDES_PX]
        kind = np.searchsorted(sides, self.side).clip(0, len(sides) - 1)
        corner = np.floor(self.pixels - (sides[kind, None] - 1) / np.float32(2))
        margin, (width, height) = int(sides[-1]), size
        inside = (corner > -margin).all(axis=1) & (corner < (width, height)).all(axis=1)
        index = np.flatnonzero(inside & (self.depth > near))
        index = index[np.argsort(-self.depth[index], kind="stable")]  # the nearest are last
        return index, last_covering(corner[index].astype(np.int64), sides, kind[index], size)


def last_covering(
    corner: Array, sides: Array, kind: Array, size: tuple[int, int]
) -> NDArray[np.int64]:
    """Returns for each pixel [H, W] the number of the last square that covers it, from 1; 0: none.

    corner: upper left pixels [N, 2] of squares, at most the largest side outside the picture.
    kind: index [N] of each one's side in ``sides``.
    """
    margin = int(sides[-1])
    # Whole numbers below 2^24 are exact, MAX_POINTS is less.
    last = np.zeros((size[1] + margin, size[0] + margin), np.float32)
    layer = np.empty_like(last)
    for k, side in enumerate(sides.tolist()):
        chosen = np.flatnonzero(kind == k)
        if not len(chosen):
            continue
        layer[:] = 0
        layer[corner[chosen, 1] + margin, corner[chosen, 0] + margin] = chosen + 1
        # A square covers what lies right of and below its corner.
        covered = cv2.dilate(layer, np.ones((side, side), np.uint8), anchor=(side - 1, side - 1))
        np.maximum(last, np.asarray(covered), out=last)
    return last[margin:, margin:].astype(np.int64)
