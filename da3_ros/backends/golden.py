"""Golden runs: results of PyTorch in fp32, with which an engine is compared before it is used.

An engine that compiles is not thereby right: TensorRT 10.3, for one, returned depth in a wrong and
varying unit for DA3 without any error.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from da3_ros.backends.compiled import difference
from da3_ros.backends.engine_folder import GOLDEN
from da3_ros.backends.self_check import pose_fault
from da3_ros.network import Network
from da3_ros.network.build import parts
from da3_ros.network.model import Chunks, DepthAnything3, Output
from da3_ros.types import Array

VIEWS = 2
# Largest difference from fp32, of the norm. In fp32 only the order of sums differs.
BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 5e-2}


@torch.inference_mode()
def golden_run(network: Network, size: tuple[int, int], views: int = VIEWS) -> dict[str, Array]:
    """Inputs and fp32 results of ``network`` (fp32, on the host) for images of ``size`` (H, W).

    Keys: ``images`` [N, 3, H, W] of N ``views``; of a multi-view part ``tokens`` [N, T, D],
    ``descriptor`` [N, D], ``depth`` and ``confidence`` [N, H, W], ``extrinsics`` [N, 3, 4] and
    ``intrinsics`` [N, 3, 3], the first view being the reference; of a single-image part
    ``image.depth`` and ``image.sky`` [N, H, W].
    """
    images = smooth_images(views, size)
    found = {"images": images}
    for part in parts(network):
        part.set_chunks(Chunks(1, 1, 0))
        prefix: Any = part.encode(torch.from_numpy(images)[None])
        if not isinstance(part, DepthAnything3):
            found |= {f"image.{name}": x[0].numpy() for name, x in prefix._asdict().items()}
            continue
        out = part.decode(prefix, size, ref_view="first")
        found |= {name: x[0].numpy() for name, x in prefix._asdict().items()}
        found |= {name: x[0].numpy() for name, x in zip(out._fields[:4], out[:4], strict=True)}
    return found


def golden_fault(
    folder: Path,
    encode: Callable[[Tensor], Any],
    decode: Callable[[Any, tuple[int, int]], Output] | None,
    precision: torch.dtype,
) -> str:
    """Text about results that differ too much from the golden run in ``folder``; "" if none do.

    ``encode`` and ``decode`` are those of a backend with the engine; ``decode`` is None for a
    single-image network.
    """
    with np.load(folder / GOLDEN, allow_pickle=False) as stored:
        golden = {name: torch.from_numpy(stored[name]) for name in stored.files}
    bound = BOUNDS[precision]
    images = golden["images"][None]
    prefix = encode(images)
    pairs = [(getattr(prefix, n), golden.get(k)) for n, k in _prefix_names(prefix).items()]
    known = [(a[0], b) for a, b in pairs if b is not None]
    fault = difference(*_columns(known), bound)
    if fault or decode is None:
        return fault
    size = (images.shape[-2], images.shape[-1])
    out = decode(prefix, size)
    expected = Output(*(golden[name][None] for name in Output._fields[:4]))
    if precision == torch.float32:
        return difference(out[:4], expected[:4], bound)
    return difference(out[:2], expected[:2], bound) or pose_fault(out, expected)


def _prefix_names(prefix: Any) -> dict[str, str]:
    """Names of a prefix's tensors, and their keys in the golden run."""
    if "tokens" not in prefix._fields:
        return {"depth": "image.depth", "sky": "image.sky"}
    nested = {"depth": "image.depth", "sky": "image.sky"} if "sky" in prefix._fields else {}
    return {"tokens": "tokens", **nested}


def _columns(pairs: list[tuple[Tensor, Tensor]]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    return tuple(a for a, _ in pairs), tuple(b for _, b in pairs)


def smooth_images(count: int, size: tuple[int, int]) -> Array:
    """Normalised images [count, 3, H, W] of one smooth pattern, each slightly shifted; fp32."""
    y, x = np.mgrid[: size[0], : size[1]] / 14.0
    shifts = 0.4 * np.arange(count)
    waves = [[np.sin((k + 1) * x + p) * np.cos((3 - k) * y - p) for k in range(3)] for p in shifts]
    return np.asarray(waves, np.float32)
