"""Views that windows share: their poses and samples of their depth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.frames import LocalFrame
from da3_ros.types import Array, View

SAMPLES = 2730  # pixels of a view that give its depth
NO_SUBMAP = -1  # in place of a submap's id


@dataclass(frozen=True, eq=False)
class ViewRow:
    """A shared view in the frame and unit of its submap: corrections leave it as it is."""

    view: View
    K: Array  # [3, 3] corner rule; the same in every window
    T_submap_camera: Array  # [4, 4]
    pixels: Array  # [M] indices into the flattened depth image
    depth: Array  # [M] z-depth
    confidence: Array  # [M]
    submap: int = NO_SUBMAP
    observations: float = 1.0  # number of windows that are averaged
    refined: bool = False  # whether feature tracks determine its pose
    kept: float = 1.0  # share of the camera's image that remains after cuts to other sizes

    def placed(self, T_local_submap: Similarity) -> SharedView:
        """Returns the view in the frame of odometry."""
        return SharedView(
            self.view, self.K, T_local_submap.pose(self.T_submap_camera), self.pixels,
            _scaled(self.depth, T_local_submap), self.confidence, self.observations,
            submap=self.submap, refined=self.refined, kept=self.kept,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class SharedView:
    """A shared view in the frame and unit of odometry, for the time of one window."""

    view: View
    K: Array  # [3, 3] corner rule; the same in every window
    T_local_camera: Array  # [4, 4]
    pixels: Array  # [M] indices into the flattened depth image
    depth: Array  # [M] z-depth
    confidence: Array  # [M]
    observations: float = 1.0  # number of windows that are averaged
    keyframe: bool = False  # shared as a keyframe, not as one of the newest views
    submap: int = NO_SUBMAP
    refined: bool = False  # whether feature tracks determine its pose
    kept: float = 1.0  # share of the camera's image that remains after cuts to other sizes

    def stored(self, T_local_submap: Similarity) -> ViewRow:
        """Returns the view in the frame of its submap."""
        back = T_local_submap.inverse()
        return ViewRow(
            self.view, self.K, back.pose(self.T_local_camera), self.pixels,
            _scaled(self.depth, back), self.confidence, self.submap, self.observations,
            self.refined, self.kept,
        )  # fmt: skip

    @staticmethod
    def of(view: View, frame: LocalFrame) -> SharedView:
        """Returns the shared view of a frame; without pixels of unknown depth."""
        pixels = sample(np.isfinite(frame.depth), SAMPLES)
        depth = frame.depth.reshape(-1)[pixels].astype(np.float64)
        confidence = frame.confidence.reshape(-1)[pixels].astype(np.float64)
        return SharedView(view, frame.K, frame.T_local_camera, pixels, depth, confidence)

    def rays(self) -> Array:
        """Returns the rays [M, 3] of the pixels, z = 1, camera axes."""
        row, column = np.divmod(self.pixels, self.view.image.shape[1])
        ones = np.ones(len(self.pixels))
        return np.stack((column + 0.5, row + 0.5, ones), axis=1) @ np.linalg.inv(self.K).T


def _scaled(depth: Array, S: Similarity) -> Array:
    return depth if S.scale == 1.0 else S.scale * depth


def sample(valid: Array, count: int) -> Array:
    """Returns indices of at most ``count`` valid pixels, evenly spread; deterministic."""
    index = np.flatnonzero(valid)
    if len(index) <= count:
        return index
    return index[np.arange(count) * len(index) // count]
