"""The parts of a network for other people's runtimes: few, self-contained, all shapes static.

``encode`` is the frame-local part of one image, ``decode`` the rest for a window of exactly N
views, camera slots and camera decoder included; a single-image network is one part, ``image``.
Our own engines are cut differently (network_parts): there the number of views varies.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from da3_ros.backends.network_parts import WHOLE, EncodePart, ImagePart, Part
from da3_ros.network import Network
from da3_ros.network.backbone import Prefix
from da3_ros.network.build import parts
from da3_ros.network.model import DepthAnything3
from da3_ros.network.specs import PATCH


class _Decode(nn.Module):
    def __init__(self, network: DepthAnything3, size: tuple[int, int]) -> None:
        super().__init__()
        self.network, self.size = network, size

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Tokens [N, T, D], the reference view first -> depth and confidence [N, H, W],
        world-to-camera [N, 3, 4], intrinsics [N, 3, 3].
        """
        unused = tokens[None, :, 0]  # descriptors: the order of the views is the caller's
        out = self.network.decode(Prefix(tokens[None], unused), self.size, ref_view="first")
        return out.depth[0], out.confidence[0], out.extrinsics[0], out.intrinsics[0]


@torch.no_grad()
def export_parts(network: Network, size: tuple[int, int], views: int) -> dict[str, Part]:
    """The parts of ``network`` (fp32, on the host) for images of ``size`` (H, W), by name.

    Sets chunk sizes and position tables of the network to what suits an export of ``views``
    views: it must not be used for anything else afterwards.
    """
    found: dict[str, Part] = {}
    network.set_chunks(WHOLE)
    images = torch.zeros(1, 3, *size)
    for part in parts(network):
        part.forget_tables()
        part.backbone.pretrained.fix_tables(size[0] // PATCH, size[1] // PATCH, views)
        if not isinstance(part, DepthAnything3):
            found["image"] = Part(ImagePart(part), {"images": images}, ("depth", "sky"))
            continue
        found["encode"] = Part(EncodePart(part), {"images": images}, ("tokens", "descriptor"))
        tokens = part.encode(images[None]).tokens[0].repeat(views, 1, 1)
        found["decode"] = Part(
            _Decode(part, size),
            {"tokens": tokens},
            ("depth", "confidence", "extrinsics", "intrinsics"),
        )
    for made in found.values():
        made.module(*made.inputs.values())  # makes the heads' tables, which then are constants
    return found
