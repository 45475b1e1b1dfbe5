#!/usr/bin/env python3
"""Speed, memory and stability of sessions: modes x precisions x compiler x backends.

    python bench/matrix.py --models da3-small --image 280x210 --out bench/results/matrix-small.json
    python bench/matrix.py --documents --minutes 30 --out bench/results/matrix-documents.json

Usually: a sliding window of eight views, one of them new, as the node runs it. ``--documents``:
the setting of a published report (published.json): da3-large, five views of 504x504, all of them
new and with depth, three runs after a warm-up of two.

Rows are those of session_row.py, each in a process of its own. ``compile`` is that of PyTorch.
``images_per_s``: new images over the mean time of a window. ``stability``: the largest difference
of depth between runs on the same images, over the median depth; 0: bit by bit the same.
Percentiles are null with too few runs.
``load_s``: opening the session, with its check against fp32; ``cold_start_s``: with the first
window, for which an engine is built unless ``--cache`` has it: a large one takes minutes.

``--out`` is written after each row. Rows that are in it already are not measured again, if
machine, versions and setting are the same, unless they failed; with ``--minutes`` a long matrix
is measured in several runs. With several models, the model's name is appended to the name of the
file.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import results_file
from arguments import size
from session_row import RowSetting, run
from tqdm import tqdm

from da3_ros.inference.devices import open_device

MODES = ("minimal", "balanced", "max")
PRECISIONS = ("off", "auto", "bfloat16", "float16", "int8")
COMPILES = ("off", "on")
BACKENDS = ("torch", "openvino")
KEY = ("mode", "precision", "compile", "backend")
MEASURED = (
    "runs", "timed", "mean_s", "std_s", "median_s", "p95_s", "p99_s", "images_per_s", "stability",
    "peak_gib", "load_s", "cold_start_s",
)  # fmt: skip
SAME_MACHINE = ("device", "cpu", "cores", "threads", "torch", "openvino")  # of rows in one file
DOCUMENTS = {
    "models": ["da3-large"], "views": 5, "image": (504, 504), "unseen": True,
    "warm_up": 2, "repeats": 3,
}  # fmt: skip
SLIDING = {
    "models": ["da3-small", "da3-base"], "views": 8, "image": (280, 210), "unseen": False,
    "warm_up": 4, "repeats": 5,
}  # fmt: skip
Row = dict[str, Any]


class MatrixError(RuntimeError):
    """A file whose rows cannot go on; one line with the remedy."""


class Matrix:
    """Owns the rows of one model and their file."""

    def __init__(self, setting: RowSetting, keys: Iterable[tuple], out: Path | None) -> None:
        """``setting``: what all rows share; ``keys``: the values of KEY, in order of the rows."""
        self.setting, self._out = setting, out
        self._keys = [dict(zip(KEY, key, strict=True)) for key in keys]
        self._device = open_device(setting.device).name()
        self._rows: list[Row] = []

    def keep_earlier(self) -> None:
        """Takes the rows of the file, if there is one.

        Raises MatrixError if they are of another machine or setting.
        """
        if self._out is None or not self._out.exists():
            return
        try:
            report = json.loads(self._out.read_text())
            theirs = {name: report["machine"].get(name) for name in SAME_MACHINE}
            setting, rows = report["setting"], report["rows"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise MatrixError(
                f"{self._out} is no file of this script: give --out another name"
            ) from error
        ours = {name: results_file.machine(self._device)[name] for name in SAME_MACHINE}
        for what, found, wanted in (
            ("on another machine", theirs, ours),
            ("in another setting", setting, self.shared()),
        ):
            if found != wanted:
                names = ", ".join(k for k in wanted if found.get(k) != wanted[k])
                raise MatrixError(
                    f"the rows in {self._out} were measured {what} ({names} differ): give --out "
                    "another name, or --again to replace them"
                )
        self._rows = rows

    def shared(self) -> Row:
        """Returns what all rows share, as written to the file."""
        image = "x".join(map(str, self.setting.image))
        engines = "kept" if self.setting.cache_dir else "built for each row"
        values = dataclasses.asdict(self.setting) | {"image": image, "engines": engines}
        del values["cache_dir"]  # where it is says nothing about the rows
        return {name: value for name, value in values.items() if name not in KEY}

    def missing(self) -> list[Row]:
        """Returns the values of KEY of rows that are not there."""
        there = [
            {name: row.get(name) for name in KEY} for row in self._rows if not row.get("again")
        ]
        return [key for key in self._keys if key not in there]

    def measure(self, key: Row, timeout: float | None) -> Row:
        """Measures a row, adds it and writes the file."""
        before = os.getloadavg()[0]
        found = run(dataclasses.replace(self.setting, **key), timeout)
        after = os.getloadavg()[0]
        kept = {n: found[n] for n in ("refused", "again", "reduced", *MEASURED) if n in found}
        commit = results_file.machine(self._device)["commit"]
        loads = {"load_before": before, "load_after": after}
        self._rows = [r for r in self._rows if any(r[n] != v for n, v in key.items())]
        self._rows.append(key | kept | loads | {"commit": commit})
        self._rows.sort(key=self._order)
        self.write()
        return self._rows[self._rows.index(self._of(key))]

    def write(self) -> None:
        """Writes the file: setting, rows and their summary."""
        counts = {"planned": len(self._keys)} | summary(self._rows)
        report = {"setting": self.shared(), "rows": self._rows, "summary": counts}
        results_file.write(self._out, report, self._device)

    def rows(self) -> list[Row]:
        """Returns the rows so far, in order."""
        return self._rows

    def _of(self, key: Row) -> Row:
        return next(r for r in self._rows if all(r[n] == v for n, v in key.items()))

    def _order(self, row: Row) -> int:
        key = {name: row[name] for name in KEY}
        return self._keys.index(key) if key in self._keys else len(self._keys)


def summary(rows: list[Row]) -> Row:
    """Returns the share of rows that ran, mean images/s by mode and precision, best and slowest.

    Means are of one backend each, of rows that were not compiled and whose size was not reduced.
    Those by mode are over the precisions that ran in all modes, and the other way round.
    """
    ran = [row for row in rows if "images_per_s" in row]
    plain = [r for r in ran if r["compile"] == "off" and not r.get("reduced")]
    found: Row = {"success": [len(ran), len(rows)]}
    for name, other in (("mode", "precision"), ("precision", "mode")):
        found[f"by_{name}"] = {
            f"{backend} {value}": mean
            for backend in dict.fromkeys(row["backend"] for row in plain)
            for value, mean in _means([r for r in plain if r["backend"] == backend], name, other)
        }
    for name, choose in (("best", max), ("slowest", min)):
        found[name] = _briefly(choose, [r for r in ran if not r.get("reduced")])
    found["largest_stability"] = max((r["stability"] for r in ran), default=None)
    return found


def _means(rows: list[Row], name: str, other: str) -> Iterator[tuple[str, float]]:
    """Yields each value of a column and its mean images/s over the values of another column that
    all of them have; nothing if there is none."""
    groups: dict[str, dict[str, float]] = {}
    for row in rows:
        groups.setdefault(row[name], {})[row[other]] = row["images_per_s"]
    common = set.intersection(*map(set, groups.values())) if groups else set()
    for value, rates in groups.items() if common else ():
        yield value, statistics.mean(rates[key] for key in sorted(common))


def _briefly(choose: Callable[..., Row], rows: list[Row]) -> Row | None:
    if not rows:
        return None
    row = choose(rows, key=lambda r: r["images_per_s"])
    return {name: row[name] for name in (*KEY, "mean_s", "std_s", "images_per_s")}


def as_text(rows: list[Row]) -> str:
    """Returns the rows as a markdown table."""
    columns = (*KEY, "runs", "mean_s", "std_s", "images_per_s", "stability", "peak_gib", "load_s")
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        if "refused" in row:
            cells = [row[name] for name in KEY] + [row["refused"]] + [""] * (len(columns) - 5)
        else:
            cells = [_cell(row[name]) for name in columns]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def parsed() -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", nargs="+", help="default: da3-small da3-base")
    parser.add_argument("--documents", action="store_true", help="the published report's setting")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--modes", nargs="+", default=MODES, choices=MODES)
    parser.add_argument("--precisions", nargs="+", default=PRECISIONS, choices=PRECISIONS)
    parser.add_argument("--compiles", nargs="+", default=COMPILES, choices=COMPILES)
    parser.add_argument(
        "--backends", nargs="+", choices=BACKENDS, help="default: both on a CPU, else torch"
    )
    parser.add_argument("--image", type=size, metavar="WxH", help="size in the network")
    parser.add_argument("--process-res", type=int, help="default: the longer side of --image")
    parser.add_argument("--views", type=int, help="per window")
    parser.add_argument("--warm-up", type=int, help="windows before those that count")
    parser.add_argument("--repeats", type=int, help="windows that count")
    parser.add_argument("--gib", type=float, default=0.0, help="memory budget")
    parser.add_argument(
        "--cache", type=Path, help="folder where engines are kept; default: a new one for each row"
    )
    parser.add_argument("--minutes", type=float, help="no row begins later than after these")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds of a row")
    parser.add_argument("--again", action="store_true", help="rows that are there, too")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    for name, value in (DOCUMENTS if options.documents else SLIDING).items():
        if getattr(options, name, None) is None:
            setattr(options, name, value)
    if options.process_res is None:
        options.process_res = max(options.image)
    if options.backends is None:
        on_cpu = open_device(options.device).kind == "cpu"
        options.backends = BACKENDS if on_cpu else ("torch",)
    return options


def setting_of(options: argparse.Namespace, model: str) -> RowSetting:
    """Returns what all rows of a model share."""
    names = ("device", "gib", "process_res", "image", "views", "unseen", "warm_up", "repeats")
    cache = "" if options.cache is None else str(options.cache.resolve())
    return RowSetting(model, cache_dir=cache, **{name: getattr(options, name) for name in names})


def file_of(options: argparse.Namespace, model: str) -> Path | None:
    """Returns the file of a model's rows; None: there is none."""
    out: Path | None = options.out
    if out is None or len(options.models) == 1:
        return out
    return out.with_name(f"{out.stem}-{model}{out.suffix}")


def matrix_of(options: argparse.Namespace, model: str) -> Matrix:
    """Returns the matrix of a model, with its earlier rows unless they are measured again."""
    # Compiled rows last: on a CPU each may take as long as all others.
    keys = itertools.product(options.compiles, options.backends, options.modes, options.precisions)
    in_order = [
        (mode, precision, c, backend) for c, backend, mode, precision in keys
        if c == "off" or backend == "torch"  # an engine is compiled anyway
    ]  # fmt: skip
    matrix = Matrix(setting_of(options, model), in_order, file_of(options, model))
    if not options.again:
        matrix.keep_earlier()
    return matrix


def main() -> int:
    """Measures the rows that are missing; returns 1 if earlier rows are of something else."""
    options = parsed()
    begun = time.monotonic()
    try:
        matrices = [matrix_of(options, model) for model in options.models]
    except MatrixError as error:
        print(f"matrix: {error}", file=sys.stderr)
        return 1
    rows = [(matrix, key) for matrix in matrices for key in matrix.missing()]
    late = False
    with tqdm(rows, unit="row", file=sys.stderr) as bar:
        for matrix, key in bar:
            late = options.minutes is not None and time.monotonic() - begun > 60 * options.minutes
            if late:
                break
            bar.set_description(f"{matrix.setting.model} {' '.join(key.values())}")
            matrix.measure(key, options.timeout)
    for matrix in matrices:
        print(f"{matrix.setting.model}\n{as_text(matrix.rows())}")
        print(json.dumps(summary(matrix.rows())))
    left = sum(len(matrix.missing()) for matrix in matrices)
    if left:
        print(f"{left} rows are left: the same command goes on", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
