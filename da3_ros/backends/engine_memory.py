"""Predicts the memory of an engine by formulas that were fitted to measurements.

OpenVINO 2026.4, x86-64 with AVX512, anonymous memory of the process, da3-tiny to da3-base at
280 x 210 to 504 x 378 pixels, 4 and 8 views: predictions of the plan are about 10 % off at most
(bench/bench_memory.py). Tensors of
a part with a varying number of views do not share memory, so a window takes four times what
the same window takes with a fixed number of views, at the same speed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from da3_ros.backends.interface import EngineMemory
from da3_ros.network.specs import PATCH, ModelSpec

MIB = 2**20


@dataclass(frozen=True)
class _Costs:
    """Bytes of an engine, per byte or number of what they grow with."""

    weights: float  # per byte of fp32 weights; the plan's slack covers the runtime
    window: float  # per byte of all views' tokens in fp32
    encode: float  # per byte of one view's tokens in fp32
    head: float  # per pixel and feature


_COSTS = {
    torch.float32: _Costs(1.26, 41.0, 9.0, 3.6),
    torch.bfloat16: _Costs(0.86, 25.0, 4.5, 1.9),
}
PIXEL = 480.0  # bytes per pixel that PyTorch, NumPy and malloc take beside the engine
# Peak of the process that builds an engine: PyTorch, and copies of the weights.
BUILD_FIXED, BUILD_WEIGHTS = 420 * MIB, 2.3


def engine_memory(
    spec: ModelSpec,
    weights: int,
    views: int,
    size: tuple[int, int],
    precision: torch.dtype,
) -> EngineMemory:
    """The memory of an engine of ``spec`` for windows of ``views`` images of ``size`` (H, W).

    weights: bytes of the network's weights in fp32.
    """
    costs = _COSTS[precision if precision in _COSTS else torch.bfloat16]
    pixels = size[0] * size[1]
    tokens = (1 + pixels // PATCH**2) * spec.width * 4
    maps = costs.head * pixels * spec.features
    window = costs.window * views * tokens if spec.multi_view else 0.0
    return EngineMemory(
        weights=round(costs.weights * weights),
        activations=round(window + costs.encode * tokens + maps + PIXEL * pixels),
        build=round(BUILD_WEIGHTS * weights + BUILD_FIXED),
    )
