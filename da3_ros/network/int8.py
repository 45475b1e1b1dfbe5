"""Linear layers in 8 bits, for CPUs on which int8 is faster than any float type.

Weights are symmetric int8 with a scale per output; activations are uint8 with one scale and zero
point per call, from their minimum and maximum. Sums are exact, results fp32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

SYMMETRIC, LEVELS = 127, 255


class Int8Linear(nn.Module):
    """Replaces an ``nn.Linear`` with fp32 input and output; CPU and inference only."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        weight = layer.weight.detach().float()
        self.scales = (weight.abs().amax(1) / SYMMETRIC).clamp_min(1e-30)
        self.zeros = torch.zeros(len(weight), dtype=torch.int64)
        self.bias = None if layer.bias is None else layer.bias.detach().float()
        rounded = (weight / self.scales[:, None]).round_().to(torch.int8)
        self.packed: Any = torch.ops.onednn.qlinear_prepack(rounded, None)
        self.weight = torch.empty(0)  # has the type that the input must have

    def forward(self, x: Tensor) -> Tensor:
        """Tensor [..., in] -> [..., out], both fp32."""
        low, high = torch.aminmax(x)
        least, most = min(0.0, float(low)), max(0.0, float(high))  # zero must stay exact
        scale = max(most - least, 1e-30) / LEVELS
        zero = round(-least / scale)
        rounded = (x.reshape(-1, x.shape[-1]) * (1 / scale)).add_(zero).round_()
        out: Tensor = torch.ops.onednn.qlinear_pointwise(
            rounded.clamp_(0, LEVELS).to(torch.uint8), scale, zero,
            self.packed, self.scales, self.zeros, self.bias,
            1.0, 0, torch.float32, "none", [], "",
        )  # fmt: skip
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
