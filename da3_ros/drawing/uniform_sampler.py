"""An even choice of the items of a stream of unknown length, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np

T = TypeVar("T")


class UniformSampler(Generic[T]):
    """Chooses at most ``most`` items, evenly spaced; holds at most twice as many."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._items: list[T] = []
        self._count = 0
        self._spacing = 1

    def add(self, make: Callable[[], T]) -> None:
        """Counts the stream's next item; makes it only if it is held."""
        if self._count % self._spacing == 0:
            self._items.append(make())
        self._count += 1
        if len(self._items) > 2 * self.most:
            self._items = self._items[::2]
            self._spacing *= 2

    def chosen(self) -> list[T]:
        """Returns the choice, in the stream's order."""
        count = min(self.most, len(self._items))
        at = np.linspace(0, len(self._items) - 1, count).round().astype(int)
        return [self._items[i] for i in at]
