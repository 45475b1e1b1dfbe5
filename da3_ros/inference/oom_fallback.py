"""Fallbacks for a window that runs out of memory despite its plan."""

from __future__ import annotations

from dataclasses import dataclass

STABLE_WINDOWS = 100  # successful windows in a row after which the last fallback is undone


class WindowTooLargeError(MemoryError):
    """Memory ran out at the last fallback: only fewer views would help."""


@dataclass(frozen=True)
class OomFallback:
    """Fallback applied when a window runs out of memory despite the plan."""

    text: str
    scale: float = 1.0  # factor for the image's sides in the network


OOM_FALLBACKS = (
    OomFallback("as planned"),
    OomFallback("smallest chunks, no cached prefixes"),
    OomFallback("images at 3/4 of their size in the network", 0.75),
    OomFallback("images at 1/2 of their size in the network", 0.5),
)


class FallbackLevel:
    """Owns the fallback in force and the number of successful windows since its last change.

    ``level`` is its index in OOM_FALLBACKS; 0: as planned.
    """

    def __init__(self) -> None:
        self.level = 0
        self._successes = 0

    @property
    def current(self) -> OomFallback:
        """The fallback in force."""
        return OOM_FALLBACKS[self.level]

    def restart(self, level: int) -> None:
        """Set ``level`` and count successful windows from 0."""
        self.level, self._successes = level, 0

    def apply_next(self, views: int) -> None:
        """Apply the next fallback after a window of ``views`` views ran out of memory.

        Raises WindowTooLargeError if there is no further fallback.
        """
        self._successes = 0
        if self.level + 1 >= len(OOM_FALLBACKS):
            raise WindowTooLargeError(
                f"out of memory with {views} views at the smallest size: lower "
                "window.size or process_res, or raise memory_budget_gb"
            )
        self.level += 1

    def undo_when_stable(self) -> bool:
        """Count a successful window. Returns True if one fallback was undone."""
        self._successes += 1
        if not self.level or self._successes < STABLE_WINDOWS:
            return False
        self.restart(self.level - 1)
        return True
