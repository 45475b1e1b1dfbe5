"""The dense heads of DA3: taps of the backbone to depth, confidence and rays.

Heads process each frame separately, so frames are processed in small chunks: the result is the
same, and the widest maps (full image resolution) exist for only a few frames at a time. Section
numbers refer to the architecture notes; the design is DPT (Ranftl et al., arXiv 2103.13413) with
two branches.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from da3_ros.network.backbone import matching
from da3_ros.network.specs import PATCH, ModelSpec

UV_GAIN = 0.1
UV_BASE = 100.0


class Dense(NamedTuple):
    """Head outputs for frames [..., H, W]; rays on the 8h x 8w grid, only on request."""

    depth: Tensor
    confidence: Tensor
    ray: Tensor | None = None  # [..., 8h, 8w, 6] direction, origin
    ray_confidence: Tensor | None = None  # [..., 8h, 8w]


def uv_embedding(height: int, width: int, channels: int, aspect: float) -> Tensor:
    """Position map [1, C, height, width] for the image's aspect ratio W / H (7.3)."""
    diagonal = (aspect**2 + 1) ** 0.5
    span_x, span_y = aspect / diagonal, 1 / diagonal
    x = torch.linspace(-span_x * (width - 1) / width, span_x * (width - 1) / width, width)
    y = torch.linspace(-span_y * (height - 1) / height, span_y * (height - 1) / height, height)
    quarter = channels // 4
    omega = UV_BASE ** (-torch.arange(quarter, dtype=torch.float64) / quarter)
    ax, ay = (x.double()[:, None] * omega).T, (y.double()[:, None] * omega).T  # [q, w], [q, h]
    rows = (UV_GAIN * torch.cat((ax.sin(), ax.cos()))).float()[:, None].expand(-1, height, -1)
    columns = (UV_GAIN * torch.cat((ay.sin(), ay.cos()))).float()[:, :, None].expand(-1, -1, width)
    return torch.cat((rows, columns))[None]


class ResidualUnit(nn.Module):
    """x + conv(relu(conv(relu(x))))."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(features, features, 3, padding=1)
        self.conv2 = nn.Conv2d(features, features, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(F.relu(self.conv1(F.relu(x))))


class Fusion(nn.Module):
    """Add a lateral map, refine, upsample (RefineNet step of DPT)."""

    def __init__(self, features: int, lateral: bool = True) -> None:
        super().__init__()
        if lateral:
            self.resConfUnit1 = ResidualUnit(features)
        self.resConfUnit2 = ResidualUnit(features)
        self.out_conv = nn.Conv2d(features, features, 1)

    def forward(self, x: Tensor, lateral: Tensor | None, size: tuple[int, int]) -> Tensor:
        if lateral is not None:
            x = x + self.resConfUnit1(lateral)
        # Training had the 1x1 convolution after the resize. Bilinear weights sum to one, so both
        # commute exactly, and before the resize the maps are four times smaller.
        return enlarge(self.out_conv(self.resConfUnit2(x)), size)


class DptPyramid(nn.Module):
    """Common part of the heads: four taps to four maps, and these to one map of 8h x 8w."""

    scratch: nn.Module

    def __init__(self, channels: tuple[int, ...], tap_width: int) -> None:
        super().__init__()
        c = channels
        self.norm: nn.Module = nn.Identity()
        self.projects = nn.ModuleList(nn.Conv2d(tap_width, ck, 1) for ck in c)
        self.resize_layers = nn.ModuleList(
            (
                nn.ConvTranspose2d(c[0], c[0], 4, 4),
                nn.ConvTranspose2d(c[1], c[1], 2, 2),
                nn.Identity(),
                nn.Conv2d(c[3], c[3], 3, 2, 1),
            )
        )

    def forget_tables(self) -> None:
        """Drop cached position maps, in heads that have them."""

    def project(self, k: int, tap: Tensor) -> Tensor:
        """Project tap ``k`` [F, P, C] to fewer channels [F, P, c_k]."""
        # A 1x1 convolution equals a linear layer on tokens.
        layer: Any = self.projects[k]
        return F.linear(matching(self.norm(tap), layer), layer.weight.flatten(1), layer.bias)

    def _pyramid(self, projected: list[Tensor], size: tuple[int, int]) -> list[Tensor]:
        """Four maps of F channels at 4h, 2h, h and h/2."""
        h, w = size[0] // PATCH, size[1] // PATCH
        maps = []
        for k, tokens in enumerate(projected):
            x = tokens.unflatten(1, (h, w)).permute(0, 3, 1, 2)  # channels last in memory
            x = self.resize_layers[k](self._with_uv(x, size))
            # Not get_submodule: torch.compile of PyTorch 2.4 cannot call it.
            maps.append(getattr(self.scratch, f"layer{k + 1}_rn")(x))
        return maps

    def _refine(self, maps: list[Tensor], branch: str) -> Tensor:
        """Fuse four maps, starting at the coarsest one, to one of 8h x 8w."""
        sizes = [tuple(m.shape[-2:]) for m in maps]
        sizes.insert(0, (2 * sizes[0][0], 2 * sizes[0][1]))
        x = getattr(self.scratch, f"refinenet4{branch}")(maps[3], None, sizes[3])
        for r in (3, 2, 1):
            x = getattr(self.scratch, f"refinenet{r}{branch}")(x, maps[r - 1], sizes[r - 1])
        return x

    def _with_uv(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        """Add positions to a map, in heads that have them."""
        return x


class PositionedPyramid(DptPyramid):
    """A head of the multi-view networks: positions are added to its maps (7.3)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec.channels, 2 * spec.width)
        self._uv: dict[tuple[object, ...], Tensor] = {}

    def forget_tables(self) -> None:
        """Drop cached position maps."""
        self._uv.clear()

    def _with_uv(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        key = (*x.shape[1:], size, x.device, x.dtype)
        if key not in self._uv:
            if len(self._uv) >= 32:
                self._uv.clear()
            aspect = size[1] / size[0]
            self._uv[key] = uv_embedding(x.shape[2], x.shape[3], x.shape[1], aspect).to(x)
        return x + self._uv[key]


class DualDptHead(PositionedPyramid):
    """Depth and confidence, and on request rays, from four taps (7.1)."""

    scratch: Scratch

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.norm = nn.LayerNorm(2 * spec.width, eps=1e-5)
        self.scratch = Scratch(spec.features, spec.channels)

    def forward(
        self, taps: list[Tensor], size: tuple[int, int], *, rays: bool = False, chunk: int = 8
    ) -> Dense:
        """Taps 4 x [F, P, 2D] of F frames of ``size`` (H, W) -> maps [F, ...]."""
        return self.decode([self.project(k, t) for k, t in enumerate(taps)], size, rays, chunk)

    def decode(
        self, projected: list[Tensor], size: tuple[int, int], rays: bool = False, chunk: int = 8
    ) -> Dense:
        """Projected taps 4 x [F, P, c_k] -> maps [F, ...], ``chunk`` frames at a time."""
        parts = [
            self._frames([t[i : i + chunk] for t in projected], size, rays)
            for i in range(0, len(projected[0]), chunk)
        ]
        return parts[0] if len(parts) == 1 else _concatenate(parts)

    def _frames(self, projected: list[Tensor], size: tuple[int, int], rays: bool) -> Dense:
        laterals = self._pyramid(projected, size)
        depth, confidence = self._depth(self._refine(laterals, ""), size)
        if not rays:
            return Dense(depth, confidence)
        return Dense(depth, confidence, *self._rays(self._refine(laterals, "_aux"), size))

    def _depth(self, x: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        x = enlarge(self.scratch.output_conv1(x), size)
        neck = self.scratch.output_conv2[:2](self._with_uv(x, size))
        logits = self.scratch.output_conv2[2](
            neck.float()
        )  # 16 bits here quantise the depth visibly
        return logits[:, 0].exp(), 1 + logits[:, 1].exp()

    def _rays(self, x: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        x = self._with_uv(self.scratch.output_conv1_aux[3](x), size)
        live = self.scratch.output_conv2_aux[3]
        norm = getattr(self.scratch.output_conv2_aux[0], "2")  # shared, stored with stack 0
        first, last = getattr(live, "0"), getattr(live, "5")
        x = norm(first(x).float().permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        out = last(F.relu(x)).permute(0, 2, 3, 1)
        return out[..., :6], 1 + out[..., 6].exp()


def _concatenate(parts: list[Dense]) -> Dense:
    depth = torch.cat([p.depth for p in parts])
    confidence = torch.cat([p.confidence for p in parts])
    rays = [p.ray for p in parts if p.ray is not None]
    weights = [p.ray_confidence for p in parts if p.ray_confidence is not None]
    return Dense(depth, confidence, *((torch.cat(rays), torch.cat(weights)) if rays else ()))


def enlarge(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize maps [F, C, h, w] to ``size`` (H, W)."""
    return F.interpolate(x, size=size, mode="bilinear", align_corners=True)


class PlainScratch(nn.Module):
    """The part named ``scratch`` in checkpoints, of heads with one branch."""

    def __init__(self, features: int, channels: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        half = features // 2
        for k, ck in enumerate(channels):
            self.add_module(f"layer{k + 1}_rn", nn.Conv2d(ck, features, 3, padding=1, bias=False))
        for r in (1, 2, 3, 4):
            self.add_module(f"refinenet{r}", Fusion(features, lateral=r < 4))
        self.output_conv1 = nn.Conv2d(features, half, 3, padding=1)
        self.output_conv2 = output_layers(half, outputs)


def output_layers(width: int, outputs: int) -> nn.Sequential:
    """The last two convolutions of a head."""
    return nn.Sequential(nn.Conv2d(width, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, outputs, 1))


class Scratch(nn.Module):
    """The part of the head named ``scratch`` in checkpoints."""

    def __init__(self, features: int, c: tuple[int, ...]) -> None:
        super().__init__()
        half = features // 2
        for k, ck in enumerate(c):
            self.add_module(f"layer{k + 1}_rn", nn.Conv2d(ck, features, 3, padding=1, bias=False))
        for branch in ("", "_aux"):
            for r in (1, 2, 3, 4):
                self.add_module(f"refinenet{r}{branch}", Fusion(features, lateral=r < 4))
        self.output_conv1 = nn.Conv2d(features, half, 3, padding=1)
        self.output_conv2 = output_layers(half, 2)
        # Stacks 0 to 2 are not used in inference; they exist because checkpoints contain them.
        self.output_conv1_aux = nn.ModuleList(_ray_neck(features) for _ in range(4))
        self.output_conv2_aux = nn.ModuleList(_ray_out(half, with_norm=k == 0) for k in range(4))


def _ray_neck(features: int) -> nn.Sequential:
    """Five 3x3 convolutions without activations between them."""
    widths = [features, features // 2] * 3
    pairs = itertools.pairwise(widths)
    return nn.Sequential(*(nn.Conv2d(a, b, 3, padding=1) for a, b in pairs))


def _ray_out(half: int, *, with_norm: bool) -> nn.Sequential:
    """Indices as in the checkpoints: 0 convolution, 2 norm (shared, stored once), 5 output."""
    norm = nn.LayerNorm(32, eps=1e-5) if with_norm else nn.Identity()
    first, last = nn.Conv2d(half, 32, 3, padding=1), nn.Conv2d(32, 7, 1)
    return nn.Sequential(first, nn.Identity(), norm, nn.Identity(), nn.Identity(), last)
