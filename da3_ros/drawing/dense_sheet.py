"""Pictures of keyframes' depth: the network's, and as it was measured by images."""

from __future__ import annotations

from collections.abc import Iterable

import cv2
import numpy as np

from da3_ros.drawing.colormaps import colorize_depth, depth_range
from da3_ros.keyframe_store.keyframe import Keyframe
from da3_ros.types import DenseDepth, Image

MARGIN = 4
DEVIATION = 0.004, 0.1  # range of the colours of relative standard deviation
TITLES = "image", "network's depth", "measured depth", "deviation: red 0.4 %, blue 10 %"
TITLE_HEIGHT = 20  # pixels


def dense_sheet(
    keyframes: Iterable[tuple[Keyframe, DenseDepth | None]],
    size: tuple[int, int],
    color_map: str = "spectral",
) -> Image:
    """Returns RGB with titles and a row for each keyframe: image, the network's depth, measured
    depth, and its relative standard deviation, black where nothing is measured.

    size: (width, height) that each picture is fitted into.
    """
    rows = [_row(keyframe, dense, size, color_map) for keyframe, dense in keyframes]
    return np.concatenate([_titles(size[0]), *rows])


def _titles(width: int) -> Image:
    """Returns the titles of columns of this width."""
    strip = np.zeros((TITLE_HEIGHT, len(TITLES) * (width + MARGIN), 3), np.uint8)
    for k, title in enumerate(TITLES):
        (wide, _), _ = cv2.getTextSize(title, cv2.FONT_HERSHEY_SIMPLEX, 1.0, 1)
        scale = min(0.5, (width - MARGIN) / wide)
        at = k * (width + MARGIN) + MARGIN, TITLE_HEIGHT - 6
        cv2.putText(strip, title, at, cv2.FONT_HERSHEY_SIMPLEX, scale, (255,) * 3, 1, cv2.LINE_AA)
    return strip


def _row(
    keyframe: Keyframe, dense: DenseDepth | None, size: tuple[int, int], color_map: str
) -> Image:
    depth = keyframe.depth if dense is None else dense.depth
    seen = depth_range(depth) or (0.0, 1.0)
    deviation = np.full_like(depth, np.nan)
    if dense is not None:
        deviation[dense.measured] = dense.sigma[dense.measured]
    pictures = (
        keyframe.image,
        colorize_depth(keyframe.depth, seen, color_map),
        colorize_depth(depth, seen, color_map),
        colorize_depth(deviation, DEVIATION),
    )
    return np.concatenate([_fitted(picture, size) for picture in pictures], axis=1)


def _fitted(picture: Image, size: tuple[int, int]) -> Image:
    """Returns a picture in the middle of black [size], with a margin."""
    inside = fitted(picture, size)
    return np.pad(inside, ((0, MARGIN), (0, MARGIN), (0, 0)))


def fitted(picture: Image, size: tuple[int, int]) -> Image:
    """Returns a picture as large as it can be in the middle of black [H, W, 3].

    size: width and height of the result.
    """
    height, width = picture.shape[:2]
    scale = min(size[0] / width, size[1] / height)
    inner = max(1, round(scale * width)), max(1, round(scale * height))
    out = np.zeros((size[1], size[0], 3), np.uint8)
    y, x = (size[1] - inner[1]) // 2, (size[0] - inner[0]) // 2
    out[y : y + inner[1], x : x + inner[0]] = cv2.resize(
        picture, inner, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_NEAREST
    )
    return out
