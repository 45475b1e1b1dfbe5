"""Limit of the images per second of one camera. Plain numbers; no middleware."""

from __future__ import annotations

from collections import deque

BURST_S = 0.25  # images of this time may come at once: they waited while the node was busy
LEAST = 10  # images of a burst at any rate: two full subscription queues


class RateLimit:
    """A token bucket on steady time: short bursts pass, a lasting excess does not."""

    def __init__(self, hz: float) -> None:
        """hz: mean images per second; 0: no limit."""
        self.hz = hz
        self._most = max(BURST_S * hz, LEAST)
        self._tokens = self._most
        self._arrived: deque[float] = deque(maxlen=round(self._most))

    def admit(self, now_s: float) -> bool:
        """True if an image that arrives at ``now_s`` (steady seconds) is accepted."""
        if not self.hz:
            return True
        elapsed = now_s - self._arrived[-1] if self._arrived else 0.0
        self._arrived.append(now_s)
        self._tokens = min(self._most, self._tokens + elapsed * self.hz)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def rate(self) -> float:
        """Returns the recent images per second, including rejected ones."""
        span = self._arrived[-1] - self._arrived[0] if self._arrived else 0.0
        return (len(self._arrived) - 1) / span if span > 0 else float("inf")
