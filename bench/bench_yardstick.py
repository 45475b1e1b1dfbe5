"""Depth Anything V2, a single-image network, as a baseline for our windows.

    pip install transformers
    python bench/bench_yardstick.py --sizes small base --out bench/results/yardstick.json
    python bench/bench_yardstick.py --sizes small --images 1000

Weights are random, the image size is the same. Depth Anything V2 is measured on one image. Our
network is measured on one image, on a new frame in a window of eight, which also yields poses and
one consistent geometry, and per image in windows of eight new ones. Our times include upload,
pre-processing and download; of Depth Anything V2 only upload and download.

Times per image: all variants run in turn in one process. ``load_s`` (from a file that was just
written, to the first image), ``peak_mib`` (what the process takes beyond its libraries while it
runs; ``peak_loading_mib``: until the first image) and ``seconds_for_1000``: each variant in a
process of its own. Without ``--images 1000``, those seconds are extrapolated from
``measured_images``.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import child
import results_file
import torch
from arguments import size
from bench_memory import status
from session_row import percentile

from da3_ros.inference import InferenceConfig, InferenceSession
from da3_ros.inference.devices import open_device
from da3_ros.inference.preprocess import fit_size
from da3_ros.inference.random_windows import random_windows
from da3_ros.network import empty_network, initialize_randomly, save_checkpoint

# Width, blocks, heads, taps, widths before fusion, width of fusion, from their model cards.
SIZES = {
    "small": (384, 12, 6, [3, 6, 9, 12], [48, 96, 192, 384], 64),
    "base": (768, 12, 12, [3, 6, 9, 12], [96, 192, 384, 768], 128),
    "large": (1024, 24, 16, [5, 12, 18, 24], [256, 512, 1024, 1024], 256),
}
PRECISIONS = {"off": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
WINDOW = 8
MANY = 1000  # images of the throughput
# Views per window and new images per run; 0 views: Depth Anything V2.
KINDS = {
    "Depth Anything V2, one image": (0, 1),
    "ours, one image": (1, 1),
    f"ours, new frame in a window of {WINDOW}": (WINDOW, 1),
    f"ours, window of {WINDOW} new images": (WINDOW, WINDOW),
}


class Variant:
    """One network and how it is fed: ``run`` takes ``images`` new images at a time."""

    def __init__(self, by: str, size: str, precision: str, options: argparse.Namespace) -> None:
        """``by``: a key of KINDS."""
        self.by, self.size, self.precision, self.options = by, size, precision, options
        self.views, self.images = KINDS[by]
        self.run: Callable[[], object] = lambda: None

    @property
    def name(self) -> str:
        """The row's name."""
        return f"{self.by}, {PRECISIONS[self.precision]}".replace("torch.", "")

    @property
    def shape(self) -> tuple[int, int]:
        """Width and height of images in the network."""
        return fit_size(*self.options.image, self.options.process_res)[-1]

    def file(self, folder: Path) -> Path:
        """The folder of its weights."""
        return folder / f"{'theirs' if self.views == 0 else 'ours'}-{self.size}"

    def write(self, folder: Path) -> None:
        """Writes random weights, if they are not there."""
        if self.file(folder).exists():
            return
        if self.views == 0:
            theirs(self.size).save_pretrained(self.file(folder))
            return
        network = empty_network(f"da3-{self.size}")
        initialize_randomly(network)
        save_checkpoint(network, self.file(folder))

    def open(self, folder: Path) -> None:
        """Loads the network and makes ``run``."""
        if self.views == 0:
            self.run = self._open_theirs(folder)
            return
        config = InferenceConfig(
            f"da3-{self.size}", str(self.file(folder)), self.options.device, "torch",
            mixed_precision=self.precision, process_res=self.options.process_res,
        )  # fmt: skip
        session = InferenceSession(config, poses=False)
        unseen = self.images == self.views
        new = max(1, self.views - 1) if unseen else self.images
        plan = session.memory.fit(self.shape, max(2, self.views), new)
        windows = random_windows(plan, self.views, self.images, 1 << 30, unseen=unseen)
        self.run = lambda: session.infer(next(windows))

    def _open_theirs(self, folder: Path) -> Callable[[], object]:
        from transformers import DepthAnythingForDepthEstimation

        device = open_device(self.options.device).device
        dtype = PRECISIONS[self.precision]
        found = DepthAnythingForDepthEstimation.from_pretrained(self.file(folder))
        model = found.eval().to(device, dtype)
        pixels = torch.randn(1, 3, self.shape[1], self.shape[0])

        @torch.inference_mode()
        def run() -> object:
            return model(pixels.to(device, dtype)).predicted_depth.float().cpu()

        return run


def theirs(size: str) -> torch.nn.Module:
    """Returns Depth Anything V2 of a size with random weights."""
    from transformers import DepthAnythingConfig, DepthAnythingForDepthEstimation, Dinov2Config

    width, blocks, heads, taps, necks, fusion = SIZES[size]
    backbone = Dinov2Config(
        hidden_size=width, num_hidden_layers=blocks, num_attention_heads=heads, image_size=518,
        patch_size=14, out_indices=taps, reshape_hidden_states=False, apply_layernorm=True,
    )  # fmt: skip
    config = DepthAnythingConfig(
        backbone_config=backbone, reassemble_hidden_size=width, patch_size=14,
        neck_hidden_sizes=necks, fusion_hidden_size=fusion, head_hidden_size=32,
    )  # fmt: skip
    return DepthAnythingForDepthEstimation(config)


def variants(size: str, options: argparse.Namespace) -> list[Variant]:
    """Returns all variants of a size."""
    return [Variant(by, size, p, options) for p in options.precision for by in KINDS]


def measure(size: str, options: argparse.Namespace, folder: Path) -> list[dict]:
    """Returns a row for each variant of a size; the variants run in turn."""
    found = variants(size, options)
    for variant in found:
        variant.write(folder)
        variant.open(folder)
    times: dict[str, list[float]] = {variant.name: [] for variant in found}
    for turn in range(-options.warm_up, options.repeats):
        for variant in found:
            start = time.perf_counter()
            variant.run()
            if turn >= 0:
                times[variant.name].append((time.perf_counter() - start) / variant.images)
    first = statistics.median(next(iter(times.values())))
    return [row(variant, times[variant.name], first) for variant in found]


def row(variant: Variant, seconds: list[float], first: float) -> dict:
    """Returns a variant's row; ``seconds``: per image; ``first``: the median of the first."""
    width, height = variant.shape
    p95 = percentile(seconds, 95)
    return {
        "model": variant.size, "image": f"{width}x{height}", "variant": variant.name,
        "median_ms": round(1000 * statistics.median(seconds), 1),
        "p95_ms": None if p95 is None else round(1000 * p95, 1),
        "times_the_first": round(statistics.median(seconds) / first, 2),
    }  # fmt: skip


def alone(variant: Variant, folder: Path) -> dict:
    """Returns load time, memory and throughput of a variant; to be called in a new process."""
    import_libraries()
    memory = Memory(variant.options.device)
    start = time.perf_counter()
    variant.open(folder)
    variant.run()
    load_s = time.perf_counter() - start
    loading = memory.peak_mib()
    memory.reset()
    count = -(-variant.options.images // variant.images)
    start = time.perf_counter()
    for _ in range(count):
        variant.run()
    took = time.perf_counter() - start
    done = count * variant.images
    return {
        "load_s": round(load_s, 2), "peak_loading_mib": loading, "peak_mib": memory.peak_mib(),
        "measured_images": done, "extrapolated": done < MANY,
        f"seconds_for_{MANY}": round(took / done * MANY, 1),
    }  # fmt: skip


class Memory:
    """What this process takes beyond its libraries: on a CPU with weights mapped from a file."""

    def __init__(self, device: str) -> None:
        self._on = open_device(device)
        self._on.release()
        self._before = 0 if self._on.kind != "cpu" else status("VmRSS")
        self.reset()

    def reset(self) -> None:
        """Begins a new measurement."""
        self._on.release()
        self._on.reset_peak()

    def peak_mib(self) -> int:
        """Returns the peak since then in MiB."""
        peak = self._on.peak() if self._on.kind != "cpu" else status("VmHWM")
        return round((peak - self._before) / 2**20)


def import_libraries() -> None:
    """Imports what either network needs, so that neither pays for it alone."""
    from transformers import DepthAnythingForDepthEstimation  # noqa: F401

    torch.empty(1, device="meta").add(1)


def in_own_process(variant: Variant, folder: Path) -> dict:
    """Runs ``alone`` in a new process; the same command line, with the variant."""
    which = json.dumps([variant.by, variant.size, variant.precision, str(folder)])
    words = [sys.executable, __file__, *sys.argv[1:], "--alone", which]
    done = child.run(words)
    if done.returncode:
        return {"alone": f"the process ended with {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def parsed() -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--sizes", nargs="+", default=["small"], choices=SIZES)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", nargs="+", default=["off"], choices=PRECISIONS)
    parser.add_argument("--process-res", type=int, default=280)
    parser.add_argument("--image", type=size, default=(4, 3), metavar="WxH")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--warm-up", type=int, default=3, help="turns before those that count")
    parser.add_argument("--images", type=int, default=20, help="of which the throughput is taken")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--alone", help=argparse.SUPPRESS)  # a variant and a folder as JSON
    return parser.parse_args()


def main() -> None:
    options = parsed()
    if importlib.util.find_spec("transformers") is None:
        print("bench_yardstick: not run; it requires: pip install transformers")
        if options.out is not None:
            raise SystemExit(1)  # a file was asked for
        return
    logging.disable(logging.WARNING)
    if options.alone:
        *which, folder = json.loads(options.alone)
        print(json.dumps(alone(Variant(*which, options), Path(folder))))
        return
    rows, device = [], open_device(options.device).name()
    with tempfile.TemporaryDirectory() as parent:
        for name in options.sizes:
            folder = Path(parent) / name
            found = measure(name, options, folder)
            for numbers, variant in zip(found, variants(name, options), strict=True):
                rows.append(numbers | in_own_process(variant, folder))
                results_file.show(rows[-1])
                results_file.write(options.out, {"device": device, "rows": rows}, device)
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
