"""One network on one device: a window of views in, depth, confidence, poses and intrinsics out."""

from __future__ import annotations

import logging
import time

import numpy as np
import torch

from da3_ros.config import InferenceConfig
from da3_ros.inference.preprocess import normalize
from da3_ros.network import MODELS, build_network, initialize_randomly, load_checkpoint
from da3_ros.network.model import DepthAnything3, Output
from da3_ros.types import Array, Prediction, Window

log = logging.getLogger(__name__)

RANDOM = "random"


class DeviceError(RuntimeError):
    """A device that was asked for and is not there; one line with the remedy."""


def choose_device(name: str) -> torch.device:
    """The device for ``auto``, ``cuda``, ``mps`` or ``cpu``; what was asked for or an error.

    ``auto`` prefers CUDA, then Apple's MPS, then the CPU. Raises DeviceError rather than falling
    back silently.
    """
    there = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        name = next(n for n, ok in there.items() if ok)
    if not there.get(name, False):
        raise DeviceError(
            f"device {name!r} is not usable here: install a PyTorch build for it, "
            "or set `device` to auto or cpu"
        )
    return torch.device(name)


class InferenceSession:
    """Holds one loaded network. Not thread-safe: one worker owns it.

    Raises CheckpointError, DeviceError or ValueError at construction, each with one line.
    """

    def __init__(self, config: InferenceConfig) -> None:
        self.config = config
        self.device = choose_device(config.device)
        self.network = _load(config).to(self.device)
        spec = MODELS[config.model]
        self.license = spec.license
        if not spec.commercial:
            log.warning("%s: weights under %s, no commercial use", spec.name, spec.license)

    @torch.inference_mode()
    def infer(self, window: Window) -> Prediction:
        """Run the views of ``window`` together; all must have one size, multiples of 14.

        The first view is the reference, whose camera is close to the window's world frame. Poses
        and depth share one unknown unit.
        """
        start = time.perf_counter()
        images = np.stack([view.image for view in window.views])
        batch = normalize(torch.from_numpy(images).to(self.device))[None]
        out = self.network(batch, ref_view="first")
        return to_prediction(out, time.perf_counter() - start)

    def _head_chunk(self) -> int:
        # On a CPU one frame's maps stay near the cache; a GPU wants more work per launch.
        return 1 if self.device.type == "cpu" else 8


def to_prediction(out: Output, inference_s: float) -> Prediction:
    """Network output of one scene [1, N, ...] to host arrays, poses turned camera-to-world."""
    return Prediction(
        depth=out.depth[0].float().cpu().numpy(),
        confidence=out.confidence[0].float().cpu().numpy(),
        T_window_camera=camera_to_world(out.extrinsics[0].double().cpu().numpy()),
        K=out.intrinsics[0].double().cpu().numpy(),
        inference_s=inference_s,
    )


def camera_to_world(extrinsics: Array) -> Array:
    """World-to-camera [N, 3, 4] to camera-to-world [N, 4, 4], rotations made exactly orthonormal.

    The one place where the network's convention is inverted. Rotations come in fp32; the nearest
    orthonormal matrix (SVD) keeps later products from drifting.
    """
    u, _, vt = np.linalg.svd(extrinsics[:, :, :3])
    R_world_camera = np.transpose(u @ vt, (0, 2, 1))
    T = np.tile(np.eye(4), (len(extrinsics), 1, 1))
    T[:, :3, :3] = R_world_camera
    T[:, :3, 3] = -np.einsum("nij,nj->ni", R_world_camera, extrinsics[:, :, 3])
    return T


def _load(config: InferenceConfig) -> DepthAnything3:
    network = build_network(config.model)
    if config.checkpoint == RANDOM:
        log.warning("checkpoint `random`: %s gives numbers without meaning", config.model)
        initialize_randomly(network)
    else:
        folder = load_checkpoint(network, config.checkpoint)
        log.info("%s loaded from %s", config.model, folder)
    return network.requires_grad_(False)
