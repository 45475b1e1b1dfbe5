"""Numbers and texts of a run's JSON files, which any program may have written."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MAX_BYTES = 1 << 26  # of a file


class ReportError(RuntimeError):
    """A run of which no report can be made; one line."""


class Figures:
    """The content of a JSON file; what is missing or of another type is unknown."""

    def __init__(self, values: Any) -> None:
        self._values = values

    @classmethod
    def read(cls, path: Path) -> Figures:
        """Returns the content of a file. Raises ReportError; OSError, also if there is none."""
        if path.stat().st_size > MAX_BYTES:
            raise ReportError(f"{path} is too large")
        try:
            return cls(json.loads(path.read_text()))
        except (ValueError, RecursionError) as error:
            raise ReportError(f"{path} is damaged: {error}") from error

    def __bool__(self) -> bool:
        return bool(self._values)

    def value(self, *keys: str) -> Any:
        """Returns what is at these keys; None: unknown."""
        found = self._values
        for key in keys:
            found = found.get(key) if isinstance(found, Mapping) else None
        return found

    def number(self, *keys: str) -> float:
        """Returns a number; NaN: unknown."""
        found = self.value(*keys)
        if isinstance(found, bool) or not isinstance(found, (int, float)):
            return math.nan
        try:
            return float(found)
        except OverflowError:
            return math.nan

    def count(self, *keys: str) -> int:
        """Returns a number of things; 0 if it is not listed."""
        found = self.number(*keys)
        return int(found) if math.isfinite(found) else 0

    def text(self, *keys: str) -> str:
        """Returns a text; empty: unknown."""
        found = self.value(*keys)
        return found if isinstance(found, str) else ""

    def mapping(self, *keys: str) -> dict[str, Any]:
        """Returns what is below these keys, by name."""
        found = self.value(*keys)
        return {str(k): v for k, v in found.items()} if isinstance(found, Mapping) else {}

    def texts(self, *keys: str) -> list[str]:
        """Returns a list of texts."""
        found = self.value(*keys)
        return [str(one) for one in found] if isinstance(found, list) else []
