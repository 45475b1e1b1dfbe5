"""Stores the outputs of the included weights: ``python -m training.guard``, after every export.

Writes ``test/data/da3_tiny.npz``: two small rendered views and the network's outputs for them,
with and without known poses. ``test/network/test_shipped_weights.py`` compares them with the
current outputs, so that a mismatch of weights and code is found. The views are stored too, so that
changes of the renderer have no effect.
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
EVERY = 3  # every third pixel of a row and column is stored


def make_views() -> dict[str, Array]:
    """Returns two views of a held-out room.

    These are: images [2, H, W, 3] uint8, T_room_camera [2, 4, 4], metres, and K [2, 3, 3].
    """
    pace = Pace(1.0, 0.4, 20.0)
    frames = list(SyntheticCamera(13, SIZE, walk="handheld", frames=2, rate_hz=1.0, pace=pace))
    return {
        "images": np.stack([f.image for f in frames]),
        "T_room_camera": np.stack([f.T_room_camera for f in frames]),
        "K": np.stack([f.K for f in frames]),
    }


def shipped_network() -> DepthAnything3:
    """Returns da3-tiny with the included weights. Raises CheckpointError if there are none."""
    network = build_network("da3-tiny")
    load_checkpoint(network, "")
    return network.eval()


@torch.no_grad()
def network_outputs(network: DepthAnything3, views: dict[str, Array]) -> dict[str, Array]:
    """Returns the network's outputs for the views, on the CPU in float32.

    Names that begin with ``posed_`` are of the network with the views' poses as input.
    """
    images = normalize(torch.from_numpy(views["images"]))[None]
    given = conditioning_extrinsics(torch.from_numpy(views["T_room_camera"]).float()[None])
    K = torch.from_numpy(views["K"]).float()[None]
    outputs: dict[str, Array] = {}
    for prefix, known in (("", ()), ("posed_", (given, K))):
        out = network(images, *known, ref_view="first")
        outputs[f"{prefix}depth"] = _numpy(out.depth)[..., ::EVERY, ::EVERY]
        outputs[f"{prefix}confidence"] = _numpy(out.confidence)[..., ::EVERY, ::EVERY]
        outputs[f"{prefix}extrinsics"] = _numpy(out.extrinsics)
        outputs[f"{prefix}intrinsics"] = _numpy(out.intrinsics)
    return outputs


def _numpy(values: Tensor) -> Array:
    return values[0].float().numpy()


def main() -> None:
    """Runs the command."""
    views = make_views()
    STORED.parent.mkdir(exist_ok=True)
    np.savez_compressed(STORED, **views, **network_outputs(shipped_network(), views))
    print(f"{STORED}: {STORED.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
