"""Filters raw network depth for publishing: NaN where it is not trustworthy."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.config import DepthConfig
from da3_ros.types import FloatImage

BEND = 0.08  # relative second difference of inverse depth; larger only at an edge
SKY = 0.3  # threshold of the sky map; see network/metric.py
RAMP = 0.15  # relative change of inverse depth over REACH on both sides; larger in a ramp
REACH = 4  # half width of a ramp, pixels, in images up to REACH_WIDTH
REACH_WIDTH = 504
STEEPER = 1.3  # slope of a ramp over that of the surfaces beside it
STEP = 1.1  # largest over smallest depth of one surface in a 3x3 neighbourhood


def filter_depth(
    depth: FloatImage,
    confidence: FloatImage,
    config: DepthConfig,
    valid: NDArray[np.bool_] | None = None,
    sky: NDArray[np.bool_] | None = None,
) -> FloatImage:
    """Returns a copy of ``depth`` [h, w], NaN where it is unknown, uncertain or on a depth edge.

    ``valid`` [h, w]: as in PreparedImage: not the border of rectification, not the robot itself.
    ``sky`` [h, w]: pixels that become +Inf or NaN, by ``config.sky``; depth and confidence are
    meaningless there.
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
    """Returns the percentile ``share`` of the confidence of all pixels that are not sky."""
    known = confidence if sky is None else confidence[~sky]
    return float(np.percentile(known, share)) if known.size else 0.0


def sky_mask(sky: FloatImage) -> NDArray[np.bool_]:
    """Returns the mask [h, w] of sky; NaN (not predicted) is no sky."""
    with np.errstate(invalid="ignore"):
        return np.asarray(sky >= SKY)


def depth_edges(depth: FloatImage) -> NDArray[np.bool_]:
    """Returns the mask [h, w] of pixels on a depth edge, where a network smears depth.

    Inverse depth is linear over any plane, however slanted, so its second difference distinguishes
    an edge from a steep floor. A smeared pixel lies between two bends, hence the dilation; pixels
    without a depth step in their neighbourhood are kept.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.nan_to_num(1 / depth, nan=0.0, posinf=0.0, neginf=0.0)
    kernel = np.array([1, -2, 1], dtype=np.float32)
    bend = np.maximum(
        np.abs(cv2.filter2D(inverse, -1, kernel[None], borderType=cv2.BORDER_REPLICATE)),
        np.abs(cv2.filter2D(inverse, -1, kernel[:, None], borderType=cv2.BORDER_REPLICATE)),
    )
    # At the image border the replicated pixel turns a slope into a bend: not an edge.
    bend[[0, -1]] = 0
    bend[:, [0, -1]] = 0
    box = np.ones((3, 3), np.uint8)
    near_bend = cv2.dilate((bend > BEND * inverse).astype(np.uint8), box) > 0
    step = cv2.dilate(inverse, box) > STEP * cv2.erode(inverse, box)
    return near_bend & step


def without_smears(depth: FloatImage) -> FloatImage:
    """Returns a copy of ``depth`` [h, w], NaN in the ramps that networks put at depth edges.

    For the map, where a ramp seen from several sides becomes a fan between a box and the wall
    behind it. Stricter than `depth_edges`: it finds ramps of up to 12 pixels, which are as smooth
    as a surface. Measured in docs/figures.md; 0.3 ms for 224 x 168 pixels on one core.
    """
    with np.errstate(divide="ignore"):
        inverse = np.float32(1) / depth
    reach = REACH * max(1, round(max(depth.shape) / REACH_WIDTH))
    smeared = _ramps(inverse, reach) | _ramps(inverse.T, reach).T
    return np.where(smeared, np.float32(np.nan), depth)


def _ramps(inverse: FloatImage, reach: int) -> NDArray[np.bool_]:
    """Returns the mask [h, w] of pixels where inverse depth is steeper along a row than to either
    side.

    Inverse depth is linear over any plane: a floor, however slanted, has the same slope to either
    side. A thin object stays, because its middle has no slope. Unknown depth is ignored.
    """
    rows, width = inverse.shape
    pad = 3 * reach
    slope = np.full((rows, width + 2 * pad), np.nan, np.float32)
    if width > 2 * reach:
        ramp = np.abs(inverse[:, 2 * reach :] - inverse[:, : -2 * reach])
        slope[:, pad + reach : pad + width - reach] = ramp
    middle = slope[:, pad : pad + width]
    neighbours = np.fmax(slope[:, :width], slope[:, 2 * pad :])
    with np.errstate(invalid="ignore"):
        return np.asarray((middle > RAMP * inverse) & (middle > STEEPER * neighbours))
