"""Predicts the memory of a network by running it on meta tensors, which have shapes but no data.

The network's own code runs, so the prediction follows every change of it. Not included: work
space inside kernels, fragmentation of the allocator, and the CUDA context; these are measured.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

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
from da3_ros.network.head import Dense, DualDptHead
from da3_ros.network.int8 import int8_saving
from da3_ros.network.model import Chunks
from da3_ros.network.monocular import MonocularDepth
from da3_ros.network.precision import KEPT, convert, drop_camera_encoder, drop_rays

T = TypeVar("T")
_counting = threading.Lock()  # meta networks are shared, and hold the shape's chunk sizes
ALIGN_BYTES = 64  # per pixel: masks, two maps without sky, their ratio, sorted with indices


@dataclass(frozen=True)
class Footprint:
    """Memory in bytes, without that of kernels, allocator and driver."""

    weights: int
    prefix: int  # of all frames of a window, fp32
    activations: int  # peak while a window runs, inputs included


@dataclass(frozen=True)
class Shape:
    """All values that determine the memory of a pass."""

    model: str
    views: int
    wanted: int  # views whose depth is computed
    height: int
    width: int
    dtype: torch.dtype
    chunks: Chunks
    poses: bool = False  # whether poses are inputs of the network
    splats: int = 0  # views that get Gaussians, the last ones


def footprint(shape: Shape) -> Footprint:
    """The memory that a window of this shape needs. Thread-safe."""
    return cached_footprint(shape, MODELS[shape.model])


@functools.lru_cache(maxsize=512)
def cached_footprint(shape: Shape, spec: ModelSpec) -> Footprint:
    """``footprint`` with the spec in the cache key: a model's name may be registered again."""
    with _counting:
        return _footprint(shape, spec)


@torch.inference_mode()  # always: a network built in inference mode does not run outside it
def _footprint(shape: Shape, spec: ModelSpec) -> Footprint:
    network = _meta_network(spec, shape.dtype, shape.poses, shape.splats > 0)
    for part in parts(network):
        part.forget_tables()  # so that the result does not depend on earlier calls
    network.set_chunks(shape.chunks)
    size = (shape.height, shape.width)

    def encode() -> Any:
        return network.encode(torch.empty(1, 1, 3, *size, device="meta"))

    encode_peak, alone = peak_of(encode)

    def window() -> Any:
        kept = (x.new_empty(1, shape.views, *x.shape[2:]) for x in alone)
        return _decode(network, type(alone)(*kept), shape)

    prefix = shape.views * sum(x.nbytes for x in alone)
    peak = max(encode_peak, peak_of(window)[0], _alignment_bytes(shape, spec))
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
    images = None
    if shape.splats:
        images = torch.empty(1, shape.splats, 3, *size, device="meta")
    return network.decode(prefix, size, tokens, ref_view="first", frames=frames, images=images)


def _alignment_bytes(shape: Shape, spec: ModelSpec) -> int:
    """Bytes to align a nested network's two parts: depends on data, so it cannot run on meta."""
    nested = spec.metric_branch is not None
    return ALIGN_BYTES * shape.wanted * shape.height * shape.width if nested else 0


@functools.lru_cache(maxsize=16)
def _meta_network(spec: ModelSpec, dtype: torch.dtype, poses: bool, gaussians: bool) -> Network:
    with torch.device("meta"):
        network = network_of(spec, gaussians=gaussians).eval()
    drop_rays(network)
    if not poses:
        drop_camera_encoder(network)
    for block in (m for m in network.modules() if isinstance(m, Block)):
        block.forward = _CachedBlock(block)  # type: ignore[method-assign]
    for head in (m for m in network.modules() if isinstance(m, DualDptHead)):
        head._frames = _CachedFrames(head)  # type: ignore[method-assign]
    if dtype != torch.int8:  # int8 computes in fp32 around the products, and needs data
        convert(network, dtype)
    return network


def weight_bytes(network: nn.Module) -> int:
    """Bytes of all parameters and buffers."""
    tensors = [*network.parameters(), *network.buffers()]
    return sum(t.numel() * t.element_size() for t in tensors)


def peak_of(work: Callable[[], T]) -> tuple[int, T]:
    """Peak bytes of live storages while ``work`` runs on meta tensors, and its result."""
    with _FusedAttention(), _Ledger() as ledger:
        _Ledger.open = ledger
        try:
            result = work()
        finally:
            _Ledger.open = None
    return ledger.peak, result


@dataclass
class _BlockMemory:
    """Bytes that a block adds: at its peak, and after it has returned."""

    peak: int = 0
    retained: int = 0  # without the result: weights that a cast returns unchanged


class _CachedBlock:
    """Replaces a block's ``forward``: blocks of equal structure need equal memory.

    The first call of a structure in a pass runs; later calls add its bytes to the ledger without
    running. A network has dozens of blocks of two structures, called for every frame.
    """

    def __init__(self, block: Block) -> None:
        self._run, self._block = block.forward, block

    def __call__(
        self, x: Tensor, rope: RopeTable | None = None, rows: Tensor | None = None
    ) -> Tensor:
        ledger = _Ledger.open
        if ledger is None:
            return self._run(x, rope, rows)
        rope_shape = None if rope is None else (*rope.cos.shape, rope.stride)
        shapes = (rope_shape, None if rows is None else rows.shape, x.shape, x.stride(), x.dtype)
        kind = (self._structure, self._block.mlp_tokens, *shapes)
        if kind in ledger.known:
            noted, out = ledger.known[kind]
            ledger.repeat(noted, first=self not in ledger.seen)
            ledger.seen.add(self)
            return torch.empty_strided(*out[:2], dtype=out[2], device="meta")
        with ledger.measure_block() as noted:
            result = self._run(x, rope, rows)
        ledger.seen.add(self)
        out = result.shape, result.stride(), result.dtype
        ledger.known[kind] = _BlockMemory(noted.peak, noted.retained - result.nbytes), out
        return result

    @functools.cached_property
    def _structure(self) -> Hashable:
        """Equal for blocks that need equal memory."""
        weights = tuple((n, p.shape, p.dtype) for n, p in self._block.named_parameters())
        return self._block.attn.heads, weights


class _CachedFrames:
    """Replaces a head's ``_frames``, which runs for a few frames at a time, in the same way."""

    def __init__(self, head: DualDptHead) -> None:
        self._run, self._tables = head._frames, head._uv

    def __call__(self, projected: list[Tensor], size: tuple[int, int], rays: bool) -> Dense:
        ledger = _Ledger.open
        if ledger is None:
            return self._run(projected, size, rays)
        kind = (self, size, rays, *((x.shape, x.stride(), x.dtype) for x in projected))
        if kind in ledger.known:
            noted, out = ledger.known[kind]
            ledger.repeat(noted, first=False)
            return Dense(*(torch.empty_strided(*x[:2], dtype=x[2], device="meta") for x in out))
        tables = len(self._tables)
        with ledger.measure_block() as noted:
            result = self._run(projected, size, rays)
        if len(self._tables) == tables:  # what makes tables of positions needs more
            made = [x for x in result if x is not None]
            out = [(x.shape, x.stride(), x.dtype) for x in made]
            kept = noted.retained - sum(x.nbytes for x in made)
            ledger.known[kind] = _BlockMemory(noted.peak, kept), out
        return result


def _resized(x: Tensor, size: list[int] | None, corners: bool, scales: Any = None) -> Tensor:
    """The result of a resize."""
    H, W = size or (int(n * s) for n, s in zip(x.shape[2:], scales, strict=True))
    like = suggest_memory_format(x)
    return torch.empty((*x.shape[:2], H, W), dtype=x.dtype, device="meta", memory_format=like)


def _alike(x: Tensor, *_: Any) -> Tensor:
    """The result of an activation."""
    dense = _dense_alike(x)
    return torch.empty_like(x) if dense is None else dense


def _normalized(x: Tensor, *_: Any) -> Tensor:
    """The result of a normalisation; contiguous, also of a transposed input."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _projected(x: Tensor, weight: Tensor, *_: Any) -> Tensor:
    """The result of a linear layer."""
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _dense_alike(x: Tensor, *others: Any) -> Tensor | None:
    """The result of an elementwise operation, if it is laid out as its first operand.

    None where that takes more to see: PyTorch's own code runs then.
    """
    if not (x.is_contiguous() or _is_channels_last(x)):
        return None
    if not all(_joins(x, other) for other in others):
        return None
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)


def _is_channels_last(x: Tensor) -> bool:
    return x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)


def _joins(x: Tensor, other: Any) -> bool:
    """Whether this other operand changes neither shape nor type of the result."""
    if not isinstance(other, Tensor):
        return x.is_floating_point() and isinstance(other, float | int)
    here, there = x.shape[x.dim() - other.dim() :], other.shape
    fits = other.dim() <= x.dim() and all(b in (1, a) for a, b in zip(here, there, strict=True))
    return fits and other.dtype == x.dtype


def _chosen(condition: Tensor, x: Tensor, other: Any) -> Tensor | None:
    """The result of a choice between a tensor and a number."""
    return _dense_alike(x, other) if condition.shape == x.shape else None


def _convolved(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    *dilation: Any,
) -> Tensor | None:
    """The result of a convolution; contiguous, as of all on meta tensors."""
    if dilation and (len(dilation) > 1 or {*dilation[0]} != {1}):
        return None
    steps = zip(x.shape[2:], weight.shape[2:], _pair(stride), _pair(padding), strict=True)
    return x.new_empty((len(x), len(weight), *((n + 2 * p - k) // s + 1 for n, k, s, p in steps)))


def _pair(values: Sequence[int]) -> Sequence[int]:
    """One value stands for both directions."""
    return values if len(values) == 2 else (*values, *values)


# PyTorch computes the shapes of these results in slow Python code; without the shortcuts that is
# most of a prediction's time. None: this case has no shortcut.
_SHORTCUTS: dict[Any, Callable[..., Tensor | None]] = {
    torch.ops.aten.upsample_bilinear2d.vec: _resized,
    torch.ops.aten.upsample_bicubic2d.vec: _resized,
    torch.ops.aten.linear.default: _projected,
    torch.ops.aten.layer_norm.default: _normalized,
    torch.ops.aten.gelu.default: _alike,
    torch.ops.aten.relu.default: _alike,
    torch.ops.aten.add.Tensor: _dense_alike,
    torch.ops.aten.sub.Tensor: _dense_alike,
    torch.ops.aten.mul.Tensor: _dense_alike,
    torch.ops.aten.neg.default: _dense_alike,
    torch.ops.aten.where.ScalarOther: _chosen,
    torch.ops.aten.conv2d.default: _convolved,
}


class _FusedAttention(TorchFunctionMode):
    """Replaces attention by an output tensor only: fused kernels store no quadratic matrix."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            return torch.empty_like(args[0])
        return func(*args, **(kwargs or {}))


class _Ledger(TorchDispatchMode):
    """Sums the bytes of live storages that operations create."""

    open: ClassVar[_Ledger | None] = None  # one at a time: see ``_counting``

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self.known: dict[Hashable, tuple[_BlockMemory, Any]] = {}  # and the shape of the result
        self.seen: set[_CachedBlock] = set()
        self._total = 0
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        shortcut = _SHORTCUTS.get(func)
        out = shortcut(*args) if shortcut else None
        if out is None:
            out = func(*args, **(kwargs or {}))
        for tensor in (out,) if isinstance(out, Tensor) else tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._note(tensor)
        if self._total > self.peak:  # an upper bound: freed storages are not subtracted yet
            self._forget()
            self.peak = max(self.peak, self._total)
        return out

    @contextmanager
    def measure_block(self) -> Iterator[_BlockMemory]:
        """Measure the bytes added inside this context; yields the object that receives them."""
        noted = _BlockMemory()
        self._forget()
        before, peak, self.peak = self._total, self.peak, self._total
        yield noted
        self._forget()
        noted.peak, noted.retained = self.peak - before, self._total - before
        self.peak = max(peak, self.peak)

    def repeat(self, noted: _BlockMemory, *, first: bool) -> None:
        """Add a measured block again; ``first``: first call of this block, which adds weights."""
        self._forget()
        self._total += noted.retained if first else 0
        self.peak = max(self.peak, self._total + noted.peak - noted.retained)

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        reference = StorageWeakRef(storage)
        if reference.cdata not in self._live:
            self._live[reference.cdata] = (reference, storage.nbytes())
            self._total += storage.nbytes()

    def _forget(self) -> None:
        for key in [k for k, (ref, _) in self._live.items() if ref.expired()]:
            self._total -= self._live.pop(key)[1]
