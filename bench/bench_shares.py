"""Shares of a window's time: matrix products, attention, convolutions and the rest.

    python bench/bench_shares.py --models da3-small da3-base --precision fp32 bf16

PyTorch's profiler measures the time of each kernel itself, on the device, in the second pass.
Shares add up to one. The head runs on all views, as in a whole window of bench_network.py.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import results_file
import torch
from bench_network import DTYPES, parse_size
from torch.profiler import ProfilerActivity, profile

from da3_ros.inference.devices import open_device
from da3_ros.inference.loading import load_network, put_on
from da3_ros.network.precision import convert, drop_rays

KINDS = {  # kind -> words; the first kind with a word in the kernel's name counts
    "attention": ("attention", "flash"),
    "convolutions": ("conv",),
    "matrix products": ("addmm", "mm", "linear", "gemm", "qlinear"),
    "norms": ("norm",),
    "resizing": ("upsample",),
    "gelu": ("gelu",),
    "additions, products": ("add", "mul", "sub", "div"),
    "copies, casts": ("copy", "_to", "cat", "clone", "fill", "index"),
}


def kind_of(name: str) -> str:
    """Returns the kind of a kernel by its name."""
    name = name.lower()
    return next((k for k, words in KINDS.items() if any(w in name for w in words)), "other")


@torch.inference_mode()
def shares(model: str, size, precision: str, on) -> dict[str, float]:
    """Returns the share of each kind of kernel in the time of one pass."""
    network = load_network(model, "random")
    drop_rays(network)
    convert(network, DTYPES[precision])
    network = put_on(network, on)
    network.set_chunks(on.chunks())
    images = torch.randn(1, size.views, 3, size.height, size.width).to(on.device)
    network(images, ref_view="first")
    cuda = [ProfilerActivity.CUDA] if on.kind == "cuda" else []
    with profile(activities=[ProfilerActivity.CPU, *cuda]) as found:
        network(images, ref_view="first")
    field = "self_device_time_total" if cuda else "self_cpu_time_total"
    times: Counter[str] = Counter()
    for event in found.key_averages():
        times[kind_of(event.key)] += getattr(event, field)
    total = sum(times.values())
    return {kind: round(time / total, 3) for kind, time in times.most_common()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", nargs="+", default=["da3-tiny"])
    parser.add_argument("--sizes", nargs="+", type=parse_size, default=[parse_size("8x280x210")])
    parser.add_argument("--precision", nargs="+", default=["fp32"], choices=DTYPES)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    on, rows = open_device(options.device), []
    for model in options.models:
        for size in options.sizes:
            for precision in options.precision:
                row = {"model": model, "size": str(size), "precision": precision}
                rows.append(row | {"shares": shares(model, size, precision, on)})
                listed = ", ".join(f"{k} {v:.0%}" for k, v in rows[-1]["shares"].items())
                print(f"{model}, {size}, {precision}: {listed}", flush=True)
                results_file.write(options.out, {"device": on.name(), "rows": rows}, on.name())


if __name__ == "__main__":
    main()
