"""What a running stream measures of itself: times of its stages, events, counts.

Plain numbers; no ROS messages, no middleware.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

KEPT = 100  # times per stage
RECENT_S = 10.0  # time for which a fault counts as recent
STALE_S = 5.0  # longest normal time without images, or without results while images arrive


class StageTimes:
    """The newest durations of each processing stage, seconds."""

    def __init__(self) -> None:
        self._times: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=KEPT))

    def add(self, stage: str, seconds: float) -> None:
        """Add a duration of a stage."""
        self._times[stage].append(seconds)

    @contextmanager
    def of(self, stage: str) -> Iterator[None]:
        """Context manager that measures a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(stage, time.perf_counter() - start)

    def summary(self) -> dict[str, float]:
        """Returns ``STAGE_median_s`` and ``STAGE_p95_s`` of each measured stage."""
        out: dict[str, float] = {}
        for stage, times in list(self._times.items()):
            out[f"{stage}_median_s"], out[f"{stage}_p95_s"] = median_and_p95(list(times))
        return out


class EventTimes:
    """Times of the newest events of one kind, on two clocks.

    The steady clock tells whether events still occur, since it continues when a simulator stops.
    The ROS clock gives their rate and age, as for stamps.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self._ros_ns: deque[int] = deque(maxlen=kept)
        self._first_s = self._last_s = -math.inf  # steady

    def add(self, ros_ns: int, now_s: float | None = None) -> None:
        """Record an event at ``ros_ns`` of the ROS clock and ``now_s`` steady seconds."""
        now_s = time.monotonic() if now_s is None else now_s
        if self._ros_ns and ros_ns < self._ros_ns[-1]:
            self._ros_ns.clear()  # a bag or a simulator has restarted
        self._ros_ns.append(ros_ns)
        self._first_s = now_s if self._first_s == -math.inf else self._first_s
        self._last_s = now_s

    def silent_s(self, now_s: float | None = None) -> float | None:
        """Returns the steady seconds since the newest event; None if there was none."""
        return self._since(self._last_s, now_s)

    def since_first_s(self, now_s: float | None = None) -> float | None:
        """Returns the steady seconds since the first event ever; None if there was none."""
        return self._since(self._first_s, now_s)

    def rate_hz(self, now_s: float | None = None) -> float:
        """Returns the events per second of ROS time; 0 if they stopped or the clock stands."""
        silent, held = self.silent_s(now_s), list(self._ros_ns)
        if silent is None or silent > STALE_S or len(held) < 2 or held[-1] == held[0]:
            return 0.0
        return (len(held) - 1) * 1e9 / (held[-1] - held[0])

    def age_s(self, ros_ns: int) -> float:
        """Returns the seconds of the ROS clock since the newest event; NaN if there was none."""
        return max(0, ros_ns - self._ros_ns[-1]) / 1e9 if self._ros_ns else math.nan

    @staticmethod
    def _since(then_s: float, now_s: float | None) -> float | None:
        now_s = time.monotonic() if now_s is None else now_s
        return None if then_s == -math.inf else now_s - then_s


def median_and_p95(values: list[float]) -> tuple[float, float]:
    """Returns median and 95th percentile; NaN for an empty list."""
    if not values:
        return float("nan"), float("nan")
    ordered = sorted(values)
    count = len(ordered)
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    return middle, ordered[min(count - 1, int(0.95 * count))]


class CounterGrowth:
    """Finds counters that grew within the last ``RECENT_S`` seconds."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._grown_at: dict[str, float] = {}

    def update(self, counts: Mapping[str, int], now_s: float) -> list[str]:
        """Record the current counts; returns the names of counters that grew recently."""
        for name, count in counts.items():
            if count > self._last.get(name, 0):
                self._grown_at[name] = now_s
            self._last[name] = count
        return sorted(n for n, t in self._grown_at.items() if now_s - t <= RECENT_S)


class ThreadSafeCounter:
    """Counts by name; all methods are atomic."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, name: str, count: int = 1) -> None:
        """Add ``count`` to the counter ``name``."""
        with self._lock:
            self._counts[name] += count

    def __getitem__(self, name: str) -> int:
        with self._lock:
            return self._counts[name]

    def now(self) -> Counter[str]:
        """Returns a copy of all counts."""
        with self._lock:
            return Counter(self._counts)
