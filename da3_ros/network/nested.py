"""The nested network: a multi-view network, and a metric network that gives its scale."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from da3_ros.network import metric
from da3_ros.network.backbone import Prefix
from da3_ros.network.model import Chunks, DepthAnything3, Output
from da3_ros.network.monocular import MonocularDepth, MonocularOutput
from da3_ros.network.specs import ModelSpec


class NestedPrefix(NamedTuple):
    """Outputs of the frame-local layers of both parts; of the metric part, its whole output."""

    tokens: Tensor  # as in Prefix
    descriptor: Tensor
    depth: Tensor  # [B, N, H, W] of the metric part, as in MonocularOutput
    sky: Tensor


class NestedDepthAnything3(nn.Module):
    """Depth Anything 3, nested series (arXiv 2511.10647).

    Parameter names are those of the official checkpoint without the leading ``model.``: those of
    the two parts after ``da3.`` and ``da3_metric.``.
    """

    def __init__(self, spec: ModelSpec, *, gaussians: bool = False) -> None:
        """gaussians: as in DepthAnything3."""
        super().__init__()
        if spec.metric_branch is None:
            raise ValueError(f"{spec.name} has no metric branch")
        self.spec = spec
        self.da3 = DepthAnything3(spec, gaussians=gaussians)
        self.da3_metric = MonocularDepth(spec.metric_branch)

    def set_chunks(self, chunks: Chunks) -> None:
        """Set the chunk sizes of both parts."""
        self.da3.set_chunks(chunks)
        self.da3_metric.set_chunks(chunks)

    def forward(
        self,
        images: Tensor,
        extrinsics: Tensor | None = None,
        intrinsics: Tensor | None = None,
        ref_view: str = "saddle_balanced",
        *,
        rays: bool = False,
        ray_pose: bool = False,
        focal_px: Tensor | None = None,
        fill_sky: bool = True,
        gaussians: bool = False,
    ) -> Output:
        """Run both parts; arguments as for DepthAnything3 and ``to_metres``."""
        out = self.da3(
            images, extrinsics, intrinsics, ref_view, rays=rays, ray_pose=ray_pose,
            gaussians=gaussians,
        )  # fmt: skip
        return to_metres(out, self.da3_metric(images, fill_sky=False), focal_px, fill_sky=fill_sky)

    def camera_tokens(
        self, extrinsics: Tensor, intrinsics: Tensor, size: tuple[int, int]
    ) -> Tensor:
        """As in the multi-view part."""
        return self.da3.camera_tokens(extrinsics, intrinsics, size)

    def encode(self, images: Tensor) -> NestedPrefix:
        """The frame-local layers of both parts, reusable in all windows that contain a frame."""
        return NestedPrefix(*self.da3.encode(images), *self.da3_metric.encode(images))

    def decode(
        self,
        prefix: NestedPrefix,
        size: tuple[int, int],
        camera_tokens: Tensor | None = None,
        *,
        ref_view: str = "saddle_balanced",
        frames: Tensor | None = None,
        images: Tensor | None = None,
    ) -> Output:
        """The layers with attention across frames, in an unknown unit; ``to_metres`` follows."""
        any_view = Prefix(prefix.tokens, prefix.descriptor)
        return self.da3.decode(
            any_view, size, camera_tokens, ref_view=ref_view, frames=frames, images=images
        )


def to_metres(
    out: Output,
    canonical: MonocularOutput,
    focal_px: Tensor | None = None,
    *,
    fill_sky: bool = True,
) -> Output:
    """Scale a multi-view output with a metric network's output for the same frames.

    focal_px: known mean focal lengths [B, N] of the frames in ``out.depth``; default: from
        ``out.intrinsics``.
    fill_sky: set sky to the depth of the farthest surfaces, at most 200 m, with confidence 1, as
        in the reference; otherwise the depth of sky is the network's arbitrary output.

    Gaussians are relative to the depth, so that they have its unit.

    If no scale can be found (all sky, too few pixels), ``scale`` is NaN, and lengths stay in
    their unknown unit, without filled sky.
    """
    focal = metric.focal_length(out.intrinsics) if focal_px is None else focal_px
    metres = metric.metric_depth(canonical.depth, focal)
    scale, _, spread = metric.align_depth(out.depth, out.confidence, metres, canonical.sky)
    known = scale.isfinite()[:, None, None, None]
    factor = torch.where(known, scale[:, None, None, None], 1)
    R, t = out.extrinsics.split((3, 1), dim=-1)
    depth, confidence, sky = out.depth * factor, out.confidence, canonical.sky
    if fill_sky:
        depth = torch.where(known, metric.fill_sky(depth, sky, metric.SKY_LIMIT_M, 0), depth)
        confidence = confidence.masked_fill(metric.is_sky(sky), 1.0)
    return out._replace(
        depth=depth,
        confidence=confidence,
        extrinsics=torch.cat((R, t * factor), dim=-1),
        sky=sky,
        scale=scale,
        metric_depth=metres,
        scale_spread=spread,
    )
