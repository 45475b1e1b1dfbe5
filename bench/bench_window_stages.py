#!/usr/bin/env python3
"""Time and memory of each stage of a window and of an export, by model and backend.

    python bench/bench_window_stages.py --out bench/results/window-stages.json
    python bench/bench_window_stages.py --models da3-tiny --process-res 112 --backends torch

Runs `da3_ros bench --stages` once for each model and backend, on random weights: the node's
sliding window, eight views of which one is new, from a camera of 640x480. Models that have
Gaussians make them, in PyTorch. ``mib``: at the stage's peak, above weights and kept prefixes.
On OpenVINO the heads' first layers are in the backbone's program. ``load_s``: opening the session
with its checks; on OpenVINO with building the engine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import child
import results_file
from tqdm import tqdm

from da3_ros.inference.devices import open_device
from da3_ros.network import MODELS as SPECS

MODELS = ("da3-small", "da3-base", "da3-large")


def rows_of(model: str, backend: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns a row for each stage, or one with the reason why there is none."""
    key = {"model": model, "backend": backend, "process_res": options.process_res}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "bench.json")
        values = key | {
            "checkpoint": "random", "device": options.device, "cache_dir": folder,
            "window.size": options.views, "splats.enabled": SPECS[model].gaussians,
        }  # fmt: skip
        given = itertools.chain(*(("-p", f"{name}:={value}") for name, value in values.items()))
        command = [sys.executable, "-m", "da3_ros", "bench", *given, "--stages", "--frames", "3",
                   "--json", str(file)]  # fmt: skip
        done = child.run(command, stderr=subprocess.PIPE)
        if done.returncode:
            return [key | {"refused": (done.stderr.strip().splitlines() or ["no output"])[-1]}]
        report = json.loads(file.read_text())
    shared = key | {
        "precision": report["precision"],
        "load_s": report["milliseconds"]["loading"] / 1e3,
    }
    found = [*report["stages"]["window"], *report["stages"]["export"]]
    return [shared | {"stage": s["name"], "ms": s["ms"], "mib": s["mib"]} for s in found]


def main() -> None:
    """Measures all models and backends; prints and writes the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--backends", nargs="+", default=["torch", "openvino"])
    parser.add_argument("--process-res", type=int, default=504)
    parser.add_argument("--views", type=int, default=8)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="write JSON")
    options = parser.parse_args()
    rows, device = [], open_device(options.device).name()
    setting = {"views": options.views, "new": 1, "camera": "640x480"}
    for model, backend in tqdm([*itertools.product(options.models, options.backends)]):
        found = rows_of(model, backend, options)
        rows += found
        for row in found:
            results_file.show(row)
        results_file.write(options.out, {"setting": setting, "rows": rows}, device)


if __name__ == "__main__":
    main()
