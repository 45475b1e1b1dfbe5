"""Caches prefixes, the outputs of the network's per-image layers, for images in later windows."""

from __future__ import annotations

import functools
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from da3_ros.types import Image

Prefix = Any  # output of a network's `encode`, which sees each image alone: NamedTuple of tensors


@dataclass(frozen=True)
class _Entry:
    image: weakref.ref[Image]
    prefix: Callable[[], Prefix]  # waits for a running download
    nbytes: int


@dataclass(frozen=True)
class CachePolicy:
    """How many prefixes are cached, and where."""

    most: int  # number of images
    on_host: bool


class FeatureCache:
    """Least-recently-used cache of prefixes. The key is the identity of the image array."""

    def __init__(self) -> None:
        self._entries: OrderedDict[int, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        """Bytes of all cached prefixes, on device and host."""
        return sum(entry.nbytes for entry in self._entries.values())

    def get(self, image: Image) -> Prefix | None:
        """The prefix of ``image``, tensors [T, D] without a batch axis; None if not cached."""
        entry = self._entries.get(id(image))
        if entry is None or entry.image() is not image:  # an `id()` may be reused
            self._entries.pop(id(image), None)
            return None
        self._entries.move_to_end(id(image))
        return entry.prefix()

    def put(self, image: Image, prefix: Prefix, *, on_host: bool) -> None:
        """Cache a copy: images of one batch share storage, and each must be freed separately."""
        make: Any = type(prefix)
        own = (
            Download(prefix).wait
            if on_host
            else functools.partial(make, *(x.clone() for x in prefix))
        )
        size = sum(x.nbytes for x in prefix)
        self._entries[id(image)] = _Entry(weakref.ref(image), own, size)

    def bound(self, most: int) -> None:
        """Drop the least recently used entries beyond ``most``; 0: all."""
        while len(self._entries) > most:
            self._entries.popitem(last=False)


# Copies results from a device to the host asynchronously.
#
# On CUDA a plain copy to the host blocks until all earlier work is done, once per tensor. Here all
# copies into pinned memory are queued behind the work, and the caller waits once at the end; other
# Python threads run during that wait.

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
