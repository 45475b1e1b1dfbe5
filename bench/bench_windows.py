#!/usr/bin/env python3
"""Seconds of the network for a new frame, by views and new views of a window and by image size.

    python bench/bench_windows.py --cases 8/1@280x210 16/4@280x210 64/16@280x210
    python bench/bench_windows.py --backend openvino --cases 8/1@280x210 8/1@336x252

A case is VIEWS/NEW@WxH. Each is a session of its own with random weights and kept prefixes, as the
pipeline runs it; all take turns in one process. In each turn a case runs twice and the second
window is timed. So ratios to the first case hold although the machine's speed changes. What a
frame costs beside the network (refinement, map, files) is not in it.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import results_file
from arguments import size

from da3_ros.inference import InferenceConfig, InferenceSession
from da3_ros.inference.devices import open_device
from da3_ros.inference.planner import GIB
from da3_ros.inference.random_windows import random_windows

CASES = ("8/1", "8/2", "16/4", "16/8", "32/8", "64/8", "64/32")


@dataclass(frozen=True)
class Case:
    """A window."""

    views: int
    new: int
    image: tuple[int, int]  # width, height

    def __str__(self) -> str:
        return f"{self.views}/{self.new}@{self.image[0]}x{self.image[1]}"


def case(text: str) -> Case:
    """Parses ``VIEWS/NEW@WxH``. Raises ValueError."""
    window, _, image = text.partition("@")
    views, new = map(int, window.split("/"))
    if not 1 <= new < views:
        raise ValueError(f"{text}: new views are at least 1 and less than all")
    return Case(views, new, size(image or "280x210"))


def opened(options: argparse.Namespace, case: Case) -> tuple[Callable[[], object], float]:
    """Returns a function that runs the next window, and the plan's memory in GiB."""
    config = InferenceConfig(
        options.model, "random", options.device, options.backend,
        mixed_precision=options.precision, process_res=max(case.image),
    )  # fmt: skip
    session = InferenceSession(config, poses=False)
    plan = session.memory.fit(case.image, case.views, case.new)
    if plan.reduced:
        raise SystemExit(f"{case} does not fit into memory: {', '.join(plan.reduced)}")
    windows = random_windows(plan, case.views, case.new, 1 << 30)
    session.infer(next(windows))  # waits for an engine
    return lambda: session.infer(next(windows)), plan.predicted / GIB


def measure(options: argparse.Namespace) -> list[dict]:
    """Returns a row for each case."""
    sessions = {case: opened(options, case) for case in options.cases}
    seconds: dict[Case, list[float]] = {case: [] for case in sessions}
    for turn in range(options.repeats):
        print(f"turn {turn + 1} of {options.repeats}", flush=True)
        for case, (run, _) in sessions.items():
            run()  # a stream's windows follow each other: after a pause caches are cold
            start = time.perf_counter()
            run()
            seconds[case].append(time.perf_counter() - start)
    rows: list[dict] = []
    for case, values in seconds.items():
        frame_s = statistics.median(values) / case.new
        rows.append({
            "window": str(case), "window_s": statistics.median(values), "frame_s": frame_s,
            "times_first": frame_s / rows[0]["frame_s"] if rows else 1.0,
            "planned_gib": sessions[case][1],
        })  # fmt: skip
        results_file.show(rows[-1])
    return rows


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", type=case, default=[case(text) for text in CASES])
    parser.add_argument("--model", default="da3-small")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backend", default="torch", choices=("torch", "openvino"))
    parser.add_argument("--precision", default="auto", help="as mixed_precision")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write JSON")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    rows = measure(options)
    results_file.write(options.out, {"model": options.model, "rows": rows},
                       open_device(options.device).name())  # fmt: skip


if __name__ == "__main__":
    main()
