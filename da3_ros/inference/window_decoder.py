"""Decodes windows: prefixes and known poses of the views in, the network's output out."""

from __future__ import annotations

import logging

import numpy as np
import torch
from torch import Tensor

from da3_ros.inference.feature_cache import Prefix
from da3_ros.inference.loaded_network import LoadedNetwork
from da3_ros.inference.prediction import appearance, focal_px, known_K
from da3_ros.inference.preprocess import normalize
from da3_ros.network import metric
from da3_ros.network.conditioning import normalize_poses
from da3_ros.network.model import Output
from da3_ros.network.monocular import MonocularDepth, MonocularOutput
from da3_ros.network.nested import NestedPrefix, to_metres
from da3_ros.types import Window

log = logging.getLogger(__name__)


class WindowDecoder:
    """Runs the network's window layers. Warns once about an estimated focal length."""

    def __init__(self, network: LoadedNetwork, *, poses: bool) -> None:
        """``poses``: windows may have known poses."""
        self._network, self._poses = network, poses
        self._warned = False

    def answer(
        self, window: Window, prefix: Prefix, size: tuple[int, int], frames: list[int]
    ) -> Output | MonocularOutput:
        """The network's output for the views ``frames``, on the device; nested: in metres.

        prefix: [1, N, ...] of all views. size: (height, width) of the images in the network.
        """
        module = self._network.module
        tokens = self._camera_tokens(window, size)
        chosen = self._index(frames, window)
        if isinstance(module, MonocularDepth):
            return module.decode(prefix, chosen)  # only selects maps
        out = self._network.decode(prefix, size, tokens, chosen, self._images(window, size))
        out = out._replace(appearance=appearance(prefix))
        if out.gaussians is not None:
            out = out._replace(gaussians=out.gaussians.half())
        return self._in_metres(out, window, prefix, size, frames)

    def _images(self, window: Window, size: tuple[int, int]) -> Tensor | None:
        """Normalised images [1, G, 3, H, W] of the new views, which get Gaussians; None: no
        Gaussians. A loop's window has no new views; images that were made smaller for want of
        memory get none."""
        new = [view.image for view in window.views[len(window.views) - window.new :]]
        if not self._network.gaussians or not new or new[0].shape[:2] != size:
            return None
        return normalize(self._network.upload(torch.from_numpy(np.stack(new))))[None]

    def _in_metres(
        self,
        out: Output,
        window: Window,
        prefix: Prefix,
        size: tuple[int, int],
        frames: list[int],
    ) -> Output:
        """Scale a nested network's output with its metric part; others are returned unchanged."""
        if not isinstance(prefix, NestedPrefix):
            return out
        focal = focal_px(window, frames, size)
        if not self._warned and not bool(focal.isfinite().all()):
            self._warned = True
            log.warning("metric scale uses an estimated focal length: publish a camera_info")
        focal = focal.to(self._network.hardware.device)
        guessed = metric.focal_length(out.intrinsics)[:, frames]
        canonical = MonocularOutput(prefix.depth[:, frames], prefix.sky[:, frames])
        # Sky is not filled here: a parameter decides about it later.
        return to_metres(
            out, canonical, torch.where(focal.isfinite(), focal, guessed), fill_sky=False
        )

    def _camera_tokens(self, window: Window, size: tuple[int, int]) -> Tensor | None:
        """The camera encoder's tokens for known poses and intrinsics; None without poses."""
        if window.T_prior_camera is None:
            return None
        if not self._poses:
            raise ValueError("this session was opened with poses=False: windows cannot have poses")
        device = self._network.hardware.device
        T = torch.from_numpy(np.asarray(window.T_prior_camera, np.float64))[None]
        extrinsics = normalize_poses(T).extrinsics.to(device)
        K = known_K(window, size)
        if np.isnan(K).any():
            raise ValueError("known poses need the intrinsics of every view")
        intrinsics = torch.from_numpy(K)[None].float().to(device)
        return self._network.module.camera_tokens(extrinsics, intrinsics, size)

    def _index(self, frames: list[int], window: Window) -> Tensor | None:
        """Indices of the wanted views on the device; None: all views."""
        if len(frames) == len(window.views):
            return None
        return self._network.upload(torch.tensor(frames))
