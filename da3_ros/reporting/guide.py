"""Sections of the documents: a report has them in it, since its reader may have no network."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

HEADING = re.compile(r"(#+) (.+)")
FENCE = "```"


def guide(page: str, heading: str) -> str:
    """Returns the Markdown of a section of docs/, without its heading.

    page: name of the file. Empty if the file or the section is not there: an installation without
    the documents.
    """
    package = Path(__file__).parents[1]
    for folder in (package / "docs", package.parent / "docs"):
        try:
            lines = (folder / page).read_text(encoding="utf-8").splitlines()
        except OSError:
            continue
        return "\n".join(_section(lines, heading)).strip()
    return ""


def _section(lines: list[str], heading: str) -> Iterator[str]:
    """Yields the lines below a heading, to the next one that is no part of the section."""
    level, fenced = 0, False
    for line in lines:
        fenced ^= line.lstrip().startswith(FENCE)
        found = None if fenced else HEADING.fullmatch(line)
        if found and level and len(found[1]) <= level:
            return
        if level and not line.startswith("<!--"):
            yield line
        if found and found[2] == heading:
            level = len(found[1])
