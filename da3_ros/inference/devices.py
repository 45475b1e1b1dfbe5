"""CUDA, Apple MPS and CPU behind one small interface: what each does well, and its memory.

A device chooses from what the chip really has: precision, kernels, layout, threads, compiler. All
sizes are bytes. Nothing here knows a network.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import logging
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from da3_ros.network.model import Chunks

log = logging.getLogger(__name__)

SMALLER = {"float16": torch.float16, "bfloat16": torch.bfloat16, "int8": torch.int8}
CONTEXT = 600 * 2**20  # of a CUDA context with its libraries, until it can be measured
BF16 = ("amx_tile", "avx512_bf16")  # what a CPU multiplies bfloat16 with
BF16_PAYS = 1.25  # times as fast as fp32
_threads_set = False


class DeviceError(RuntimeError):
    """A device that was asked for and is not there or cannot do it; one line with the remedy."""


class Device:
    """The interface, with what most devices share."""

    kind = ""
    has_cap = False  # whether the allocator itself can be bounded
    shares_host = True  # whether the host's memory is the device's: nothing to offload to

    def __init__(self, mode: str = "balanced") -> None:
        self.mode = mode
        self.device = torch.device(self.kind)

    def prepare(self) -> None:
        """Settings of the process."""

    def native_half(self) -> torch.dtype | None:
        """The 16-bit type that the chip computes in natively, or None."""
        return None

    def can(self, dtype: torch.dtype) -> bool:
        """Whether ``dtype`` is allowed here, native or not."""
        return dtype in (torch.float32, torch.bfloat16)

    def precision(self, wanted: str) -> torch.dtype:
        """The type of matrix products for ``mixed_precision``: auto, off, or a type's name.

        Raises DeviceError for a type that the device cannot or must not use.
        """
        if wanted == "off":
            return torch.float32
        if wanted == "auto":
            return self.native_half() or torch.float32
        if not self.can(SMALLER[wanted]):
            raise DeviceError(
                f"mixed_precision {wanted} is not usable on {self.kind}: set auto or off"
            )
        return SMALLER[wanted]

    def compile_mode(self, wanted: str) -> str:
        """The mode for torch.compile, or "" for none, by `compile` and the performance mode."""
        return "default" if wanted == "on" else ""

    def chunks(self) -> Chunks:
        """How much passes at a time while memory is plenty."""
        return Chunks(head_frames=1, local_frames=1)

    def attention(self, dtype: torch.dtype) -> str:
        """The attention kernel that will run. Raises DeviceError if only a quadratic one would."""
        return "fused"

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether ``error`` says that memory ran out, so that less of it may help."""
        return isinstance(error, (MemoryError, torch.OutOfMemoryError))

    def free(self) -> int:
        """Memory that this process could still take."""
        raise NotImplementedError

    def in_use(self) -> int:
        """Memory that this process holds now."""
        raise NotImplementedError

    def peak(self) -> int:
        """The most that this process held since ``reset_peak``."""
        raise NotImplementedError

    def reset_peak(self) -> None:
        """Start a new measurement."""

    def taken(self, before: int, persistent: int) -> int:
        """The peak of a pass that began with ``before`` in use, ``persistent`` of it ours.

        On a card all that the process holds is ours; on the host a map and messages are not.
        """
        return self.peak()

    def cap(self, budget: int) -> None:
        """Bound what the allocator may take, where that is possible."""

    def release(self) -> None:
        """Give cached memory back."""

    def context(self) -> int:
        """What driver and libraries take beside the allocator."""
        return 0

    def name(self) -> str:
        """The chip, in words."""
        return self.kind


class Cpu(Device):
    """The host's processor; its budget counts this process's anonymous memory."""

    kind = "cpu"

    def prepare(self) -> None:
        """Use every core, or half of them in `minimal`; a process can only choose once."""
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

    def can(self, dtype: torch.dtype) -> bool:
        return dtype != torch.int8 or hasattr(torch.ops.onednn, "qlinear_pointwise")

    def is_out_of_memory(self, error: BaseException) -> bool:
        text = str(error)
        return super().is_out_of_memory(error) or (
            isinstance(error, RuntimeError) and "can't allocate memory" in text
        )

    def free(self) -> int:
        return host_free()

    def in_use(self) -> int:
        return _anonymous("RssAnon")

    def taken(self, before: int, persistent: int) -> int:
        return persistent + max(0, self.peak() - before)

    def peak(self) -> int:
        held = _status()
        if "VmHWM" not in held:
            return _max_rss()
        return held["VmHWM"] - held.get("RssFile", 0) - held.get("RssShmem", 0)

    def reset_peak(self) -> None:
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:  # not Linux, or not allowed: the peak then is that of the whole process
            log.debug("the memory peak cannot be reset here")

    def name(self) -> str:
        return f"cpu, {torch.get_num_threads()} threads"


class Cuda(Device):
    """An NVIDIA card, or a Jetson whose memory is the host's as well."""

    kind = "cuda"
    has_cap = True

    def __init__(self, mode: str = "balanced") -> None:
        super().__init__(mode)
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.properties = torch.cuda.get_device_properties(self.device)
        self.shares_host = bool(getattr(self.properties, "is_integrated", False))

    def prepare(self) -> None:
        torch.set_float32_matmul_precision("high")  # TF32: what the reference runs with
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = self.mode != "minimal"

    def native_half(self) -> torch.dtype | None:
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return torch.bfloat16
        capability = (self.properties.major, self.properties.minor)
        return torch.float16 if capability >= (7, 0) else None

    def can(self, dtype: torch.dtype) -> bool:
        if dtype == torch.bfloat16:
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
        return dtype != torch.int8  # only faster where there are no 16 bits

    def compile_mode(self, wanted: str) -> str:
        if wanted == "off" or (wanted == "auto" and self.mode != "max"):
            return ""
        return "reduce-overhead" if self.mode == "max" else "default"

    def chunks(self) -> Chunks:
        return Chunks(head_frames=8) if self.mode != "minimal" else Chunks(1, 4, 8192)

    def attention(self, dtype: torch.dtype) -> str:
        params = torch.backends.cuda.SDPAParams
        q = torch.empty(1, 1, 64, 64, device=self.device, dtype=dtype)
        given = params(q, q, q, None, 0.0, False, False)
        if torch.backends.cuda.can_use_flash_attention(given):
            return "flash"
        if torch.backends.cuda.can_use_efficient_attention(given):
            return "memory-efficient"
        raise DeviceError(
            f"{self.name()} has no fused attention for {str(dtype).removeprefix('torch.')}, the "
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

    def context(self) -> int:
        return CONTEXT

    def name(self) -> str:
        return str(self.properties.name)

    def _cached(self) -> int:
        reserved = torch.cuda.memory_reserved(self.device)
        return int(reserved - torch.cuda.memory_allocated(self.device))


class Mps(Device):
    """Apple silicon. No fp16, whose range is too small here; no compiler: it is experimental."""

    kind = "mps"
    has_cap = True

    def compile_mode(self, wanted: str) -> str:
        if wanted == "on":
            raise DeviceError(
                "torch.compile on mps is experimental and changes results: set compile to off"
            )
        return ""

    def is_out_of_memory(self, error: BaseException) -> bool:
        return super().is_out_of_memory(error) or (
            isinstance(error, RuntimeError) and "out of memory" in str(error)
        )

    def free(self) -> int:
        return min(self._limit() - self.in_use(), host_free())

    def in_use(self) -> int:
        return int(torch.mps.driver_allocated_memory())

    def peak(self) -> int:
        return self.in_use()  # Metal keeps no peak; its driver hardly gives memory back

    def cap(self, budget: int) -> None:
        torch.mps.set_per_process_memory_fraction(max(0.0, min(2.0, budget / self._limit())))

    def release(self) -> None:
        torch.mps.empty_cache()

    @staticmethod
    def _limit() -> int:
        return int(torch.mps.recommended_max_memory())


def open_device(name: str, mode: str = "balanced") -> Device:
    """The device for ``auto``, ``cuda``, ``mps`` or ``cpu``; what was asked for or an error.

    ``auto`` prefers CUDA, then Apple's MPS, then the CPU. Raises DeviceError rather than falling
    back silently.
    """
    there: dict[str, Callable[[], bool]] = {
        "cuda": torch.cuda.is_available,
        "mps": torch.backends.mps.is_available,
        "cpu": lambda: True,
    }
    if name == "auto":
        name = next(n for n, ok in there.items() if ok())
    if name not in there or not there[name]():
        raise DeviceError(
            f"device {name!r} is not usable here: install a PyTorch build for it, "
            "or set `device` to auto or cpu"
        )
    classes: dict[str, type[Device]] = {"cuda": Cuda, "mps": Mps, "cpu": Cpu}
    device = classes[name](mode)
    device.prepare()
    return device


@functools.cache
def bf16_pays() -> bool:
    """Whether matrix products are clearly faster in bfloat16 than in fp32 on this CPU.

    Chips with AVX512-BF16 and without AMX differ: some, and some virtual machines, are slower.
    Measured once per process, in turns, so that other work slows both alike; the bound is far from
    what either kind of chip shows.
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


def host_free(meminfo: str = "/proc/meminfo", cgroup: str = "/sys/fs/cgroup") -> int:
    """Memory of the host that is available to this process, containers' limits included."""
    try:
        lines = Path(meminfo).read_text().splitlines()
        free = next(int(x.split()[1]) * 1024 for x in lines if x.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")) // 2
    try:
        limit = Path(cgroup, "memory.max").read_text().strip()
        used = int(Path(cgroup, "memory.current").read_text())
    except (OSError, ValueError):
        return free
    return free if limit == "max" else min(free, int(limit) - used)


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


def give_back() -> None:
    """Return the memory of networks that nobody uses any more to the device and to the system."""
    gc.collect()  # a pipeline and its outputs know each other
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    elif torch.backends.mps.is_available():
        torch.mps.empty_cache()
    # glibc keeps what was freed in its own lists; other C libraries have no such call.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)
