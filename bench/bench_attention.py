#!/usr/bin/env python3
"""Attention kernels of PyTorch, each forced, in time, memory and error.

    python bench/bench_attention.py --device cuda --models da3-small da3-base --out FILE.json
    python bench/bench_attention.py --device cpu --models da3-tiny --sizes 2x84x56 --repeats 1

``frame``: attention of one block inside each view; ``window``: across all views; ``network``: a
whole window of our network, all of whose attention takes the kernel. ``chosen``: what PyTorch
takes by itself, as we let it. Error: the largest difference from fp32 by plain matrix products,
over the largest value; of ``network`` that of depth. Kernels that PyTorch refuses here are rows
with the reason. All kernels of a shape run in turns. Random values and weights.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import results_file
import torch
from bench_network import DTYPES, Size, parse_size
from session_row import percentile
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from da3_ros.inference.devices import Device, open_device
from da3_ros.inference.loading import load_network, put_on
from da3_ros.network import MODELS
from da3_ros.network.precision import convert, drop_rays

KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
CHOSEN = "chosen"
MOST_SCORES = 8 << 30  # bytes: plain products with more are not tried
Run = Callable[[], Tensor]


@contextlib.contextmanager
def forced(kernel: str) -> Iterator[None]:
    """Lets PyTorch take this kernel alone; ``chosen``: any."""
    if kernel == CHOSEN:
        yield
        return
    with warnings.catch_warnings(), sdpa_kernel(KERNELS[kernel]):
        warnings.simplefilter("ignore")  # one warning for each reason against a kernel
        yield


def plainly(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Returns attention in fp32 by matrix products, some queries at a time."""
    k, v = k.float().transpose(-1, -2), v.float()
    scale = q.shape[-1] ** -0.5
    parts = [(p.float() * scale @ k).softmax(-1) @ v for p in q.split(1024, dim=-2)]
    return torch.cat(parts, dim=-2)


class Shape:
    """The inputs of one attention, and its exact result."""

    def __init__(self, what: str, model: str, size: Size, dtype: torch.dtype, on: Device) -> None:
        spec, tokens = MODELS[model], 1 + size.width * size.height // 196
        frames, length = (size.views, tokens) if what == "frame" else (1, size.views * tokens)
        shape = (frames, spec.heads, length, spec.width // spec.heads)
        g = torch.Generator().manual_seed(0)
        self._qkv = [torch.randn(shape, generator=g).to(on.device, dtype) for _ in range(3)]
        self.exact = plainly(*self._qkv)
        self.flop = 4 * frames * length * length * spec.width
        self.scores = frames * spec.heads * length * length * 4  # bytes in fp32

    def run(self) -> Tensor:
        """Returns the result of the kernel in force."""
        return torch.nn.functional.scaled_dot_product_attention(*self._qkv)


class Whole:
    """A window of our network, and its exact depth."""

    def __init__(self, model: str, size: Size, dtype: torch.dtype, on: Device) -> None:
        network = load_network(model, "random")
        drop_rays(network)
        self._images = torch.randn(
            1, size.views, 3, size.height, size.width, generator=torch.Generator().manual_seed(0)
        ).to(on.device)
        self._network = put_on(network, on)
        self._network.set_chunks(on.chunks())
        with forced(CHOSEN):
            self.exact = self.run().clone()
        convert(self._network, dtype)
        tokens = size.views * (1 + size.width * size.height // 196)
        self.flop = 0
        self.scores = MODELS[model].heads * tokens * tokens * 4

    def run(self) -> Tensor:
        """Returns depth with the kernel in force."""
        depth: Tensor = self._network(self._images, ref_view="first").depth
        return depth


@torch.inference_mode()
def measure(kernels: list[str], case: Shape | Whole, repeats: int, on: Device) -> list[dict]:
    """Returns a row for each kernel; those that run are timed in turns, after one warm-up."""
    rows: dict[str, dict[str, Any]] = {kernel: {"kernel": kernel} for kernel in kernels}
    seconds: dict[str, list[float]] = {}
    for kernel in kernels:
        try:
            rows[kernel] |= _first(kernel, case, on)
            seconds[kernel] = []
        except RuntimeError as error:
            rows[kernel]["refused"] = str(error).splitlines()[0].split(". ")[0]
    for _, kernel in itertools.product(range(repeats), seconds):
        with forced(kernel):
            _wait(on)
            start = time.perf_counter()
            case.run()
            _wait(on)
        seconds[kernel].append(time.perf_counter() - start)
    for kernel, values in seconds.items():
        median = statistics.median(values)
        rows[kernel] |= {
            "median_ms": 1e3 * median,
            "p95_ms": None if (p := percentile(values, 95)) is None else 1e3 * p,
            "times_chosen": median / statistics.median(seconds.get(CHOSEN, values)),
        }
        if case.flop:
            rows[kernel]["tflops"] = case.flop / median / 1e12
    return list(rows.values())


def _first(kernel: str, case: Shape | Whole, on: Device) -> dict[str, Any]:
    """Returns error and memory of a kernel's first run. Raises RuntimeError if it is refused."""
    if kernel == "math" and case.scores > MOST_SCORES:
        raise RuntimeError(f"its scores would take {case.scores / 2**30:.0f} GiB")
    cuda = on.kind == "cuda"
    if cuda:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    with forced(kernel):
        found = case.run()
    _wait(on)
    peak = (torch.cuda.max_memory_allocated() - before) / 2**20 if cuda else None
    error = (found.float() - case.exact).abs().max() / case.exact.abs().max()
    return {"error": float(error), "peak_mib": peak}


def _wait(on: Device) -> None:
    if on.kind == "cuda":
        torch.cuda.synchronize()


@torch.inference_mode()
def case_of(what: str, model: str, size: Size, dtype: torch.dtype, on: Device) -> Shape | Whole:
    """Returns the case ``frame``, ``window`` or ``network``; its exact result without TF32."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        if what == "network":
            return Whole(model, size, dtype, on)
        return Shape(what, model, size, dtype, on)
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def main() -> None:
    """Prints a row for each kernel and writes JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", nargs="+", default=["da3-small"], choices=MODELS)
    parser.add_argument("--sizes", nargs="+", type=parse_size, default=[Size(8, 280, 210)])
    parser.add_argument("--precision", nargs="+", default=["fp32", "bf16"], choices=DTYPES)
    parser.add_argument("--kernels", nargs="+", default=list(KERNELS), choices=KERNELS)
    kinds = ("frame", "window", "network")
    parser.add_argument("--what", nargs="+", default=kinds, choices=kinds)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    on, rows = open_device(options.device), []
    for model, size, precision, what in itertools.product(
        options.models, options.sizes, options.precision, options.what
    ):
        case = case_of(what, model, size, DTYPES[precision], on)
        head = {"model": model, "size": str(size), "precision": precision, "what": what}
        for row in measure([CHOSEN, *options.kernels], case, options.repeats, on):
            rows.append(head | row)
            results_file.show(rows[-1])
        results_file.write(options.out, {"rows": rows}, on.name())  # a long run may be ended


if __name__ == "__main__":
    main()
