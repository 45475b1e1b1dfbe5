#!/usr/bin/env python3
"""What it costs, and saves, to run a network in pieces: time and memory by size of the pieces.

    python bench/bench_pieces.py --models da3-small --sizes 12x280x210 --out FILE.json
    python bench/bench_pieces.py --device cuda --models da3-large --sizes 32x504x378 --repeats 20

Three kinds of pieces: views at a time in the head, views at a time in blocks that look at each
view alone, and tokens at a time in feed-forward layers. ``as a session begins``: the sizes of this
device; ``all at the smallest``: the last step of a plan for little memory. All settings run in
turns on one network with random weights, on whole windows. ``overhead``: the median, over the
turns, of the time over that of ``nothing in pieces`` in the same turn, less one. Memory: what a
pass takes on top of the network, in a process of its own. ``difference``: of depth from that of
nothing in pieces, the largest over the median depth.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import child
import results_file
import torch
from bench_network import DTYPES, Size, parse_size, release_memory
from torch import Tensor

from da3_ros.inference.devices import Device, open_device
from da3_ros.inference.loading import load_network, put_on
from da3_ros.inference.planner import SMALLEST
from da3_ros.network.model import Chunks
from da3_ros.network.precision import convert, drop_rays

HEAD, LOCAL, TOKENS = (1, 2, 4, 8), (1, 2, 4), (1024, 4096)
WHOLE = 1 << 20  # views at a time in the head: all


@dataclass(frozen=True)
class Case:
    """A network, its window and its device."""

    model: str
    size: Size
    precision: str
    device: str

    def network(self, on: Device) -> torch.nn.Module:
        """Returns the network on the device."""
        network = load_network(self.model, "random")
        drop_rays(network)
        convert(network, DTYPES[self.precision])
        return put_on(network, on)

    def images(self, on: Device) -> Tensor:
        """Returns images of the window."""
        shape = (1, self.size.views, 3, self.size.height, self.size.width)
        return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(on.device)


def settings(views: int, usual: Chunks) -> dict[str, Chunks]:
    """Returns the sizes of pieces by name; those that are no pieces of ``views`` are left out.

    usual: with which a session begins.
    """
    whole = Chunks(head_frames=WHOLE)
    found = {"nothing in pieces": whole}
    found |= {f"head {n}": whole._replace(head_frames=n) for n in HEAD if n < views}
    found |= {f"blocks {n}": whole._replace(local_frames=n) for n in LOCAL if n < views}
    found |= {f"tokens {n}": whole._replace(mlp_tokens=n) for n in TOKENS}
    return found | {"as a session begins": usual, "all at the smallest": SMALLEST}


@torch.inference_mode()
def measure(case: Case, repeats: int) -> list[dict]:
    """Returns a row for each setting."""
    on = open_device(case.device)
    network, images = case.network(on), case.images(on)
    pieces = settings(case.size.views, on.chunks())
    seconds: dict[str, list[float]] = {name: [] for name in pieces}
    depths: list[Tensor] = []
    differences: dict[str, float] = {}
    for turn in range(-1, repeats):
        for name, chunks in pieces.items():
            network.set_chunks(chunks)
            wait(on)
            start = time.perf_counter()
            depth = network(images, ref_view="first").depth
            wait(on)
            if turn >= 0:
                seconds[name].append(time.perf_counter() - start)
                continue
            depths = depths or [depth]  # of nothing in pieces, the first
            differences[name] = float((depth - depths[0]).abs().max() / depths[0].median())
    del network
    base = seconds["nothing in pieces"]
    return [
        {
            "model": case.model, "size": str(case.size), "precision": case.precision,
            "pieces": name, "median_s": statistics.median(values),
            "overhead": statistics.median(a / b for a, b in zip(values, base, strict=True)) - 1,
            "difference": differences[name], "peak_mib": in_own_process(case, pieces[name]),
        }
        for name, values in seconds.items()
    ]  # fmt: skip


def in_own_process(case: Case, chunks: Chunks) -> float | None:
    """Returns the MiB that a pass takes on top of the network; None: it failed."""
    words = [sys.executable, __file__, "--one", json.dumps([dataclasses.asdict(case), chunks])]
    done = child.run(words)
    if done.returncode:
        return None
    return float(done.stdout.splitlines()[-1])


@torch.inference_mode()
def peak_mib(case: Case, chunks: Chunks) -> float:
    """Returns the same; to be called in a new process. The first pass warms up."""
    on = open_device(case.device)
    network, images = case.network(on), case.images(on)
    network.set_chunks(chunks)
    network(images, ref_view="first")
    wait(on)
    release_memory()
    on.release()
    before = torch.cuda.memory_allocated() if on.kind == "cuda" else on.in_use()
    on.reset_peak()
    network(images, ref_view="first")
    wait(on)
    peak = torch.cuda.max_memory_allocated() if on.kind == "cuda" else on.peak()
    return max(0, peak - before) / 2**20


def wait(on: Device) -> None:
    """Waits for what is queued on the device."""
    if on.kind == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """Prints a row for each setting and writes JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", nargs="+", default=["da3-small"])
    parser.add_argument("--sizes", nargs="+", type=parse_size, default=[Size(12, 280, 210)])
    parser.add_argument("--precision", nargs="+", default=["fp32"], choices=DTYPES)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)  # the memory of one setting, as JSON
    options = parser.parse_args()
    if options.one:
        values, chunks = json.loads(options.one)
        size = Size(**values.pop("size"))
        print(peak_mib(Case(size=size, **values), Chunks(*chunks)))
        return
    rows: list[dict] = []
    device = open_device(options.device).name()
    for model, size, precision in itertools.product(
        options.models, options.sizes, options.precision
    ):
        for row in measure(Case(model, size, precision, options.device), options.repeats):
            rows.append(row)
            results_file.show(row)
        results_file.write(options.out, {"rows": rows}, device)  # a long run may be ended


if __name__ == "__main__":
    main()
