"""The whole giant network with its Gaussian head against the reference, and what the head costs.

    python bench/bench_gaussians.py --out bench/results/gaussians.json

Random weights, the same in both; errors are relative to the reference's largest magnitude. Times
are of a window with Gaussians of its last view over the same window without, of one run.
``--short`` takes 7 of its 40 blocks. The whole takes 12 GiB.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import results_file
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "test"))
os.environ.setdefault("DA3_LOG_LEVEL", "ERROR")

from support.oracle import randomize, reference_network, relative_error

from da3_ros.geometry.similarity import Similarity
from da3_ros.inference.session import camera_to_window
from da3_ros.network import MODELS
from da3_ros.network.build import network_of
from da3_ros.network.checkpoint import aliases
from da3_ros.network.model import DepthAnything3, Output
from da3_ros.splats.gaussians import in_camera
from da3_ros.splats.relative import RelativeSplats

GIANT = "da3-giant"
TURNS = 4
SHORT = {"blocks": 7, "alt_start": 3, "taps": (3, 4, 5, 6)}


def networks(short: bool) -> tuple[DepthAnything3, Any]:
    """Returns our network and the reference's with the same tensors."""
    spec = MODELS[GIANT]
    if short:
        spec = dataclasses.replace(spec, **SHORT)  # type: ignore[arg-type]
    with torch.device("meta"):
        ours = network_of(spec, gaussians=True)
    theirs = reference_network(spec, gaussians=True)
    ours = ours.to_empty(device="cpu").eval()
    assert isinstance(ours, DepthAnything3)
    randomize(ours, 0)
    weights = dict(ours.state_dict())
    weights.update({alias: weights[kept] for alias, kept in aliases(spec).items()})
    theirs.load_state_dict(weights, strict=True, assign=True)
    return ours, theirs.eval()


def errors(out: Output, wanted: Any) -> dict[str, float]:
    """Returns the largest relative error of each attribute."""
    T = camera_to_window(out.extrinsics[0].double().numpy())
    assert out.gaussians is not None
    found = []
    for i, values in enumerate(out.gaussians[0]):
        every = np.ones(tuple(values.shape[1:]), bool)
        splats = RelativeSplats(every, values.flatten(1).T.numpy())
        K = out.intrinsics[0, i].double().numpy()
        local = in_camera(splats, out.depth[0, i].numpy(), K)
        found.append(local.moved(Similarity(1.0, T[i, :3, :3], T[i, :3, 3])))
    pairs = {
        "means": wanted.means, "scales": wanted.scales, "opacities": wanted.opacities,
        "sh": wanted.harmonics, "rotations": wanted.rotations,
    }  # fmt: skip
    result = {}
    for name, value in pairs.items():
        ours = torch.from_numpy(np.concatenate([getattr(g, name) for g in found]))
        theirs = value[0].double()
        if name == "rotations":  # either sign is the same rotation
            ours = torch.where((ours * theirs).sum(dim=-1, keepdim=True) < 0, -ours, ours)
        result[name] = relative_error(ours, theirs)
    return result


def cost(network: DepthAnything3, views: int, size: tuple[int, int]) -> dict[str, float]:
    """Returns the least seconds of a window without Gaussians and with those of its last view,
    in turns."""
    x = torch.randn(1, views, 3, *size)
    prefix, seconds = network.encode(x), {"without_s": math.inf, "with_s": math.inf}
    for _ in range(TURNS):
        for name, images in (("without_s", None), ("with_s", x[:, -1:])):
            start = time.perf_counter()
            network.decode(prefix, size, ref_view="first", images=images)
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    return seconds | {"ratio": seconds["with_s"] / seconds["without_s"]}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="7 blocks instead of 40")
    parser.add_argument("--views", type=int, default=2)
    parser.add_argument("--size", type=int, nargs=2, default=[140, 112], metavar=("W", "H"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    size = options.size[1], options.size[0]
    ours, theirs = networks(options.short)
    x = torch.randn(1, options.views, 3, *size, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        out, reference = ours(x, gaussians=True), theirs(x, infer_gs=True)
        row: dict[str, Any] = {
            "parameters": sum(p.numel() for p in ours.parameters()), "views": options.views,
            "size": list(options.size), "errors": errors(out, reference.gaussians),
            "depth_error": relative_error(out.depth, reference.depth),
            "cost": cost(ours, options.views, size),
        }  # fmt: skip
    print(row)
    results_file.write(options.out, {"rows": [row]}, "cpu")
    return 0


if __name__ == "__main__":
    sys.exit(main())
