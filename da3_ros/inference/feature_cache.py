"""Caches prefixes, the outputs of the network's per-image layers, for images in later windows."""

from __future__ import annotations

import functools
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from da3_ros.inference.download import Download
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
        """Drop the least recently used entries beyond ``most``."""
        while len(self._entries) > most:
            self._entries.popitem(last=False)

    def clear(self) -> None:
        """Drop all entries."""
        self._entries.clear()
