"""Upsamples published depth to the camera's image size, without interpolating across depth edges.

NumPy and OpenCV only.
"""

from __future__ import annotations

import dataclasses

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.geometry.projection import resize_K
from da3_ros.mapping.depth_filter import STEP
from da3_ros.types import Array, FloatImage, Image, TrackedFrame


def at_size_of(
    frame: TrackedFrame, image: Image, valid: NDArray[np.bool_] | None = None
) -> TrackedFrame:
    """Returns the frame with depth, confidence and K at the size of its rectified ``image``.

    ``valid`` [H, W]: pixels of ``image`` that may have depth; None: all.
    """
    shape, size = frame.depth_m.shape, (image.shape[1], image.shape[0])
    if shape == image.shape[:2]:
        return dataclasses.replace(frame, image=image)
    depth_m = resize_depth(frame.depth_m, size)
    if valid is not None:
        depth_m[~valid] = np.nan
    return dataclasses.replace(
        frame,
        image=image,
        depth_m=depth_m,
        confidence=_nearest(frame.confidence, size),
        K=resize_K(frame.K, (shape[1], shape[0]), size),
    )


def resize_depth(depth: FloatImage, size: tuple[int, int]) -> FloatImage:
    """Returns z-depth [h, w] resized to ``size`` (width, height).

    If the four neighbours of a new pixel are one surface, their inverse depth, which is linear
    over any plane, is interpolated; otherwise the nearest pixel's value is used. So NaN, +Inf and
    steps stay sharp, and no depth appears between two surfaces.
    """
    known = np.isfinite(depth) & (depth > 0)
    inverse = np.divide(1, depth, out=np.zeros_like(depth), where=known)
    smooth = cv2.resize(inverse, size, interpolation=cv2.INTER_LINEAR)
    whole = _one_surface(inverse)[np.ix_(_cells(depth.shape[0], size[1]),
                                         _cells(depth.shape[1], size[0]))]  # fmt: skip
    out: FloatImage = _nearest(depth, size)
    np.divide(1, smooth, out=out, where=whole)
    return out


def _one_surface(inverse: FloatImage) -> Array:
    """Returns bool [h + 1, w + 1]: whether the four pixels around each corner are one surface.

    Corner (0, 0) is the image's top left; border pixels are repeated beyond the border.
    """
    around = np.pad(inverse, 1, mode="edge")
    four = np.stack((around[:-1, :-1], around[:-1, 1:], around[1:, :-1], around[1:, 1:]))
    low, high = four.min(axis=0), four.max(axis=0)
    return np.asarray((low > 0) & (high <= STEP * low))


def _cells(source: int, target: int) -> Array:
    """Returns the index of the corner nearest to each new pixel of one axis, [target]."""
    centres = (np.arange(target) + 0.5) * (source / target)
    return np.floor(centres + 0.5).astype(np.int64)


def _nearest(values: FloatImage, size: tuple[int, int]) -> FloatImage:
    return cv2.resize(values, size, interpolation=cv2.INTER_NEAREST_EXACT).astype(np.float32)
