"""Converts depth and confidence maps to colour images. Independent of ROS."""

from __future__ import annotations

import functools

import cv2
import numpy as np

from da3_ros.config import COLOR_MAPS
from da3_ros.types import Array, FloatImage, Image

SKY_RGB = (225, 235, 245)  # +Inf; not a colour of the colour maps
UNKNOWN_RGB = (0, 0, 0)  # NaN
# Instead of the two, for maps from white to black, which have both.
BLUE_SKY_RGB, TEAL_RGB = (120, 190, 255), (0, 80, 95)
FROM_WHITE_TO_BLACK = ("magma", "inferno", "grey")
# Confidence is 1 + exp(network output), so its excess over 1 varies by orders of magnitude. In six
# rendered rooms da3-tiny gave 0 to 28 % of all pixels below this range, and none above it.
CONFIDENCE_EXCESS = (0.01, 10.0)

# ColorBrewer's Spectral, low to high, as RGB.
_SPECTRAL = (
    (158, 1, 66), (213, 62, 79), (244, 109, 67), (253, 174, 97), (254, 224, 139), (255, 255, 191),
    (230, 245, 152), (171, 221, 164), (102, 194, 165), (50, 136, 189), (94, 79, 162),
)  # fmt: skip
# OpenCV's tables by their names. They run from dark, turbo from blue: reversed, as near is bright
# or red.
_OPENCV = {
    "turbo": cv2.COLORMAP_TURBO, "viridis": cv2.COLORMAP_VIRIDIS, "plasma": cv2.COLORMAP_PLASMA,
    "magma": cv2.COLORMAP_MAGMA, "inferno": cv2.COLORMAP_INFERNO,
}  # fmt: skip


def color_table(name: str) -> Image:
    """Returns 256 RGB colours from near to far: from warm to cold or from bright to dark.

    name: one of ``config.COLOR_MAPS``. Raises ValueError for another one.
    """
    if name == "spectral":
        anchors: Array = np.array(_SPECTRAL, np.float64)
        at = np.linspace(0, len(anchors) - 1, 256)
        columns = [np.interp(at, np.arange(len(anchors)), c) for c in anchors.T]
        return np.stack(columns, axis=1).round().astype(np.uint8)
    ramp = np.arange(255, -1, -1, dtype=np.uint8)[:, None]
    if name == "grey":
        return np.repeat(ramp, 3, axis=1)
    if name in _OPENCV:
        return np.ascontiguousarray(cv2.applyColorMap(ramp, _OPENCV[name])[:, 0, ::-1])
    raise ValueError(f"unknown colour map {name!r}: {', '.join(COLOR_MAPS)}")


def marks(name: str) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Returns the RGB colours of what is unknown and of sky, which a colour map does not have."""
    if name in FROM_WHITE_TO_BLACK:
        return TEAL_RGB, BLUE_SKY_RGB
    return UNKNOWN_RGB, SKY_RGB


def depth_range(depth: FloatImage) -> tuple[float, float] | None:
    """Returns (near, far) of depth [H, W], without the two outermost percents; None: no depth is
    known."""
    known = depth[np.isfinite(depth)]
    if not len(known):
        return None
    near, far = np.percentile(known, (2, 98)).tolist()
    return near, max(far, near * 1.001 + 1e-9)


def colorize_depth(
    depth: FloatImage, range_m: tuple[float, float], name: str = "spectral"
) -> Image:
    """Convert z-depth float32 [H, W] to RGB uint8 [H, W, 3] over a fixed range (near, far).

    Near is red or bright; values outside the range get its end colours; NaN and +Inf (sky) those
    of ``marks``. Equal depths have equal colours in all frames.
    """
    near, far = range_m
    # OpenCV's colour maps are faster than indexing with NumPy.
    above = np.clip(depth, near, far, dtype=np.float32) - np.float32(near)
    index = cv2.convertScaleAbs(above, alpha=255 / (far - near))
    colors = np.asarray(cv2.applyColorMap(index, _table_column(name)), np.uint8)
    finite = np.isfinite(depth)
    if not finite.all():
        unknown, sky = marks(name)
        colors[~finite] = unknown
        colors[np.isposinf(depth)] = sky
    return colors


def colorize_confidence(confidence: FloatImage, name: str = "spectral") -> Image:
    """Convert confidence float32 [H, W], from 1 upwards, to RGB uint8 [H, W, 3].

    Shows the logarithm of confidence - 1 over the fixed range CONFIDENCE_EXCESS: low confidence
    has the colour of near depth, NaN the first of ``marks``. Equal confidences have equal colours
    in all frames.
    """
    low, high = np.log(CONFIDENCE_EXCESS, dtype=np.float32)
    excess = np.clip(confidence - 1, *CONFIDENCE_EXCESS, dtype=np.float32)
    index = cv2.convertScaleAbs(np.log(excess) - low, alpha=255 / float(high - low))
    colors = np.asarray(cv2.applyColorMap(index, _table_column(name)), np.uint8)
    unknown = np.isnan(confidence)
    if unknown.any():
        colors[unknown] = marks(name)[0]
    return colors


@functools.lru_cache
def _table_column(name: str) -> Image:
    """The colour table in OpenCV's shape [256, 1, 3]."""
    return color_table(name)[:, None]
