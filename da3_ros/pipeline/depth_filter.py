"""Turns raw network depth into depth that may be published: NaN where it cannot be believed."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.config import DepthConfig
from da3_ros.types import FloatImage

BEND = 0.08  # second difference of inverse depth, relative, that only an edge has
SKY = 0.3  # a sky map from here on says sky (network/metric.py says why)
RAMP = 0.15  # of depth, that a smear takes between both ends of REACH
REACH = 4  # pixels to either side, in images up to REACH_WIDTH; a network's smear is as wide
REACH_WIDTH = 504
STEEPER = 1.3  # a smear's slope over that of the surfaces it joins
STEP = 1.1  # largest over smallest depth in a 3x3 neighbourhood that is still one surface


def filter_depth(
    depth: FloatImage,
    confidence: FloatImage,
    config: DepthConfig,
    valid: NDArray[np.bool_] | None = None,
    sky: NDArray[np.bool_] | None = None,
) -> FloatImage:
    """Copy of ``depth`` [h, w] with NaN where it is unknown, doubtful or on a depth edge.

    ``valid`` [h, w] marks pixels that have a source in the camera image (rectification border).
    ``sky`` [h, w] marks those that are +Inf or NaN, as ``config.sky`` says, whatever the network
    makes of their depth and its confidence: neither means anything there.
    """
    if sky is not None:
        depth = np.where(sky, np.float32(np.inf), depth)
    with np.errstate(invalid="ignore"):
        bad = ~np.isfinite(depth) | (depth <= 0) | ~(confidence >= config.min_confidence)
    if config.confidence_percentile > 0:
        bad |= confidence < _percentile(confidence, config.confidence_percentile, sky)
    if config.edge_filter:
        bad |= depth_edges(depth)
    if sky is not None and config.sky == "inf":
        bad &= ~sky
    if valid is not None:
        bad |= ~valid
    return np.where(bad, np.float32(np.nan), depth)


def _percentile(confidence: FloatImage, share: float, sky: NDArray[np.bool_] | None) -> float:
    """The confidence that ``share`` percent of all that is not sky lie below."""
    known = confidence if sky is None else confidence[~sky]
    return float(np.percentile(known, share)) if known.size else 0.0


def sky_mask(sky: FloatImage) -> NDArray[np.bool_]:
    """Mask of a network's sky map [h, w]; NaN (not predicted) is no sky."""
    with np.errstate(invalid="ignore"):
        return np.asarray(sky >= SKY)


def depth_edges(depth: FloatImage) -> NDArray[np.bool_]:
    """Mask [h, w] of pixels on a jump between two surfaces, where a network smears depth.

    Inverse depth is linear over any plane, however slanted, so its second difference tells an edge
    from a steep floor. A smeared pixel lies between two bends, hence the dilation; pixels of the
    neighbourhood that show no step in depth are kept.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.nan_to_num(1 / depth, nan=0.0, posinf=0.0, neginf=0.0)
    kernel = np.array([1, -2, 1], dtype=np.float32)
    bend = np.maximum(
        np.abs(cv2.filter2D(inverse, -1, kernel[None], borderType=cv2.BORDER_REPLICATE)),
        np.abs(cv2.filter2D(inverse, -1, kernel[:, None], borderType=cv2.BORDER_REPLICATE)),
    )
    # At the image border the replicated pixel makes a bend of the slope itself: not an edge.
    bend[[0, -1]] = 0
    bend[:, [0, -1]] = 0
    box = np.ones((3, 3), np.uint8)
    near_bend = cv2.dilate((bend > BEND * inverse).astype(np.uint8), box) > 0
    step = cv2.dilate(inverse, box) > STEP * cv2.erode(inverse, box)
    return near_bend & step


def without_smears(depth: FloatImage) -> FloatImage:
    """Copy of ``depth`` [h, w], NaN in the ramps that networks draw from one surface to another.

    For the map, where a ramp seen from several sides becomes a fan between a box and the wall
    behind it. Stricter than `depth_edges`: it finds ramps of up to 12 pixels, whose points lie
    as smoothly as a surface's. Measured in docs/map.md; 2 ms for 224 x 168 pixels on one core.
    """
    with np.errstate(divide="ignore"):
        inverse = np.float32(1) / depth
    reach = REACH * max(1, round(max(depth.shape) / REACH_WIDTH))
    smeared = _ramps(inverse, reach) | _ramps(inverse.T, reach).T
    return np.where(smeared, np.float32(np.nan), depth)


def _ramps(inverse: FloatImage, reach: int) -> NDArray[np.bool_]:
    """Mask [h, w] of pixels where inverse depth is steeper along a row than it is to either side.

    Inverse depth is linear over any plane: a floor, however slanted, is as steep beside a pixel.
    A thin object stays, because it is level in its middle. What is not known says nothing.
    """
    rows, width = inverse.shape
    pad = 3 * reach
    slope = np.full((rows, width + 2 * pad), np.nan, np.float32)
    if width > 2 * reach:
        ramp = np.abs(inverse[:, 2 * reach :] - inverse[:, : -2 * reach])
        slope[:, pad + reach : pad + width - reach] = ramp
    middle = slope[:, pad : pad + width]
    beside = np.fmax(slope[:, :width], slope[:, 2 * pad :])
    with np.errstate(invalid="ignore"):
        return np.asarray((middle > RAMP * inverse) & (middle > STEEPER * beside))
