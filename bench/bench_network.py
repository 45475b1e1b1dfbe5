"""Speed and memory of our network against the reference package, in one run on one machine.

Both have the same random weights, sizes and views, and all blocks of the model. Runs of all
variants alternate, so that other load on the machine slows all of them. If the reference package
is not installed, our network in fp32 is the base of the ratios. Prints a table and writes JSON:

    python bench/bench_network.py --models da3-small da3-base --out bench/results/cpu.json

``backbone_tflops``: the work of the backbone over the time of the variant, which for all but
``backbone`` includes the head; ``share_of_peak``: that over a large matrix product of the same
type. ``--interfaces`` adds the reference's own call on a list of images, and a session of ours on
the same number of new images, both with upload, pre-processing and download.

The same command runs on a GPU with ``--device cuda``; see bench/README.md. A quick check:

    python bench/bench_network.py --models da3-tiny --sizes 2x84x56 --repeats 1
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
import importlib.util
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "test"))

import results_file  # noqa: E402
from reference_interface import reference_call  # noqa: E402
from session_row import percentile  # noqa: E402

from da3_ros.backends.compiled import with_own_code  # noqa: E402
from da3_ros.inference import InferenceConfig, InferenceSession  # noqa: E402
from da3_ros.inference.devices import open_device  # noqa: E402
from da3_ros.inference.loading import load_network  # noqa: E402
from da3_ros.inference.random_windows import random_windows  # noqa: E402
from da3_ros.network import empty_network  # noqa: E402
from da3_ros.network.backbone import Prefix  # noqa: E402
from da3_ros.network.precision import channels_last, convert, drop_rays  # noqa: E402
from da3_ros.network.specs import PATCH  # noqa: E402

DTYPES = {
    "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.int8,
}  # fmt: skip
HEADS = 3  # views the head runs on in a sliding window: one new view and two overlap views


@dataclass(frozen=True)
class Size:
    """Number of views, and their width and height in pixels."""

    views: int
    width: int
    height: int

    def __str__(self) -> str:
        return f"{self.views} x {self.width}x{self.height}"


def parse_size(text: str) -> Size:
    """Returns the size of a text like ``8x504x280``."""
    return Size(*map(int, text.split("x")))


def gflop(model, size: Size, *, new: int) -> float:
    """Returns the GFLOP of the backbone's linear layers and attention in a window.

    new: views whose per-view blocks are computed; those of the others are kept. The DPT head is
    not counted.
    """
    spec, T = model.spec, 1 + size.width * size.height // 196
    C, N = spec.width, size.views
    linear = 24 * C * C * T
    local, across = 4 * T * T * C, 4 * T * (N * T) * C
    total = 0.0
    for i in range(spec.blocks):
        frames = new if i < spec.alt_start else N
        attention = across if i >= spec.alt_start and i % 2 else local
        total += frames * (linear + attention)
    return total / 1e9


class Runner:
    """The variants of one model at one size."""

    def __init__(
        self,
        name: str,
        size: Size,
        precisions: list[str],
        device,
        backend: str,
        interfaces: bool = False,
    ) -> None:
        """``backend``: of torch.compile; empty: nothing is compiled. ``interfaces``: also run."""
        self.device = device
        self.types: dict[str, str] = {}  # precision of a variant's products, as in DTYPES
        ours, theirs = networks(name)
        self.spec = ours.spec
        g = torch.Generator().manual_seed(0)
        self.images = torch.randn(1, size.views, 3, size.height, size.width, generator=g)
        self.images = self.images.to(device.device)
        self.size = (size.height, size.width)
        self.variants: dict = {}
        half = next((k for k, v in DTYPES.items() if v == device.native_half()), "fp32")
        if theirs is not None:
            self.theirs = theirs.to(device.device)
            self._keep("reference fp32", "fp32", self._reference(torch.float32))
            if device.kind == "cuda":
                self._keep("reference autocast", half, self._reference(device.native_half()))
        if interfaces:
            self._add_interfaces(name)
        drop_rays(ours)
        state = {k: v.clone() for k, v in ours.state_dict().items()}
        for precision in precisions:
            net = empty_network(name)
            drop_rays(net)
            net.load_state_dict(state)
            convert(net, DTYPES[precision])
            if device.kind != "cpu":
                channels_last(net)
            net.to(device.device).set_chunks(device.chunks())
            self._add(net, precision, precision)
            if backend:
                compiler = functools.partial(torch.compile, backend=backend)
                self._add(net, f"{precision} compiled", precision, compiler)

    def _keep(self, variant: str, precision: str, run) -> None:
        self.variants[variant], self.types[variant] = run, precision

    def _add_interfaces(self, name: str) -> None:
        """Adds the reference's interface, if it is installed, and a session of ours."""
        N, (height, width) = self.images.shape[1], self.size
        pictures = np.random.default_rng(0).integers(0, 256, (N, height, width, 3), np.uint8)
        if hasattr(self, "theirs"):
            self._add_reference_interface(pictures)
        config = InferenceConfig(
            name, "random", str(self.device.device), "torch", process_res=max(width, height)
        )
        session = InferenceSession(config, poses=False)
        plan = session.memory.fit((width, height), max(2, N), max(1, N - 1))
        windows = random_windows(plan, N, N, 1 << 30, unseen=True)
        ran = session.status().precision
        precision = next(k for k, v in DTYPES.items() if str(v) == f"torch.{ran}")
        self._keep(f"our session {precision}", precision, lambda: session.infer(next(windows)))

    def _add_reference_interface(self, pictures) -> None:
        try:
            call = reference_call(self.theirs, pictures)
        except (ImportError, RuntimeError) as error:  # a torchvision of another torch raises that
            print(f"reference interface: left out ({error})", file=sys.stderr)
            return
        # It chooses by the GPU, on a CPU too; without one that is float16.
        kind = "bf16" if torch.cuda.is_bf16_supported() else "fp16"
        self._keep("reference interface", kind, call)

    def _reference(self, dtype: torch.dtype):
        def run():
            enabled = dtype != torch.float32
            with torch.autocast(self.device.kind, dtype, enabled=enabled):
                return self.theirs(self.images, ref_view_strategy="first").depth

        return run

    def _add(self, net, label: str, precision: str, wrap=None) -> None:
        encode, decode = net.encode, net.decode
        if wrap is not None:
            # Each variant gets its own copy of the code: the compiler keeps few programs of each.
            encode, whole_of, part_of = (
                wrap(with_own_code(f), fullgraph=True, dynamic=False)
                for f in (encode, decode, decode)
            )
        else:
            whole_of = part_of = decode
        N = self.images.shape[1]
        frames = None
        if N > HEADS:
            frames = torch.tensor([0, N // 2, N - 1], device=self.images.device)

        def whole():
            return whole_of(encode(self.images), self.size, ref_view="first").depth

        def backbone():
            """Runs a whole window without the head."""
            grid = (self.size[0] // PATCH, self.size[1] // PATCH)
            vit, prefix = net.backbone.pretrained, net.encode(self.images)
            # Of each tap only the camera's token is kept: the head would reduce it as it comes.
            taken = vit.fuse(*prefix, grid, ref_view="first", consume=lambda _, x: x[:, :, :1])
            return taken.camera

        def sliding():
            """Runs a window with one new view; the prefixes of the others are kept."""
            fresh = encode(self.images[:, :1])
            prefix = Prefix(
                *(torch.cat((k[:, 1:], f), 1) for k, f in zip(kept, fresh, strict=True))
            )
            return part_of(prefix, self.size, ref_view="first", frames=frames).depth

        with torch.inference_mode():
            kept = Prefix(*(x.clone() for x in net.encode(self.images)))
        self._keep(f"ours {label}", precision, whole)
        if wrap is None:
            self._keep(f"ours {label}, backbone", precision, backbone)
        if N > 1:
            self._keep(f"ours {label}, per new frame", precision, sliding)

    @torch.inference_mode()
    def time(self, repeats: int) -> dict[str, list[float]]:
        """Returns the seconds of each run by variant.

        Variants run in turn; the first turn is for warm-up and is not counted.
        """
        seconds: dict[str, list[float]] = {name: [] for name in self.variants}
        for turn in range(repeats + 1):
            for name, run in self.variants.items():
                self._wait()
                start = time.perf_counter()
                run()
                self._wait()
                if turn:
                    seconds[name].append(time.perf_counter() - start)
        return seconds

    @torch.inference_mode()
    def peak(self, name: str) -> int:
        """Returns the bytes that a pass takes on top of the memory held before it."""
        run = self.variants[name]
        run()
        self._wait()
        self.device.release()
        release_memory()
        before = self.device.in_use() if self.device.kind == "cpu" else None
        self.device.reset_peak()
        allocated = 0 if self.device.kind == "cpu" else torch.cuda.memory_allocated()
        run()
        self._wait()
        if before is not None:
            return max(0, self.device.peak() - before)
        return torch.cuda.max_memory_allocated() - allocated

    def _wait(self) -> None:
        if self.device.kind == "cuda":
            torch.cuda.synchronize()


@functools.lru_cache(maxsize=1)
def networks(name: str):
    """Returns our network and the reference's, with the same random weights and all blocks.

    The second is None if the reference package is not installed. Kept for the next size, as they
    are then: large ones take half a minute.
    """
    if importlib.util.find_spec("depth_anything_3") is None:
        return load_network(name, "random"), None
    from support.oracle import pair

    return pair(name, 0, packaged=name in ("da3-small", "da3-base"), short=False)


def release_memory() -> None:
    """Returns freed memory from the C library to the system, so that its reuse is measured."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def measure(name: str, size: Size, options, device, peaks: dict[str, float]) -> list[dict]:
    """Returns a row for every variant of a model at one size; ``peaks``: of ``machine``."""
    backend = options.backend if options.compile else ""
    runner = Runner(name, size, options.precision, device, backend, options.interfaces)
    seconds = runner.time(options.repeats)
    base = statistics.median(next(iter(seconds.values())))
    rows = []
    for variant, values in seconds.items():
        median = statistics.median(values)
        per_new = "per new" in variant
        work = gflop(runner, size, new=1 if per_new else size.views)
        reached, peak = work / median / 1e3, peaks.get(runner.types[variant])
        rows.append(
            {
                "model": name,
                "blocks": runner.spec.blocks,
                "size": str(size),
                "variant": variant,
                "median_s": median,
                "p95_s": percentile(values, 95),
                "p99_s": percentile(values, 99),
                "std_s": statistics.pstdev(values),
                "ratio": base / median,
                "images_per_s": (1 if per_new else size.views) / median,
                "backbone_tflops": reached,
                "share_of_peak": None if peak is None else reached / peak,
                "peak_mb": runner.peak(variant) / 2**20,
            }
        )
    return rows


def matmul_peak(device, dtype: torch.dtype) -> float:
    """Returns the TFLOP/s of a large matrix product on the device, the best of six."""
    n = 8192 if device.kind == "cuda" else 1536
    a = torch.randn(n, n, device=device.device, dtype=dtype)
    best = float("inf")
    for _ in range(6):
        if device.kind == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        a @ a
        if device.kind == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return 2 * n**3 / best / 1e12


def machine(device, precisions: Sequence[str] = ()) -> dict:
    """Returns the measured TFLOP/s of the device in fp32, bf16 and other ``precisions``."""
    kinds = {k: v for k, v in DTYPES.items() if k in ("fp32", "bf16", *precisions)}
    peaks = {k: matmul_peak(device, v) for k, v in kinds.items() if v != torch.int8}
    return {"matmul_tflops": peaks}


def as_text(rows: list[dict]) -> str:
    """Returns the rows as a markdown table."""
    lines = [
        "| model | views | variant | median s | x the first | TFLOP/s | peak MB |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    for r in rows:
        lines.append(
            f"| {r['model']} | {r['size']} | {r['variant']} | {r['median_s']:.3f} | "
            f"{r['ratio']:.2f} | {r['backbone_tflops']:.3g} | {r['peak_mb']:.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", nargs="+", default=["da3-small", "da3-base"])
    parser.add_argument(
        "--sizes", nargs="+", type=parse_size, default=[Size(8, 280, 210), Size(8, 504, 280)]
    )
    parser.add_argument("--precision", nargs="+", default=["fp32", "bf16"], choices=DTYPES)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--mode", default="balanced")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--compile", action="store_true", help="also run each precision compiled")
    parser.add_argument("--backend", default="inductor", help="of torch.compile")
    parser.add_argument("--interfaces", action="store_true", help="also whole calls, on images")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    device = open_device(options.device, options.mode)
    report = {"machine": machine(device, options.precision), "rows": []}
    for name in options.models:
        for size in options.sizes:
            rows = measure(name, size, options, device, report["machine"]["matmul_tflops"])
            report["rows"] += rows
            print(as_text(rows), flush=True)
            results_file.write(options.out, dict(report), device.name())  # it may be ended


if __name__ == "__main__":
    main()
