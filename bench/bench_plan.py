"""What fits into memory budgets of a CUDA GPU, as `da3_ros plan` predicts it; needs no GPU.

    python bench/bench_plan.py --out bench/results/plan-cuda.json

Windows of 8 and 64 views with one new frame each, then windows of which all views are new, and
those for recordings by their length, of images of 4:3. Predictions have the driver's context and
the measuring of keyframes' depth in them.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import results_file
import torch
from tqdm import tqdm

from da3_ros.cli.plan_table import planning_device
from da3_ros.derived.measuring import MeasuringLoad
from da3_ros.inference.planner import GIB, BudgetError, Request, make_plan
from da3_ros.network import MODELS

# Views and new views of windows for recordings by their length, and the models they are for.
LENGTHS, OF_LENGTHS = ((64, 32), (32, 8), (16, 4)), ("da3-base", "da3-large")
MANY = {"da3-small": 300, "da3-large": 100, "da3-giant": 100}  # views of one window, all new


def questions(models: list[str], budgets: list[float], views: list[int]) -> Iterator[dict]:
    """Yields model, budget, views and new views of each row."""
    for model, gib in itertools.product(models, budgets):
        for window in views if MODELS[model].multi_view else views[:1]:
            yield {"model": model, "views": window, "new": 1, "budget_gib": gib}
        if model in MANY:
            yield {"model": model, "views": MANY[model], "new": MANY[model], "budget_gib": gib}
        for window, new in LENGTHS if model in OF_LENGTHS and gib == max(budgets) else ():
            yield {"model": model, "views": window, "new": new, "budget_gib": gib}


def answer(asked: dict[str, Any], process_res: int) -> dict[str, Any]:
    """Returns a row: what runs within the budget and its predicted memory, or why nothing does."""
    request = Request(
        asked["model"], torch.bfloat16, None, process_res, asked["views"], asked["new"],
        measuring=MeasuringLoad(),
    )  # fmt: skip
    try:
        plan = make_plan(
            planning_device("cuda", "balanced"), request, int(asked["budget_gib"] * GIB)
        )
    except BudgetError as error:
        return asked | {"refused": str(error)}
    return asked | {
        "runs": f"{plan.window} x {plan.width}x{plan.height} {plan.precision}",
        "predicted_gib": plan.predicted / GIB,
        "reduced": list(plan.reduced),
    }


def main() -> None:
    known = [name for name in MODELS if name != "da3-tiny"]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=known, choices=MODELS)
    parser.add_argument("--gibs", nargs="+", type=float, default=[2, 4, 6, 8, 12])
    parser.add_argument("--views", nargs="+", type=int, default=[8, 64])
    parser.add_argument("--process-res", type=int, default=504)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for asked in tqdm(list(questions(options.models, options.gibs, options.views)), unit="plan"):
        rows.append(answer(asked, options.process_res))
        results_file.show(rows[-1])
    results_file.write(options.out, {"rows": rows}, "CUDA GPU, absent: predicted")


if __name__ == "__main__":
    main()
