"""What a session falls back to when a window runs out of memory despite its plan."""

from __future__ import annotations

from dataclasses import dataclass

CALM = 100  # windows without trouble after which a step that memory forced is taken back


class WindowTooLargeError(MemoryError):
    """Memory ran out with everything done that keeps a window whole: give fewer views."""


@dataclass(frozen=True)
class OomFallback:
    """Fallback applied when a window runs out of memory despite the plan."""

    text: str
    scale: float = 1.0  # of the image's sides in the network


OOM_FALLBACKS = (
    OomFallback("as planned"),
    OomFallback("smallest pieces, no kept prefixes"),
    OomFallback("images at 3/4 of their size in the network", 0.75),
    OomFallback("images at 1/2 of their size in the network", 0.5),
)


class FallbackLevel:
    """Which fallback is in force. Owns the level, and for how many windows memory has been calm.

    ``level`` is an index into OOM_FALLBACKS; 0: none.
    """

    def __init__(self) -> None:
        self.level = 0
        self._calm = 0

    @property
    def current(self) -> OomFallback:
        """The fallback in force."""
        return OOM_FALLBACKS[self.level]

    def restart(self, level: int) -> None:
        """Go on at ``level``, as after trouble."""
        self.level, self._calm = level, 0

    def step_down(self, views: int) -> None:
        """A window of ``views`` ran out of memory: one level more.

        Raises WindowTooLargeError where there is none.
        """
        self._calm = 0
        if self.level + 1 >= len(OOM_FALLBACKS):
            raise WindowTooLargeError(
                f"out of memory with {views} views at the smallest size: lower "
                "window.size or process_res, or raise memory_budget_gb"
            )
        self.level += 1

    def step_up_when_calm(self) -> bool:
        """A window ran without trouble. Whether a level could be taken back."""
        self._calm += 1
        if not self.level or self._calm < CALM:
            return False
        self.restart(self.level - 1)
        return True
