"""Types of command-line arguments of benchmarks."""

from __future__ import annotations


def size(text: str) -> tuple[int, int]:
    """Parses ``WxH``. Raises ValueError."""
    width, height = text.split("x")
    return int(width), int(height)
