"""A session that returns exact predictions instead of a network's, to test the pipeline.

Each window has a unit and a frame of its own, as with a network, so that alignment is tested
without the errors of a network.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import cv2
import numpy as np
from scipy.spatial.transform import Rotation

from da3_ros.geometry.projection import resize_K
from da3_ros.inference.interfaces import Session
from da3_ros.mapping.covariance import EXACT
from da3_ros.types import Array, FloatImage, Prediction, View, Window


class TrueFrame(Protocol):
    """Exact depth (at the network's size), pose and intrinsics of a frame."""

    stamp_ns: int
    depth: FloatImage
    T_room_camera: Array
    K: Array


@dataclass(frozen=True)
class Noise:
    """Errors added to exact predictions, drawn separately for each window. Default: none."""

    independent: float = 0.0  # relative standard deviation of each pixel's depth
    smooth: float = 0.0  # of errors common to neighbouring pixels
    per_frame: float = 0.0  # of errors common to all pixels of a view
    rotation_deg: float = 0.0  # standard deviation of the camera's rotation about each axis
    translation: float = 0.0  # of the camera's position along each axis, over the median depth
    # Errors of poses that grow along a window: rotation about each axis, position over the depth.
    bend_deg: float = 0.0
    bend: float = 0.0
    outliers: float = 0.0  # share of pixels with random depth
    lies: float = 0.0  # share of pixels with errors of tens of per cent and high confidence


class TruthSession(Session):
    """Predicts the truth of each window, transformed by a random Sim(3), plus ``noise``."""

    def __init__(
        self,
        frames: Iterable[TrueFrame] | Mapping[str, Iterable[TrueFrame]],
        *,
        seed: int = 0,
        noise: Noise | None = None,
    ) -> None:
        """``frames``: frames of one camera, or of several cameras by name."""
        self._several = isinstance(frames, Mapping)
        by_camera = frames if isinstance(frames, Mapping) else {"": frames}
        self._frames = {(name, f.stamp_ns): f for name, fs in by_camera.items() for f in fs}
        self._rng = np.random.default_rng(seed)
        self.motion_error = EXACT  # no systematic error
        self.noise = noise or Noise()
        self.T_window_room = np.eye(4)  # of the newest window
        self.unit = 1.0  # units per metre of the newest window

    def add_frame(self, frame: TrueFrame, camera: str = "") -> None:
        """Add a frame."""
        self._frames[camera, frame.stamp_ns] = frame

    def infer(self, window: Window) -> Prediction:
        """Predict the truth of ``window``'s views. Raises KeyError for an unknown stamp."""
        names = [view.camera if self._several else "" for view in window.views]
        stamps = [view.stamp_ns for view in window.views]
        frames = [
            seen_by(self._frames[name, stamp], view)
            for name, stamp, view in zip(names, stamps, window.views, strict=True)
        ]
        unit = float(np.exp(self._rng.normal(0, 0.5)))
        disturb = np.eye(4)
        disturb[:3, :3] = Rotation.random(random_state=self._rng).as_matrix()
        disturb[:3, 3] = self._rng.normal(0, 5, 3)
        self.T_window_room, self.unit = disturb, unit
        true = np.stack([frame.T_room_camera for frame in frames])
        depth = np.stack([frame.depth for frame in frames])
        poses = disturb @ self._moved(true, float(np.median(depth[np.isfinite(depth)])))
        poses[:, :3, 3] *= unit
        sky = np.isinf(depth)
        depth, confidence = self._doubtful(unit * depth)
        if window.wanted is not None:
            unwanted = np.setdiff1d(np.arange(len(frames)), window.wanted)
            depth[unwanted], confidence[unwanted] = np.nan, np.nan
        return Prediction(
            depth=depth.astype(np.float32),
            confidence=confidence,
            T_window_camera=poses,
            K=np.stack([frame.K for frame in frames]),
            sky=sky.astype(np.float32) if sky.any() else None,
        )

    def _moved(self, poses: Array, depth: float) -> Array:
        """Add noise to poses [N, 4, 4]."""
        count, out = len(poses), poses.copy()
        rotation = np.radians(self.noise.rotation_deg) * self._rng.normal(size=(count, 3))
        out[:, :3, :3] = poses[:, :3, :3] @ Rotation.from_rotvec(rotation).as_matrix()
        out[:, :3, 3] += self.noise.translation * depth * self._rng.normal(size=(count, 3))
        return self._bent(out, depth) if self.noise.bend_deg or self.noise.bend else out

    def _bent(self, poses: Array, depth: float) -> Array:
        """Add errors to poses [N, 4, 4] that grow along the window."""
        along = np.linspace(0, 1, len(poses))[:, None]
        rotation = np.radians(self.noise.bend_deg) * self._rng.normal(size=3)
        offset = self.noise.bend * depth * self._rng.normal(size=3)
        poses[:, :3, :3] = Rotation.from_rotvec(along * rotation).as_matrix() @ poses[:, :3, :3]
        poses[:, :3, 3] += along * offset
        return poses

    def _doubtful(self, depth: Array) -> tuple[Array, FloatImage]:
        """Add noise to depth [N, h, w]; returns it with its confidence."""
        rng, noise, count = self._rng, self.noise, len(depth)
        error = noise.independent * rng.normal(size=depth.shape)
        error += noise.per_frame * rng.normal(size=(count, 1, 1))
        if noise.smooth:
            error += noise.smooth * np.stack([_waves(rng, depth.shape[1:]) for _ in depth])
        depth = depth * np.exp(error)
        confidence = np.full(depth.shape, 2.0, np.float32)
        wild = rng.random(depth.shape) < noise.outliers
        depth[wild] *= np.exp(rng.uniform(-1, 1, int(wild.sum())))
        lie = rng.random(depth.shape) < noise.lies
        depth[lie] *= np.exp(rng.uniform(0.1, 0.5, int(lie.sum())))
        confidence[lie] = 50.0
        return depth, confidence


def seen_by(frame: TrueFrame, view: View) -> Truth:
    """The truth of a frame at the pixels of its view, of any size (nearest pixel)."""
    height, width = view.image.shape[:2]
    size = (frame.depth.shape[1], frame.depth.shape[0])
    if size == (width, height):
        return Truth(frame.stamp_ns, frame.depth, frame.T_room_camera, frame.K)
    K = resize_K(frame.K, size, (width, height)) if view.K is None else view.K
    row, column = np.indices((height, width)) + 0.5
    rays = np.stack((column, row, np.ones_like(row)), axis=-1) @ np.linalg.inv(K).T
    there = np.floor((rays @ frame.K.T)[..., :2]).astype(int)
    x, y = (np.clip(there[..., i], 0, size[i] - 1) for i in range(2))
    return Truth(frame.stamp_ns, frame.depth[y, x], frame.T_room_camera, K)


def _waves(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """A smooth random field of unit variance, correlated over about a quarter of the image."""
    grid = cv2.resize(rng.normal(size=(5, 5)), shape[::-1], interpolation=cv2.INTER_CUBIC)
    return np.asarray(grid / np.sqrt(np.mean(grid**2)))


@dataclass(frozen=True, eq=False)
class Truth:
    """A plain TrueFrame."""

    stamp_ns: int
    depth: FloatImage
    T_room_camera: Array
    K: Array


def at_size(frames: Iterable[TrueFrame], size: tuple[int, int]) -> list[Truth]:
    """Resize the truth of ``frames`` to ``size`` (width, height) by the nearest pixel."""
    return [
        Truth(
            f.stamp_ns,
            cv2.resize(f.depth, size, interpolation=cv2.INTER_NEAREST_EXACT).astype(np.float32),
            f.T_room_camera,
            resize_K(f.K, (f.depth.shape[1], f.depth.shape[0]), size),
        )
        for f in frames
    ]
