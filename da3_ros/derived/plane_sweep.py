"""Depth of a view by the images of its neighbours, searched around a depth that is given.

Coarse to fine. Hypotheses are factors on the given inverse depth, so that a slanted surface costs
nothing and smoothness is smoothness of the correction. The cost is one minus the correlation
(ZNCC) of small windows, averaged over the better half of the neighbours, because the others may
be occluded; ZNCC does not depend on exposure. Costs are aggregated along four paths (semi-global
matching, Hirschmueller 2008), and the minimum is found between hypotheses by a parabola.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from da3_ros.types import Array, FloatImage, Image

LEVELS = 3  # image sizes: a quarter, a half, the whole
RANGE = 0.5  # of the search, in log depth, to both sides
COARSE = 33  # hypotheses on the coarsest level
FINE = 9  # on each finer level, over two steps of the coarser one to both sides
NOISE = (
    1.2 / 255
) ** 2  # variance of the images' noise: windows with less texture do not correlate
REACH, BETTER = 7, 0.1  # of surfaces beside a ramp: pixels, and by how much they must agree better
DISTINCT = 0.05  # by how much a result agrees better than infinity: else it may be sky, or bare
LAST = 2  # hypotheses to both sides after that
P1, P2, EDGE = (
    0.03,
    0.5,
    0.04,
)  # smoothness: small and large steps; grey difference that is an edge


@dataclass(frozen=True, eq=False)
class SweepView:
    """An image with its camera."""

    grey: FloatImage  # [H, W], 0 to 1
    K: Array  # [3, 3] corner rule
    T_frame_camera: Array  # [4, 4] in a frame that all views share


@dataclass(frozen=True, eq=False)
class Swept:
    """The result of a sweep."""

    log_factor: Tensor  # [H, W] log of the depth over the one that was given
    correlation: Tensor  # [N, H, W] of each neighbour there; NaN where it does not see
    disparity: Tensor  # [N, H, W] pixels in the neighbour per unit of log depth
    distinct: Tensor  # [H, W] whether the images agree better there than infinitely far away


@dataclass(frozen=True, eq=False)
class _Level:
    """The images of one size, and where the pixels of the view go in the neighbours."""

    grey: Tensor  # [h, w]
    others: Tensor  # [N, 1, h', w']
    base: Tensor  # [N, 3, h, w] projection of the ray
    shift: Tensor  # [N, 3] projection of the neighbour's view of the camera, times inverse depth
    mean: Tensor  # [h, w] of each window of the view
    variance: Tensor  # [h, w]


def grey_of(image: Image) -> FloatImage:
    """Returns the grey values [H, W], 0 to 1, of RGB [H, W, 3]."""
    return cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).astype(np.float32) / np.float32(255)


def box(x: Tensor) -> Tensor:
    """Returns the mean over windows of 7 by 7 pixels of [..., h, w]; edges are repeated."""
    shape = x.shape
    x = F.pad(x.reshape(-1, 1, *shape[-2:]), (3, 3, 3, 3), mode="replicate")
    for dim, length in (
        (-1, shape[-1]),
        (-2, shape[-2]),
    ):  # by sums of two and four: fewer additions
        two = x.narrow(dim, 0, length + 5) + x.narrow(dim, 1, length + 5)
        four = two.narrow(dim, 0, length) + two.narrow(dim, 2, length)
        x = four.add_(two.narrow(dim, 4, length)).add_(x.narrow(dim, 6, length))
    return x.mul_(1 / 49).reshape(shape)


def _level(
    view: SweepView, others: Sequence[SweepView], scale: int, device: torch.device
) -> _Level:
    def image(one: SweepView) -> Tensor:
        grey = torch.as_tensor(one.grey, dtype=torch.float32, device=device)[None, None]
        if scale == 1:
            return grey
        size = [math.ceil(n / scale) for n in grey.shape[-2:]]
        return F.interpolate(grey, size=size, mode="area")

    def camera(one: SweepView, shape: Sequence[int]) -> Array:
        height, width = one.grey.shape
        return np.diag([shape[1] / width, shape[0] / height, 1.0]) @ one.K

    grey = image(view)[0, 0]
    h, w = grey.shape
    ones = [image(o) for o in others]
    back = np.linalg.inv(camera(view, grey.shape))
    base, shift = [], []
    for one, other in zip(ones, others, strict=True):
        T = np.linalg.inv(other.T_frame_camera) @ view.T_frame_camera
        K = camera(other, one.shape[-2:])
        size = np.array([one.shape[-1], one.shape[-2]], float)
        # To coordinates from -1 to 1 over the image.
        K = np.array([[2 / size[0], 0, -1], [0, 2 / size[1], -1], [0, 0, 1]]) @ K
        base.append(K @ T[:3, :3] @ back)
        shift.append(K @ T[:3, 3])
    v, u = np.mgrid[0:h, 0:w] + 0.5
    rays = torch.as_tensor(np.stack([u, v, np.ones_like(u)]).reshape(3, -1), device=device)
    projected = torch.as_tensor(np.stack(base), device=device) @ rays
    mean = box(grey)
    return _Level(
        grey, torch.cat(ones), projected.float().reshape(-1, 3, h, w),
        torch.as_tensor(np.stack(shift), device=device).float(), mean,
        (box(grey * grey) - mean * mean).clamp_min(0),
    )  # fmt: skip


def _correlations(level: _Level, inverse: Tensor) -> Tensor:
    """Returns the correlation [N, D, h, w] at inverse depths [D, h, w]; NaN outside."""
    count, (depths, h, w) = len(level.others), inverse.shape
    z = level.base[:, None, 2] + level.shift[:, 2, None, None, None] * inverse
    ahead = z > 1e-6
    z = torch.where(ahead, z, torch.ones_like(z))
    x = (level.base[:, None, 0] + level.shift[:, 0, None, None, None] * inverse) / z
    y = (level.base[:, None, 1] + level.shift[:, 1, None, None, None] * inverse) / z
    inside = ahead & (x.abs() < 1) & (y.abs() < 1)
    grid = torch.stack([x, y], -1).reshape(count, depths * h, w, 2)
    seen = F.grid_sample(level.others, grid, align_corners=False, padding_mode="border")
    seen = seen.reshape(count, depths, h, w)
    mean = box(seen)
    variance = (box(seen * seen) - mean * mean).clamp_min(0)
    both = box(seen * level.grey) - mean * level.mean
    found = both / ((variance + NOISE) * (level.variance + NOISE)).sqrt()
    return torch.where(inside, found, torch.full_like(found, math.nan))


def better_half(cost: Tensor) -> Tensor:
    """Returns the mean [D, h, w] over the better half of neighbours that see; 1 if none does."""
    ordered = torch.nan_to_num(cost, nan=2.0).sort(dim=0).values
    known = (ordered < 2.0).sum(dim=0)
    half = ((known + 1) // 2).clamp_min(1)
    sums = ordered.cumsum(dim=0).gather(0, (half - 1)[None])[0]
    return torch.where(known > 0, sums / half, torch.ones_like(sums))


def semi_global(cost: Tensor, grey: Tensor) -> Tensor:
    """Returns the cost [D, h, w], aggregated along four paths."""
    total = torch.zeros_like(cost)
    for vertical in (False, True):
        c = cost.permute(2, 0, 1) if not vertical else cost.permute(1, 0, 2)  # [steps, D, lines]
        g = grey.T if not vertical else grey
        penalty = P2 / (1 + (g[1:] - g[:-1]).abs() / EDGE)  # [steps - 1, lines]
        both = torch.stack([c, c.flip(0)], dim=2).contiguous()  # [steps, D, 2, lines]
        large = torch.stack([penalty, penalty.flip(0)], dim=1)  # [steps - 1, 2, lines]
        out = torch.empty_like(both)
        last = out[0] = both[0]
        for i in range(1, len(both)):
            least = last.amin(dim=0, keepdim=True)
            best = torch.minimum(last, least + large[i - 1])
            best[1:] = torch.minimum(best[1:], last[:-1] + P1)
            best[:-1] = torch.minimum(best[:-1], last[1:] + P1)
            last = out[i] = both[i] + best - least
        summed = out[:, :, 0] + out[:, :, 1].flip(0)
        total += summed.permute(1, 2, 0) if not vertical else summed.permute(1, 0, 2)
    return total


def _minimum(cost: Tensor, offsets: Tensor) -> Tensor:
    """Returns the offset [h, w] of least cost, between hypotheses."""
    depths = len(offsets)
    index = cost.argmin(dim=0)
    inner = index.clamp(1, depths - 2)
    low, mid, high = (cost.gather(0, (inner + i)[None])[0] for i in (-1, 0, 1))
    curve = (low - 2 * mid + high).clamp_min(1e-6)
    part = (0.5 * (low - high) / curve).clamp(-0.5, 0.5)
    part = torch.where(index == inner, part, (index - inner).float())
    return offsets[0] + (inner + part) * (offsets[1] - offsets[0])


def _sharpened(level: _Level, inverse: Tensor) -> Tensor:
    """Returns inverse depth [h, w] with ramps between two depths replaced by either.

    Windows on a ramp that was given fit no surface. Nearest and farthest depth around a pixel are
    surfaces there; one counts where the images agree better with it.
    """

    def around(w: Tensor) -> Tensor:
        return F.max_pool2d(w[None, None], REACH, 1, REACH // 2)[0, 0]

    tried = torch.stack([inverse, around(inverse), -around(-inverse)])
    cost = better_half(1 - _correlations(level, tried))
    cost[1:] += BETTER
    return tried.gather(0, cost.argmin(dim=0)[None])[0]


def sweep(
    view: SweepView, others: Sequence[SweepView], depth: FloatImage, *,
    reach: float = RANGE, device: str = "cpu",
) -> Swept:  # fmt: skip
    """Returns where the images of a view and its neighbours agree, around ``depth``.

    others: of one size. depth: [H, W] of the view, the unit of the poses; finite and positive.
    Raises ValueError for views of several sizes.
    """
    if any(other.grey.shape != view.grey.shape for other in others):
        raise ValueError("all views must have one size")
    on = torch.device(device)
    inverse = 1 / torch.as_tensor(depth, dtype=torch.float32, device=on)
    found, step = None, 2 * reach / (COARSE - 1)
    for number in reversed(range(LEVELS)):
        level = _level(view, others, 2**number, on)
        shape = level.grey.shape
        given = F.interpolate(inverse[None, None], size=shape, mode="area")[0, 0]
        if found is None:
            offsets = torch.linspace(-reach, reach, COARSE, device=on)
            centre = torch.zeros(shape, device=on)
        else:
            offsets = torch.linspace(-2 * step, 2 * step, FINE, device=on)
            step = 4 * step / (FINE - 1)
            centre = F.interpolate(
                found[None, None], size=shape, mode="bilinear", align_corners=False
            )[0, 0]
        tried = given * torch.exp(-(centre + offsets[:, None, None]))
        cost = better_half(1 - _correlations(level, tried))
        total = semi_global(cost, level.grey)
        found = centre + _minimum(total, offsets)
    assert found is not None
    inverse = _sharpened(level, given * torch.exp(-found))
    offsets = torch.linspace(-LAST * step, LAST * step, 2 * LAST + 1, device=on)
    cost = better_half(1 - _correlations(level, inverse * torch.exp(-offsets[:, None, None])))
    inverse = inverse * torch.exp(-_minimum(semi_global(cost, level.grey), offsets))
    found = torch.log(given / inverse)
    at, far = _correlations(level, torch.stack([inverse, 1e-3 * inverse])).unbind(1)
    here, there = better_half(1 - torch.stack([at, far], dim=1))
    distinct = (here < there - DISTINCT) & (found.abs() < 0.9 * reach)
    return Swept(found, at, _disparity(level, inverse, view.grey.shape), distinct)


def mismatch(view: SweepView, other: SweepView, depths: Array) -> Array:
    """Returns how badly the images agree with each of ``depths`` [D, h, w] of a view: the mean [D]
    of one minus the correlation, over pixels that the other view sees with all of them; NaN if it
    sees none.

    Pixels without texture say nothing either way.
    """
    cpu = torch.device("cpu")
    level = _level(view, [other], 1, cpu)
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = torch.as_tensor(np.where(depths > 0, 1 / depths, 0), dtype=torch.float32)
    cost = 1 - _correlations(level, inverse)[0]
    seen = torch.isfinite(cost).all(dim=0) & (inverse > 0).all(dim=0)
    return np.asarray(cost[:, seen].mean(dim=1).numpy(), float)


def _disparity(level: _Level, inverse: Tensor, shape: Sequence[int]) -> Tensor:
    """Returns by how many pixels the projection moves per unit of log depth [N, h, w]."""

    def place(w: Tensor) -> Tensor:
        q = level.base + level.shift[:, :, None, None] * w
        size = torch.tensor([shape[1] / 2, shape[0] / 2], device=w.device)
        return q[:, :2] / q[:, 2:].clamp_min(1e-6) * size[None, :, None, None]

    moved = place(inverse * math.exp(0.01)) - place(inverse)
    return moved.square().sum(dim=1).sqrt() / 0.01
