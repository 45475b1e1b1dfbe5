"""Speed and memory of a session in a sliding window, by memory budget and by window size.

    python bench/bench_session.py budgets --models da3-small da3-base --gibs 0.3 0.5 1 2
    python bench/bench_session.py windows --model da3-small --sizes 1 2 4 8 16 32 64
    python bench/bench_session.py windows --model da3-small --sizes 300 --unseen --gib 6

Each row is that of session_row.py. ``--unseen``: all views of a window are new, with depth. Modes
and precisions are those of matrix.py.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import results_file
from arguments import size
from session_row import RowSetting, run

from da3_ros.inference.devices import open_device

MODES = ("minimal", "balanced", "max")
COLUMNS = {
    "budgets": (
        "model",
        "budget_gib",
        "runs",
        "predicted_gib",
        "peak_gib",
        "error",
        "frames_per_s",
    ),
    "windows": (
        *("views", "median_s", "frames_per_s", "planned_gib", "predicted_gib"),
        *("peak_gib", "error"),
    ),
}


def spawn(options: argparse.Namespace, **changes) -> dict:
    """Measures a row in a new process; ``changes`` replace options."""
    values = vars(options) | changes
    return run(
        RowSetting(**{f.name: values[f.name] for f in fields(RowSetting) if f.name in values})
    )


def budgets(options: argparse.Namespace) -> Iterator[dict]:
    """Yields a row for every model and memory budget."""
    for model, gib in itertools.product(options.models, options.gibs):
        found = spawn(options, model=model, gib=gib)
        yield {"model": model, "budget_gib": gib, **found}


def windows(options: argparse.Namespace) -> Iterator[dict]:
    """Yields a row for every window size."""
    for views in options.sizes:
        new = views if options.unseen else 1
        yield {"model": options.model, "views": views, "new": new, **spawn(options, views=views)}


def show(row: dict, kind: str) -> None:
    """Prints a row of the table."""
    cells = (_cell(row[c]) for c in COLUMNS[kind] if c in row)
    print(f"| {' | '.join(cells)} | {row.get('refused', '')}".rstrip(), flush=True)


def _cell(value) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def parse() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", nargs="?", default="windows", choices=("budgets", "windows"))
    parser.add_argument("--model", default="da3-small")
    parser.add_argument("--models", nargs="+", default=["da3-small", "da3-base", "da3-large"])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--backend", default="auto", choices=("auto", "torch", "openvino"))
    parser.add_argument("--mode", default="balanced", choices=MODES)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--compile", default="off", choices=("auto", "off", "on"))
    parser.add_argument("--gib", type=float, default=0.0)
    parser.add_argument("--gibs", nargs="+", type=float, default=[2, 3, 4, 6, 8, 12])
    parser.add_argument("--image", type=size, default=(504, 280), metavar="WxH")
    parser.add_argument("--process-res", type=int, default=504)
    parser.add_argument("--views", type=int, default=8)
    parser.add_argument(
        "--unseen", action="store_true", help="all views of a window are new, with depth"
    )
    parser.add_argument("--sizes", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def main() -> None:
    options = parse()
    print("| " + " | ".join(COLUMNS[options.what]) + " |")
    print("|" + "---|" * len(COLUMNS[options.what]))
    device, rows = open_device(options.device).name(), []
    for row in {"budgets": budgets, "windows": windows}[options.what](options):
        show(row, options.what)
        rows.append(row)
        results_file.write(options.out, {"rows": rows}, device)  # a long run may be ended


if __name__ == "__main__":
    main()
