"""Crops keyframes to the part whose middle is the principal point.

For trainers that take it there: that of 3D Gaussian splatting reads the focal lengths of a PINHOLE
camera only.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from da3_ros.export.selection import ExportError
from da3_ros.geometry.projection import resize_K
from da3_ros.keyframe_store.keyframe import Keyframe, Tracks


def centred(found: Keyframe) -> Keyframe:
    """Returns the largest part of a keyframe whose middle is its principal point, within a quarter
    of a pixel of the image; no pixel is interpolated.

    Raises ExportError if the principal point is outside the image.
    """
    size = found.image.shape[1], found.image.shape[0]
    K = resize_K(found.pose.K, found.pose.size, size)
    columns, rows = (_part(K[i, 2], size[i]) for i in (0, 1))
    K[:2, 2] -= columns.start, rows.start
    image = np.ascontiguousarray(found.image[rows, columns])
    height, width = found.depth.shape
    at = np.ix_(_cells(rows, size[1], height), _cells(columns, size[0], width))
    depth = found.depth[at]
    pixels = found.tracks.pixels - np.array((columns.start, rows.start), np.float32)
    inside = ((pixels >= 0) & (pixels < image.shape[1::-1])).all(axis=1)
    new = depth.shape[::-1]
    return replace(
        found, image=image, depth=depth, confidence=found.confidence[at],
        tracks=Tracks(found.tracks.ids[inside], pixels[inside]),
        pose=replace(found.pose, K=resize_K(K, image.shape[1::-1], new), size=new),
    )  # fmt: skip


def _part(middle: float, length: int) -> slice:
    """Returns the largest range of pixels around ``middle``."""
    kept = round(2 * min(middle, length - middle))
    if kept < 1:
        raise ExportError("a principal point is outside its image: leave out --centred")
    return slice(0, kept) if middle <= length / 2 else slice(length - kept, length)


def _cells(part: slice, length: int, cells: int) -> NDArray[np.int64]:
    """Returns the indices in a row of ``cells`` that cover a part of ``length`` pixels."""
    pixels = part.stop - part.start
    kept = max(1, round(pixels * cells / length))
    at = part.start + (np.arange(kept) + 0.5) * pixels / kept
    return (at * cells / length).astype(np.int64)
