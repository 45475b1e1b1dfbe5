#!/usr/bin/env python3
"""The reference package's own call on a list of images, as its users make it.

    python bench/reference_interface.py da3-small --process-res 280 --views 8 --new 1

prints one line of JSON with the time of a call on so many images (random weights and pixels), and
the new frames per second where so many of them are new. The reference keeps nothing between calls.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "test"))

from support.reference_imports import stand_ins

from da3_ros.inference import fit_size

# Imported by its writers of videos, which are not called here.
OF_WRITERS = ("moviepy", "moviepy.editor")
IMAGE = 640, 480  # of the camera


def reference_call(network: torch.nn.Module, images: Sequence[np.ndarray]) -> Callable[[], object]:
    """Returns a function that runs the reference's interface on its ``network`` and images.

    images: [H, W, 3] uint8 of one size, multiples of 14: the interface keeps it. Its work: images
    to tensors, upload, the network in 16 bits, download, depth and poses as arrays.
    Raises ImportError if the package, or something that it imports, is missing.
    """
    with stand_ins(OF_WRITERS):
        from depth_anything_3.api import DepthAnything3
    interface = DepthAnything3("da3-small")
    interface.model = network
    size = max(images[0].shape[:2])
    return lambda: interface.inference(list(images), process_res=size, ref_view_strategy="first")


def measured(model: str, size: tuple[int, int], views: int, new: int, repeats: int) -> dict:
    """Returns the row of a call on ``views`` images of ``size`` (width, height).

    Raises ImportError as ``reference_call``.
    """
    from support.oracle import pair

    _, network = pair(model, 0, packaged=model in ("da3-small", "da3-base"), short=False)
    width, height = size
    pixels = np.random.default_rng(0).integers(0, 256, (views, height, width, 3), np.uint8)
    call = reference_call(network, pixels)
    call()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds)
    precision = "bfloat16" if torch.cuda.is_bf16_supported() else "float16"  # its own choice
    return {
        "views": views, "new": new, "precision": precision, "call_s": median,
        "new_frames_per_s": new / median,
    }  # fmt: skip


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--process-res", type=int, default=280, help="for images of 640x480")
    parser.add_argument("--views", type=int, default=8)
    parser.add_argument("--new", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args(arguments)


def main() -> None:
    """Measures one call; prints its row."""
    options = parse()
    size = fit_size(*IMAGE, options.process_res)[-1]
    row: dict[str, Any] = measured(
        options.model, size, options.views, options.new, options.repeats
    )
    print(json.dumps(row | {"image": f"{size[0]}x{size[1]}"}))


if __name__ == "__main__":
    main()
