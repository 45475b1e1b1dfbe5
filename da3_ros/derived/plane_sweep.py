"""Depth of a view by the images of its neighbours, searched around a depth that is given.

Coarse to fine. Hypotheses are factors on the given inverse depth, so that a slanted surface costs
nothing and smoothness is smoothness of the correction. The cost is one minus the correlation
(ZNCC) of small windows, averaged over the better half of the neighbours, because the others may
be occluded; ZNCC does not depend on exposure. Costs are aggregated along four paths (semi-global
matching, Hirschmueller 2008), and the minimum is found between hypotheses by a parabola.

A result is called distinct only where the images decide it: everywhere else in the range of the
search, and infinitely far away, they agree clearly less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from da3_ros.types import Array, FloatImage, Image

LEVELS = 3  # image sizes: a quarter, a half, the whole
RANGE = 0.5  # of the search, in log depth, to both sides
COARSE = 33  # hypotheses on the coarsest level
# Before that, to find the middle of the search: range, hypotheses, by how much images must agree
# better with depth outside of RANGE, and the least correlation that says something.
WIDE, WIDE_COARSE, FARTHER, COARSE_CORRELATION = 0.8, 53, 0.1, 0.5
FINE = 9  # on each finer level, over two steps of the coarser one to both sides
LAST = 2  # hypotheses to both sides after that
WINDOW, SMALL = 3, 1  # radius, pixels; the small ones tell on which side of an edge a pixel is
# Variance of the images' noise: windows with less texture do not correlate.
NOISE = (1.2 / 255) ** 2
UNSEEN = -2.0  # as a correlation: outside of the neighbour's image
REACH, BETTER = (
    7,
    0.1,
)  # of surfaces beside a ramp: a window, and by how much they must agree better
# Smoothness: small and large steps; grey difference that is an edge.
P1, P2, EDGE = 0.03, 0.5, 0.04
# A result is distinct where the mean correlation over the better half is over the first; by so
# much over that of infinity, else it may be sky, or bare; and over that of all other depths of
# the range that are so far away. Probes: of those depths.
LEAST_CORRELATION, DISTINCT, UNIQUE, APART_PX, PROBES = 0.3, 0.05, 0.02, 6.0, 24
JUMP, SLANT = 0.05, 0.03  # of log depth: another surface, and most of what slant adds to it
SMALL_SHARE = 0.8  # least correlation of small windows over that of texture with noise
NOISE_LEAST = 2 * NOISE  # of both images
CENTRED = 0.01  # least variance of small windows over that of windows


@dataclass(frozen=True, eq=False)
class SweepView:
    """An image with its camera."""

    grey: FloatImage  # [H, W], 0 to 1
    K: Array  # [3, 3] corner rule
    T_frame_camera: Array  # [4, 4] in a frame that all views share
    valid: NDArray[np.bool_] | None = None  # [H, W] False: masked, as if not in the image


@dataclass(frozen=True, eq=False)
class Swept:
    """The result of a sweep."""

    log_factor: Tensor  # [H, W] log of the depth over the one that was given
    correlation: Tensor  # [N, H, W] of each neighbour there; NaN where it does not see
    disparity: Tensor  # [N, H, W] pixels in the neighbour per unit of log depth
    distinct: Tensor  # [H, W] whether the images agree there, and clearly less elsewhere
    confirms: Tensor  # [H, W] less strict: whether it can confirm what a neighbour found


@dataclass(frozen=True, eq=False)
class _Level:
    """The images of one size, and where the pixels of the view go in the neighbours."""

    grey: Tensor  # [h, w]
    others: Tensor  # [N, 1, 1, h, w]
    base: Tensor  # [N, 3, h, w] projection of the ray
    shift: Array  # [N, 3] projection of the neighbour's view of the camera, times inverse depth
    open: Tensor | None  # [N, 1, 1, h, w] 1 where a window has no masked pixel


def grey_of(image: Image) -> FloatImage:
    """Returns the grey values [H, W], 0 to 1, of RGB [H, W, 3]."""
    return cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).astype(np.float32) / np.float32(255)


def box(x: Tensor, radius: int = WINDOW) -> Tensor:
    """Returns the mean over square windows of [..., h, w]; edges are repeated. radius: 1 or 3."""
    shape = x.shape
    x = F.pad(x.reshape(-1, 1, *shape[-2:]), (radius,) * 4, mode="replicate")
    for dim in (-1, -2):
        n = shape[dim]
        if radius == SMALL:
            x = x.narrow(dim, 0, n).add(x.narrow(dim, 1, n)).add_(x.narrow(dim, 2, n))
        else:  # by sums of two and four: fewer additions
            two = x.narrow(dim, 0, n + 5) + x.narrow(dim, 1, n + 5)
            four = two.narrow(dim, 0, n) + two.narrow(dim, 2, n)
            x = four.add_(two.narrow(dim, 4, n)).add_(x.narrow(dim, 6, n))
    return x.mul_(1 / (2 * radius + 1) ** 2).reshape(shape)


def _variance(x: Tensor, radius: int) -> Tensor:
    mean = box(x, radius)
    return (box(x * x, radius) - mean * mean).clamp_min_(0)


def _tensor(array: Array, device: torch.device) -> Tensor:
    return torch.as_tensor(array, dtype=torch.float32).to(device)


def _resized(image: Array, shape: tuple[int, int], device: torch.device) -> Tensor:
    out = _tensor(image, device)[None, None]
    return out if out.shape[-2:] == shape else F.interpolate(out, size=shape, mode="area")


def _unmasked(view: SweepView) -> FloatImage:
    """Returns the image with masked pixels bare: no window shows what was in them."""
    if view.valid is None:
        return view.grey
    return np.where(view.valid, view.grey, np.float32(0.5))


def _open_windows(view: SweepView, shape: tuple[int, int], device: torch.device) -> Tensor | None:
    """Returns 1 [1, 1, h, w] where no pixel of a window is masked, else 0."""
    if view.valid is None:
        return None
    masked = (_resized(view.valid, shape, device) < 1).float()
    return 1 - F.max_pool2d(masked, 2 * WINDOW + 1, 1, WINDOW)


def _level(
    view: SweepView, others: Sequence[SweepView], scale: int, device: torch.device
) -> _Level:
    height, width = view.grey.shape
    h, w = shape = math.ceil(height / scale), math.ceil(width / scale)
    to_level = np.diag([w / width, h / height, 1.0])
    # To coordinates from -1 to 1 over the image.
    normal = np.array([[2 / w, 0, -1], [0, 2 / h, -1], [0, 0, 1]])
    v, u = np.mgrid[0:h, 0:w] + 0.5
    rays = np.linalg.inv(to_level @ view.K) @ np.stack([u, v, np.ones_like(u)]).reshape(3, -1)
    base, shift = [], []
    for other in others:
        T = np.linalg.inv(other.T_frame_camera) @ view.T_frame_camera
        K = normal @ to_level @ other.K
        base.append(((K @ T[:3, :3]) @ rays).astype(np.float32).reshape(3, h, w))
        shift.append(K @ T[:3, 3])
    masks = None
    if any(other.valid is not None for other in others):
        every = [_open_windows(other, shape, device) for other in others]
        full = torch.ones((1, 1, h, w), device=device)
        masks = torch.stack([full if one is None else one for one in every])
    return _Level(
        _resized(view.grey, shape, device)[0, 0],
        torch.stack([_resized(_unmasked(other), shape, device) for other in others]),
        _tensor(np.stack(base), device), np.stack(shift), masks,
    )  # fmt: skip


def _correlations(level: _Level, inverse: Tensor, radius: int = WINDOW) -> Tensor:
    """Returns the correlation [N, D, h, w] at inverse depths [D, h, w]; UNSEEN outside."""
    mean = box(level.grey, radius)
    variance = _variance(level.grey, radius) + NOISE
    out = torch.empty((len(level.others), *inverse.shape), device=inverse.device)
    for k in range(len(out)):  # one after the other: what is between stays in the cache
        places, inside = _places(level, k, inverse)
        grid = places.reshape(2, 1, -1, places.shape[-1]).permute(1, 2, 3, 0)
        seen = F.grid_sample(
            level.others[k], grid, align_corners=False, padding_mode="border"
        ).reshape(inverse.shape)
        if level.open is not None:
            clear = F.grid_sample(level.open[k], grid, mode="nearest", align_corners=False)
            inside &= clear.reshape(inverse.shape) > 0
        their = box(seen, radius)
        both = box(seen * level.grey, radius).sub_(their * mean)
        noisy = box(seen.square_(), radius).sub_(their.square_()).clamp_min_(0).add_(NOISE)
        found = both.mul_(noisy.mul_(variance).rsqrt_())
        out[k] = found.masked_fill_(inside.logical_not_(), UNSEEN)
    return out


def _places(level: _Level, k: int, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """Returns x and y from -1 to 1 [2, ..., h, w] and whether they are in neighbour ``k``'s image.

    inverse: depths [..., h, w].
    """
    base, (sx, sy, sz) = level.base[k], level.shift[k].tolist()
    z = torch.add(base[2], inverse, alpha=sz)
    inside = z > 1e-6
    z = z.clamp_min_(1e-6).reciprocal_()
    out = torch.empty((2, *inverse.shape), device=inverse.device)
    for place, ray, step in zip(out, base, (sx, sy), strict=False):
        torch.add(ray, inverse, alpha=step, out=place)
        inside &= place.mul_(z).abs() < 1
    return out, inside


def _cost(level: _Level, inverse: Tensor, radius: int = WINDOW) -> Tensor:
    """Returns one minus the mean correlation [D, h, w] of the better half of the neighbours that
    see it; 1 if none does."""
    return _better_half(list(_correlations(level, inverse, radius)))


def _better_half(ones: list[Tensor]) -> Tensor:
    """As ``_cost``, of the correlation with each neighbour; overwrites it."""
    known = torch.zeros_like(ones[0])
    for one in ones:
        known += one > UNSEEN
    half = known.add_(1).mul_(0.5).floor_()
    sums, spare = torch.zeros_like(half), torch.empty_like(half)
    for rank in range((len(ones) + 1) // 2):  # the best, the second ... (sort is slower)
        for k in range(len(ones) - 1, rank, -1):
            high, low = torch.maximum(ones[k - 1], ones[k], out=spare), ones[k]
            spare = ones[k - 1]
            ones[k - 1], ones[k] = high, torch.minimum(spare, low, out=low)
        sums += torch.where(half > rank, ones[rank], 0.0)
    return sums.div_(half.clamp_min_(1)).neg_().add_(1)


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
        out[0] = both[0]
        for i in range(1, len(both)):  # few operations: a GPU waits for each one to be started
            last, now = out[i - 1], out[i]
            least = last.amin(dim=0, keepdim=True)
            best, beside = torch.minimum(last, least + large[i - 1]), last + P1
            torch.minimum(best[1:], beside[:-1], out=best[1:])
            torch.minimum(best[:-1], beside[1:], out=best[:-1])
            torch.add(both[i], best, out=now).sub_(least)
        summed = out[:, :, 0] + out[:, :, 1].flip(0)
        total += summed.permute(1, 2, 0) if not vertical else summed.permute(1, 0, 2)
    return total


def _minimum(cost: Tensor, offsets: Tensor) -> Tensor:
    """Returns the offset [h, w] of least cost, between hypotheses."""
    depths = len(offsets)
    least, index = (
        cost[0].clone(),
        torch.zeros(cost.shape[1:], dtype=torch.long, device=cost.device),
    )
    for k in range(1, depths):  # faster than argmin
        index.masked_fill_(cost[k] < least, k)
        torch.minimum(least, cost[k], out=least)
    inner = index.clamp(1, depths - 2)
    low, mid, high = (cost.gather(0, (inner + i)[None])[0] for i in (-1, 0, 1))
    curve = (low - 2 * mid + high).clamp_min(1e-6)
    part = (0.5 * (low - high) / curve).clamp(-0.5, 0.5)
    part = torch.where(index == inner, part, (index - inner).float())
    return offsets[0] + (inner + part) * (offsets[1] - offsets[0])


def _beside(inverse: Tensor) -> Tensor:
    """Returns inverse depths [3, h, w]: of the pixel, nearest and farthest of those around it."""
    x = F.pad(torch.stack([inverse, -inverse])[:, None], (REACH // 2,) * 4, mode="replicate")
    for dim in (-1, -2):  # windows of two, four and seven pixels: faster than pooling
        for shift in (1, 2, 3):
            n = x.shape[dim] - shift
            x = torch.maximum(x.narrow(dim, 0, n), x.narrow(dim, shift, n))
    return torch.stack([inverse, x[0, 0], -x[1, 0]])


def _sharpened(level: _Level, inverse: Tensor) -> Tensor:
    """Returns inverse depth [h, w] with ramps between two depths replaced by either.

    Windows on a ramp that was given fit no surface. Nearest and farthest depth around a pixel are
    surfaces there; one counts where the images agree better with it.
    """
    tried = _beside(inverse)
    cost = _cost(level, tried, SMALL)
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
    given = 1 / _tensor(depth, on)
    levels = [_level(view, others, 2**number, on) for number in range(LEVELS)]
    found, step = _coarse_to_fine(levels, given, reach)
    level = levels[0]
    inverse = _sharpened(level, given * torch.exp(-found))
    offsets = torch.linspace(-LAST * step, LAST * step, 2 * LAST + 1, device=on)
    cost = _cost(level, inverse * torch.exp(-offsets[:, None, None]))
    # Smooth costs of so small steps are more exact than the paths' steps between hypotheses.
    inverse = inverse * torch.exp(-_minimum(box(box(cost)), offsets))
    found = torch.log(given / inverse)
    correlation, here, nearer = _compared(level, inverse)
    disparity = _disparity(level, inverse, view.grey.shape)
    confirms = nearer & (found.abs() < 0.9 * reach) & _centred(level.grey)
    confirms &= _unique(levels[1], inverse, disparity, reach)
    clear = _open_windows(view, view.grey.shape, on)
    if clear is not None:
        confirms &= clear[0, 0] > 0
    distinct = confirms & (here > LEAST_CORRELATION) & _on_its_side(level, inverse, here)
    return Swept(found, correlation, disparity, distinct, confirms)


def coarse_search(
    view: SweepView, others: Sequence[SweepView], depth: FloatImage, device: str = "cpu"
) -> tuple[FloatImage, FloatImage, NDArray[np.bool_]]:
    """Returns what small images [h, w] say of depth in a wider range: log factors on it, this
    depth at their size, and where they agree clearly.

    Arguments are those of ``sweep``.
    """
    on = torch.device(device)
    level = _level(view, others, 2 ** (LEVELS - 1), on)
    inverse = _small(1 / _tensor(depth, on), level)
    offsets = torch.linspace(-WIDE, WIDE, WIDE_COARSE, device=on)
    cost = _cost(level, inverse * torch.exp(-offsets[:, None, None]))
    cost = cost + FARTHER * (offsets.abs() > RANGE)[:, None, None]
    found = _minimum(semi_global(cost, level.grey), offsets)
    _, here, nearer = _compared(level, inverse * torch.exp(-found))
    clear = nearer & (here > COARSE_CORRELATION) & (found.abs() < 0.95 * WIDE)
    return found.cpu().numpy(), (1 / inverse).cpu().numpy(), clear.cpu().numpy()


def sweep_bytes(size: tuple[int, int], neighbours: int) -> int:
    """Returns the predicted peak memory of a sweep. size: (width, height)."""
    # The full size: the costs of each neighbour and its rays, image and mask; and what the
    # correlation with one of them takes, a dozen arrays of the size of its cost.
    values = FINE * (neighbours + 14) + 7 * neighbours
    return int(4 * size[0] * size[1] * values)


def _coarse_to_fine(levels: Sequence[_Level], given: Tensor, reach: float) -> tuple[Tensor, float]:
    """Returns the log of depth over the given one [H, W], and the last step of the search."""
    step = 2 * reach / (COARSE - 1)
    offsets = torch.linspace(-reach, reach, COARSE, device=given.device)
    found = torch.zeros(levels[-1].grey.shape, device=given.device)
    for level in reversed(levels):
        if level is not levels[-1]:
            offsets = torch.linspace(-2 * step, 2 * step, FINE, device=given.device)
            step = 4 * step / (FINE - 1)
            found = F.interpolate(
                found[None, None], size=level.grey.shape, mode="bilinear", align_corners=False
            )[0, 0]
        tried = _small(given, level) * torch.exp(-(found + offsets[:, None, None]))
        found = found + _minimum(semi_global(_cost(level, tried), level.grey), offsets)
    return found, step


def _small(x: Tensor, level: _Level) -> Tensor:
    return F.interpolate(x[None, None], size=level.grey.shape, mode="area")[0, 0]


def _compared(level: _Level, inverse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the correlations [N, h, w], the mean of the better half [h, w] and whether that is
    better than infinitely far away."""
    both = _correlations(level, torch.stack([inverse, 1e-3 * inverse]))
    correlation = torch.where(both[:, 0] > UNSEEN, both[:, 0], math.nan)
    here, there = _better_half(list(both))
    return correlation, 1 - here, here < there - DISTINCT


def _on_its_side(level: _Level, inverse: Tensor, correlation: Tensor) -> Tensor:
    """Returns whether [h, w] the images of a few pixels agree better with a pixel's depth than
    with that of another surface beside it.

    Windows beside an edge show both surfaces and fit the one with more texture: without this the
    near one grows by half a window.
    """
    tried = _beside(inverse)
    cost = _cost(level, tried, SMALL)
    step = (tried / inverse).log().abs()
    # Of a slanted surface, nearest and farthest are equally far: they are no others.
    other = step > JUMP + step[1:].amin(dim=0).clamp_max(SLANT)
    best = torch.where(other, cost, 9.0).amin(dim=0) > cost[0]
    variance = _variance(level.grey, SMALL)
    noise = (_variance(level.grey, WINDOW) * (1 - correlation)).median().clamp_min(NOISE_LEAST)
    return best & (1 - cost[0] > SMALL_SHARE * variance / (variance + 2 * noise))


def _centred(grey: Tensor) -> Tensor:
    """Returns whether [h, w] there is texture at the pixel, and not only at its window's border:
    sky beside a roof."""
    return _variance(grey, SMALL) > CENTRED * _variance(grey, WINDOW)


def _unique(level: _Level, inverse: Tensor, disparity: Tensor, reach: float) -> Tensor:
    """Returns whether [H, W] the images agree nowhere else in the range as well as there.

    Along stripes and in repeated patterns they do. level: of half the size, where patterns too
    fine for it have vanished: they are not unique either.
    """
    offsets = torch.linspace(-reach, reach, PROBES + 1, device=inverse.device)
    cost = _cost(level, _small(inverse, level) * torch.exp(-offsets[:, None, None]))
    apart = APART_PX / _small(disparity.amax(dim=0), level).clamp_min(1e-6)
    other = torch.where(offsets.abs()[:, None, None] > apart, cost, 2.0).amin(dim=0)
    margin = (other - cost[PROBES // 2])[None, None]
    return (
        F.interpolate(margin, size=inverse.shape, mode="bilinear", align_corners=False)[0, 0]
        > UNIQUE
    )


def mismatch(view: SweepView, other: SweepView, depths: Array, scale: int = 1) -> Array:
    """Returns how badly the images agree with each of ``depths`` [D, h, w] of a view: the mean [D]
    of one minus the correlation, over pixels that the other view sees with all of them; NaN if it
    sees none.

    Pixels without texture say nothing either way. scale: by which images are reduced. Raises
    ValueError for views of several sizes.
    """
    if view.grey.shape != other.grey.shape:
        raise ValueError("all views must have one size")
    cpu = torch.device("cpu")
    level = _level(view, [other], scale, cpu)
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = torch.as_tensor(np.where(depths > 0, 1 / depths, 0), dtype=torch.float32)
    inverse = F.interpolate(inverse[None], size=level.grey.shape, mode="nearest")[0]
    found = _correlations(level, inverse)[0]
    seen = (found > UNSEEN).all(dim=0) & (inverse > 0).all(dim=0)
    return np.asarray(1 - found[:, seen].mean(dim=1).numpy(), float)


def _disparity(level: _Level, inverse: Tensor, shape: Sequence[int]) -> Tensor:
    """Returns by how many pixels the projection moves per unit of log depth [N, h, w]; 0 where a
    neighbour does not see it."""
    out = []
    size = torch.tensor([shape[1] / 2, shape[0] / 2], device=inverse.device)[:, None, None]
    for k in range(len(level.others)):
        at, inside = _places(level, k, inverse)
        moved = (_places(level, k, inverse * math.exp(0.01))[0] - at) * size
        out.append((moved.square().sum(dim=0).sqrt() / 0.01).masked_fill_(~inside, 0))
    return torch.stack(out)
