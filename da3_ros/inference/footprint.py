"""How much memory a network needs, found by running it on tensors that have shapes and no data.

The network itself is what is counted, so the prediction follows every change of its code. Not
seen: work space inside kernels, an allocator's fragments, and a CUDA context; a measured pass
tells about those.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from da3_ros.network import MODELS, Network
from da3_ros.network.build import network_of, parts
from da3_ros.network.int8 import int8_saving
from da3_ros.network.model import Chunks
from da3_ros.network.monocular import MonocularDepth
from da3_ros.network.precision import KEPT, convert, drop_camera_encoder, drop_rays

ALIGN_BYTES = 64  # per pixel: masks, two maps without sky, their ratio, sorted with places


@dataclass(frozen=True)
class Footprint:
    """Bytes, without what kernels, allocator and driver add."""

    weights: int
    prefix: int  # of all frames of a window, fp32
    activations: int  # the most at one time while a window runs, its inputs included


@dataclass(frozen=True)
class Shape:
    """What determines the memory of a pass."""

    model: str
    views: int
    wanted: int  # views whose depth is computed
    height: int
    width: int
    dtype: torch.dtype
    chunks: Chunks
    poses: bool = False  # whether the network is given poses


@functools.lru_cache(maxsize=512)
def footprint(shape: Shape) -> Footprint:
    """The memory that a window of this shape needs."""
    network = _without_data(shape.model, shape.dtype, shape.poses)
    network.set_chunks(shape.chunks)
    size = (shape.height, shape.width)

    def encode() -> Any:
        return network.encode(torch.empty(1, 1, 3, *size, device="meta"))

    alone = encode()

    def window() -> Any:
        kept = (x.new_empty(1, shape.views, *x.shape[2:]) for x in alone)
        return _decode(network, type(alone)(*kept), shape)

    prefix = shape.views * sum(x.nbytes for x in alone)
    peak = max(peak_of(encode), peak_of(window), _aligning(shape))
    weights = weight_bytes(network)
    if shape.dtype == torch.int8:
        weights -= sum(int8_saving(part, KEPT) for part in parts(network))
    return Footprint(weights, prefix, peak)


def _decode(network: Network, prefix: Any, shape: Shape) -> Any:
    frames = list(range(shape.views - shape.wanted, shape.views))
    if isinstance(network, MonocularDepth):
        return network.decode(prefix, frames)
    size, tokens = (shape.height, shape.width), None
    if shape.poses:
        T = torch.empty(1, shape.views, 4, 4, device="meta")
        tokens = network.camera_tokens(T, T[..., :3, :3], size)
    return network.decode(prefix, size, tokens, ref_view="first", frames=frames)


def _aligning(shape: Shape) -> int:
    """What a nested network's two parts need to agree on a metre: counts data, so not run here."""
    nested = MODELS[shape.model].metric_branch is not None
    return ALIGN_BYTES * shape.wanted * shape.height * shape.width if nested else 0


@functools.lru_cache(maxsize=16)
def _without_data(model: str, dtype: torch.dtype, poses: bool) -> Network:
    with torch.device("meta"):
        network = network_of(MODELS[model]).eval()
    drop_rays(network)
    if not poses:
        drop_camera_encoder(network)
    if dtype != torch.int8:  # which is computed in fp32 around the products, and needs data
        convert(network, dtype)
    return network


def weight_bytes(network: nn.Module) -> int:
    """Bytes of all parameters and buffers."""
    tensors = [*network.parameters(), *network.buffers()]
    return sum(t.numel() * t.element_size() for t in tensors)


@torch.inference_mode()
def peak_of(work: Callable[[], Any]) -> int:
    """The most bytes alive at one time in what ``work`` computes on meta tensors."""
    with _FusedAttention(), _Ledger() as ledger:
        result = work()
    del result
    return ledger.peak


class _FusedAttention(TorchFunctionMode):
    """Attention as fused kernels do it: nothing of quadratic size."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            return torch.empty_like(args[0])
        return func(*args, **(kwargs or {}))


class _Ledger(TorchDispatchMode):
    """Adds up the storages that operations make, as long as anything holds them."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._total = 0
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        self._forget()
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._note(tensor)
        self.peak = max(self.peak, self._total)
        return out

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        reference = StorageWeakRef(storage)
        if reference.cdata not in self._live:
            self._live[reference.cdata] = (reference, storage.nbytes())
            self._total += storage.nbytes()

    def _forget(self) -> None:
        for key in [k for k, (ref, _) in self._live.items() if ref.expired()]:
            self._total -= self._live.pop(key)[1]
