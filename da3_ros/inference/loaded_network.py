"""A network on its device: the module, its precision, chunk sizes and backends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from da3_ros.backends import BACKENDS
from da3_ros.backends.compiled import Compiler, first_line
from da3_ros.backends.engine_cache import cache_folder
from da3_ros.backends.interface import Backend, Engines, Opening
from da3_ros.backends.self_check import pose_fault
from da3_ros.backends.torch_backend import TorchBackend
from da3_ros.config import InferenceConfig
from da3_ros.inference.devices import Device, DeviceError
from da3_ros.inference.loading import (
    backend_and_precision,
    backend_in,
    load_checked,
    load_network,
)
from da3_ros.network import Network
from da3_ros.network.model import Chunks, Output
from da3_ros.network.precision import drop_camera_encoder, drop_rays

log = logging.getLogger(__name__)


class LoadedNetwork:
    """Owns the network's module, precision, chunk sizes and backends. Not thread-safe.

    Raises CheckpointError, DeviceError or ValueError at construction, each with one line.
    """

    def __init__(
        self,
        config: InferenceConfig,
        hardware: Device,
        *,
        poses: bool,
        streams: int,
        wait_for_engine: bool,
        gaussians: bool = False,
    ) -> None:
        """``poses``: windows may have known poses; if False, the camera encoder is dropped.

        ``streams``: number of cameras whose windows alternate. ``wait_for_engine``: no window
        runs on torch while an engine is prepared. ``gaussians``: with the Gaussian head, for
        which `backend` must be torch.
        """
        self.hardware, self._wait, self.gaussians = hardware, wait_for_engine, gaussians
        self._config, self._poses = config, poses
        self._wanted_backend, requested = backend_and_precision(config, hardware)
        hardware.attention(requested)  # raises before anything is loaded
        self.compiler = Compiler(
            self._compile_mode(requested),
            hardware.is_out_of_memory,
            streams=streams,
            fault=pose_fault,
        )
        self.module, self.precision = load_checked(self._load, hardware, requested)
        if self.precision != requested:  # the self-check failed; fp32 may run where that cannot
            self._wanted_backend = backend_in(config, hardware, self.precision)
        self._torch = TorchBackend(self.module, self.precision, self.compiler)
        self.backend: Backend  # of the newest window, whose images have ``_size``
        self._use_engines = self._build = False  # whether the plan in force does; may build them
        self._streams = streams
        self._engines = self._open_engines()
        self.attention = hardware.attention(self.precision)
        self.preferred_precision = self.precision  # plans deviate only if memory is short
        self._lower_precision_valid = self.precision == requested  # the self-check passed
        self.begin_stream()

    def begin_stream(self) -> None:
        """Forgets what earlier windows have left; weights, engines and programs stay."""
        self.backend, self._size = self._torch, (0, 0)
        self._engine_failed = False  # whether an engine failed while it ran
        self._warned = False  # that engines need more memory
        self.backend_since: int | None = None  # id of the first window on it
        self.chunks = self.hardware.chunks()

    @property
    def compiling(self) -> bool:
        """Whether a program was compiled since ``begin_window``, or an engine is being prepared.

        Both take memory that windows do not.
        """
        return self._torch.compiling or (self._engines is not None and self._engines.preparing)

    @property
    def lower_precision(self) -> torch.dtype | None:
        """The 16-bit type that a plan may use if memory is short; None: not allowed.

        Allowed only if `mixed_precision` is auto and no self-check of a 16-bit type has failed.
        """
        auto = self._config.mixed_precision == "auto" and self.preferred_precision == torch.float32
        allowed = auto and self._lower_precision_valid and self.hardware.supports(torch.bfloat16)
        return torch.bfloat16 if allowed else None

    def reject_lower_precision(self) -> None:
        """Forbid 16-bit types in plans: their self-check failed on this device."""
        self._lower_precision_valid = False

    def change_precision(self, dtype: torch.dtype) -> bool:
        """Convert the network; after a 16-bit type the weights are read from the file again.

        Returns False, and runs in fp32, if ``dtype`` fails the self-check.
        """
        loaded = self.module if self.precision == torch.float32 else None
        self.module, self.precision = load_checked(self._load, self.hardware, dtype, loaded)
        self.attention = self.hardware.attention(self.precision)
        self.compiler.forget()
        self._torch = TorchBackend(self.module, self.precision, self.compiler)
        self._engines = self._open_engines()
        return self.precision == dtype

    def set_chunks(self, chunks: Chunks, *, may_compile: bool) -> None:
        """Use these chunk sizes from now on; ``may_compile`` False disables compiled programs."""
        self.chunks = self._torch.state = chunks
        self._torch.may_compile = may_compile
        self.module.set_chunks(chunks)

    @property
    def preferred_backend(self) -> str:
        """The backend for plans with enough memory."""
        return "torch" if self._engines is None else self._wanted_backend

    def use_backend(
        self, backend: str, wanted: str, sizes: Sequence[tuple[int, int]], *, build: bool = True
    ) -> bool:
        """Use a plan's backend, with engines for images of ``sizes`` (H, W), the plan's own first.

        Engines are prepared beside us; meanwhile torch runs. Those of other sizes, and all if the
        plan is for torch, are dropped; returns whether there were any. build: False takes engines
        from the cache only. Warns once if the plan, for want of memory, is for another backend
        than ``wanted``. Raises DeviceError if the backend cannot run here.
        """
        if backend != "torch" and self._engines is None:
            raise DeviceError(
                f"the plan is for backend {backend}, which this device or parameter `backend` "
                "rules out"
            )
        if backend != wanted and wanted != "torch" and not self._warned:
            self._warned = True
            log.warning("memory_budget_gb is too small for an engine of %s: using torch", wanted)
        self._use_engines, self._build = backend != "torch", build
        if self._engines is None:
            return False
        dropped = self._engines.keep_only(sizes if self._use_engines else ())
        if dropped and self.backend is not self._torch:
            self.backend = self._torch  # which holds no engine: its memory is free now
        if self._use_engines:
            self._engines.prepare(sizes[0], build=build)
        return dropped

    def begin_window(self, size: tuple[int, int], window: int) -> None:
        """Select the backend of a window (its id) with images of ``size``; reset ``compiling``."""
        self._torch.compiling = False
        before, self._size, self.backend = self.backend, size, self._backend(size)
        if self.backend_since is None or self.backend.name != before.name:
            self.backend_since = window

    def encode(self, images: Tensor) -> Any:
        """As ``Backend.encode``."""
        size = (images.shape[-2], images.shape[-1])
        return self._run(size, lambda backend: backend.encode(images))

    def decode(
        self,
        prefix: Any,
        size: tuple[int, int],
        camera_tokens: Tensor | None,
        frames: Tensor | None,
        images: Tensor | None = None,
    ) -> Output:
        """As ``Backend.decode``; images: as ``TorchBackend.decode``."""
        if images is not None:
            return self._torch.decode(prefix, size, camera_tokens, frames, images)
        out: Output = self._run(
            size, lambda backend: backend.decode(prefix, size, camera_tokens, frames)
        )
        return out

    def _run(self, size: tuple[int, int], work: Callable[[Backend], Any]) -> Any:
        """Run ``work`` on the current backend; on torch from now on if an engine fails."""
        backend = self._current(size)
        try:
            return work(backend)
        except Exception as error:  # of any kind: torch runs instead, and no window is lost
            if backend is self._torch or self.hardware.is_out_of_memory(error):
                raise
            log.warning("%s failed, running on torch: %s", backend.name, first_line(error))
        self._engine_failed, self.backend = True, self._torch
        if self._engines is not None:
            self._engines.keep_only(())  # their memory is for torch now
        return work(self._torch)

    def _current(self, size: tuple[int, int]) -> Backend:
        """The backend of the newest window: an engine that becomes ready waits for the next."""
        return self.backend if size == self._size else self._backend(size)

    def _backend(self, size: tuple[int, int]) -> Backend:
        short = not self._torch.may_compile  # memory ran out: engines take more than torch
        if self._engines is None or not self._use_engines or self._engine_failed or short:
            return self._torch
        self._engines.prepare(size, build=self._build)
        return self._engines.get(size) or self._torch

    def release(self) -> None:
        """Return memory that programs and engines keep between windows."""
        self.compiler.release()
        self.backend.release()

    def upload(self, x: Tensor) -> Tensor:
        """Copy a tensor to the device. Only on CUDA is it safe to queue the copy."""
        if self.hardware.device.type != "cuda" or x.is_cuda:
            return x.to(self.hardware.device)
        return x.pin_memory().to(
            self.hardware.device, non_blocking=True
        )  # pageable memory would wait

    def _compile_mode(self, precision: torch.dtype) -> str:
        mode = self.hardware.compile_mode(self._config.compile)
        if mode and precision == torch.int8:
            raise DeviceError("torch.compile does not support int8 here: set compile to off")
        return mode

    def _open_engines(self) -> Engines | None:
        """The engines of this network; None if it runs on torch alone."""
        config, runtime = self._config, BACKENDS[self._wanted_backend]()
        if self.precision not in runtime.precisions:
            return None
        return runtime.open(
            Opening(
                self.module, config.checkpoint, self.precision, torch.get_num_threads(),
                cache_folder(config.cache_dir), wait=self._wait, most_sizes=self._streams,
                release=self.hardware.release,
            )
        )  # fmt: skip

    def _load(self) -> Network:
        config = self._config
        network = load_network(config.model, config.checkpoint, gaussians=self.gaussians)
        drop_rays(network)
        if not self._poses:
            drop_camera_encoder(network)
        return network
