"""What a network made of images alone, kept for the windows that those images will be in again."""

from __future__ import annotations

import functools
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from da3_ros.inference.download import Download
from da3_ros.types import Image

Prefix = Any  # what a network's `encode` makes of frames alone: a NamedTuple of tensors


@dataclass(frozen=True)
class _Kept:
    image: weakref.ref[Image]
    prefix: Callable[[], Prefix]  # waits for what is on its way to the host
    nbytes: int


@dataclass(frozen=True)
class KeepRule:
    """How prefixes are kept."""

    most: int  # images in all
    on_host: bool


class KeptPrefixes:
    """By the image's address: the image alone decides. The longest unused leave first."""

    def __init__(self) -> None:
        self._entries: OrderedDict[int, _Kept] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        """Of all that is kept, wherever."""
        return sum(entry.nbytes for entry in self._entries.values())

    def get(self, image: Image) -> Prefix | None:
        """The prefix [T, D] ... of ``image``, without a batch; None if there is none."""
        entry = self._entries.get(id(image))
        if entry is None or entry.image() is not image:  # an address may be used again
            self._entries.pop(id(image), None)
            return None
        self._entries.move_to_end(id(image))
        return entry.prefix()

    def put(self, image: Image, prefix: Prefix, *, on_host: bool) -> None:
        """Keep a copy: frames of one batch share its storage, and each must be able to leave."""
        make: Any = type(prefix)
        own = (
            Download(prefix).wait
            if on_host
            else functools.partial(make, *(x.clone() for x in prefix))
        )
        size = sum(x.nbytes for x in prefix)
        self._entries[id(image)] = _Kept(weakref.ref(image), own, size)

    def bound(self, most: int) -> None:
        """Drop the longest unused beyond ``most``."""
        while len(self._entries) > most:
            self._entries.popitem(last=False)

    def clear(self) -> None:
        """Forget all."""
        self._entries.clear()
