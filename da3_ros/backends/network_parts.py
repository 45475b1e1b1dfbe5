"""The exportable parts of a network, each a plain function of tensors with static code.

A multi-view network has three parts: ``encode`` (the frame-local blocks of one image), ``window``
(attention across the views of a window) and ``head`` (maps of one view). The number of views
occurs in ``window`` only, so the others are compiled once, for one image. The camera encoder and
decoder are small and stay in PyTorch, in fp32. A single-image network is one part, ``image``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from da3_ros.network import Network
from da3_ros.network.build import parts
from da3_ros.network.model import Chunks, DepthAnything3
from da3_ros.network.monocular import MonocularDepth
from da3_ros.network.specs import PATCH

WHOLE = Chunks(head_frames=1 << 20, local_frames=0, mlp_tokens=0)  # loops would be unrolled
EXAMPLE_VIEWS = 3  # neither 0 nor 1, which torch.export would make constants


@dataclass(frozen=True)
class Part:
    """A part with example inputs. Names are those of its inputs and outputs in the engine.

    ``views``: inputs whose first dimension is the number of views; ``wanted``: whose first
    dimension is the number of wanted views. Both numbers vary; all other dimensions are static.
    """

    module: nn.Module
    inputs: dict[str, Tensor]
    outputs: tuple[str, ...]
    views: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()


class EncodePart(nn.Module):
    def __init__(self, network: DepthAnything3) -> None:
        super().__init__()
        self.vit = network.backbone.pretrained

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Images [1, 3, H, W] -> tokens [1, T, D], descriptor [1, D]."""
        prefix = self.vit.prefix(images)
        return prefix.tokens, prefix.descriptor


class _WindowModule(nn.Module):
    def __init__(self, network: DepthAnything3, size: tuple[int, int]) -> None:
        super().__init__()
        self.vit, self.head = network.backbone.pretrained, network.head
        self.grid = (size[0] // PATCH, size[1] // PATCH)

    def forward(self, tokens: Tensor, slots: Tensor, frames: Tensor) -> tuple[Tensor, ...]:
        """Tokens [N, T, D], camera slots [N, D], wanted frames int64 [M].

        Returns four projected taps [M, P, c_k] and the camera features [N, 2D].
        """
        taps = self.vit.fuse(
            tokens[None],
            tokens[None, :, 0],  # not used: the camera slots are given
            self.grid,
            camera_tokens=slots[None],
            frames=frames,
            consume=lambda k, patches: self.head.project(k, patches.flatten(0, 1)),
        )
        return (*taps.patches, taps.camera[0])


class _Head(nn.Module):
    def __init__(self, network: DepthAnything3, size: tuple[int, int]) -> None:
        super().__init__()
        self.head, self.size = network.head, size

    def forward(self, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
        """Projected taps [1, P, c_k] of one view -> depth and confidence [1, H, W]."""
        dense = self.head.decode([a, b, c, d], self.size)
        return dense.depth, dense.confidence


class ImagePart(nn.Module):
    def __init__(self, network: MonocularDepth) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Images [1, 3, H, W] -> depth and sky [1, H, W]."""
        out = self.network(images[None], fill_sky=False)
        return out.depth[0], out.sky[0]


@torch.inference_mode()
def network_parts(network: Network, size: tuple[int, int]) -> dict[str, Part]:
    """The parts of ``network`` (fp32, on the host) for images of ``size`` (H, W), by name.

    Sets the chunk sizes of the network to ``WHOLE``.
    """
    found: dict[str, Part] = {}
    network.set_chunks(WHOLE)
    for part in parts(network):
        made = _multi_view(part, size) if isinstance(part, DepthAnything3) else _image(part, size)
        found |= made
    return found


def _image(network: MonocularDepth, size: tuple[int, int]) -> dict[str, Part]:
    images = torch.zeros(1, 3, *size)
    return {"image": Part(ImagePart(network), {"images": images}, ("depth", "sky"))}


def _multi_view(network: DepthAnything3, size: tuple[int, int]) -> dict[str, Part]:
    vit = network.backbone.pretrained
    encode, window, head = EncodePart(network), _WindowModule(network, size), _Head(network, size)
    image = torch.zeros(1, 3, *size)
    tokens = vit.prefix(image).tokens.expand(EXAMPLE_VIEWS, -1, -1).contiguous()
    slots = vit.role_tokens(1, EXAMPLE_VIEWS)[0].contiguous()
    frames = torch.arange(EXAMPLE_VIEWS - 1)
    taps = window(tokens, slots, frames)[:-1]
    names = tuple(f"tap{k}" for k in range(len(taps)))
    return {
        "encode": Part(encode, {"images": image}, ("tokens", "descriptor")),
        "window": Part(
            window,
            {"tokens": tokens, "slots": slots, "frames": frames},
            (*names, "camera"),
            views=("tokens", "slots"),
            wanted=("frames",),
        ),
        "head": Part(
            head,
            {name: tap[:1] for name, tap in zip(names, taps, strict=True)},
            ("depth", "confidence"),
        ),
    }
