"""What the network makes of a window: the views' prefixes and known poses in, its answer out."""

from __future__ import annotations

import logging

import numpy as np
import torch
from torch import Tensor

from da3_ros.inference.loaded_network import LoadedNetwork
from da3_ros.inference.prediction import appearance, focal_px, known_K
from da3_ros.inference.prefix_cache import Prefix
from da3_ros.network import metric
from da3_ros.network.conditioning import normalize_poses
from da3_ros.network.model import Output
from da3_ros.network.monocular import MonocularDepth, MonocularOutput
from da3_ros.network.nested import NestedPrefix, to_metres
from da3_ros.types import Window

log = logging.getLogger(__name__)


class WindowDecoder:
    """Asks the network about windows. Owns whether a guessed focal length was warned of."""

    def __init__(self, network: LoadedNetwork, *, poses: bool) -> None:
        """``poses``: windows may bring known poses."""
        self._network, self._poses = network, poses
        self._warned = False

    def answer(
        self, window: Window, prefix: Prefix, size: tuple[int, int], frames: list[int]
    ) -> Output | MonocularOutput:
        """What the network says of the views ``frames``, on the device; nested: in metres.

        prefix: [1, N, ...] of all views, of images of ``size`` (height, width).
        """
        module = self._network.module
        tokens = self._camera_tokens(window, size)
        chosen = self._index(frames, window)
        if isinstance(module, MonocularDepth):
            return module.decode(prefix, chosen)  # only picks maps
        out: Output = self._network.call(
            "decode", prefix, size, tokens, ref_view="first", frames=chosen
        )
        out = out._replace(appearance=appearance(prefix))
        return self._in_metres(out, window, prefix, size, frames)

    def _in_metres(
        self,
        out: Output,
        window: Window,
        prefix: Prefix,
        size: tuple[int, int],
        frames: list[int],
    ) -> Output:
        """A nested network's answer by its own metric part; any other one as it is."""
        if not isinstance(prefix, NestedPrefix):
            return out
        focal = focal_px(window, frames, size)
        if not self._warned and not bool(focal.isfinite().all()):
            self._warned = True
            log.warning("metres by a focal length that was guessed: publish a camera_info")
        focal = focal.to(self._network.on.device)
        guessed = metric.focal_length(out.intrinsics)[:, frames]
        canonical = MonocularOutput(prefix.depth[:, frames], prefix.sky[:, frames])
        # Sky stays as it is here: what becomes of it is for the user to say.
        return to_metres(
            out, canonical, torch.where(focal.isfinite(), focal, guessed), fill_sky=False
        )

    def _camera_tokens(self, window: Window, size: tuple[int, int]) -> Tensor | None:
        """What the camera encoder makes of known poses and intrinsics; None without poses."""
        if window.T_prior_camera is None:
            return None
        if not self._poses:
            raise ValueError("this session was opened for windows without known poses")
        device = self._network.on.device
        T = torch.from_numpy(np.asarray(window.T_prior_camera, np.float64))[None]
        extrinsics = normalize_poses(T).extrinsics.to(device)
        K = known_K(window, size)
        if np.isnan(K).any():
            raise ValueError("known poses need the intrinsics of every view")
        intrinsics = torch.from_numpy(K)[None].float().to(device)
        return self._network.module.camera_tokens(extrinsics, intrinsics, size)

    def _index(self, frames: list[int], window: Window) -> Tensor | None:
        """Wanted frames as the network takes them; None: all."""
        if len(frames) == len(window.views):
            return None
        return self._network.upload(torch.tensor(frames))
