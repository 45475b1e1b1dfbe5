#!/usr/bin/env python3
"""Memory of sessions on a CPU: predicted by the plan, and measured by the system.

    python bench/bench_memory.py --models da3-tiny da3-small --sizes 280x210 504x378 --views 4 8
    python bench/bench_memory.py --models da3-base --sizes 504x280 --out FILE.json

Each row is a process of its own: it opens a session with random weights, runs its first window,
resets the peak and runs three more, and one with a view less. ``measured``: growth of the peak of
anonymous memory over that of the imports, with those that PyTorch makes at its first tensor
without data. Engines come from a cache, which the first process of a size fills.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import json
import sys
import tempfile
from pathlib import Path

import child
import results_file
import torch
from arguments import size

from da3_ros.inference import InferenceConfig, InferenceSession
from da3_ros.inference.random_windows import random_windows

MIB = 2**20


def anonymous() -> int:
    """Returns the anonymous memory of this process in bytes, without what malloc holds back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return status("RssAnon")


def status(name: str) -> int:
    """Returns a value of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])


def measure(model: str, image: tuple[int, int], views: int, backend: str, precision: str,
            cache: str) -> dict:  # fmt: skip
    """Returns a row; to be called in a new process."""
    config = InferenceConfig(
        model, "random", "cpu", backend, cache, mixed_precision=precision, process_res=max(image)
    )
    if backend == "openvino":
        from da3_ros.backends.openvino_import import openvino

        openvino()
    torch.empty(1, device="meta").add(1)
    before = anonymous()
    session = InferenceSession(config, poses=False)
    plan = session.memory.fit(image, views, 1)
    windows = random_windows(plan, views, 1, 9)
    session.infer(next(windows))
    Path("/proc/self/clear_refs").write_text("5")
    for _ in range(3):
        session.infer(next(windows))
    if views > 2:  # an engine has another program for fewer views, which takes more memory
        session.infer(next(random_windows(plan, views - 1, 1, 1)))
    measured = status("VmHWM") - status("RssFile") - before
    return {
        "model": model, "size": f"{image[0]}x{image[1]}", "views": views,
        "backend": session.status().backend, "precision": session.status().precision,
        "predicted_mib": plan.predicted / MIB, "measured_mib": measured / MIB,
        "predicted_to_measured": plan.predicted / measured,
    }  # fmt: skip


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["da3-tiny"])
    parser.add_argument("--sizes", nargs="+", type=size, default=[(280, 210)], metavar="WxH")
    parser.add_argument("--views", nargs="+", type=int, default=[4, 8])
    parser.add_argument("--backends", nargs="+", default=["torch", "openvino"])
    parser.add_argument("--precisions", nargs="+", default=["off", "bfloat16"])
    parser.add_argument("--out", type=Path, help="write JSON")
    parser.add_argument("--row", help=argparse.SUPPRESS)  # one row as JSON, in a process
    options = parser.parse_args()
    if options.row:
        model, image, *others = json.loads(options.row)
        print(json.dumps(measure(model, tuple(image), *others)))
        return
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        for row in itertools.product(
            options.models, options.sizes, options.views, options.backends, options.precisions
        ):
            command = [sys.executable, __file__, "--row", json.dumps([*row, cache])]
            done = child.run(command)
            done.check_returncode()
            rows.append(json.loads(done.stdout.splitlines()[-1]))
            print("  ".join(f"{v:.2f}" if isinstance(v, float) else str(v)
                            for v in rows[-1].values()), flush=True)  # fmt: skip
            results_file.write(options.out, {"rows": rows}, "cpu")  # a long run may be ended


if __name__ == "__main__":
    main()
