"""The network in PyTorch, compiled where that is enabled."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from da3_ros.backends.compiled import Compiler
from da3_ros.backends.interface import Backend, Opening, Runtime
from da3_ros.network import Network
from da3_ros.network.model import Output
from da3_ros.network.stages import StageCall, stage_calls


class TorchRuntime(Runtime):
    """PyTorch, which runs everything everywhere."""

    def unsuited(self, device: str, precision: torch.dtype) -> str:
        return ""

    def open(self, opening: Opening) -> None:
        return None


class TorchBackend(Backend):
    """Runs ``module`` as it is, or programs of ``compiler``."""

    name = "torch"

    def __init__(self, module: Network, precision: torch.dtype, compiler: Compiler) -> None:
        self.module, self.precision, self.compiler = module, precision, compiler
        self.may_compile = True
        self.state: Hashable = None  # all that the module's results depend on, besides its inputs
        self.compiling = False  # whether a program was compiled since this was set to False

    def stage_calls(self) -> list[StageCall]:
        return stage_calls(self.module)

    def encode(self, images: Tensor) -> Any:
        return self._call("encode", images)

    def decode(
        self,
        prefix: Any,
        size: tuple[int, int],
        camera_tokens: Tensor | None,
        frames: Tensor | None,
        images: Tensor | None = None,
    ) -> Output:
        """As ``Backend.decode``; images: of the last frames, which get Gaussians too, as
        ``DepthAnything3.decode``."""
        more = {} if images is None else {"images": images}
        out: Output = self._call(
            "decode", prefix, size, camera_tokens, ref_view="first", frames=frames, **more
        )
        return out

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the module, compiled if that is enabled and works."""
        plain = getattr(self.module, name)
        if not self.compiler.mode or not self.may_compile:
            return plain(*args, **kwargs)
        out = self.compiler.call(plain, self.precision, self.state, *args, **kwargs)
        self.compiling |= self.compiler.at_work
        return out
