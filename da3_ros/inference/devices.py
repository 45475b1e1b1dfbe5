"""CUDA, Apple MPS and CPU behind one small interface: their capabilities and their memory.

A device selects precision, kernels, layout, threads and compiler by what the chip supports. All
sizes are in bytes. Independent of any network.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import logging
import os
import platform
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from da3_ros.inference.host_memory import host_free
from da3_ros.network.model import Chunks

log = logging.getLogger(__name__)

SMALLER = {"float16": torch.float16, "bfloat16": torch.bfloat16, "int8": torch.int8}
CONTEXT = 700 * 2**20  # bytes of a CUDA context with its libraries (H200, CUDA 13: 699)
# Texts of RuntimeErrors for exhausted memory that have no exception type of their own.
NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "bad_alloc")
NO_MEMORY_CUDA = (
    *NO_MEMORY, "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED", "CUSOLVER_STATUS_ALLOC_FAILED",
    "cudaErrorMemoryAllocation",
    "CUBLAS_STATUS_NOT_INITIALIZED",  # no memory for the handle
    # cuDNN's search skips engines for which memory runs out, and then finds none.
    "unable to find an engine to execute this computation",
    "NVML_SUCCESS == r INTERNAL ASSERT FAILED",  # a Jetson's allocator without memory
)  # fmt: skip
NO_MEMORY_MPS = (
    *NO_MEMORY, "Invalid buffer size", "Failed to allocate", "OutOfMemory", "Insufficient Memory",
)  # fmt: skip
PROBED_TOKENS = 4096  # size of the attention probe: its scores take 64 MiB in fp32
ALLOCATOR = "expandable_segments:True"  # of PyTorch, on CUDA
BF16 = ("amx_tile", "avx512_bf16")  # CPU features that multiply bfloat16
# Memory of activations on a CPU, with that inside kernels, over what is predicted without.
KERNEL_SPACE, HALF_SPACE, ENGINE_SPACE = 1.4, 2.2, 1.15
BF16_PAYS = 1.25  # least speed-up over fp32 for which bfloat16 is used
_threads_set = False


class DeviceError(RuntimeError):
    """The requested device is missing or lacks a feature; the text is one line with the remedy."""


class Device:
    """Interface of devices, with defaults that most of them share."""

    kind = ""
    has_cap = False  # whether the allocator itself can be bounded
    shares_host = True  # whether the device uses the host's memory: no offloading
    no_memory: tuple[str, ...] = NO_MEMORY

    def __init__(self, mode: str = "balanced", index: int | None = None) -> None:
        self.mode = mode
        self.device = torch.device(self.kind)

    def prepare(self) -> None:
        """Apply settings of the process."""

    def native_half(self) -> torch.dtype | None:
        """The 16-bit type that the chip supports natively; None: none."""
        return None

    def supports(self, dtype: torch.dtype) -> bool:
        """Whether the device supports ``dtype``, natively or not."""
        return dtype in (torch.float32, torch.bfloat16)

    def precision(self, wanted: str) -> torch.dtype:
        """The type of matrix products for ``mixed_precision``: auto, off, or a type's name.

        Raises DeviceError for an unsupported type.
        """
        if wanted == "off":
            return torch.float32
        if wanted == "auto":
            return self.native_half() or torch.float32
        if not self.supports(SMALLER[wanted]):
            raise DeviceError(
                f"mixed_precision {wanted} is not usable on {self.kind}: set auto or off"
            )
        return SMALLER[wanted]

    def compile_mode(self, wanted: str) -> str:
        """The mode of torch.compile, or "" for none, from `compile` and the performance mode."""
        return "default" if wanted == "on" else ""

    def chunks(self) -> Chunks:
        """Chunk sizes for sufficient memory."""
        return Chunks(head_frames=1, local_frames=1)

    def attention(self, dtype: torch.dtype) -> str:
        """The attention kernel for ``dtype``. Raises DeviceError if its memory is quadratic."""
        return "fused"

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether ``error`` means that memory ran out, so that a smaller window may run."""
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
            return True
        text = str(error)  # torch.AcceleratorError is a RuntimeError too
        return isinstance(error, RuntimeError) and any(words in text for words in self.no_memory)

    def free(self) -> int:
        """Memory still available to this process."""
        raise NotImplementedError

    def in_use(self) -> int:
        """Memory that this process holds now."""
        raise NotImplementedError

    def peak(self) -> int:
        """Peak memory of this process since ``reset_peak``."""
        raise NotImplementedError

    def reset_peak(self) -> None:
        """Start a new measurement."""

    def window_peak(self, before: int, persistent: int) -> int:
        """Peak of a pass that began with ``before`` in use, ``persistent`` of it by the network.

        On a GPU all memory of the process is counted; on the host the map and messages are not.
        """
        return self.peak()

    def cap(self, budget: int) -> None:
        """Limit the allocator to ``budget`` if the device can."""

    def release(self) -> None:
        """Return cached memory to the device."""

    def wait(self) -> None:
        """Wait until all work that was queued on the device is done."""

    def work_space(self, dtype: torch.dtype, backend: str) -> float:
        """Returns the memory of activations with that inside kernels, over what is predicted
        without; 1: about the same."""
        return 1.0

    def context(self) -> int:
        """Memory of driver and libraries outside the allocator."""
        return 0

    def name(self) -> str:
        """Name of the chip."""
        return self.kind


class Cpu(Device):
    """The host's processor; its budget counts this process's anonymous memory."""

    kind = "cpu"

    def prepare(self) -> None:
        """Use all cores, or half of them in `minimal`; can be set only once per process."""
        global _threads_set
        if _threads_set or "OMP_NUM_THREADS" in os.environ:
            return
        _threads_set = True
        if self.mode == "minimal":
            torch.set_num_threads(max(1, torch.get_num_threads() // 2))

    def native_half(self) -> torch.dtype | None:
        has = {name: bool(getattr(torch.cpu, f"_is_{name}_supported", bool)()) for name in BF16}
        if has["amx_tile"] or (has["avx512_bf16"] and bf16_pays()):
            return torch.bfloat16
        return None

    def supports(self, dtype: torch.dtype) -> bool:
        return dtype != torch.int8 or hasattr(torch.ops.onednn, "qlinear_pointwise")

    def free(self) -> int:
        return host_free()

    def in_use(self) -> int:
        return _anonymous("RssAnon")

    def window_peak(self, before: int, persistent: int) -> int:
        return persistent + max(0, self.peak() - before)

    def peak(self) -> int:
        held = _status()
        if "VmHWM" not in held:
            return _max_rss()
        return held["VmHWM"] - held.get("RssFile", 0) - held.get("RssShmem", 0)

    def reset_peak(self) -> None:
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:  # not Linux, or not allowed: the peak is then since the process started
            log.debug("the memory peak cannot be reset on this system")

    def release(self) -> None:
        """Return what was freed, as of fp32 weights after their conversion, to the system."""
        trim_heap()

    def work_space(self, dtype: torch.dtype, backend: str) -> float:
        # By bench_memory.py with AMX, where oneDNN reorders 16-bit tensors; less without.
        if backend != "torch":
            return ENGINE_SPACE
        return HALF_SPACE if dtype.itemsize == 2 else KERNEL_SPACE

    def name(self) -> str:
        return f"cpu, {torch.get_num_threads()} threads"


class Cuda(Device):
    """An NVIDIA GPU, or a Jetson, which shares the host's memory."""

    kind = "cuda"
    has_cap = True
    no_memory = NO_MEMORY_CUDA

    def __init__(self, mode: str = "balanced", index: int | None = None) -> None:
        super().__init__(mode)
        index = torch.cuda.current_device() if index is None else index
        self.device = torch.device("cuda", index)
        self.properties = torch.cuda.get_device_properties(self.device)
        self.shares_host = bool(getattr(self.properties, "is_integrated", False))

    def prepare(self) -> None:
        torch.set_float32_matmul_precision("high")  # TF32, as in the reference
        torch.backends.cudnn.allow_tf32 = True
        # cuDNN does not try out its kernels: on an H200 that hardly made a window faster and took
        # up to six times its memory, and the winners, with the results, differ by run.
        torch.backends.cudnn.benchmark = False

    def native_half(self) -> torch.dtype | None:
        if self._has_bf16():
            return torch.bfloat16
        capability = (self.properties.major, self.properties.minor)
        return torch.float16 if capability >= (7, 0) else None

    def supports(self, dtype: torch.dtype) -> bool:
        if dtype == torch.bfloat16:
            return self._has_bf16()
        return dtype != torch.int8  # int8 pays only on devices without a 16-bit type

    def compile_mode(self, wanted: str) -> str:
        if wanted == "off" or (wanted == "auto" and self.mode != "max"):
            return ""
        return "reduce-overhead" if self.mode == "max" else "default"

    def chunks(self) -> Chunks:
        return Chunks(head_frames=8) if self.mode != "minimal" else Chunks(1, 4, 8192)

    def attention(self, dtype: torch.dtype) -> str:
        q = torch.empty(1, 1, 64, 64, device=self.device, dtype=dtype)
        given = sdpa_params(q)
        with self._current():
            if torch.backends.cuda.can_use_flash_attention(given):
                return "flash"
            if torch.backends.cuda.can_use_efficient_attention(given):
                return "memory-efficient"
        raise DeviceError(
            f"{self.name()} has no fused attention for {str(dtype).removeprefix('torch.')}, so "
            "memory would grow with the square of the window: set mixed_precision to float16 "
            "or bfloat16, or device to cpu"
        )

    def free(self) -> int:
        free = torch.cuda.mem_get_info(self.device)[0] + self._cached()
        return min(free, host_free()) if self.shares_host else free

    def in_use(self) -> int:
        return int(torch.cuda.memory_reserved(self.device)) + self.context()

    def peak(self) -> int:
        return int(torch.cuda.max_memory_reserved(self.device)) + self.context()

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)

    def cap(self, budget: int) -> None:
        total = torch.cuda.mem_get_info(self.device)[1]
        share = max(0.0, min(1.0, (budget - self.context()) / total))
        torch.cuda.set_per_process_memory_fraction(share, self.device)

    def release(self) -> None:
        torch.cuda.empty_cache()

    def wait(self) -> None:
        torch.cuda.synchronize(self.device)

    def context(self) -> int:
        return CONTEXT

    def name(self) -> str:
        return str(self.properties.name)

    def _current(self) -> contextlib.AbstractContextManager[Any]:
        """Context in which this GPU is torch's current one."""
        if self.device.index in (None, torch.cuda.current_device()):
            return contextlib.nullcontext()
        return torch.cuda.device(self.device)

    def _has_bf16(self) -> bool:
        with self._current():
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))

    def _cached(self) -> int:
        reserved = torch.cuda.memory_reserved(self.device)
        return int(reserved - torch.cuda.memory_allocated(self.device))


class Mps(Device):
    """Apple silicon: 16 bits if Metal supports them; no torch.compile, which is experimental."""

    kind = "mps"
    has_cap = True
    no_memory = NO_MEMORY_MPS
    _warned = False  # whether it was logged that attention is not fused

    def native_half(self) -> torch.dtype | None:
        return next((t for t in (torch.bfloat16, torch.float16) if self.supports(t)), None)

    def supports(self, dtype: torch.dtype) -> bool:
        return dtype != torch.int8 and (dtype == torch.float32 or self._multiplies(dtype))

    def chunks(self) -> Chunks:
        pieces = {"minimal": Chunks(1, 1, 4096), "max": Chunks(head_frames=8)}
        return pieces.get(self.mode, Chunks(head_frames=1, local_frames=1))

    def attention(self, dtype: torch.dtype) -> str:
        """Detected by the memory that a pass of many tokens takes: Metal cannot be queried."""
        self.release()
        before = self.in_use()
        q = torch.zeros(1, 1, PROBED_TOKENS, 64, device=self.device, dtype=dtype)
        torch.nn.functional.scaled_dot_product_attention(q, q, q)
        torch.mps.synchronize()
        taken = self.in_use() - before
        self.release()
        if taken < PROBED_TOKENS**2 * q.element_size() // 2:
            return "fused"
        if not self._warned:
            self._warned = True
            log.warning(
                "attention on this MPS device is not fused: memory grows with the square of a "
                "window's pixels; use a newer PyTorch, or a smaller process_res or window.size"
            )
        return "math"

    def _multiplies(self, dtype: torch.dtype) -> bool:
        """Whether Metal supports the type: bfloat16 came with macOS 14."""
        try:
            one = torch.ones(2, 2, device=self.device, dtype=dtype)
            return bool(torch.isfinite(one @ one).all())
        except (RuntimeError, TypeError):
            return False

    def compile_mode(self, wanted: str) -> str:
        if wanted == "on":
            raise DeviceError(
                "torch.compile on MPS is experimental and changes results: set compile to off"
            )
        return ""

    def free(self) -> int:
        return min(self._limit() - self.in_use(), host_free())

    def in_use(self) -> int:
        return int(torch.mps.driver_allocated_memory())

    def peak(self) -> int:
        return self.in_use()  # Metal records no peak, but its driver rarely frees memory

    def cap(self, budget: int) -> None:
        torch.mps.set_per_process_memory_fraction(max(0.0, min(2.0, budget / self._limit())))

    def release(self) -> None:
        torch.mps.empty_cache()

    def wait(self) -> None:
        torch.mps.synchronize()

    @staticmethod
    def _limit() -> int:
        return int(torch.mps.recommended_max_memory())


def open_device(name: str, mode: str = "balanced") -> Device:
    """Open ``auto``, ``cuda``, ``cuda:1``, ``mps`` or ``cpu``.

    ``auto`` prefers CUDA, then Apple's MPS, then the CPU. Raises DeviceError if the device is not
    available; there is no silent fallback.
    """
    available: dict[str, Callable[[], bool]] = {
        "cuda": torch.cuda.is_available,
        "mps": torch.backends.mps.is_available,
        "cpu": lambda: True,
    }
    if name == "auto":
        name = next(n for n, ok in available.items() if ok())
    kind, _, number = name.partition(":")
    if kind not in available or not available[kind]():
        raise DeviceError(
            f"device {name!r} is not usable here: install a PyTorch build for it, "
            "or set `device` to auto or cpu"
        )
    if kind == "cuda":
        configure_allocator()
    classes: dict[str, type[Device]] = {"cuda": Cuda, "mps": Mps, "cpu": Cpu}
    device = classes[kind](mode, _index(name, kind, number))
    device.prepare()
    return device


def configure_allocator() -> None:
    """Let PyTorch's CUDA allocator extend its blocks, unless the user has configured it.

    Tensors of many sizes otherwise leave gaps: on an H200 a session holds a seventh to a quarter
    less memory so. PyTorch reads the variable at the first allocation. Not on ARM processors: a
    Jetson has no memory of this kind.
    """
    old, new = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"  # the new one since PyTorch 2.9
    if platform.machine() == "x86_64" and old not in os.environ and new not in os.environ:
        os.environ[old] = ALLOCATOR


def _index(name: str, kind: str, number: str) -> int | None:
    """The GPU's index; None: torch's current GPU. Raises DeviceError for an index out of range."""
    if ":" not in name:
        return None
    count = torch.cuda.device_count() if kind == "cuda" else 1
    if number.isdecimal() and int(number) < count:
        return int(number)
    here = [f"{kind}:{i}" for i in range(count)] if kind == "cuda" else [kind]
    raise DeviceError(f"device {name!r} does not exist: set `device` to one of {', '.join(here)}")


def sdpa_params(q: Tensor) -> Any:
    """Parameters to query PyTorch's attention kernels for self-attention of ``q``.

    PyTorch 2.4 has one argument less.
    """
    params: Any = torch.backends.cuda.SDPAParams
    try:
        return params(q, q, q, None, 0.0, False, False)  # the last: grouped queries
    except TypeError:
        return params(q, q, q, None, 0.0, False)


@functools.cache
def bf16_pays() -> bool:
    """Whether matrix products are clearly faster in bfloat16 than in fp32 on this CPU.

    Some chips with AVX512-BF16 and without AMX, and some virtual machines, are slower. Measured
    once per process, alternating the types, so that other load affects both. BF16_PAYS lies well
    between the ratios of fast and slow chips.
    """
    times = {torch.float32: float("inf"), torch.bfloat16: float("inf")}
    pairs = {t: (torch.ones(512, 768, dtype=t), torch.ones(768, 768, dtype=t)) for t in times}
    for _ in range(8):
        for dtype, (a, b) in pairs.items():
            start = time.perf_counter()
            torch.nn.functional.linear(a, b)
            times[dtype] = min(times[dtype], time.perf_counter() - start)
    ratio = times[torch.float32] / times[torch.bfloat16]
    log.info("bfloat16 is %.2g times as fast as float32 on this CPU", ratio)
    return ratio > BF16_PAYS


def _status() -> dict[str, int]:
    """Sizes in /proc/self/status, bytes; empty where there is no such file."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return {}
    fields = (line.split() for line in lines if line.endswith(" kB"))
    return {name.rstrip(":"): int(value) * 1024 for name, value, _ in fields}


def _anonymous(name: str) -> int:
    return _status().get(name) or _max_rss()


def _max_rss() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def release_memory() -> None:
    """Return the memory of freed networks to the device and to the system."""
    gc.collect()  # a pipeline and its outputs form reference cycles
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    elif torch.backends.mps.is_available():
        torch.mps.empty_cache()
    trim_heap()


def trim_heap() -> None:
    """Return freed memory to the system: glibc keeps it. Other C libraries have no such call."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)
