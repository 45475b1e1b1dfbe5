"""Results as Markdown: what a table's row, its columns and the line before it are made of.

A result is a file of bench/results. A maker is a function of several results that returns
Markdown; bench/report.py has one for each table of the documentation.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]
UNRUN = "*Unrun here: the commands are in [bench/README.md](../bench/README.md).*\n"
SMALLEST = 1e-12  # below it, a number is what rounding left of zero
UNITS = {
    "gb_per_s": ", GB/s", "mb_per_s": ", MB/s", "per_s": "/s", "tflops": ", TFLOP/s", "ms": ", ms",
    "s": ", s", "gib": ", GiB", "mib": ", MiB",
    "gb": ", GB", "mb": ", MB", "kb": ", kB", "percent": ", %", "deg": ", degrees", "m": ", m",
}  # fmt: skip
WORDS = {
    "std": "standard deviation", "p50": "median", "p95": "95 %", "p99": "99 %",
    "abs rel": "AbsRel", "absrel": "AbsRel", "ate": "ATE", "runs": "what ran",
}  # fmt: skip
PATHS = re.compile(r"(--(?:data|folder|keep)[ =])\S+")
NUMBER = re.compile(r"(?:[-+]?[\d.]+(?:e-?\d+)?)?")
VERSIONS = ("torch", "openvino", "python", "os", "cuda")


class ReportError(RuntimeError):
    """A page or a result is not as the report needs it; one line names it."""


@dataclass(frozen=True)
class Note:
    """What is known of a result that older benchmarks did not write into it."""

    machine: str = ""
    command: str = ""
    label: str = ""  # in a plot


@dataclass(frozen=True)
class Result:
    """A file of results.

    ``rows``: those of the file, or of each name and value where it has no rows.
    """

    name: str
    data: Row
    rows: list[Row]
    note: Note = Note()

    @property
    def command(self) -> str:
        """The command that made it, without the file to write and without folders of data."""
        words = shlex.split(self.data.get("command") or self.note.command)
        for option in ("--out", "--output"):
            if option in words:
                at = words.index(option)
                del words[at : at + 2]
        return PATHS.sub(r"\1DIR", shlex.join(words))

    @property
    def machine(self) -> Row:
        """The machine as the benchmark wrote it; empty if it did not."""
        return self.data.get("machine") or {}

    def value(self, key: str, **where: Any) -> float:
        """Returns a number of the one row with these values; of the file itself if none are given.

        Raises ReportError if there is none, or several.
        """
        found = [r for r in self.rows if all(r.get(k) == v for k, v in where.items())]
        found = found if where else [self.data]
        if len(found) != 1 or not isinstance(found[0].get(key), int | float):
            raise ReportError(f"{self.name}: wanted one row with {where} and {key}: {len(found)}")
        return float(found[0][key])


def read(path: Path, note: Note = Note()) -> Result:
    """Reads a file of results. Raises ReportError if it is no JSON, or has no rows."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ReportError(f"{path.name}: {error}; write it again, or delete it") from None
    data = {"rows": data} if isinstance(data, list) else data
    rows = data.get("rows")
    if isinstance(rows, dict):
        rows = [{"name": name, **row} for name, row in rows.items()]
    if rows is None:
        rows = [{"name": k, "value": v} for k, v in data.items() if isinstance(v, int | float)]
    return Result(path.name, data, rows, note)


# Cells


def number(value: Any, digits: int = 3) -> str:
    """Returns a value as text: floats with so many significant digits, whole numbers as they are.

    Raises ReportError for what is no finite number.
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(number(part, digits) for part in value)
    if not isinstance(value, float):
        return "" if value is None else str(value)
    if not math.isfinite(value):
        raise ReportError(f"{value} is no number for a table")
    if abs(value) < SMALLEST:
        return "0"
    power = math.floor(math.log10(abs(value)))
    if power < -4:
        factor, exponent = f"{value:.{digits - 1}e}".split("e")
        return f"{factor}e{int(exponent)}"
    return f"{value:.{max(digits - 1 - power, 0)}f}"


def title_of(key: str) -> str:
    """Returns the heading of a column by its key: ``median_s`` is "Median, s"."""
    parts = key.replace("_to_", "_over_").split("_")
    unit = ""
    for count in (3, 2, 1):
        if len(parts) > count and (end := "_".join(parts[-count:])) in UNITS:
            unit, parts = UNITS[end], parts[:-count]
            break
    name = " ".join(parts)
    name = WORDS.get(name, name)
    return name[:1].upper() + name[1:] + unit


@dataclass(frozen=True)
class Column:
    """A column of a table.

    ``key``: of a row; a dot leads into a dictionary. ``title``: by the key if empty. ``times``:
    from the row's unit to that of the title. ``after``: behind each value.
    """

    key: str
    title: str = ""
    times: float = 1.0
    digits: int = 3
    after: str = ""

    def heading(self) -> str:
        """Returns the title."""
        return self.title or title_of(self.key)

    def of(self, row: Row) -> Any:
        """Returns the value of a row in the unit of the title; None if it has none."""
        value: Any = row
        for part in self.key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        exact = self.times == 1.0 or isinstance(value, bool) or not isinstance(value, int | float)
        return value if exact else value * self.times

    def cell(self, row: Row) -> str:
        """Returns the text of a row."""
        text = number(self.of(row), self.digits)
        return text + self.after if text else ""


def columns_of(rows: Iterable[Row]) -> list[Column]:
    """Returns a column for each key of the rows, in their order, without nested values."""
    keys = {k: None for row in rows for k, v in row.items() if not isinstance(v, dict)}
    return [Column(key) for key in keys]


def table(rows: Sequence[Row], columns: Sequence[Column | str] = ()) -> str:
    """Returns rows as a Markdown table.

    ``columns``: a text is a key; none: all that rows have. One that no row has is left out. A
    reason for which a row has no figures (``refused``) stands in a last column.
    Raises ReportError if rows have none of the columns.
    """
    made = [Column(c) if isinstance(c, str) else c for c in columns] or columns_of(rows)
    made = [c for c in made if any(c.of(row) is not None for row in rows)]
    if not made:
        raise ReportError(f"no row has one of {[getattr(c, 'key', c) for c in columns]}")
    if any("refused" in row for row in rows) and "refused" not in [c.key for c in made]:
        made.append(Column("refused", "Not run, because"))
    cells = [[c.cell(row).replace("|", "/").replace("\n", " ") for c in made] for row in rows]
    right = [all(NUMBER.fullmatch(line[k]) for line in cells) for k in range(len(made))]
    head = [[c.heading() for c in made], ["---:" if r else "---" for r in right]]
    return "\n".join("| " + " | ".join(line) + " |" for line in head + cells) + "\n"


def pivot(rows: Sequence[Row], down: str, across: str, cell: Callable[[Row], str]) -> str:
    """Returns a table: a row for each value of ``down``, a column for each of ``across``."""
    lines: dict[Any, Row] = {}
    heads = {str(row[across]): None for row in rows}
    for row in rows:
        lines.setdefault(row[down], {down: row[down]})[str(row[across])] = cell(row)
    return table(list(lines.values()), [Column(down), *(Column(h, h) for h in heads)])


# The line before a table


def machine_line(result: Result) -> str:
    """Returns processor, cores, AMX, load and versions as far as the file or the note has them."""
    m = result.machine
    parts = [] if str(m.get("device", "cpu")).startswith("cpu") else [str(m["device"])]
    parts += [str(m["cpu"])] if m.get("cpu") else []
    parts += [f"{m['cores']} cores"] if m.get("cores") else []
    if m.get("threads", m.get("cores")) != m.get("cores"):
        parts.append(f"{m['threads']} thread{'s' if m['threads'] != 1 else ''}")
    if "amx" in m:
        parts.append("AMX" if m["amx"] else "no AMX")
    parts += [f"load {number(float(m['load']))}"] if "load" in m else []
    versions = {**m, **result.data.get("versions", {}), **m.get("versions", {})}
    parts += [f"{name} {versions[name]}" for name in VERSIONS if versions.get(name)]
    said = ", ".join(parts)
    if result.note.machine:
        return f"{said}; noted by hand: {result.note.machine}".removeprefix("; ")
    return said or "a machine that the file does not name"


def provenance(results: Sequence[Result]) -> str:
    """Returns, for each result, a line with command, file and machine."""
    return "".join(
        f"* `{r.command or 'no command was kept'}` ([{r.name}](../bench/results/{r.name})):"
        f" {machine_line(r)}.\n"
        for r in results
    )


def cited(result: Result) -> str:
    """Returns a line with a file of others' figures."""
    return f"* Published by others ([{result.name}](../bench/{result.name})): not measured here.\n"


# Makers

Maker = Callable[[Sequence[Result]], str]


def listing(*columns: Column | str) -> Maker:
    """Returns a maker of one table for each file."""

    def make(results: Sequence[Result]) -> str:
        return "\n".join(f"{provenance([r])}\n{table(r.rows, columns)}" for r in results)

    return make


def joined(row_of: Callable[[Result], Row | Sequence[Row]], *columns: Column | str) -> Maker:
    """Returns a maker of one table of several files; ``row_of`` returns row or rows of each."""

    def make(results: Sequence[Result]) -> str:
        rows: list[Row] = []
        for result in results:
            found = row_of(result)
            rows += [found] if isinstance(found, dict) else found
        return f"{provenance(results)}\n{table(rows, columns)}"

    return make
