"""Compares the fast path with fp32 on a tiny window, before anything real depends on it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from da3_ros.network.model import DepthAnything3, Output
from da3_ros.network.specs import PATCH

SIZE = (5 * PATCH, 7 * PATCH)
DEPTH = 0.03  # median relative difference
ROTATION_DEG = 1.5
FOCAL = 0.03


class SelfCheck:
    """Keeps what a network in fp32 says of two small pictures; ``fault`` asks a faster one."""

    def __init__(self, network: DepthAnything3) -> None:
        """``network`` is in fp32, wherever it is."""
        self.images = _pictures()
        self.expected = _run(network, self.images)

    def fault(self, network: DepthAnything3) -> str:
        """What is too far from fp32, or an empty text."""
        found = _run(network, self.images)
        depth = float((found.depth.log() - self.expected.depth.log()).abs().median())
        turn = _angle_deg(found.extrinsics, self.expected.extrinsics)
        ratio = found.intrinsics[..., 0, 0] / self.expected.intrinsics[..., 0, 0]
        focal = float(ratio.log().abs().max())
        faults = [
            f"{name} off by {value:.3g}{unit}"
            for name, value, bound, unit in (
                ("depth", depth, DEPTH, " of its value"),
                ("rotation", turn, ROTATION_DEG, " degrees"),
                ("focal length", focal, FOCAL, " of its value"),
            )
            if not value <= bound  # also catches NaN
        ]
        return ", ".join(faults)


@torch.inference_mode()
def _run(network: DepthAnything3, images: Tensor) -> Output:
    device = next(network.parameters()).device
    # `first`: on pictures this alike, rounding would decide any other choice of reference.
    out = network(images.to(device), ref_view="first")
    depth, confidence, extrinsics, intrinsics = (x.float().cpu() for x in out[:4])
    return Output(depth, confidence, extrinsics, intrinsics)


def _pictures() -> Tensor:
    """Two smooth pictures [1, 2, 3, H, W] of one pattern, a little apart."""
    y, x = np.mgrid[: SIZE[0], : SIZE[1]] / 14.0
    waves = [np.sin((k + 1) * x + p) * np.cos((3 - k) * y - p) for k in range(3) for p in (0, 0.4)]
    pictures = np.stack([np.stack(waves[p::2]) for p in (0, 1)])
    return torch.from_numpy(pictures).float()[None]


def _angle_deg(a: Tensor, b: Tensor) -> float:
    """Largest angle between rotations [..., 3, 3 or 4]."""
    trace = (a[..., :3, :3] * b[..., :3, :3]).sum((-1, -2))
    return float(((trace - 1) / 2).clamp(-1, 1).acos().rad2deg().max())
