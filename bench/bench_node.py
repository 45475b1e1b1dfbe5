#!/usr/bin/env python3
"""The whole live node: frames per second and latency by stage, at several rates of the camera.

    python bench/bench_node.py --out bench/results/node.json
    python bench/bench_node.py --models da3-tiny --rates 10 --seconds 5

Camera, node and a listener to all topics run as processes on this machine, each setting in turn:
without refinement and dense depth, with refinement, with both. Windows of eight views, one new.
Weights: those that ship for da3-tiny (252 pixels), else random (280 pixels): random weights give
nothing to refine, so they run without. The camera goes round a closed way of ``--way`` seconds
again and again, at most at 0.5 m/s and 20 degrees per second (in 12 s: 2.9 m, 0.25 m/s in the
mean), and is measured from the second lap on. Below 5 Hz it is slow (at most 0.2 m/s, 10 degrees
per second), so that its images overlap: such a walk has too few keyframes to measure depth with.
A rate that the node cannot follow shows what it can: the oldest frames are dropped.
``frames_corrected``: by measured depth; with 0, a row with dense depth says nothing of its cost.

``reference``: the reference package's own call on the same machine, without ROS, where the package
is installed: on the eight views of each window, one of them new, as a node around it would make
it; and on a chunk of 60 frames that shares 30 with the one before, the setting of DA3-Streaming
(without its joining and loops). ``times``: the node's new frames per second, at its highest rate
and with nothing beside the network, over those of the call.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import child
import rclpy
import results_file
from bench_latency import measure
from tqdm import tqdm

from da3_ros.inference.devices import open_device

SHIPS = "da3-tiny"
RES = {SHIPS: 252}
OTHER_RES = 280
EXTRAS = {
    "neither": {"refinement.enabled": False, "dense.enabled": False},
    "refinement": {"refinement.enabled": True, "dense.enabled": False},
    "refinement, dense": {"refinement.enabled": True, "dense.enabled": True},
}
CALLS = {"its call on each window": (8, 1), "DA3-Streaming's chunks": (60, 30)}  # views, new ones
CALL_S = 300  # the most that a process with some calls may take
REFERENCE = Path(__file__).with_name("reference_interface.py")
SLOW = "max_speed_m_s:=0.2", "max_turn_deg_s:=10.0"
FAST = "max_speed_m_s:=0.5", "max_turn_deg_s:=20.0"
SLOW_BELOW = 5.0  # Hz
STAGES = ("network", "placing", "rest")


def row_of(model: str, extra: str, rate: float, options: argparse.Namespace) -> dict[str, Any]:
    """Runs camera, node and listener; returns the row of a setting."""
    values = {
        "model": model, "process_res": RES.get(model, OTHER_RES), "window.size": 8,
        "backend": options.backend,
        **EXTRAS[extra], **({} if model == SHIPS else {"checkpoint": "random"}),
    }  # fmt: skip
    given = [
        f"{name}:={str(v).lower() if isinstance(v, bool) else v}" for name, v in values.items()
    ]
    row = {
        "model": model, "process_res": values["process_res"], "extras": extra, "rate_hz": rate,
    }  # fmt: skip
    try:
        moves = SLOW if rate < SLOW_BELOW else FAST
        found = measure(
            options.seconds, given, 1, rate, options.wait_for, moves, round(options.way * rate)
        )
    except RuntimeError as error:
        return row | {"refused": str(error)}
    row |= {
        "windows_per_s": found["windows_per_s"],
        "latency_median_s": found["latency_median_s"], "latency_p95_s": found["latency_p95_s"],
        "backend": found["backend"],
    }  # fmt: skip
    for stage in STAGES:
        row[f"{stage}_s"] = found[f"{stage}_median_s"]
    if values["dense.enabled"]:
        row["frames_corrected"] = found["frames_corrected"]
    return row | {"dropped": sum(found["drops"].values()), "received": found["received"]}


def reference_rows(model: str, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields the rows of the reference's calls, each measured in a process of its own.

    rows: those of the node.
    """
    own = [r for r in rows if r["model"] == model and r["extras"] == "neither"]
    fastest = max((r["windows_per_s"] for r in own if "refused" not in r), default=None)
    for what, (views, new) in CALLS.items():
        row = {"model": model, "what": what, "node_frames_per_s": fastest}
        words = [
            sys.executable, str(REFERENCE), model, "--views", str(views), "--new", str(new),
            "--process-res", str(RES.get(model, OTHER_RES)),
        ]  # fmt: skip
        try:
            done = child.run(words, stderr=subprocess.PIPE, timeout=CALL_S)
        except subprocess.TimeoutExpired:
            yield row | {"refused": f"it takes more than {CALL_S} s"}
            continue
        if done.returncode:
            row["refused"] = (done.stderr.strip().splitlines() or ["no output"])[-1]
        else:
            row |= json.loads(done.stdout.splitlines()[-1])
            row["times"] = None if fastest is None else fastest / row["new_frames_per_s"]
        yield row


def main() -> None:
    """Runs all settings; prints and writes their rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=[SHIPS, "da3-small"])
    parser.add_argument("--rates", nargs="+", type=float, default=[1.0, 10.0, 30.0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--way", type=float, default=12.0, help="seconds that the camera goes")
    parser.add_argument("--backend", default="auto")
    parser.add_argument(
        "--wait-for",
        metavar="BACKEND",
        help="measure from when the node runs on it; an empty text: at once (default: openvino, "
        "whose engine is built first, where --backend auto takes it)",
    )
    parser.add_argument("--out", type=Path, help="write JSON")
    options = parser.parse_args()
    on_cpu = open_device("auto").kind == "cpu" and results_file.version("openvino") is not None
    if options.wait_for is None:
        by_auto = "openvino" if on_cpu else "torch"
        options.wait_for = by_auto if options.backend == "auto" else options.backend
    rclpy.init(args=[])
    settings = [
        (model, extra, rate)
        for model, rate, extra in itertools.product(options.models, options.rates, EXTRAS)
        if model == SHIPS or extra == "neither"
    ]
    rows, device = [], open_device("auto").name()
    found: dict[str, Any] = {"seconds": options.seconds, "rows": rows}
    for model, extra, rate in tqdm(settings, unit="setting"):
        rows.append(row_of(model, extra, rate, options))
        results_file.show(rows[-1])
        results_file.write(options.out, dict(found), device)
    rclpy.try_shutdown()
    if importlib.util.find_spec("depth_anything_3") is not None:
        found["reference"] = []
        for row in (row for model in options.models for row in reference_rows(model, rows)):
            results_file.show(row)
            found["reference"].append(row)
            results_file.write(options.out, dict(found), device)  # a long run may be ended


if __name__ == "__main__":
    main()
