#!/usr/bin/env python3
"""Times of a replay by stage: the network, the refinement beside it, and depth of keyframes.

    python bench/bench_replay.py --device cuda --size 504x378 --frames 60 --out FILE.json
    python bench/bench_replay.py --frames 12 --size 112x84 --device cpu --backend torch --repeats 1

A bag of a rendered room is replayed without refinement, with it, and with measured depth of
keyframes too (`dense`); the kinds take turns. The times are those of the replay's own
measured.json: ``network_ms`` and ``refinement_ms`` per window, ``dense_ms`` per keyframe,
``window_ms`` in all, and frames per second of the whole run. The trained da3-tiny is the default:
the refinement needs poses that tracks can agree with.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import results_file
from arguments import size

from da3_ros.config import NodeConfig, config_from_parameters
from da3_ros.inference.devices import open_device
from da3_ros.recordings.synthetic_bag import write_synthetic_bag
from da3_ros.replay.results import ReplayOptions
from da3_ros.replay.run import replay
from da3_ros.synthetic import WALKS, SyntheticCamera

KINDS = {
    "network alone": {"refinement.enabled": False, "dense.enabled": False},
    "with refinement": {"refinement.enabled": True, "dense.enabled": False},
    "with refinement and dense": {"refinement.enabled": True, "dense.enabled": True},
}


def settings(options: argparse.Namespace, kind: str) -> NodeConfig:
    """Returns the parameters of a kind of replay."""
    values: dict[str, Any] = {
        "model": options.model, "device": options.device, "backend": options.backend,
        "process_res": max(options.size), "window.new": options.new,
    }  # fmt: skip
    if options.model != "da3-tiny":
        values["checkpoint"] = "random"
    return config_from_parameters(values | KINDS[kind], NodeConfig)


def run(bag: Path, output: Path, options: argparse.Namespace, kind: str) -> dict[str, float]:
    """Replays the bag once; returns milliseconds by stage, counts and frames per second."""
    replay(ReplayOptions(bag, output), settings(options, kind))
    measured = json.loads((output / "measured.json").read_text())
    report = json.loads((output / "report.json").read_text())
    windows = sum(json.loads((output / "timeline.json").read_text())["columns"]["windows"])
    keyframes = report["dense"]["keyframes"]
    return {
        "network_ms": 1e3 * measured["inference_s"] / max(1, windows),
        "refinement_ms": 1e3 * measured["refinement_s"] / max(1, windows),
        "window_ms": 1e3 * measured["window_s"] / max(1, windows),
        "dense_ms": 1e3 * measured["dense_s"] / max(1, keyframes),
        "frames_per_s": measured["frames_per_s"],
        "windows": windows,
        "refined": report["refinement"]["windows"],
        "keyframes": keyframes,
        "keyframes_measured": report["dense"]["keyframes_measured"],
    }


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns a row for each kind: medians over the turns."""
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as parent:
        bag = Path(parent) / "bag"
        camera = SyntheticCamera(
            seed=42, size=options.size, walk=options.walk, frames=options.frames
        )
        write_synthetic_bag(bag, camera)
        # The first turn warms up libraries and engines.
        for turn in range(-1, options.repeats):
            for kind in KINDS:
                row = run(bag, Path(parent) / f"{turn} {kind}", options, kind)
                if turn >= 0:
                    found[kind].append(row)
    return [{"model": options.model, "kind": kind} | medians(rows) for kind, rows in found.items()]


def medians(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Returns the median of each number."""
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def main() -> None:
    """Prints a row for each kind of replay and writes JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="da3-tiny", help="others: with random weights")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--backend", default="auto", choices=("auto", "torch", "openvino"))
    parser.add_argument("--size", type=size, default=(280, 210), metavar="WxH")
    parser.add_argument("--walk", default="handheld", choices=WALKS)
    parser.add_argument("--frames", type=int, default=40)
    parser.add_argument("--new", type=int, default=1, help="new frames per window")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    rows = measure(options)
    for row in rows:
        results_file.show(row)
    results_file.write(options.out, {"rows": rows}, open_device(options.device).name())


if __name__ == "__main__":
    main()
