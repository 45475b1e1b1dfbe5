"""Lines of the log that are not repeated, whatever their numbers."""

from __future__ import annotations

import re

NUMBERS = re.compile(r"-?\d+(\.\d+)?")


def kind_of(line: str) -> str:
    """Returns a line without its numbers: two of one kind say the same."""
    return NUMBERS.sub("", line)
