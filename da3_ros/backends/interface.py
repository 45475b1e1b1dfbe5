"""The interfaces of runtimes: where one can run, and a network on it, as a session calls them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from da3_ros.network import ModelSpec, Network
from da3_ros.network.model import Output
from da3_ros.network.stages import StageCall


class Backend(ABC):
    """Runs a network. Not thread-safe: one worker owns it.

    A prefix is a network's own named tuple: ``Prefix``, ``NestedPrefix`` or ``MonocularOutput``.
    """

    name = ""
    keeps_memory = False  # whether the memory of a window stays allocated after it

    def release(self) -> None:
        """Return memory that windows left allocated to the system."""
        return

    def stage_calls(self) -> list[StageCall]:
        """The methods that run the network's stages, for measuring each by itself."""
        return []

    @abstractmethod
    def encode(self, images: Tensor) -> Any:
        """Prefix [1, F, ...] of images [1, F, 3, H, W], normalised, on the device."""

    @abstractmethod
    def decode(
        self,
        prefix: Any,
        size: tuple[int, int],
        camera_tokens: Tensor | None,
        frames: Tensor | None,
    ) -> Output:
        """The window of views with this prefix [1, N, ...]; the first view is the reference.

        size: (H, W) of the images. camera_tokens: [1, N, D] of known poses, or None.
        frames: int64 [M], views whose maps are wanted; None: all. Multi-view networks only.
        """


class Engines(ABC):
    """The backends of one network on a runtime, by image size. One thread calls it."""

    @property
    def preparing(self) -> bool:
        """Whether one is being prepared, which takes memory."""
        return False

    def prepare(self, size: tuple[int, int], *, build: bool = True) -> None:
        """Start preparing the backend for images of ``size`` (H, W), if that has not begun.

        build: False takes it from a cache only.
        """
        return

    @abstractmethod
    def get(self, size: tuple[int, int]) -> Backend | None:
        """The backend for images of ``size``; None: not prepared, not ready, or failed."""

    @abstractmethod
    def keep_only(self, sizes: Collection[tuple[int, int]]) -> bool:
        """Drop what is for other sizes only; returns whether there was anything."""


class OneBackend(Engines):
    """One backend for images of all sizes, made when it is first used."""

    def __init__(self, make: Callable[[], Backend]) -> None:
        self._make = make
        self._made: Backend | None = None

    def get(self, size: tuple[int, int]) -> Backend:
        self._made = self._made or self._make()
        return self._made

    def keep_only(self, sizes: Collection[tuple[int, int]]) -> bool:
        dropped = self._made is not None and not sizes
        if dropped:
            self._made = None
        return dropped


@dataclass(frozen=True)
class EngineMemory:
    """Memory of an engine in bytes, beside the network in PyTorch."""

    weights: int  # while it is loaded
    activations: int  # added by the largest window, and kept
    build: int  # of the process that builds it


@dataclass(frozen=True, eq=False)
class Opening:
    """A network to open on a runtime, and how its engines are kept."""

    module: Network
    checkpoint: str  # where its weights came from, as the parameter
    precision: torch.dtype  # of matrix products
    threads: int
    cache: Path | None  # folder for engines; None: none is kept
    wait: bool  # whether ``Engines.get`` waits for an engine that is being prepared
    most_sizes: int  # number of image sizes that alternate
    release: Callable[[], None]  # returns freed memory to the system


class BackendError(RuntimeError):
    """The wanted backend cannot be used; the text is one line with the remedy.

    fault: the text without the remedy. cost: what it means that
    windows run on torch instead, or empty.
    """

    def __init__(self, fault: str, remedy: str = "", cost: str = "") -> None:
        super().__init__(f"{fault}; {remedy}" if remedy else fault)
        self.fault, self.cost = fault, cost


class Runtime(ABC):
    """A value of parameter `backend`: where networks run on it, and what that takes.

    The network in PyTorch stays beside it: it runs while engines are prepared, if one fails, and
    if memory is short.
    """

    automatic = False  # whether `auto` chooses it where it can run
    precisions: Collection[torch.dtype] = (torch.float32,)

    def unsuited(self, device: str, precision: torch.dtype) -> str:
        """Why it is not for this kind of device, or for ``precision``; "" if it is for both."""
        if precision in self.precisions:
            return ""
        return f"it does not support mixed_precision {precision_name(precision)}"

    def check(self, precision: torch.dtype) -> None:
        """Raises BackendError if it cannot run in this process, or not in ``precision``."""
        return

    def usual_precision(self, width: int, precision: torch.dtype) -> torch.dtype:
        """The type for mixed_precision auto, instead of the device's, for a network of ``width``
        channels."""
        return precision

    def memory(
        self, spec: ModelSpec, weights: int, views: int, size: tuple[int, int],
        precision: torch.dtype,
    ) -> EngineMemory:  # fmt: skip
        """The memory for windows of ``views`` images of ``size`` (H, W).

        weights: bytes of the network's weights in fp32. By default a second copy of them, and
        activations as in PyTorch.
        """
        return EngineMemory(weights, activations=0, build=0)

    @abstractmethod
    def open(self, opening: Opening) -> Engines | None:
        """The network on this runtime; None: nothing beside the network in PyTorch."""


def precision_name(precision: torch.dtype) -> str:
    """The name of a type, as in parameters."""
    return str(precision).removeprefix("torch.")
