"""Compares a lower precision or a compiled program with fp32 on a tiny window before use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from da3_ros.network import Network
from da3_ros.network.build import parts
from da3_ros.network.model import DepthAnything3, Output
from da3_ros.network.monocular import MonocularDepth, MonocularOutput
from da3_ros.network.specs import PATCH

SIZE = (5 * PATCH, 7 * PATCH)
BOUNDS = {  # largest difference from fp32, and its unit
    "depth": (0.03, " of its value"),  # median
    "rotation": (1.5, " degrees"),
    "focal length": (0.03, " of its value"),
    "Gaussians": (0.1, " of their values"),  # median, of 1 for smaller ones
    "share of lost Gaussians": (0.01, ""),  # of a view
}


class SelfCheck:
    """Keeps an fp32 network's output for two small images; ``fault`` compares another network."""

    def __init__(self, network: Network) -> None:
        """``network``: in fp32, on any device."""
        self.images = _pictures()
        self.expected = _run(network, self.images)

    def fault(self, network: Network) -> str:
        """Text about values too far from fp32; empty if there are none."""
        outputs = _run(network, self.images)
        pairs = zip(outputs, self.expected, strict=True)
        return _faults(d for found, expected in pairs for d in _differences(found, expected))


def pose_fault(found: Any, expected: Any) -> str:
    """Text about poses or intrinsics too far from those expected; empty if there are none."""
    if not isinstance(found, Output) or not isinstance(expected, Output):
        return ""
    return _faults(_pose_differences(found, expected))


def _faults(differences: Iterable[tuple[str, float]]) -> str:
    faults = []
    for name, value in differences:
        bound, unit = BOUNDS[name]
        if not value <= bound:  # also catches NaN
            faults.append(f"{name} differs by {value:.3g}{unit}")
    return ", ".join(faults)


def _differences(
    found: Output | MonocularOutput, expected: Output | MonocularOutput
) -> Iterator[tuple[str, float]]:
    yield "depth", float((found.depth.log() - expected.depth.log()).abs().median())
    if isinstance(found, Output) and isinstance(expected, Output):
        yield from _pose_differences(found, expected)
        if found.gaussians is not None and expected.gaussians is not None:
            yield from _gaussian_differences(found.gaussians, expected.gaussians)


def _gaussian_differences(found: Tensor, expected: Tensor) -> Iterator[tuple[str, float]]:
    """Compares relative Gaussians [B, G, 38, H, W] where those expected are finite."""
    good, there = (x.isfinite().all(dim=2) for x in (expected, found))
    off = ((found - expected).abs() / expected.abs().clamp(min=1)).amax(dim=2)
    if bool((good & there).any()):
        yield "Gaussians", float(off[good & there].median())
    lost = (good & ~there).sum(dim=(-2, -1)) / good.sum(dim=(-2, -1)).clamp(min=1)
    yield "share of lost Gaussians", float(lost.max())


def _pose_differences(found: Output, expected: Output) -> Iterator[tuple[str, float]]:
    yield "rotation", _angle_deg(found.extrinsics.float(), expected.extrinsics.float())
    ratio = found.intrinsics[..., 0, 0].float() / expected.intrinsics[..., 0, 0].float()
    yield "focal length", float(ratio.log().abs().max())


@torch.inference_mode()
def _run(network: Network, images: Tensor) -> list[Output | MonocularOutput]:
    """Outputs of each part: a nested network's unit depends on both, and on its sky mask."""
    return [_answer(part, images) for part in parts(network)]


def _answer(part: DepthAnything3 | MonocularDepth, images: Tensor) -> Output | MonocularOutput:
    images = images.to(next(part.parameters()).device)
    if isinstance(part, MonocularDepth):
        return MonocularOutput(*(x.float().cpu() for x in part(images, fill_sky=False)))
    # `first`: on images this similar, rounding would decide any other choice of reference view.
    found = part(images, ref_view="first", gaussians=part.gs_head is not None)
    values = (found.depth, found.confidence, found.extrinsics, found.intrinsics)
    out = Output(*(x.float().cpu() for x in values))
    if found.gaussians is None:
        return out
    return out._replace(gaussians=found.gaussians.float().cpu())


def _pictures() -> Tensor:
    """Two smooth images [1, 2, 3, H, W] of one pattern, slightly shifted."""
    y, x = np.mgrid[: SIZE[0], : SIZE[1]] / 14.0
    waves = [np.sin((k + 1) * x + p) * np.cos((3 - k) * y - p) for k in range(3) for p in (0, 0.4)]
    pictures = np.stack([np.stack(waves[p::2]) for p in (0, 1)])
    return torch.from_numpy(pictures).float()[None]


def _angle_deg(a: Tensor, b: Tensor) -> float:
    """Largest angle in degrees between rotations [..., 3, 3 or 4]."""
    trace = (a[..., :3, :3] * b[..., :3, :3]).sum((-1, -2))
    return float(((trace - 1) / 2).clamp(-1, 1).acos().rad2deg().max())
