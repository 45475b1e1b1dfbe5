"""How much memory a network needs, found by running it on tensors that have shapes and no data.

The network itself is what is counted, so the prediction follows every change of its code. Not
seen: work space inside kernels, an allocator's fragments, and a CUDA context; a measured pass
tells about those.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch._prims_common import suggest_memory_format
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from da3_ros.network import MODELS, ModelSpec, Network
from da3_ros.network.backbone import Block, RopeTable
from da3_ros.network.build import network_of, parts
from da3_ros.network.int8 import int8_saving
from da3_ros.network.model import Chunks
from da3_ros.network.monocular import MonocularDepth
from da3_ros.network.precision import KEPT, convert, drop_camera_encoder, drop_rays

_counting = threading.Lock()  # networks without data are shared, and hold the shape's chunks
RESIZES = (torch.ops.aten.upsample_bilinear2d.vec, torch.ops.aten.upsample_bicubic2d.vec)
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


def footprint(shape: Shape) -> Footprint:
    """The memory that a window of this shape needs. Any thread may ask."""
    return cached_footprint(shape, MODELS[shape.model])


@functools.lru_cache(maxsize=512)
def cached_footprint(shape: Shape, spec: ModelSpec) -> Footprint:
    """``footprint`` of a model of these sizes: a name may come to mean another network."""
    with _counting:
        return _footprint(shape, spec)


@torch.inference_mode()  # always: a network that was built in it does not run outside
def _footprint(shape: Shape, spec: ModelSpec) -> Footprint:
    network = _without_data(spec, shape.dtype, shape.poses)
    for part in parts(network):
        part.forget_tables()  # so that an answer does not depend on what was asked before
    network.set_chunks(shape.chunks)
    size = (shape.height, shape.width)

    def encode() -> Any:
        return network.encode(torch.empty(1, 1, 3, *size, device="meta"))

    alone = encode()

    def window() -> Any:
        kept = (x.new_empty(1, shape.views, *x.shape[2:]) for x in alone)
        return _decode(network, type(alone)(*kept), shape)

    prefix = shape.views * sum(x.nbytes for x in alone)
    peak = max(peak_of(encode), peak_of(window), _aligning(shape, spec))
    weights = weight_bytes(network)
    if shape.dtype == torch.int8:
        weights -= sum(int8_saving(part, KEPT) for part in parts(network))
    return Footprint(weights, prefix, peak)


def _decode(network: Network, prefix: Any, shape: Shape) -> Any:
    frames = None
    if shape.wanted < shape.views:
        frames = torch.empty(shape.wanted, dtype=torch.int64, device="meta")
    if isinstance(network, MonocularDepth):
        return network.decode(prefix, frames)
    size, tokens = (shape.height, shape.width), None
    if shape.poses:
        T = torch.empty(1, shape.views, 4, 4, device="meta")
        tokens = network.camera_tokens(T, T[..., :3, :3], size)
    return network.decode(prefix, size, tokens, ref_view="first", frames=frames)


def _aligning(shape: Shape, spec: ModelSpec) -> int:
    """What a nested network's two parts need to agree on a metre: counts data, so not run here."""
    nested = spec.metric_branch is not None
    return ALIGN_BYTES * shape.wanted * shape.height * shape.width if nested else 0


@functools.lru_cache(maxsize=16)
def _without_data(spec: ModelSpec, dtype: torch.dtype, poses: bool) -> Network:
    with torch.device("meta"):
        network = network_of(spec).eval()
    drop_rays(network)
    if not poses:
        drop_camera_encoder(network)
    for block in (m for m in network.modules() if isinstance(m, Block)):
        block.forward = _CountedOnce(block)  # type: ignore[method-assign]
    if dtype != torch.int8:  # which is computed in fp32 around the products, and needs data
        convert(network, dtype)
    return network


def weight_bytes(network: nn.Module) -> int:
    """Bytes of all parameters and buffers."""
    tensors = [*network.parameters(), *network.buffers()]
    return sum(t.numel() * t.element_size() for t in tensors)


def peak_of(work: Callable[[], Any]) -> int:
    """The most bytes alive at one time in what ``work`` computes on meta tensors."""
    with _FusedAttention(), _Ledger() as ledger:
        _Ledger.open = ledger
        try:
            result = work()
        finally:
            _Ledger.open = None
    del result
    return ledger.peak


@dataclass
class _Noted:
    """Bytes beside what was there: at the most, and in the end."""

    most: int = 0
    left: int = 0  # beside the result: weights that a cast returns as they are


class _CountedOnce:
    """Stands in for a block's ``forward``: blocks that are alike need the same memory.

    The first call of a kind in a pass is run; for the others the ledger is told what that one
    needed. A network has dozens of blocks of two kinds, called for every frame.
    """

    def __init__(self, block: Block) -> None:
        self._run, self._block = block.forward, block

    def __call__(self, x: Tensor, rope: RopeTable | None = None) -> Tensor:
        ledger = _Ledger.open
        if ledger is None:
            return self._run(x, rope)
        turned = None if rope is None else (*rope.cos.shape, rope.stride)
        kind = (self._built, self._block.mlp_tokens, turned, x.shape, x.stride(), x.dtype)
        if kind in ledger.known:
            noted, out = ledger.known[kind]
            ledger.repeat(noted, first=self not in ledger.met)
            ledger.met.add(self)
            return torch.empty_strided(*out[:2], dtype=out[2], device="meta")
        with ledger.alone() as noted:
            result = self._run(x, rope)
        ledger.met.add(self)
        out = result.shape, result.stride(), result.dtype
        ledger.known[kind] = _Noted(noted.most, noted.left - result.nbytes), out
        return result

    @functools.cached_property
    def _built(self) -> Hashable:
        """What tells blocks apart, of this part and of another one's."""
        weights = tuple((n, p.shape, p.dtype) for n, p in self._block.named_parameters())
        return self._block.attn.heads, weights


def _resized(x: Tensor, size: list[int] | None, corners: bool, scales: Any = None) -> Tensor:
    """What a resize makes, without the arithmetic that PyTorch does on shapes alone, too."""
    H, W = size or (int(n * s) for n, s in zip(x.shape[2:], scales, strict=True))
    like = suggest_memory_format(x)
    return torch.empty((*x.shape[:2], H, W), dtype=x.dtype, device="meta", memory_format=like)


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

    open: ClassVar[_Ledger | None] = None  # there is one at a time: see ``_counting``

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self.known: dict[Hashable, tuple[_Noted, Any]] = {}  # and the shape of the result
        self.met: set[_CountedOnce] = set()
        self._total = 0
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = _resized(*args) if func in RESIZES else func(*args, **(kwargs or {}))
        for tensor in (out,) if isinstance(out, Tensor) else tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._note(tensor)
        if self._total > self.peak:  # at most so much: what is gone has not been looked for yet
            self._forget()
            self.peak = max(self.peak, self._total)
        return out

    @contextmanager
    def alone(self) -> Iterator[_Noted]:
        """Yields what will hold the bytes that what runs inside adds."""
        noted = _Noted()
        self._forget()
        before, peak, self.peak = self._total, self.peak, self._total
        yield noted
        self._forget()
        noted.most, noted.left = self.peak - before, self._total - before
        self.peak = max(peak, self.peak)

    def repeat(self, noted: _Noted, *, first: bool) -> None:
        """What was noted happens again, for the first time to that very block or once more."""
        self._forget()
        self._total += noted.left if first else 0
        self.peak = max(self.peak, self._total + noted.most - noted.left)

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        reference = StorageWeakRef(storage)
        if reference.cdata not in self._live:
            self._live[reference.cdata] = (reference, storage.nbytes())
            self._total += storage.nbytes()

    def _forget(self) -> None:
        for key in [k for k, (ref, _) in self._live.items() if ref.expired()]:
            self._total -= self._live.pop(key)[1]
