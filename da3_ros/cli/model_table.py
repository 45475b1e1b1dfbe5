"""The table of models that `da3_ros models` prints. Reads local folders, not the internet."""

from __future__ import annotations

from collections.abc import Sequence

from da3_ros.network import MODELS, ModelSpec
from da3_ros.network.checkpoint import WEIGHTS, cached_folder, shipped_folder

COLUMNS = ("model", "hub name", "parameters", "weights", "licence", "gives", "here")
NOTES = (
    "parameters and weights are those of the official files; Gaussian heads are not loaded",
    "depth in metres: da3metric-large needs the focal length; all others use their own unit",
    "CC BY-NC 4.0: no commercial use of these weights; fetch one with `da3_ros models --get NAME`",
)


def model_table() -> str:
    """Returns a table with a line per model, and the folders of weights on this machine."""
    rows = [COLUMNS, *(_row(spec) for spec in MODELS.values())]
    return "".join(f"{line}\n" for line in (*_aligned(rows), "", *NOTES))


def _row(spec: ModelSpec) -> tuple[str, ...]:
    here = shipped_folder(spec.name) or cached_folder(spec)
    size = (here / WEIGHTS).stat().st_size if here else 4 * spec.parameters
    return (
        spec.name,
        spec.repo or "-",
        _short(spec.parameters, ("M", "B"), 1e6),
        _short(size, ("MB", "GB"), 1e6),
        spec.license,
        ", ".join(spec.gives),
        str(here or "no"),
    )


def _short(number: float, units: tuple[str, str], first: float) -> str:
    """137000000 -> `137 MB`, 5400000000 -> `5.4 GB`."""
    small, large = units
    if number < 1000 * first:
        return f"{number / first:.0f} {small}"
    return f"{number / first / 1000:.2f} {large}"


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
