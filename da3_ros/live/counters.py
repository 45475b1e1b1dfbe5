"""Counts that several threads add to and read. No middleware."""

from __future__ import annotations

import threading
from collections import Counter


class ThreadSafeCounter:
    """Counts by name; every call is whole, whichever thread it comes from."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, name: str, count: int = 1) -> None:
        """``count`` more of ``name``."""
        with self._lock:
            self._counts[name] += count

    def __getitem__(self, name: str) -> int:
        with self._lock:
            return self._counts[name]

    def now(self) -> Counter[str]:
        """A copy of all counts as they are."""
        with self._lock:
            return Counter(self._counts)
