"""Time per image of Depth Anything V2, a single-image network, as a baseline for our windows.

    pip install transformers
    python bench/bench_yardstick.py --sizes small base --out bench/results/yardstick.json

Weights are random, the image size is the same, and all variants run in turn in one run. Depth
Anything V2 is measured on one image. Our network is measured on one image, and on a new frame in a
window of eight, which also yields poses and one consistent geometry. Our times include upload,
pre-processing and download; those of Depth Anything V2 do not.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import results_file
import torch

from da3_ros.inference import InferenceConfig, InferenceSession
from da3_ros.inference.devices import open_device
from da3_ros.inference.preprocess import fit_size
from da3_ros.inference.random_windows import random_windows

# Width, blocks, heads, taps, widths before fusion, width of fusion, from their model cards.
SIZES = {
    "small": (384, 12, 6, [3, 6, 9, 12], [48, 96, 192, 384], 64),
    "base": (768, 12, 12, [3, 6, 9, 12], [96, 192, 384, 768], 128),
    "large": (1024, 24, 16, [5, 12, 18, 24], [256, 512, 1024, 1024], 256),
}
PRECISIONS = {"off": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
WINDOW, WARM_UP = 8, 10


def theirs(size: str, image: tuple[int, int], dtype: torch.dtype, device) -> Callable[[], object]:
    """Returns a function that runs Depth Anything V2 on one image of (width, height)."""
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
    model = DepthAnythingForDepthEstimation(config).eval().to(device, dtype)
    pixels = torch.randn(1, 3, image[1], image[0], device=device, dtype=dtype)

    @torch.inference_mode()
    def run() -> object:
        return model(pixels).predicted_depth.float().cpu()

    return run


def ours(size: str, res: int, image: tuple[int, int], precision: str, device: str, views: int):
    """Returns a function that runs our network on ``views`` images, one of them new."""
    config = InferenceConfig(
        f"da3-{size}", "random", device, "torch", mixed_precision=precision, process_res=res
    )
    session = InferenceSession(config, poses=False)
    plan = session.memory.fit(image, max(2, views), 1)
    windows = random_windows(plan, views, 1, 1 << 30)
    return lambda: session.infer(next(windows))


def measure(size: str, options: argparse.Namespace) -> list[dict]:
    """Returns a row for each variant of a size; the variants run in turn."""
    image = fit_size(*options.image, options.process_res)[-1]
    device = open_device(options.device)
    variants: dict[str, Callable[[], object]] = {}
    for precision in options.precision:
        dtype = PRECISIONS[precision]
        name = str(dtype).removeprefix("torch.")
        common = (size, options.process_res, image, precision, options.device)
        variants[f"Depth Anything V2, one image, {name}"] = theirs(
            size, image, dtype, device.device
        )
        variants[f"ours, one image, {name}"] = ours(*common, 1)
        variants[f"ours, new frame in a window of {WINDOW}, {name}"] = ours(*common, WINDOW)
    times: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(-WARM_UP, options.repeats):
        for name, run in variants.items():
            start = time.perf_counter()
            run()
            if turn >= 0:
                times[name].append(time.perf_counter() - start)
    first = statistics.median(next(iter(times.values())))
    return [
        {
            "model": size, "image": f"{image[0]}x{image[1]}", "variant": name,
            "median_ms": round(1000 * statistics.median(values), 1),
            "p95_ms": round(1000 * float(np.percentile(values, 95)), 1),
            "times_the_first": round(statistics.median(values) / first, 2),
        }
        for name, values in times.items()
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--sizes", nargs="+", default=["small"], choices=SIZES)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", nargs="+", default=["off"], choices=PRECISIONS)
    parser.add_argument("--process-res", type=int, default=280)
    parser.add_argument("--image", type=lambda s: tuple(map(int, s.split("x"))), default=(4, 3))
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if importlib.util.find_spec("transformers") is None:
        print("bench_yardstick: not run; it requires: pip install transformers")
        return
    rows = []
    for size in options.sizes:
        rows += measure(size, options)
        for row in rows[-3 * len(options.precision) :]:
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    device = open_device(options.device).name()
    results_file.write(options.out, {"device": device, "rows": rows}, device)


if __name__ == "__main__":
    main()
