"""Metres and sky: what the metric branch's two maps mean, and how they scale other depth.

Pure functions on tensors: the nested network uses them, and so can anyone who runs a multi-view
network and da3metric-large on the same images. Follows the architecture notes, section 10;
docs/deviations.md lists what differs: every statistic is exact, nothing is drawn at random, and
input that allows no answer gives NaN instead of an exception.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

CANONICAL_FOCAL_PX = 300.0  # da3metric-large answers for this focal length
SKY_THRESHOLD = 0.3  # from here on the sky map says sky
FEWEST = 10  # pixels of one kind that are too few for a statistic
NEAREST_M, NEAREST = 0.01, 0.001  # smaller depths, metric and relative, do not count
SKY_QUANTILE = 0.99  # of the depth of all that is not sky: how far filled sky is
SKY_LIMIT_M = 200.0


class Alignment(NamedTuple):
    """How the depth of B scenes relates to metres."""

    scale: Tensor  # [B] metres per unit; NaN where too little could be compared
    pixels: Tensor  # [B] how many pixels were compared
    spread: Tensor  # [B] robust standard deviation of log(metres / unit) over them; NaN likewise


def metric_depth(canonical: Tensor, focal_px: Tensor) -> Tensor:
    """Depth in metres [B, N, H, W] of a metric network's output.

    focal_px: [B, N] mean focal length in pixels of the images the network saw.
    """
    return canonical * (focal_px / CANONICAL_FOCAL_PX)[..., None, None]


def focal_length(K: Tensor) -> Tensor:
    """Mean focal length [...] of K [..., 3, 3]."""
    return (K[..., 0, 0] + K[..., 1, 1]) / 2


def is_sky(sky: Tensor) -> Tensor:
    """Where a sky map says sky; NaN counts as sky, being nothing to measure."""
    return ~(sky < SKY_THRESHOLD)


def align_depth(depth: Tensor, confidence: Tensor, metres: Tensor, sky: Tensor) -> Alignment:
    """Metres per unit of ``depth``, one number for each scene; all maps are [B, N, H, W].

    Least squares over the pixels that are not sky and whose confidence is at least the median of
    those, as the nested model does it. Ten or fewer such pixels give NaN.
    """
    scenes = zip(depth, confidence, metres, sky, strict=True)
    return Alignment(*(torch.stack(x) for x in zip(*(_align(*s) for s in scenes), strict=True)))


def fill_sky(
    depth: Tensor, sky: Tensor, limit: float = float("inf"), fewest_sky: int = FEWEST
) -> Tensor:
    """Depth [B, N, H, W] with sky put behind everything else of its scene, as the reference does.

    That is the 0.99 quantile of the depth that is not sky, at most ``limit``. A scene with
    ``fewest_sky`` pixels of sky or fewer, or ten of the rest or fewer, stays as it is.
    """
    scenes = zip(depth, is_sky(sky), strict=True)
    return torch.stack([_fill(d, s, limit, fewest_sky) for d, s in scenes])


def quantile(values: Tensor, q: float) -> Tensor:
    """Exact quantile of any number of values, linear between neighbours.

    torch.quantile refuses more than 16 million values, which a window of 24 views can have.
    """
    ordered = values.flatten().sort().values
    at = q * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return torch.lerp(ordered[low], ordered[high], at - low)


def _align(
    depth: Tensor, confidence: Tensor, metres: Tensor, sky: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Scale, number of pixels and spread of one scene, maps [N, H, W]."""
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
    """One scene, [N, H, W]."""
    if int(sky.sum()) <= fewest_sky or int((~sky).sum()) <= FEWEST:
        return depth
    return depth.masked_fill(sky, float(quantile(depth[~sky], SKY_QUANTILE).clamp_max(limit)))
