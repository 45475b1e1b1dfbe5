"""Limits how often a line is logged. Plain numbers; no middleware."""

from __future__ import annotations

import time

MOST = 256  # keys remembered


class Throttle:
    """Allows each key at most once per period of steady time.

    rclpy's own throttle counts per calling line, so that it hides the second of two topics that
    share a line; and it uses the system clock, which may be set back.
    """

    def __init__(self) -> None:
        self._logged_s: dict[str, float] = {}

    def ready(self, key: str, every_s: float, now_s: float) -> bool:
        """True if ``key`` may be logged at ``now_s``, steady seconds."""
        return now_s >= self._logged_s.get(key, -float("inf")) + every_s

    def due(self, key: str, every_s: float, now_s: float | None = None) -> bool:
        """True if ``key`` may be logged now; then it counts as logged."""
        now_s = time.monotonic() if now_s is None else now_s
        if not self.ready(key, every_s, now_s):
            return False
        self._logged_s.pop(key, None)
        self._logged_s[key] = now_s
        while len(self._logged_s) > MOST:
            del self._logged_s[next(iter(self._logged_s))]
        return True
