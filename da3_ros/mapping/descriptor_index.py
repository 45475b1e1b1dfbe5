"""Similarity of keyframes' descriptors, whitened by the statistics of all of them.

Statistics of many descriptors take tens of milliseconds and are computed by a thread of their own;
they are taken over a fixed number of descriptors later, so that results do not depend on time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from da3_ros.types import Array

STATISTICS = 512  # descriptors of which the statistics are computed, at most
DIMENSIONS = 64  # of descriptors after whitening
FEW = 64  # descriptors up to which the statistics are computed at once
LATER = 16  # descriptors after which statistics of the thread are taken over

_thread = ThreadPoolExecutor(1, "da3_descriptors")  # starts with its first use
Whitening = tuple[Array, Array]


class DescriptorIndex:
    """Similarities of the kept keyframes' descriptors, in the order of the keyframes.

    The statistics change slowly: they are computed anew when the number of new descriptors reaches
    an eighth of all.
    """

    def __init__(self) -> None:
        self._rows = np.zeros((0, 0))  # the first ones are in use; more, so that adding is cheap
        self._count = 0
        self._whitening: Whitening | None = None
        self._added = 0  # descriptors since the statistics were begun
        # Statistics that a thread computes, with the rows of all descriptors of that time, and
        # what was added (a descriptor) or removed (an index) since.
        self._computed: Future[tuple[Whitening, Array]] | None = None
        self._since: list[Array | int] = []

    def restore(self, descriptors: Sequence[Array]) -> None:
        """Takes over ``descriptors``; it has none yet."""
        if descriptors:
            self._take(statistics(descriptors))

    @property
    def _whitened(self) -> Array:
        return self._rows[: self._count]

    def add(
        self, descriptor: Array, all: Callable[[], Sequence[Array]], *, fixed: bool = False
    ) -> None:
        """Adds a descriptor; ``all`` returns all, this one last. fixed: the statistics stay."""
        self._added += not fixed
        due = not fixed and 8 * self._added >= self._count + 1
        if self._whitening is None or (due and self._count < FEW):
            self._take(statistics(all()))
            return
        self._append(descriptor)
        if self._computed is not None:
            self._since.append(descriptor)
            if self._added >= LATER or fixed:
                self._take_computed()
        elif due:
            self._computed, self._added = _thread.submit(statistics, list(all())), 0

    def _append(self, descriptor: Array) -> None:
        assert self._whitening is not None
        if self._count == len(self._rows):
            more = np.zeros((self._count // 8 + 64, self._rows.shape[1]))
            self._rows = np.concatenate((self._rows, more))
        self._rows[self._count] = whitened(descriptor[None], self._whitening)[0]
        self._count += 1

    def _take(self, found: tuple[Whitening, Array]) -> None:
        self._whitening, self._rows = found
        self._count, self._added = len(self._rows), 0

    def _take_computed(self) -> None:
        """Takes over the statistics of the thread, with what has changed since they were begun."""
        assert self._computed is not None
        added, changes = self._added, self._since
        found, self._computed, self._since = self._computed.result(), None, []
        self._take(found)
        self._added = added
        for change in changes:
            if isinstance(change, int):
                self.remove(change)
            else:
                self._append(change)

    def remove(self, index: int) -> None:
        """Removes the descriptor at ``index``."""
        self._rows = np.delete(self._rows, index, axis=0)
        self._count -= 1
        if self._computed is not None:
            self._since.append(index)

    def like(self, index: int = -1) -> Array:
        """Returns the cosines [M] of each descriptor with that at ``index``."""
        return np.asarray(self._whitened @ self._whitened[index])

    def neighbours(self) -> Array:
        """Returns the cosines [M - 1] of each descriptor with the next one."""
        return np.asarray((self._whitened[:-1] * self._whitened[1:]).sum(axis=1))


def statistics(descriptors: Sequence[Array]) -> tuple[Whitening, Array]:
    """Returns the whitening of descriptors, and them whitened [M, d]."""
    x = np.array(descriptors)
    even = np.arange(min(len(x), STATISTICS)) * len(x) // min(len(x), STATISTICS)
    found = whitening(x[even])
    return found, whitened(x, found)


def whitening(descriptors: Array) -> tuple[Array, Array]:
    """Returns the mean [D] and the scaled axes [D, d] in which descriptors [M, D] have equal
    variance."""
    x = np.asarray(descriptors, dtype=np.float64)
    mean = x.mean(axis=0)
    if len(x) <= 8:
        return mean, np.eye(x.shape[1])
    x = x - mean
    # Principal axes from the smaller one of the two products: M is some hundred, D up to 1 536.
    most = min(DIMENSIONS, len(x) // 2)
    squares, left = (part[..., -most:] for part in np.linalg.eigh(x @ x.T))
    size = np.sqrt(np.maximum(squares, 1e-12 * max(squares[-1], 1e-12)))
    # Axes of little variance among few descriptors are noise and must not be scaled up fully.
    return mean, x.T @ (left / (size * (size + 0.1 * size[-1])))


def whitened(descriptors: Array, whitening: tuple[Array, Array]) -> Array:
    """Returns unit rows [M, d]: descriptors [M, D] whitened by the result of ``whitening``."""
    x = (descriptors - whitening[0]) @ whitening[1]
    return np.asarray(x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12))
