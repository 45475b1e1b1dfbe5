"""Converts a network's large matrices to 16 or 8 bits; sensitive layers stay in fp32.

Norms, gammas, tokens and the residual stream stay in fp32, and also the camera parts and the last
convolution and exponential of the heads: there 16 bits would quantise the depth visibly.
"""

from __future__ import annotations

import torch
from torch import nn

from da3_ros.network.build import Network, parts
from da3_ros.network.int8 import to_int8

MATRICES = (nn.Linear, nn.Conv2d, nn.ConvTranspose2d)
KEPT = (
    "cam_enc.",
    "cam_dec.",
    "head.scratch.output_conv2.2",
    "head.scratch.output_conv2_aux",
    "head.scratch.sky_output_conv2.2",
    "gs_head.scratch.output_conv2.2",
)


@torch.no_grad()
def convert(network: Network, dtype: torch.dtype) -> None:
    """Convert the weights of matrix products to ``dtype`` in place; fp32 changes nothing.

    ``int8`` converts only linear layers, and only on the CPU. The lost precision can be restored
    only by loading the checkpoint again.
    """
    for part in parts(network):
        if dtype == torch.int8:
            to_int8(part, KEPT)
            continue
        for name, module in part.named_modules():
            if isinstance(module, MATRICES) and not name.startswith(KEPT):
                module.to(dtype)


@torch.no_grad()
def channels_last(network: Network) -> None:
    """Convert the heads' convolutions to channels-last layout, which its maps have."""
    heads = [head for part in parts(network) for head in part.heads]
    for module in (m for head in heads for m in head.modules()):
        if isinstance(module, nn.Conv2d):
            module.weight.data = module.weight.contiguous(memory_format=torch.channels_last)


def drop_camera_encoder(network: Network) -> None:
    """Remove the camera encoder, which is used only with known poses."""
    for part in parts(network):
        if hasattr(part, "cam_enc"):
            del part.cam_enc


def drop_rays(network: Network) -> None:
    """Remove the head's ray branch, two thirds of its weights; ray maps are then unavailable."""
    for scratch in (part.head.scratch for part in parts(network)):
        for name in [n for n, _ in scratch.named_children() if n.endswith("_aux")]:
            delattr(scratch, name)
