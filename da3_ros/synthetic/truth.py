"""Exact predictions in place of a network: what the pipeline makes of perfect windows.

Every window comes in a unit and a world of its own, as a network's does, so that joining windows
is put to the test while the network's own error cannot hide an effect.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import cv2
import numpy as np
from scipy.spatial.transform import Rotation

from da3_ros.rectify import resize_K
from da3_ros.types import Array, FloatImage, Prediction, View, Window


class TrueFrame(Protocol):
    """What is known exactly about one frame; its depth has the size that the network sees."""

    stamp_ns: int
    depth: FloatImage
    T_world_camera: Array
    K: Array


class TruthSession:
    """Answers windows with the truth, each disturbed by a random Sim(3), optionally with noise.

    depth_noise is the relative standard deviation of each pixel's depth; seed makes it repeatable.
    """

    def __init__(
        self, frames: Iterable[TrueFrame], *, seed: int = 0, depth_noise: float = 0.0
    ) -> None:
        self._frames = {frame.stamp_ns: frame for frame in frames}
        self._rng = np.random.default_rng(seed)
        self.depth_noise = depth_noise

    def fit(self, image: tuple[int, int], window: int, new: int) -> None:
        """The truth needs no memory: nothing is limited."""

    def prefetch(self, view: View) -> None:
        """Nothing to begin with."""

    def infer(self, window: Window) -> Prediction:
        """The truth of ``window``'s views. Raises KeyError for a stamp that is not known."""
        frames = [self._frames[view.stamp_ns] for view in window.views]
        unit = float(np.exp(self._rng.normal(0, 0.5)))
        disturb = np.eye(4)
        disturb[:3, :3] = Rotation.random(random_state=self._rng).as_matrix()
        disturb[:3, 3] = self._rng.normal(0, 5, 3)
        poses = np.stack([disturb @ frame.T_world_camera for frame in frames])
        poses[:, :3, 3] *= unit
        depth = np.stack([frame.depth for frame in frames]) * unit
        sky = np.isinf(depth)
        depth = depth * (1 + self.depth_noise * self._rng.normal(size=depth.shape))
        return Prediction(
            depth=depth.astype(np.float32),
            confidence=np.full(depth.shape, 2.0, np.float32),
            T_window_camera=poses,
            K=np.stack([frame.K for frame in frames]),
            sky=sky.astype(np.float32) if sky.any() else None,
        )


@dataclass(frozen=True, eq=False)
class Truth:
    """A TrueFrame on its own."""

    stamp_ns: int
    depth: FloatImage
    T_world_camera: Array
    K: Array


def at_size(frames: Iterable[TrueFrame], size: tuple[int, int]) -> list[Truth]:
    """The truth of ``frames`` at another size (width, height): each pixel that of the nearest."""
    return [
        Truth(
            f.stamp_ns,
            cv2.resize(f.depth, size, interpolation=cv2.INTER_NEAREST_EXACT).astype(np.float32),
            f.T_world_camera,
            resize_K(f.K, (f.depth.shape[1], f.depth.shape[0]), size),
        )
        for f in frames
    ]
