"""Linear layers in 8 bits, for CPUs on which int8 is faster than any float type.

Weights are symmetric int8 with a scale per output; activations are uint8 with one scale and zero
point per call, from their minimum and maximum. Sums are exact, results fp32.

CPUs without VNNI add two products of bytes in 16 bits and clip the sum. There, weights take 7
bits, so that no sum of two products is clipped.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

LEVELS = 255  # largest activation
LARGEST_WEIGHT = {8: 127, 7: (2**15 - 1) // (2 * LEVELS)}  # by bits; 64: two products fit 16 bits
PROBED = ((1, 64, 64), (64, 384, 384))  # rows, inputs, outputs: oneDNN chooses kernels by size


def weight_bits(*, clips: bool) -> int:
    """Bits of the weights of int8 layers. clips: as ``pair_sums_clip`` measures it."""
    return 7 if clips else 8


@functools.cache
def pair_sums_clip() -> bool:
    """Whether this process's int8 kernels clip the sum of two products to 16 bits.

    Measured, since no list of CPU features tells which kernel runs: oneDNN chooses it by size, by
    version, and by ``ONEDNN_MAX_CPU_ISA``. CPU only.
    """
    return any(_clips(*shape) for shape in PROBED)


def _clips(rows: int, inputs: int, outputs: int) -> bool:
    largest = LARGEST_WEIGHT[8]
    x = torch.full((rows, inputs), LEVELS, dtype=torch.uint8)
    packed = _pack(torch.full((outputs, inputs), largest, dtype=torch.int8))
    ones, zeros = torch.ones(outputs), torch.zeros(outputs, dtype=torch.int64)
    out = _product(x, 1.0, 0, packed, ones, zeros, None)
    return not bool((out == inputs * LEVELS * largest).all())


def _pack(weight: Tensor) -> Any:
    """Weights int8 [out, in] in the layout of the kernel."""
    return torch.ops.onednn.qlinear_prepack(weight, None)


def _product(
    x: Tensor, scale: float, zero: int, packed: Any, scales: Tensor, zeros: Tensor,
    bias: Tensor | None,
) -> Tensor:  # fmt: skip
    """Activations uint8 [rows, in] times packed weights -> fp32 [rows, out]."""
    out: Tensor = torch.ops.onednn.qlinear_pointwise(
        x, scale, zero, packed, scales, zeros, bias, 1.0, 0, torch.float32, "none", [], "",
    )  # fmt: skip
    return out


class Int8Linear(nn.Module):
    """Replaces an ``nn.Linear`` with fp32 input and output; CPU and inference only."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        weight = layer.weight.detach().float()
        largest = LARGEST_WEIGHT[weight_bits(clips=pair_sums_clip())]
        self.scales = (weight.abs().amax(1) / largest).clamp_min(1e-30)
        self.zeros = torch.zeros(len(weight), dtype=torch.int64)
        self.bias = None if layer.bias is None else layer.bias.detach().float()
        rounded = (weight / self.scales[:, None]).round_().to(torch.int8)
        self.packed = _pack(rounded)
        self.weight = torch.empty(0)  # has the type that the input must have

    def forward(self, x: Tensor) -> Tensor:
        """Tensor [..., in] -> [..., out], both fp32."""
        low, high = torch.aminmax(x)
        least, most = min(0.0, float(low)), max(0.0, float(high))  # zero must stay exact
        scale = max(most - least, 1e-30) / LEVELS
        zero = round(-least / scale)
        rounded = (x.reshape(-1, x.shape[-1]) * (1 / scale)).add_(zero).round_()
        bytes_ = rounded.clamp_(0, LEVELS).to(torch.uint8)
        out = _product(bytes_, scale, zero, self.packed, self.scales, self.zeros, self.bias)
        return out.reshape(*x.shape[:-1], self.out_features)


def to_int8(network: nn.Module, kept: tuple[str, ...]) -> None:
    """Replace all linear layers in place, except those whose names start with one of ``kept``."""
    for name, module in list(network.named_modules()):
        for key, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and not f"{name}.{key}".startswith(kept):
                setattr(module, key, Int8Linear(child))


def int8_saving(network: nn.Module, kept: tuple[str, ...]) -> int:
    """Bytes of fp32 weights that ``to_int8`` saves; works on meta tensors too."""
    layers = (
        module for name, module in network.named_modules()
        if isinstance(module, nn.Linear) and not name.startswith(kept)
    )  # fmt: skip
    return sum(3 * layer.weight.numel() for layer in layers)
