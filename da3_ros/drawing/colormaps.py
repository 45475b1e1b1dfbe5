"""Converts depth and confidence maps to colour images. Independent of ROS."""

from __future__ import annotations

import functools

import cv2
import numpy as np

from da3_ros.types import Array, FloatImage, Image

SKY_RGB = (225, 235, 245)  # +Inf; not a colour of the colour maps
UNKNOWN_RGB = (0, 0, 0)  # NaN
# Confidence is 1 + exp(network output), so its excess over 1 varies by orders of magnitude. In six
# rendered rooms da3-tiny gave 0 to 28 % of all pixels below this range, and none above it.
CONFIDENCE_EXCESS = (0.01, 10.0)

# ColorBrewer's Spectral, low to high, as RGB.
_SPECTRAL = (
    (158, 1, 66), (213, 62, 79), (244, 109, 67), (253, 174, 97), (254, 224, 139), (255, 255, 191),
    (230, 245, 152), (171, 221, 164), (102, 194, 165), (50, 136, 189), (94, 79, 162),
)  # fmt: skip


def color_table(name: str) -> Image:
    """256 RGB colours from near (warm) to far (cold). Raises ValueError for an unknown name."""
    if name == "spectral":
        anchors: Array = np.array(_SPECTRAL, np.float64)
        at = np.linspace(0, len(anchors) - 1, 256)
        columns = [np.interp(at, np.arange(len(anchors)), c) for c in anchors.T]
        return np.stack(columns, axis=1).round().astype(np.uint8)
    if name == "turbo":
        # Turbo runs from blue to red: reversed, as near is red.
        ramp = np.arange(255, -1, -1, dtype=np.uint8)[:, None]
        return np.ascontiguousarray(cv2.applyColorMap(ramp, cv2.COLORMAP_TURBO)[:, 0, ::-1])
    raise ValueError(f"unknown colour map {name!r}: spectral or turbo")


def colorize_depth(
    depth: FloatImage, range_m: tuple[float, float], name: str = "spectral"
) -> Image:
    """Convert z-depth float32 [H, W] to RGB uint8 [H, W, 3] over a fixed range (near, far).

    Near is red; values outside the range get its end colours; NaN is black and +Inf (sky) light
    grey. Equal depths have equal colours in all frames.
    """
    near, far = range_m
    # OpenCV's colour maps are faster than indexing with NumPy.
    above = np.clip(depth, near, far, dtype=np.float32) - np.float32(near)
    index = cv2.convertScaleAbs(above, alpha=255 / (far - near))
    colors = np.asarray(cv2.applyColorMap(index, _table_column(name)), np.uint8)
    finite = np.isfinite(depth)
    if not finite.all():
        colors[~finite] = UNKNOWN_RGB
        colors[np.isposinf(depth)] = SKY_RGB
    return colors


def colorize_confidence(confidence: FloatImage, name: str = "spectral") -> Image:
    """Convert confidence float32 [H, W], from 1 upwards, to RGB uint8 [H, W, 3].

    Shows the logarithm of confidence - 1 over the fixed range CONFIDENCE_EXCESS: low confidence
    is red, high confidence blue, NaN black. Equal confidences have equal colours in all frames.
    """
    low, high = np.log(CONFIDENCE_EXCESS, dtype=np.float32)
    excess = np.clip(confidence - 1, *CONFIDENCE_EXCESS, dtype=np.float32)
    index = cv2.convertScaleAbs(np.log(excess) - low, alpha=255 / float(high - low))
    colors = np.asarray(cv2.applyColorMap(index, _table_column(name)), np.uint8)
    unknown = np.isnan(confidence)
    if unknown.any():
        colors[unknown] = UNKNOWN_RGB
    return colors


@functools.lru_cache
def _table_column(name: str) -> Image:
    """The colour table in OpenCV's shape [256, 1, 3]."""
    return color_table(name)[:, None]
