"""How many images per second of one camera are let in. Plain numbers; knows no middleware."""

from __future__ import annotations

from collections import deque

BURST_S = 0.25  # this long's worth may come at once: what waited while the node was busy
LEAST = 10  # of a burst, however low the rate: two full queues of a subscription


class RateLimit:
    """A token bucket on steady time: bursts pass, a flood does not. Knows no stamps."""

    def __init__(self, hz: float) -> None:
        """``hz``: images per second in the long run; 0: no limit."""
        self.hz = hz
        self._most = max(BURST_S * hz, LEAST)
        self._tokens = self._most
        self._arrived: deque[float] = deque(maxlen=round(self._most))

    def admit(self, now_s: float) -> bool:
        """Whether an image that comes at ``now_s`` (steady seconds) is let in."""
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
        """Images per second of late, those that were not let in included."""
        span = self._arrived[-1] - self._arrived[0] if self._arrived else 0.0
        return (len(self._arrived) - 1) / span if span > 0 else float("inf")
