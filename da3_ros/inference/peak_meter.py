"""Measures the memory that windows take on a device."""

from __future__ import annotations

from da3_ros.inference.devices import Device


class PeakMeter:
    """Owns the largest peak so far, and whether the next peak excludes earlier allocations.

    Call ``begin`` before and ``end`` and ``window_peak`` after each window.
    """

    def __init__(self, hardware: Device) -> None:
        self._hardware = hardware
        self.peak = 0  # bytes, the largest measured peak
        self._before = 0
        self._clean = False  # whether the next peak excludes what earlier windows left allocated
        self._kept = 0  # bytes that earlier windows left allocated, for a backend that keeps them

    def release_cached(self) -> None:
        """Free cached memory, so that the next peak excludes what earlier windows allocated."""
        self._hardware.release()
        self._clean = True

    def begin(self) -> None:
        """Start the measurement of a window, or restart it."""
        if self._clean:  # other networks in this process may have allocated since
            self._hardware.release()
        self._before = self._hardware.in_use()
        self._hardware.reset_peak()

    def end(self) -> bool:
        """End the measurement. True if ``release_cached`` was called before the window."""
        clean, self._clean = self._clean, False
        return clean

    def forget_kept(self) -> None:
        """The backend has returned the memory that windows left allocated."""
        self._kept = 0

    def window_peak(self, persistent: int, *, keeps: bool = False) -> int:
        """Peak bytes of the window, including ``persistent`` bytes of weights and prefixes.

        keeps: the memory of the window stays allocated, and the next one grows by less.
        """
        taken = self._hardware.window_peak(self._before, persistent + self._kept)
        if keeps:
            self._kept = max(self._kept, taken - persistent)
        self.peak = max(self.peak, taken)
        return taken
