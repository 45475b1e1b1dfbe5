"""A network on its device: the module, its precision, its chunks and its compiled programs."""

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
    """Owns the network's module, precision, chunks and compiled programs. Not thread-safe.

    Raises CheckpointError, DeviceError or ValueError at construction, each with one line.
    """

    def __init__(self, config: InferenceConfig, on: Device, *, poses: bool, streams: int) -> None:
        """``poses``: windows may bring known poses; without, what reads them is not kept.

        ``streams``: windows of so many cameras come in turns.
        """
        self.on = on
        self._config, self._poses = config, poses
        asked = on.precision(config.mixed_precision)
        on.attention(asked)  # raises before anything is loaded
        self.compiler = Compiler(
            self._compile_mode(asked), on.is_out_of_memory, streams=streams, fault=pose_fault
        )
        self.module, self.precision = load_checked(self._load, on, asked)
        self.attention = on.attention(self.precision)
        self.wanted = self.precision  # what a plan may leave only for want of memory
        self._trusts_less = self.precision == asked  # no 16 bits were found wrong here
        self.chunks = on.chunks()
        self._may_compile = True
        self.compiling = False  # whether compiling took part since ``begin_window``

    @property
    def compile_mode(self) -> str:
        """How the network is compiled, "" where it is not."""
        return self.compiler.mode

    @property
    def spare(self) -> torch.dtype | None:
        """A smaller type that a plan may take for want of memory; None: there is none.

        Only where `mixed_precision` is auto, and not after 16 bits were found wrong here.
        """
        auto = self._config.mixed_precision == "auto" and self.wanted == torch.float32
        allowed = auto and self._trusts_less and self.on.can(torch.bfloat16)
        return torch.bfloat16 if allowed else None

    def refuse_spare(self) -> None:
        """16 bits were found wrong here: no plan may take them."""
        self._trusts_less = False

    def change_precision(self, dtype: torch.dtype) -> bool:
        """Convert the network; what 16 bits have lost is read from the file again.

        False, and fp32, where ``dtype`` is not close to it.
        """
        loaded = self.module if self.precision == torch.float32 else None
        self.module, self.precision = load_checked(self._load, self.on, dtype, loaded)
        self.attention = self.on.attention(self.precision)
        self.compiler.forget()
        return self.precision == dtype

    def set_chunks(self, chunks: Chunks, *, may_compile: bool) -> None:
        """Run in pieces of these sizes from now on; ``may_compile``: where that is on."""
        self.chunks, self._may_compile = chunks, may_compile
        self.module.set_chunks(chunks)

    def begin_window(self) -> None:
        """What ``compiling`` tells is about the window that comes."""
        self.compiling = False

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """``encode`` or ``decode`` of the network, compiled where that was chosen and works."""
        plain = getattr(self.module, name)
        if not self.compile_mode or not self._may_compile:
            return plain(*args, **kwargs)
        out = self.compiler.call(plain, self.precision, self.chunks, *args, **kwargs)
        self.compiling |= self.compiler.at_work
        return out

    def upload(self, x: Tensor) -> Tensor:
        """A tensor on the device. On CUDA the copy is queued; only there is that safe."""
        if self.on.device.type != "cuda" or x.is_cuda:
            return x.to(self.on.device)
        return x.pin_memory().to(self.on.device, non_blocking=True)  # pageable memory would wait

    def _compile_mode(self, precision: torch.dtype) -> str:
        mode = self.on.compile_mode(self._config.compile)
        if mode and precision == torch.int8:
            raise DeviceError("torch.compile does not know our int8: set compile to off")
        return mode

    def _load(self) -> Network:
        network = load_network(self._config.model, self._config.checkpoint)
        drop_rays(network)
        if not self._poses:
            drop_camera_encoder(network)
        return network
