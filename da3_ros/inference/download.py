"""Copies results from a device to the host asynchronously.

On CUDA a plain copy to the host blocks until all earlier work is done, once per tensor. Here all
copies into pinned memory are queued behind the work, and the caller waits once at the end; other
Python threads run during that wait.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

Values = TypeVar("Values", bound=tuple[Any, ...])


class Download(Generic[Values]):
    """A named tuple of tensors (and of None) that is being copied to the host."""

    def __init__(self, values: Values) -> None:
        """Queue the copies. On CUDA this returns at once; elsewhere the copies are then done."""
        self._event: Any = None
        make: Any = type(values)
        self._host: Values = make(*(self._copy(x) for x in values))
        gpu = next((x.device for x in values if isinstance(x, Tensor) and x.is_cuda), None)
        if gpu is not None:
            self._event = torch.cuda.Event()
            # The stream of that GPU: the thread's current GPU may be another one.
            self._event.record(torch.cuda.current_stream(gpu))

    def wait(self) -> Values:
        """Wait for the copies and return the values on the host."""
        if self._event is not None:
            self._event.synchronize()
        return self._host

    @property
    def queued(self) -> bool:
        """Whether the copies are asynchronous (CUDA)."""
        return self._event is not None

    def done(self) -> bool:
        """Whether the copies are complete; does not block."""
        return self._event is None or bool(self._event.query())

    @staticmethod
    def _copy(x: Tensor | None) -> Tensor | None:
        if x is None or not x.is_cuda:
            return x if x is None else x.cpu()
        return torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True)
