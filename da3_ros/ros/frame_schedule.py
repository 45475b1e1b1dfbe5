"""How a rendered walk becomes a stream: frames made ahead, their order, their stamps.

Knows no middleware and nothing of what a frame is.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FrameBuffer(Generic[Item]):
    """Items made once, in a thread of their own, and kept.

    ``error`` is what went wrong in that thread, for the owner to report.
    """

    def __init__(self, total: int, make: Callable[[], Iterable[Item]]) -> None:
        """``make`` gives ``total`` items one after another; it runs in the thread."""
        self.total = total
        self.error: Exception | None = None
        self._make = make
        self._items: list[Item] = []
        self._stopped = threading.Event()
        self._first_s = self._last_s = 0.0  # when the first and the newest item were there
        self._thread = threading.Thread(target=self._fill, name="render", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._items)

    def get(self, index: int) -> Item | None:
        """Item ``index``, or None while it is not made yet."""
        items = self._items
        return items[index] if index < len(items) else None

    def enough(self, rate_hz: float) -> bool:
        """Whether items taken at ``rate_hz`` from now on will be there in time."""
        made = len(self._items)
        if made == self.total:
            return True
        spent = self._last_s - self._first_s
        if made < 8 or not spent:
            return False
        # Half as long again as measured: others may want the processor meanwhile.
        left = 1.5 * (self.total - made) * spent / (made - 1)
        return left < (self.total - 1) / rate_hz

    def stop(self, timeout_s: float) -> bool:
        """Ask the thread to end; says whether it has."""
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
    """Which of ``length`` frames is the ``count``-th of an endless stream without a jump.

    A closed walk ends where it began: it goes round, leaving out the last frame, which repeats
    the first. Any other goes forward and back.
    """
    if length == 1 or count < length:
        return min(count, length - 1)
    if closed:
        return count % (length - 1)
    place = count % (2 * (length - 1))
    return min(place, 2 * (length - 1) - place)


class StampGrid:
    """Stamps that stand whole periods apart, however late each call comes.

    Missed periods leave a hole. When the clock goes back, a new grid begins there.
    """

    def __init__(self, rate_hz: float) -> None:
        self._period_ns = 1e9 / rate_hz
        self._start_ns: int | None = None
        self._slot = 0

    def next(self, now_ns: int) -> int:
        """Stamp, in nanoseconds, of the frame that is due at ``now_ns``."""
        if self._start_ns is None:
            self._start_ns = now_ns
            return now_ns
        elapsed = (now_ns - self._start_ns) / self._period_ns
        # A quarter of a period early still counts as in time: clocks are slewed.
        slot = max(math.floor(elapsed + 0.25), self._slot + 1)
        if slot - elapsed > 1.25:
            self._start_ns, slot = now_ns, 0
        self._slot = slot
        return self._start_ns + round(slot * self._period_ns)


class Turns:
    """Whose turn it is: the stream's, or the consumer's, who answers each frame by its stamp.

    Without an answer the next frame may go after ``timeout_s``; ``unanswered`` counts those.
    """

    def __init__(self, timeout_s: float) -> None:
        self.unanswered = 0
        self._timeout_s = timeout_s
        self._sent_ns: int | None = None  # stamp of the frame whose answer is not here yet
        self._sent_s = 0.0

    def sent(self, stamp_ns: int, now_s: float) -> None:
        """A frame with this stamp goes out."""
        self._sent_ns, self._sent_s = stamp_ns, now_s

    def answered(self, stamp_ns: int) -> None:
        """An answer has come: to the last frame, or late to an earlier one."""
        if stamp_ns == self._sent_ns:
            self._sent_ns = None

    def mine(self, now_s: float) -> bool:
        """Whether the next frame may go; counts it where it goes for want of an answer."""
        if self._sent_ns is None:
            return True
        if now_s - self._sent_s < self._timeout_s:
            return False
        self.unanswered += 1
        self._sent_ns = None
        return True
