#!/usr/bin/env python3
"""Renews what the planner predicts in results that were measured by an earlier version.

    python bench/plan_again.py bench/results/memory-cpu-no-amx.json bench/results/quality.json

What was measured stays, with its machine and command; ``planned_at``: the commit of the planner.
Files of bench_memory.py and bench_quality.py.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import results_file
import torch

from da3_ros.inference.devices import Cpu
from da3_ros.inference.planner import GIB, Request, make_plan

BUDGET = 10_000 * GIB  # so that nothing is reduced
MIB = 2**20


def planned(row: dict[str, Any]) -> int:
    """Returns the memory in bytes that the planner predicts for a row's windows."""
    image = tuple(int(n) for n in row["size"].split("x"))
    request = Request(
        row["model"], getattr(torch, row["precision"]), None, max(image), row["views"], 1, image,
        backend=row["backend"],
    )  # fmt: skip
    return make_plan(Cpu(), request, BUDGET).predicted


def renew(row: dict[str, Any]) -> None:
    """Renews the prediction in a row."""
    if "predicted_mib" in row:
        row["predicted_mib"] = planned(row) / MIB
        row["predicted_to_measured"] = row["predicted_mib"] / row["measured_mib"]
    else:
        row["planned_gib"] = planned(row) / GIB


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    for path in parser.parse_args().files:
        data = json.loads(path.read_text())
        for row in data["rows"]:
            renew(row)
        data["planned_at"] = results_file.machine("cpu")["commit"]
        path.write_text(json.dumps(data, indent=1) + "\n")
        print(f"{path}: {len(data['rows'])} rows")


if __name__ == "__main__":
    main()
