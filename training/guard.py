"""Remember what the shipped weights say: ``python -m training.guard``, after every export.

Writes ``test/data/da3_tiny.npz``: two small rendered views and the network's answer to them, with
and without known poses. ``test/network/test_shipped_weights.py`` compares, so that weights and
code cannot drift apart unseen. The views are stored too: a better renderer is no drift.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from da3_ros.inference.preprocess import normalize
from da3_ros.network import build_network, load_checkpoint
from da3_ros.network.model import DepthAnything3
from da3_ros.synthetic import Pace, SyntheticCamera
from da3_ros.types import Array
from training.data import conditioning_extrinsics

STORED = Path(__file__).parents[1] / "test" / "data" / "da3_tiny.npz"
SIZE = (84, 70)  # (width, height)
EVERY = 3  # pixels between those whose depth is stored


def make_views() -> dict[str, Array]:
    """Two views of a held-out room, their poses in it and their intrinsics."""
    pace = Pace(1.0, 0.4, 20.0)
    frames = list(SyntheticCamera(13, SIZE, walk="handheld", frames=2, rate_hz=1.0, pace=pace))
    return {
        "images": np.stack([f.image for f in frames]),
        "T_room_camera": np.stack([f.T_world_camera for f in frames]),
        "K": np.stack([f.K for f in frames]),
    }


def shipped_network() -> DepthAnything3:
    """The weights that ship. Raises CheckpointError where there are none."""
    network = build_network("da3-tiny")
    load_checkpoint(network, "")
    return network.eval()


@torch.no_grad()
def answer(network: DepthAnything3, views: dict[str, Array]) -> dict[str, Array]:
    """What the network says of the views, on the CPU in float32; ``posed_``: given their poses."""
    images = normalize(torch.from_numpy(views["images"]))[None]
    given = conditioning_extrinsics(torch.from_numpy(views["T_room_camera"]).float()[None])
    K = torch.from_numpy(views["K"]).float()[None]
    said: dict[str, Array] = {}
    for prefix, known in (("", ()), ("posed_", (given, K))):
        out = network(images, *known, ref_view="first")
        said[f"{prefix}depth"] = _numpy(out.depth)[..., ::EVERY, ::EVERY]
        said[f"{prefix}confidence"] = _numpy(out.confidence)[..., ::EVERY, ::EVERY]
        said[f"{prefix}extrinsics"] = _numpy(out.extrinsics)
        said[f"{prefix}intrinsics"] = _numpy(out.intrinsics)
    return said


def _numpy(values: Tensor) -> Array:
    return values[0].float().numpy()


def main() -> None:
    """The command."""
    views = make_views()
    STORED.parent.mkdir(exist_ok=True)
    np.savez_compressed(STORED, **views, **answer(shipped_network(), views))
    print(f"{STORED}: {STORED.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
