"""A view that windows share: its pose and samples of its depth.

``ref`` is the coordinate frame that all shared views of one owner are in: odometry holds them in
``local``, loop closure in the frames of their submaps. ``moved`` leads from one to the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.frames import LocalFrame
from da3_ros.types import Array, View

SAMPLES = 2730  # pixels of a view that give its depth


@dataclass(frozen=True, eq=False)
class SharedView:
    """Pose and depth samples of a view that windows may share; lengths in the unit of ``ref``."""

    view: View
    K: Array  # [3, 3] corner rule; the same in every window
    T_ref_camera: Array  # [4, 4]
    pixels: Array  # [M] indices into the flattened depth image
    depth: Array  # [M] z-depth
    confidence: Array  # [M]
    observations: float = 1.0  # number of windows that are averaged
    keyframe: bool = False  # shared as a keyframe, not as one of the newest views
    submap: int = -1  # its submap's id; -1: none
    refined: bool = False  # whether feature tracks determine its pose
    kept: float = 1.0  # share of the camera's image that remains after cuts to other sizes

    def moved(self, move: Similarity) -> SharedView:
        """Returns the view after a move, or in the frame that ``move`` maps to."""
        depth = self.depth if move.scale == 1.0 else move.scale * self.depth
        T = move.pose(self.T_ref_camera)
        return replace(self, T_ref_camera=T, depth=depth)

    def corrected(self, move: Similarity, T_prior_ref: Similarity | None) -> SharedView:
        """Returns the view after a correction of the scene, with the prior's pose corrected too.

        T_prior_ref: where the prior has the newest views; None: unknown, its pose stays.
        """
        moved, T = self.moved(move), self.view.T_prior_camera
        if T is None or T_prior_ref is None:
            return moved
        T = (T_prior_ref @ move @ T_prior_ref.inverse()).pose(T)
        return replace(moved, view=replace(self.view, T_prior_camera=T))

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


def sample(valid: Array, count: int) -> Array:
    """Returns indices of at most ``count`` valid pixels, evenly spread; deterministic."""
    index = np.flatnonzero(valid)
    if len(index) <= count:
        return index
    return index[np.arange(count) * len(index) // count]
