"""A network on its device: the module, its precision, chunk sizes and compiled programs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from da3_ros.config import InferenceConfig
from da3_ros.inference.compiled import Compiler
from da3_ros.inference.devices import Device, DeviceError
from da3_ros.inference.loading import load_checked, load_network
from da3_ros.inference.self_check import pose_fault
from da3_ros.network import Network
from da3_ros.network.model import Chunks
from da3_ros.network.precision import drop_camera_encoder, drop_rays


class LoadedNetwork:
    """Owns the network's module, precision, chunk sizes and compiled programs. Not thread-safe.

    Raises CheckpointError, DeviceError or ValueError at construction, each with one line.
    """

    def __init__(
        self, config: InferenceConfig, hardware: Device, *, poses: bool, streams: int
    ) -> None:
        """``poses``: windows may have known poses; if False, the camera encoder is dropped.

        ``streams``: number of cameras whose windows alternate.
        """
        self.hardware = hardware
        self._config, self._poses = config, poses
        requested = hardware.precision(config.mixed_precision)
        hardware.attention(requested)  # raises before anything is loaded
        self.compiler = Compiler(
            self._compile_mode(requested),
            hardware.is_out_of_memory,
            streams=streams,
            fault=pose_fault,
        )
        self.module, self.precision = load_checked(self._load, hardware, requested)
        self.attention = hardware.attention(self.precision)
        self.preferred_precision = self.precision  # plans deviate only if memory is short
        self._lower_precision_valid = self.precision == requested  # the self-check passed
        self.chunks = hardware.chunks()
        self._may_compile = True
        self.compiling = False  # whether a program was compiled since ``begin_window``

    @property
    def compile_mode(self) -> str:
        """The mode of torch.compile; "" if the network is not compiled."""
        return self.compiler.mode

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
        return self.precision == dtype

    def set_chunks(self, chunks: Chunks, *, may_compile: bool) -> None:
        """Use these chunk sizes from now on; ``may_compile`` False disables compiled programs."""
        self.chunks, self._may_compile = chunks, may_compile
        self.module.set_chunks(chunks)

    def begin_window(self) -> None:
        """Reset ``compiling`` for the next window."""
        self.compiling = False

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call ``encode`` or ``decode`` of the network, compiled if that is enabled and works."""
        plain = getattr(self.module, name)
        if not self.compile_mode or not self._may_compile:
            return plain(*args, **kwargs)
        out = self.compiler.call(plain, self.precision, self.chunks, *args, **kwargs)
        self.compiling |= self.compiler.at_work
        return out

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

    def _load(self) -> Network:
        network = load_network(self._config.model, self._config.checkpoint)
        drop_rays(network)
        if not self._poses:
            drop_camera_encoder(network)
        return network
