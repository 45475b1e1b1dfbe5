"""Metric scale and sky from the two maps of the metric branch.

Pure functions on tensors, used by the nested network, and for a multi-view network and
da3metric-large on the same images. Follows the architecture notes, section 10;
docs/deviations.md lists the differences: all statistics are exact, without random sampling, and
the result is NaN instead of an exception if it cannot be computed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

CANONICAL_FOCAL_PX = 300.0  # focal length for which the depth of da3metric-large is metric
SKY_THRESHOLD = 0.3  # least value of the sky map for sky
FEWEST = 10  # so few pixels of one kind, or fewer, allow no statistic
NEAREST_M, NEAREST = 0.01, 0.001  # smaller depths, metric and relative, are ignored
SKY_QUANTILE = 0.99  # quantile of the depth without sky, used as the depth of filled sky
SKY_LIMIT_M = 200.0


class DepthAlignment(NamedTuple):
    """Metres per unit of depth of B scenes."""

    scale: Tensor  # [B] metres per unit; NaN: too few pixels to compare
    pixels: Tensor  # [B] number of compared pixels
    spread: Tensor  # [B] robust standard deviation of log(metres / unit) over them; NaN as scale


def metric_depth(canonical: Tensor, focal_px: Tensor) -> Tensor:
    """Convert a metric network's output to depth in metres [B, N, H, W].

    focal_px: [B, N] mean focal length in pixels of the images the network saw.
    """
    return canonical * (focal_px / CANONICAL_FOCAL_PX)[..., None, None]


def focal_length(K: Tensor) -> Tensor:
    """Mean focal length [...] of K [..., 3, 3]."""
    return (K[..., 0, 0] + K[..., 1, 1]) / 2


def is_sky(sky: Tensor) -> Tensor:
    """Mask of sky. NaN counts as sky, because it cannot be measured."""
    return ~(sky < SKY_THRESHOLD)


def align_depth(depth: Tensor, confidence: Tensor, metres: Tensor, sky: Tensor) -> DepthAlignment:
    """Metres per unit of ``depth``, one value per scene; all maps are [B, N, H, W].

    Least squares over pixels without sky whose confidence is at least the median, as in the
    nested model. Ten or fewer such pixels give NaN.
    """
    scenes = zip(depth, confidence, metres, sky, strict=True)
    return DepthAlignment(
        *(torch.stack(x) for x in zip(*(_align(*s) for s in scenes), strict=True))
    )


def fill_sky(
    depth: Tensor, sky: Tensor, limit: float = float("inf"), fewest_sky: int = FEWEST
) -> Tensor:
    """Set the depth [B, N, H, W] of sky to that of the farthest surfaces, as in the reference.

    This is the 0.99 quantile of the depth without sky, at most ``limit``. A scene with at most
    ``fewest_sky`` pixels of sky, or at most ten other pixels, is not changed.
    """
    scenes = zip(depth, is_sky(sky), strict=True)
    return torch.stack([_fill(d, s, limit, fewest_sky) for d, s in scenes])


def quantile(values: Tensor, q: float) -> Tensor:
    """Exact quantile of any number of values, with linear interpolation.

    torch.quantile accepts at most 16 million values; a window of 24 views can have more.
    """
    ordered = values.flatten().sort().values
    at = q * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return torch.lerp(ordered[low], ordered[high], at - low)


def _align(
    depth: Tensor, confidence: Tensor, metres: Tensor, sky: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Scale, number of pixels and spread of one scene with maps [N, H, W]."""
    seen = ~is_sky(sky) & depth.isfinite() & metres.isfinite() & confidence.isfinite()
    unknown = depth.new_tensor(torch.nan)
    if int(seen.sum()) <= FEWEST:
        return unknown, seen.sum(), unknown
    good = seen & (confidence >= quantile(confidence[seen], 0.5))
    good &= (metres > NEAREST_M) & (depth > NEAREST)
    m, d = metres[good], depth[good]
    if len(m) <= FEWEST:
        return unknown, good.sum(), unknown
    ratio = (m / d).log()
    spread = 1.4826 * quantile((ratio - quantile(ratio, 0.5)).abs(), 0.5)
    return (m * d).sum() / (d * d).sum(), good.sum(), spread


def _fill(depth: Tensor, sky: Tensor, limit: float, fewest_sky: int) -> Tensor:
    """``fill_sky`` for one scene [N, H, W]."""
    if int(sky.sum()) <= fewest_sky or int((~sky).sum()) <= FEWEST:
        return depth
    return depth.masked_fill(sky, float(quantile(depth[~sky], SKY_QUANTILE).clamp_max(limit)))
