"""Measures the memory that windows take on a device."""

from __future__ import annotations

from da3_ros.inference.devices import Device


class PeakMeter:
    """Owns the largest peak of a window, and whether the next one counts what went before.

    Between ``begin`` and ``taken`` lies one window.
    """

    def __init__(self, on: Device) -> None:
        self._on = on
        self.peak = 0  # bytes, the most that was measured
        self._before = 0
        self._clean = False  # whether the next window's peak is its own, not an earlier plan's

    def let_go(self) -> None:
        """What earlier windows left in the allocator must not count as the next one's."""
        self._on.release()
        self._clean = True

    def begin(self) -> None:
        """A window begins, or begins again."""
        if self._clean:  # of what other networks in this process left since, too
            self._on.release()
        self._before = self._on.in_use()
        self._on.reset_peak()

    def end(self) -> bool:
        """A window is done. Whether its peak is its own: ``let_go`` came before it."""
        clean, self._clean = self._clean, False
        return clean

    def taken(self, persistent: int) -> int:
        """Bytes that the window took, with ``persistent`` bytes of weights and kept prefixes."""
        taken = self._on.taken(self._before, persistent)
        self.peak = max(self.peak, taken)
        return taken
