"""`da3_ros bench`: measures the speed of a configuration on this machine."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from da3_ros.cli.arguments import FAILED, add_parameters, load_config, size_argument
from da3_ros.parameter_schema import ConfigError


def add_bench(commands: Any) -> None:
    bench = commands.add_parser(
        "bench",
        help="measure speed and memory of the configured network on this machine",
        description="Runs the configured network in a sliding window of random images, like the "
        "node. Prints the times of a window and of a new frame, the cold start, and memory, plan "
        "and budget. Times include upload, network and download, not messages. If weights "
        "are missing, use -p checkpoint:=random: speed does not depend on them.",
        epilog="parameters: as in `da3_ros replay --help`, e.g. -p model:=da3-base "
        "-p device:=cpu -p window.new:=2 -p mixed_precision:=off",
    )
    add_parameters(bench)
    bench.add_argument(
        "--frames", type=int, default=50, metavar="N", help="new frames to time (default: 50)"
    )
    bench.add_argument(
        "--size",
        default="640x480",
        metavar="WxH",
        help="size of the camera's images (default: 640x480)",
    )
    bench.add_argument(
        "--stages",
        action="store_true",
        help="also time and memory of each stage: pre-processing, backbone, head, camera, "
        "Gaussians, export",
    )
    bench.add_argument(
        "--pictures",
        type=Path,
        metavar="DIR",
        help="also write pictures of the network's depth to this folder: image and depth, "
        "histogram, and slices by distance",
    )
    bench.add_argument(
        "--of",
        type=Path,
        metavar="RECORDING",
        help="recording or folder of images whose first window --pictures shows (default: a "
        "rendered room)",
    )
    bench.add_argument(
        "--json", type=Path, metavar="FILE", help="write all measurements to this file"
    )
    bench.set_defaults(run=_run_bench)


def _run_bench(options: argparse.Namespace) -> int:
    from da3_ros.cli.bench_report import BenchError, BenchOptions, bench

    if options.frames < 1:
        raise ConfigError(f"--frames is {options.frames}: at least 1")
    config = load_config(options.config, options.param)
    if options.of is not None and options.pictures is None:
        raise ConfigError("--of chooses what --pictures shows: add --pictures DIR")
    wanted = BenchOptions(
        size_argument(options.size), options.frames, options.json, stages=options.stages,
        pictures=options.pictures, shown=options.of,
    )  # fmt: skip
    try:
        sys.stdout.write(bench(wanted, config))
    except BenchError as error:
        sys.stderr.write(f"da3_ros: {error}\n")
        return FAILED
    return 0
