"""The head of the monocular networks: depth and sky (architecture notes, 7.2)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from da3_ros.network.head import DptPyramid, PlainScratch, output_layers
from da3_ros.network.specs import ModelSpec


class DptHead(DptPyramid):
    """Depth and sky from four taps; no token norm, no positions, no confidence."""

    scratch: DptScratch

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec.channels, spec.width)
        self.scratch = DptScratch(spec.features, spec.channels)

    def forward(self, projected: list[Tensor], size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Projected taps 4 x [F, P, c_k] of frames of ``size`` -> depth and sky [F, H, W]."""
        x = self.scratch.output_conv1(self._refine(self._pyramid(projected, size), ""))
        x = F.interpolate(x, size=size, mode="bilinear", align_corners=True)
        depth, sky = self.scratch.output_conv2, self.scratch.sky_output_conv2
        # The last step in fp32: 16 bits here would quantise the depth visibly.
        return depth[2](depth[:2](x).float())[:, 0].exp(), sky[2](sky[:2](x).float())[:, 0].relu()


class DptScratch(PlainScratch):
    """As its base, with a second output for sky."""

    def __init__(self, features: int, channels: tuple[int, ...]) -> None:
        super().__init__(features, channels, 1)
        self.sky_output_conv2 = output_layers(features // 2, 1)
