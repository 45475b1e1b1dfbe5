"""Speed and memory of a session in a sliding window, by mode, precision, budget and window size.

    python bench/bench_session.py matrix --model da3-small --out bench/results/matrix.json
    python bench/bench_session.py budgets --models da3-small da3-base --gibs 0.3 0.5 1 2
    python bench/bench_session.py windows --model da3-small --sizes 1 2 4 8 16 32 64

Each row runs in a process of its own, so that its memory is measured from the start. Weights are
random, because speed and memory do not depend on their values. Times include upload,
pre-processing and download.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import statistics
import subprocess
import sys
import time
from pathlib import Path

import results_file

from da3_ros.inference import BudgetError, DeviceError, InferenceConfig, InferenceSession
from da3_ros.inference.benchmark import measure_speed
from da3_ros.inference.devices import open_device
from da3_ros.inference.planner import GIB

MODES = ("minimal", "balanced", "max")
PRECISIONS = ("off", "bfloat16", "float16", "int8")
COLUMNS = {
    "matrix": ("mode", "precision", "compile", "mean_s", "std_s", "median_s", "p95_s", "peak_gib"),
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


def one(options: argparse.Namespace) -> dict:
    """Measures one row: a cold start, then windows with one new frame each."""
    config = InferenceConfig(
        model=options.model,
        checkpoint="random",
        device=options.device,
        backend=options.backend,
        performance_mode=options.mode,
        mixed_precision=options.precision,
        compile=options.compile,
        memory_budget_gb=options.gib,
        process_res=options.process_res,
    )
    start = time.perf_counter()
    try:
        session = InferenceSession(config, poses=False)
        session.memory.fit(options.image, max(2, options.views), 1)
    except (BudgetError, DeviceError, ValueError) as error:
        return {"refused": str(error)}
    loading_s = time.perf_counter() - start
    speed = measure_speed(session, options.repeats, views=options.views)
    seconds, plan = speed.window_s, session.memory.plan
    return {
        "runs": f"{plan.window} x {plan.width}x{plan.height} {plan.precision}",
        "reduced": list(plan.reduced),
        "cold_start_s": loading_s + speed.first_s,
        "mean_s": statistics.mean(seconds),
        "std_s": statistics.pstdev(seconds),
        "median_s": statistics.median(seconds),
        "p95_s": speed.percentile(95),
        "p99_s": speed.percentile(99),
        "frames_per_s": speed.frames_per_s,
        "planned_gib": speed.planned.predicted / GIB,  # before the first measurement
        "predicted_gib": plan.predicted / GIB,
        "peak_gib": session.memory.meter.peak / GIB,
        "error": plan.predicted / max(session.memory.meter.peak, 1) - 1,
    }


def spawn(options: argparse.Namespace, **changes) -> dict:
    """Runs ``one`` in a new process and returns its row; ``changes`` replace options."""
    values = vars(options) | changes
    command = [sys.executable, __file__, "one"]
    for name in ("model", "device", "backend", "mode", "precision", "compile"):
        command += [f"--{name}", str(values[name])]
    command += ["--gib", str(values["gib"]), "--process-res", str(values["process_res"])]
    command += ["--views", str(values["views"]), "--repeats", str(values["repeats"])]
    command += ["--image", "x".join(map(str, values["image"]))]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return {"refused": done.stderr.strip().splitlines()[-1]}
    return json.loads(done.stdout)


def matrix(options: argparse.Namespace) -> list[dict]:
    """Returns a row for every mode, precision and compiler setting."""
    rows = []
    settings = itertools.product(options.modes, options.precisions, options.compiles)
    for mode, precision, compiled in settings:
        found = spawn(options, mode=mode, precision=precision, compile=compiled)
        rows.append({"mode": mode, "precision": precision, "compile": compiled, **found})
        show(rows[-1:], "matrix")
    return rows


def budgets(options: argparse.Namespace) -> list[dict]:
    """Returns a row for every model and memory budget."""
    rows = []
    for model, gib in itertools.product(options.models, options.gibs):
        found = spawn(options, model=model, gib=gib)
        rows.append({"model": model, "budget_gib": gib, **found})
        show(rows[-1:], "budgets")
    return rows


def windows(options: argparse.Namespace) -> list[dict]:
    """Returns a row for every window size."""
    rows = []
    for views in options.sizes:
        rows.append({"views": views, **spawn(options, views=views)})
        show(rows[-1:], "windows")
    return rows


def show(rows: list[dict], kind: str) -> None:
    """Prints rows of the table."""
    for row in rows:
        text = row.get("refused") or " | ".join(_cell(row.get(c, "")) for c in COLUMNS[kind])
        print(f"| {text} |", flush=True)


def _cell(value) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def parse() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "what", nargs="?", default="matrix", choices=("matrix", "budgets", "windows", "one")
    )
    parser.add_argument("--model", default="da3-small")
    parser.add_argument("--models", nargs="+", default=["da3-small", "da3-base", "da3-large"])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--backend", default="auto", choices=("auto", "torch", "openvino"))
    parser.add_argument("--mode", default="balanced", choices=MODES)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--compile", default="off", choices=("auto", "off", "on"))
    parser.add_argument("--modes", nargs="+", default=MODES, choices=MODES, help="for matrix")
    parser.add_argument(
        "--precisions", nargs="+", default=PRECISIONS, choices=PRECISIONS, help="for matrix"
    )
    parser.add_argument("--compiles", nargs="+", default=["off", "on"], help="for matrix")
    parser.add_argument("--gib", type=float, default=0.0)
    parser.add_argument("--gibs", nargs="+", type=float, default=[2, 3, 4, 6, 8, 12])
    parser.add_argument(
        "--image", type=lambda t: tuple(map(int, t.split("x"))), default=(504, 280)
    )
    parser.add_argument("--process-res", type=int, default=504)
    parser.add_argument("--views", type=int, default=8)
    parser.add_argument("--sizes", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def main() -> None:
    options = parse()
    logging.disable(logging.WARNING)
    if options.what == "one":
        print(json.dumps(one(options)))
        return
    print("| " + " | ".join(COLUMNS[options.what]) + " |")
    print("|" + "---|" * len(COLUMNS[options.what]))
    rows = {"matrix": matrix, "budgets": budgets, "windows": windows}[options.what](options)
    results_file.write(options.out, {"rows": rows}, open_device(options.device).name())


if __name__ == "__main__":
    main()
