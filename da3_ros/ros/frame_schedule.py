"""Schedule of a rendered stream: frames rendered ahead, their order, stamps and pace.

Generic over the type of a frame; no middleware.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FrameBuffer(Generic[Item]):
    """Items that a background thread makes once and that stay in memory.

    ``error``: exception that ended the thread, for the owner to report.
    """

    def __init__(self, total: int, make: Callable[[], Iterable[Item]]) -> None:
        """``make`` yields ``total`` items; it runs in the thread."""
        self.total = total
        self.error: Exception | None = None
        self._make = make
        self._items: list[Item] = []
        self._stopped = threading.Event()
        self._first_s = self._last_s = 0.0  # when the first and the newest item were made
        self._thread = threading.Thread(target=self._fill, name="render", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._items)

    def get(self, index: int) -> Item | None:
        """Returns item ``index``, or None if it is not made yet."""
        items = self._items
        return items[index] if index < len(items) else None

    def enough(self, rate_hz: float) -> bool:
        """True if items taken at ``rate_hz`` from now on will be made in time."""
        made = len(self._items)
        if made == self.total:
            return True
        spent = self._last_s - self._first_s
        if made < 8 or not spent:
            return False
        # A margin of 50 %: other processes may need the processor.
        left = 1.5 * (self.total - made) * spent / (made - 1)
        return left < (self.total - 1) / rate_hz

    def stop(self, timeout_s: float) -> bool:
        """Stop the thread; True if it has ended within ``timeout_s``."""
        self._stopped.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _fill(self) -> None:
        try:
            for item in self._make():
                self._last_s = time.monotonic()
                self._first_s = self._first_s or self._last_s
                self._items.append(item)
                if self._stopped.is_set():
                    return
        except Exception as error:
            self.error = error


def cycle_index(count: int, length: int, *, closed: bool) -> int:
    """Returns which of ``length`` frames is number ``count`` of an endless stream without jumps.

    A closed walk ends where it began: it is repeated without its last frame, which equals the
    first. Any other walk is played forward and backward.
    """
    if length == 1 or count < length:
        return min(count, length - 1)
    if closed:
        return count % (length - 1)
    slot = count % (2 * (length - 1))
    return min(slot, 2 * (length - 1) - slot)


class StampGrid:
    """Stamps that are whole periods apart, even if a call is late.

    Missed periods are skipped. If the clock jumps back, a new grid begins.
    """

    def __init__(self, rate_hz: float) -> None:
        self._period_ns = 1e9 / rate_hz
        self._start_ns: int | None = None
        self._slot = 0

    def next(self, now_ns: int) -> int:
        """Returns the stamp, nanoseconds, of the frame that is due at ``now_ns``."""
        if self._start_ns is None:
            self._start_ns = now_ns
            return now_ns
        elapsed = (now_ns - self._start_ns) / self._period_ns
        # Up to a quarter of a period early counts as in time, since clocks are slewed.
        slot = max(math.floor(elapsed + 0.25), self._slot + 1)
        if slot - elapsed > 1.25:
            self._start_ns, slot = now_ns, 0
        self._slot = slot
        return self._start_ns + round(slot * self._period_ns)


class ResultPacer:
    """Paces a stream by its consumer: the next frame waits for the result of the last one.

    A result is recognised by its frame's stamp. Without a result the next frame may be sent after
    ``timeout_s``; ``missed`` counts these.
    """

    def __init__(self, timeout_s: float) -> None:
        self.missed = 0
        self._timeout_s = timeout_s
        self._sent_ns: int | None = None  # stamp of the frame whose result is missing
        self._sent_s = 0.0

    def frame_sent(self, stamp_ns: int, now_s: float) -> None:
        """Record that a frame with this stamp is sent."""
        self._sent_ns, self._sent_s = stamp_ns, now_s

    def result_received(self, stamp_ns: int) -> None:
        """Record a result: of the last frame, or a late one of an earlier frame."""
        if stamp_ns == self._sent_ns:
            self._sent_ns = None

    def may_send(self, now_s: float) -> bool:
        """True if the next frame may be sent; counts it if the last result is missing."""
        if self._sent_ns is None:
            return True
        if now_s - self._sent_s < self._timeout_s:
            return False
        self.missed += 1
        self._sent_ns = None
        return True
