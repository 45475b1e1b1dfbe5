"""The interface of runtimes: the two halves of a network, as a session calls them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from da3_ros.network.model import Output


class Backend(ABC):
    """Runs a network. Not thread-safe: one worker owns it.

    A prefix is a network's own named tuple: ``Prefix``, ``NestedPrefix`` or ``MonocularOutput``.
    """

    name = ""
    keeps_memory = False  # whether the memory of a window stays allocated after it

    def release(self) -> None:
        """Return memory that windows left allocated to the system."""
        return

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
