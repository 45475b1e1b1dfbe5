"""The monocular networks da3mono-large and da3metric-large, which process frames separately."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from da3_ros.network.backbone import Backbone
from da3_ros.network.dpt_head import DptHead
from da3_ros.network.metric import fill_sky as fill
from da3_ros.network.model import ChunkedNetwork, Chunks, image_size
from da3_ros.network.specs import ModelSpec


class MonocularOutput(NamedTuple):
    """Output of a monocular network, without poses, intrinsics and confidence."""

    depth: Tensor  # [B, N, H, W] z-depth; da3metric-large: in metres by metric.metric_depth
    sky: Tensor  # [B, N, H, W] from 0 upwards; threshold: see metric.is_sky


class MonocularDepth(ChunkedNetwork):
    """Depth Anything 3, monocular series (arXiv 2511.10647).

    Parameter names are those of the official checkpoints without the leading ``model.``.
    """

    head: DptHead

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.backbone = Backbone(spec)
        self.head = DptHead(spec)
        self.chunks = Chunks()

    def forward(self, images: Tensor, *, fill_sky: bool = True) -> MonocularOutput:
        """Run the network, ``chunks.head_frames`` frames at a time.

        images: [B, N, 3, H, W], ImageNet-normalised, H and W multiples of 14.
        fill_sky: set sky to the depth of the farthest surfaces, as in the reference; otherwise
            the depth of sky is the network's arbitrary output.

        Raises ValueError if the size is not a multiple of 14.
        """
        size = image_size(images)
        frames = images.flatten(0, 1).split(self.chunks.head_frames)
        parts = [self._frames(part, size) for part in frames]
        depth, sky = (
            torch.cat(p).unflatten(0, images.shape[:2]) for p in zip(*parts, strict=True)
        )
        return MonocularOutput(fill(depth, sky) if fill_sky else depth, sky)

    def encode(self, images: Tensor) -> MonocularOutput:
        """The whole network: each frame is separate, so all of it is reusable in later windows."""
        return self(images, fill_sky=False)

    def decode(self, prefix: MonocularOutput, frames: Tensor | None = None) -> MonocularOutput:
        """Select the maps of ``frames``, int64 [M], default all."""
        if frames is None:
            return prefix
        return MonocularOutput(*(maps.index_select(1, frames) for maps in prefix))

    def camera_tokens(
        self, extrinsics: Tensor, intrinsics: Tensor, size: tuple[int, int]
    ) -> Tensor:
        """Raises ValueError: these networks take no poses."""
        raise ValueError(f"{self.spec.name} takes no poses: set pose_prior.source to none")

    def _frames(self, images: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        return self.head(self.backbone.pretrained.local_taps(images, self.head.project), size)
