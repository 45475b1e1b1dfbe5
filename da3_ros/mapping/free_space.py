"""Points that keyframes look through: what moved away, or never was there.

A keyframe that measures a surface behind a point has seen that where the point is there is
nothing. Depth is compared in cells of pixels, by the nearest and the farthest depth around each,
so that depth edges and errors of poses by a few pixels count for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.types import Array, FloatImage

CELLS = 128  # cells along the longer side of an image
UNSURE = 20.0  # share of a keyframe's pixels, the least confident, that do not vote; percent
CLEAR = 0.03  # least relative distance between a point and the surface behind it
SIGMAS = 3.0  # of the disagreement of depths, which must be exceeded too
SAME = 0.3  # logarithm of depths that may be those of one surface
FEWEST = 20  # points seen by a keyframe that show how well depths agree
THROUGH, NONE, CONFIRMED = 1, 0, -1  # votes
ENOUGH = 2  # votes that remove a point


@dataclass(frozen=True, eq=False)
class DepthView:
    """Depth of a keyframe in cells, as it judges points; unit of the points."""

    near: FloatImage  # [h, w] nearest depth in a cell and the cells around it; NaN: no vote
    far: FloatImage  # [h, w] farthest
    K: Array  # [3, 3] corner rule, pixels are cells

    @property
    def reach(self) -> float:
        """The farthest depth; 0 without any."""
        return float(self.far.max(initial=0.0, where=np.isfinite(self.near)))

    @property
    def nbytes(self) -> int:
        """Memory held, bytes."""
        return self.near.nbytes + self.far.nbytes

    def disagreement(self, xyz: Array) -> float:
        """Returns the relative standard deviation of this depth from that of points [M, 3] in the
        camera's frame, of which most are still there; NaN for too few.

        Whatever makes depths disagree (depth, poses, scale) is in it.
        """
        _, before, behind = self._compared(xyz)
        off = np.maximum(np.maximum(before, behind), 0)
        same = off[off < SAME]
        return 1.4826 * float(np.median(same)) if len(same) >= FEWEST else math.nan

    def votes(self, xyz: Array, sigma: float) -> NDArray[np.int8]:
        """Returns the vote on each point [M, 3] in the camera's frame: THROUGH, CONFIRMED, or NONE
        where the keyframe does not see it.

        sigma: relative, by which their depths and this one disagree; NaN: unknown, no votes.
        """
        out = np.zeros(len(xyz), np.int8)
        if math.isnan(sigma):
            return out
        tolerance = CLEAR + SIGMAS * sigma
        index, before, behind = self._compared(xyz)
        out[index[before > tolerance]] = THROUGH
        off = np.maximum(before, behind)
        # Between the two sides of a depth edge there is no surface.
        apart = (before + behind < -SAME) & (off < -tolerance)
        out[index[(off <= tolerance) & ~apart]] = CONFIRMED
        return out

    def _compared(self, xyz: Array) -> tuple[Array, Array, Array]:
        """Returns the indices of points in cells of known depth, and by how much they lie before
        the nearest and behind the farthest depth there (logarithms; negative: not)."""
        height, width = self.near.shape
        K = self.K.astype(np.float32)
        x, y, z = np.ascontiguousarray(xyz.T, np.float32)
        with np.errstate(invalid="ignore", divide="ignore"):
            u = K[0, 0] * x / z + K[0, 2]
            v = K[1, 1] * y / z + K[1, 2]
            at = np.flatnonzero((z > 0) & (u >= 0) & (u < width) & (v >= 0) & (v < height))
        cell = v[at].astype(np.int64) * width + u[at].astype(np.int64)
        near = self.near.reshape(-1)[cell]
        known = np.isfinite(near)
        at, cell = at[known], cell[known]
        depth = np.log(z[at])
        before = np.log(near[known]) - depth
        behind = depth - np.log(self.far.reshape(-1)[cell])
        return at, before, behind


def depth_view(depth: FloatImage, confidence: FloatImage, K: Array) -> DepthView:
    """Returns a keyframe's depth [h, w] (NaN: unknown) in cells; the least confident pixels and
    cells with any pixel of unknown depth do not vote."""
    height, width = depth.shape
    size = max(1, -(-max(height, width) // CELLS))
    known = np.isfinite(depth)
    if known.any():
        with np.errstate(invalid="ignore"):
            known &= ~(confidence < np.percentile(confidence[known], UNSURE))
    rows, columns = -(-height // size), -(-width // size)
    pad = ((0, rows * size - height), (0, columns * size - width))
    blocks = [
        np.pad(np.where(known, depth, fill), pad, constant_values=fill)
        .reshape(rows, size, columns, size)
        for fill in (np.inf, 0)
    ]  # fmt: skip
    whole = np.pad(known, pad).reshape(rows, size, columns, size).all(axis=(1, 3))
    box = np.ones((3, 3), np.uint8)
    near = cv2.erode(blocks[0].min(axis=(1, 3)).astype(np.float32), box)
    far = cv2.dilate(blocks[1].max(axis=(1, 3)).astype(np.float32), box)
    near[~whole] = np.nan
    in_cells = np.array(K, np.float64)
    in_cells[:2] /= size
    return DepthView(np.asarray(near, np.float32), np.asarray(far, np.float32), in_cells)


def looked_through(votes: Iterable[NDArray[np.int8]], count: int) -> NDArray[np.bool_]:
    """Returns the mask [count] of points that keyframes looked through in the end.

    votes: of keyframes on all points, each [count], in the order of time. A point that is
    confirmed afterwards stays.
    """
    through = np.zeros(count, np.int8)
    for vote in votes:
        through = np.clip(through + vote, 0, ENOUGH).astype(np.int8)
    return through >= ENOUGH
