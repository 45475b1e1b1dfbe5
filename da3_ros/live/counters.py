"""Counters for several threads. No middleware."""

from __future__ import annotations

import threading
from collections import Counter


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
