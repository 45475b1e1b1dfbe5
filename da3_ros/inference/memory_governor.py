"""What a session falls back to when a window runs out of memory despite its plan."""

from __future__ import annotations

from dataclasses import dataclass

FREE_SHARE = 0.9  # of the free memory, when no budget is given


CALM = 100  # windows without trouble after which a step that memory forced is taken back


class WindowTooLargeError(MemoryError):
    """Memory ran out with everything done that keeps a window whole: give fewer views."""


@dataclass(frozen=True)
class OomFallback:
    """What is done about memory that ran out in a window, beyond the plan."""

    text: str
    scale: float = 1.0  # of the image's sides in the network


OOM_FALLBACKS = (
    OomFallback("as planned"),
    OomFallback("smallest pieces, no kept prefixes"),
    OomFallback("images at 3/4 of their size in the network", 0.75),
    OomFallback("images at 1/2 of their size in the network", 0.5),
)
