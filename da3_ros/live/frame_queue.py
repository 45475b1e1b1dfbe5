"""Queue of live frames for the worker: keeps the newest frame and drops the others evenly.

A camera is usually faster than the network. Waiting frames are thinned so that the used ones are
evenly spaced in time, not a burst of neighbours followed by a gap. No middleware.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from da3_ros.live.counters import ThreadSafeCounter

SPARE = 4  # queue length per wanted frame, so that an even choice is possible


class Stamped(Protocol):
    """An object with a header stamp in nanoseconds."""

    @property
    def stamp_ns(self) -> int: ...


Item = TypeVar("Item", bound=Stamped)


class FrameQueue(Generic[Item]):
    """A bounded, thread-safe queue of frames between two windows.

    ``counts``: dropped images by cause.
    """

    def __init__(
        self, wanted: int, max_age_s: float = 0.0, images: Callable[[Item], int] = lambda _: 1
    ) -> None:
        """wanted: frames per window. max_age_s: older frames are dropped; 0: none.

        images: returns the number of images in a frame, for the counts.
        """
        self.wanted = wanted
        self._images = images
        self._since_ns: int | None = None
        self.max_age_ns = int(max_age_s * 1e9)
        self.counts = ThreadSafeCounter()
        self._frames: list[Item] = []
        self._last_ns: int | None = None  # newest stamp handed out
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._frames)

    def put(self, frame: Item) -> None:
        """Add the newest frame; drops a waiting frame if the queue is full."""
        with self._lock:
            self._frames.append(frame)
            self._since_ns = frame.stamp_ns if self._since_ns is None else self._since_ns
            limit = 1 if self.wanted == 1 else SPARE * self.wanted
            if len(self._frames) > limit:
                self.counts.add("busy", self._images(self._frames.pop(self._most_crowded())))

    @property
    def since_ns(self) -> float:
        """Stamp of the first frame since the last pass, dropped or not; inf if there is none."""
        since = self._since_ns
        return math.inf if since is None else since

    def take(self, now_ns: int | None = None) -> list[Item]:
        """Remove and return the frames of the next pass in order of arrival, newest included.

        Empty if too few frames wait. now_ns: time that stamps are compared with for their age.
        """
        with self._lock:
            if now_ns is not None and self.max_age_ns:
                self._drop_old(now_ns)
            if len(self._frames) < self.wanted:
                return []
            waiting, self._frames = self._frames, []
            chosen = choose_evenly([f.stamp_ns for f in waiting], self.wanted, self._last_ns)
            lost = [f for i, f in enumerate(waiting) if i not in chosen]
            self.counts.add("busy", sum(map(self._images, lost)))
            self._last_ns, self._since_ns = waiting[-1].stamp_ns, None
            return [waiting[i] for i in chosen]

    def clear(self) -> None:
        """Drop all waiting frames and forget the last pass."""
        with self._lock:
            self.counts.add("cleared", sum(map(self._images, self._frames)))
            self._frames, self._last_ns, self._since_ns = [], None, None

    def _drop_old(self, now_ns: int) -> None:
        old = [f for f in self._frames if now_ns - f.stamp_ns > self.max_age_ns]
        self.counts.add("too_old", sum(map(self._images, old)))
        self._frames = [f for f in self._frames if now_ns - f.stamp_ns <= self.max_age_ns]

    def _most_crowded(self) -> int:
        """Returns the index of the frame with the closest neighbours in time; never the newest."""
        if len(self._frames) == 2:
            return 0
        stamps = [f.stamp_ns for f in self._frames]
        before = self._last_ns if self._last_ns is not None else 2 * stamps[0] - stamps[1]
        around = [before, *stamps]
        gaps = [around[i + 2] - around[i] for i in range(len(stamps) - 1)]
        return gaps.index(min(gaps))


def choose_evenly(stamps: list[int], count: int, last: int | None) -> list[int]:
    """Returns indices of ``count`` stamps, evenly spaced since ``last`` and including the newest.

    ``stamps`` are sorted. Without ``last`` the first stamp is included too.
    """
    newest = len(stamps) - 1
    if count >= len(stamps):
        return list(range(len(stamps)))
    start = last if last is not None and last < stamps[0] else stamps[0]
    steps = count if start != stamps[0] else max(1, count - 1)
    first = 1 if start != stamps[0] else 0
    chosen: list[int] = []
    for step in range(count):
        target = start + (stamps[newest] - start) * (first + step) / steps
        low = chosen[-1] + 1 if chosen else 0
        high = newest - (count - 1 - step)  # keeps enough stamps for the remaining steps
        chosen.append(min(range(low, high + 1), key=lambda i: abs(stamps[i] - target)))
    chosen[-1] = newest
    return chosen
