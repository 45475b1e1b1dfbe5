"""How often a line may be said. Plain numbers; knows no middleware."""

from __future__ import annotations

import time

MOST = 256  # keys remembered


class Throttle:
    """Each key at most once in so many seconds of steady time.

    rclpy's own throttle counts per calling line, so that the second of two topics which share a
    line is never heard of, and it follows the system's clock, which may be set back.
    """

    def __init__(self) -> None:
        self._said: dict[str, float] = {}

    def ready(self, key: str, every_s: float, now_s: float) -> bool:
        """Whether ``key`` may be said at ``now_s``, steady seconds."""
        return now_s >= self._said.get(key, -float("inf")) + every_s

    def due(self, key: str, every_s: float, now_s: float | None = None) -> bool:
        """Whether ``key`` may be said now; if so, it counts as said."""
        now_s = time.monotonic() if now_s is None else now_s
        if not self.ready(key, every_s, now_s):
            return False
        self._said.pop(key, None)
        self._said[key] = now_s
        while len(self._said) > MOST:
            del self._said[next(iter(self._said))]
        return True
