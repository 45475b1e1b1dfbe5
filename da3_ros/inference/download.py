"""Results on their way from a device to the host, without stopping the device on the way.

On CUDA a plain copy to the host waits for everything before it, once per tensor. Here all copies
are queued behind the work into pinned memory, and one wait at the end, in which Python's other
threads run, is all there is.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

Values = TypeVar("Values", bound=tuple[Any, ...])


class Download(Generic[Values]):
    """A named tuple of tensors (and of None) that is being copied to the host."""

    def __init__(self, values: Values) -> None:
        """Queues the copies; returns at once on CUDA, and with the copies done elsewhere."""
        self._event: Any = None
        make: Any = type(values)
        self._host: Values = make(*(self._copy(x) for x in values))
        card = next((x.device for x in values if isinstance(x, Tensor) and x.is_cuda), None)
        if card is not None:
            self._event = torch.cuda.Event()
            # That card's stream: the thread's current card may be another one.
            self._event.record(torch.cuda.current_stream(card))

    def wait(self) -> Values:
        """The values on the host, once they are there."""
        if self._event is not None:
            self._event.synchronize()
        return self._host

    @property
    def queued(self) -> bool:
        """Whether there was something to wait for when it began."""
        return self._event is not None

    def done(self) -> bool:
        """Whether the values are there; does not wait."""
        return self._event is None or bool(self._event.query())

    @staticmethod
    def _copy(x: Tensor | None) -> Tensor | None:
        if x is None or not x.is_cuda:
            return x if x is None else x.cpu()
        return torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True)
