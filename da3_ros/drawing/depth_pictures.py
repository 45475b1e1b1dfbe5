"""A histogram of depth, and slices: what of an image lies in which range of distance."""

from __future__ import annotations

import cv2
import numpy as np

from da3_ros.drawing.colormaps import color_table, depth_range
from da3_ros.types import Array, FloatImage, Image

BARS, SLICES, COLUMNS = 64, 6, 3
BAR_WIDTH, HEIGHT = 10, 240  # pixels
SPACE = 22  # pixels of a line of text
WHITE = (255, 255, 255)


def depth_histogram(depth: FloatImage, color_map: str, unit: str) -> Image:
    """Draw how many pixels of depth [..., H, W] are at which distance, RGB.

    The range is that of ``depth_range``; bars have the colours of depth pictures. A line below
    names the range, the median, and the shares of sky (+Inf) and of unknown pixels (NaN).
    """
    width = BARS * BAR_WIDTH
    picture = np.zeros((HEIGHT + 2 * SPACE, width, 3), np.uint8)
    found = depth_range(depth)
    if found is None:
        return _written(picture, "no depth is known", HEIGHT + SPACE - 6)
    known = depth[np.isfinite(depth)]
    counts, _ = np.histogram(known.clip(*found), BARS, found)
    colors = color_table(color_map)
    for k, count in enumerate(counts):
        top = HEIGHT - round((HEIGHT - SPACE) * count / counts.max())
        color = colors[round(255 * k / (BARS - 1))].tolist()
        left = k * BAR_WIDTH, top
        cv2.rectangle(picture, left, (left[0] + BAR_WIDTH - 2, HEIGHT), color, cv2.FILLED)
    sky, unknown = np.isposinf(depth).mean(), np.isnan(depth).mean()
    near, far = found
    first = f"{near:.3g} to {far:.3g} {unit}, median {np.median(known):.3g}"
    second = f"sky {100 * sky:.1f} %, unknown {100 * unknown:.1f} %, {known.size} pixels"
    picture = _written(picture, first, HEIGHT + SPACE - 6)
    return _written(picture, second, HEIGHT + 2 * SPACE - 6)


def depth_slices(image: Image, depth: FloatImage, unit: str) -> Image:
    """Draw an image [H, W, 3] in slices of its depth [H, W], from near to far, RGB.

    Each slice has an equal number of the pixels whose depth is known, the others are dark. Its
    title names its range.
    """
    known = np.isfinite(depth)
    if not known.any():
        return _titled(np.zeros_like(image), "no depth is known")
    edges = np.quantile(depth[known], np.linspace(0, 1, SLICES + 1))
    cells = [_slice(image, depth, edges[k : k + 2], unit) for k in range(SLICES)]
    rows = [cells[k : k + COLUMNS] for k in range(0, SLICES, COLUMNS)]
    return np.concatenate([np.concatenate(row, axis=1) for row in rows])


def _slice(image: Image, depth: FloatImage, ends: Array, unit: str) -> Image:
    inside = (depth >= ends[0]) & (depth <= ends[1])
    shown = np.where(inside[..., None], image, image // 8)
    return _titled(shown.astype(np.uint8), f"{ends[0]:.3g} to {ends[1]:.3g} {unit}")


def _titled(picture: Image, text: str) -> Image:
    strip = np.zeros((SPACE, picture.shape[1], 3), np.uint8)
    return np.concatenate([_written(strip, text, SPACE - 6), picture])


def _written(picture: Image, text: str, y: int) -> Image:
    (wide, _), _ = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, 1.0, 1)
    scale = min(0.5, (picture.shape[1] - 8) / wide)
    cv2.putText(
        picture, text, (4, y), cv2.FONT_HERSHEY_SIMPLEX, scale, WHITE, 1, cv2.LINE_AA
    )  # fmt: skip
    return picture
