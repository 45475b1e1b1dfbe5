#!/usr/bin/env python3
"""Backends of a session on a CPU: seconds for a new frame in a window.

    python bench/bench_backends.py --models da3-small --sizes 280x210 504x378 --repeats 6
    python bench/bench_backends.py --models da3-base --sizes 504x280 --out FILE.json

Each row is a session with random weights (the same in all), with known earlier views: one new view
per window, the rest from kept prefixes. ``reference``: the reference package's network in fp32 on
the whole window. All variants of a model and size run in turns in one process, each twice in a
row, of which the second is timed; the table gives minimum and median. Ratios compare medians.
Build times are those of an empty cache. ``--compile``: PyTorch is measured compiled too;
``compiling_s``: the windows in which it compiles. OpenMP's
threads spin while they wait, as is the default of PyTorch and so of the reference; in the node
they sleep (da3_ros/__init__.py), as in matrix.py.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "test"))

import results_file  # noqa: E402
from arguments import size  # noqa: E402
from bench_network import networks  # noqa: E402

from da3_ros.inference import InferenceConfig, InferenceSession  # noqa: E402
from da3_ros.inference.benchmark import WARM_UP  # noqa: E402
from da3_ros.inference.random_windows import random_windows  # noqa: E402

VARIANTS = (  # backend, precision, compile
    ("torch", "off", "off"), ("torch", "off", "on"), ("torch", "bfloat16", "off"),
    ("torch", "bfloat16", "on"), ("torch", "int8", "off"), ("openvino", "off", "off"),
    ("openvino", "bfloat16", "off"),
)  # fmt: skip
PLAIN = tuple(variant for variant in VARIANTS if variant[-1] == "off")


def opened(
    model: str, image: tuple[int, int], views: int, backend: str, precision: str, compiler: str,
    cache: str,
) -> tuple[Callable[[], object], dict]:  # fmt: skip
    """Returns a function that runs the next window, and facts about the session."""
    config = InferenceConfig(
        model, "random", "cpu", backend, cache, mixed_precision=precision, compile=compiler,
        process_res=max(image),
    )  # fmt: skip
    start = time.perf_counter()
    session = InferenceSession(config, poses=False)
    plan = session.memory.fit(image, views, 1)
    windows = random_windows(plan, views, 1, 1 << 30)
    session.infer(next(windows))  # waits for the engine
    first_window_s = time.perf_counter() - start
    start = time.perf_counter()
    for _ in range(WARM_UP if compiler == "on" else 0):
        session.infer(next(windows))
    compiling_s = time.perf_counter() - start
    if (session.loaded.compiler.compiled > 0) != (compiler == "on"):
        raise SystemExit(f"{model} {precision}: torch.compile failed, or ran without being asked")
    facts: dict[str, object] = {
        "backend": session.status().backend, "precision": session.status().precision,
        "compiled": session.loaded.compiler.compiled > 0, "first_window_s": first_window_s,
    }  # fmt: skip
    if compiler == "on":
        facts["compiling_s"] = compiling_s
    return lambda: session.infer(next(windows)), facts


def reference(model: str, image: tuple[int, int], views: int) -> Callable[[], object] | None:
    """Returns a function that runs the reference's network on a whole window; None: missing."""
    network = networks(model)[1]
    if network is None:
        return None
    images = torch.randn(1, views, 3, image[1], image[0])

    def run() -> object:
        with torch.inference_mode():
            return network(images, ref_view_strategy="first").depth

    return run


def measure(model: str, image: tuple[int, int], options: argparse.Namespace) -> list[dict]:
    """Returns a row for each variant."""
    runs: dict[str, Callable[[], object]] = {}
    facts: dict[str, dict] = {}
    theirs = reference(model, image, options.views) if options.reference else None
    if theirs is not None:
        runs["reference float32, whole window"] = theirs
    with tempfile.TemporaryDirectory() as empty:
        for variant in VARIANTS if options.compile else PLAIN:
            run, found = opened(model, image, options.views, *variant, empty)
            name = f"{found['backend']} {found['precision']}{', compiled' * found['compiled']}"
            runs[name], facts[name] = run, found
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(options.repeats):
        for name, run in runs.items():
            run()  # a stream's windows follow each other; after a pause memory and caches are cold
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    torchs = [s for name, s in medians.items() if name.startswith("torch") and "," not in name]
    rows = []
    for name, values in seconds.items():
        row = {
            "model": model, "size": f"{image[0]}x{image[1]}", "views": options.views,
            "variant": name, "min_s": min(values), "median_s": medians[name],
            "times_torch_fp32": medians["torch float32"] / medians[name],
            "times_best_torch": min(torchs) / medians[name], **facts.get(name, {}),
        }  # fmt: skip
        if theirs is not None:
            row["times_reference"] = medians["reference float32, whole window"] / medians[name]
        rows.append(row)
        print("  ".join(f"{v:.3f}" if isinstance(v, float) else str(v) for v in row.values()))
    return rows


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["da3-small"])
    parser.add_argument("--sizes", nargs="+", type=size, default=[(280, 210)], metavar="WxH")
    parser.add_argument("--views", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--compile", action="store_true", help="also compiled: a minute each")
    parser.add_argument("--no-reference", dest="reference", action="store_false")
    parser.add_argument("--out", type=Path, help="write JSON")
    options = parser.parse_args()
    rows = []
    for model, image in itertools.product(options.models, options.sizes):
        rows += measure(model, image, options)
        results_file.write(options.out, {"rows": rows}, "cpu")  # a long run may be ended


if __name__ == "__main__":
    main()
