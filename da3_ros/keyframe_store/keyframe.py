"""Frames of a scene as they are stored: all poses, and the images of keyframes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from da3_ros.splats.relative import RelativeSplats
from da3_ros.types import Array, DenseDepth, FloatImage, Image


@dataclass(frozen=True, eq=False)
class FramePose:
    """Pose and camera of a frame, in the frame and unit of its submap."""

    stamp_ns: int
    camera: str
    submap: int
    T_submap_camera: Array  # [4, 4]
    K: Array  # [3, 3] corner rule, pixels of the depth
    size: tuple[int, int]  # (width, height) of the depth
    keyframe: bool

    @property
    def key(self) -> tuple[str, int]:
        """Camera and stamp."""
        return self.camera, self.stamp_ns


@dataclass(frozen=True, eq=False)
class Tracks:
    """Features of a keyframe that other keyframes see too."""

    ids: NDArray[np.int64]  # [M] equal for one point of the scene
    pixels: NDArray[np.float32]  # [M, 2] column and row in ``Keyframe.image``, corner rule


NO_TRACKS = Tracks(np.zeros(0, np.int64), np.zeros((0, 2), np.float32))


@dataclass(frozen=True, eq=False)
class Keyframe:
    """A keyframe with its images."""

    pose: FramePose
    depth: FloatImage  # [h, w] z-depth in the submap's unit; NaN unknown, +Inf sky
    confidence: FloatImage  # [h, w]
    image: Image  # [H, W, 3] RGB, rectified, at the camera's size
    descriptor: FloatImage | None = None  # [D] of the whole image
    tracks: Tracks = field(default_factory=lambda: NO_TRACKS)
    splats: RelativeSplats | None = None  # of the pixels of ``depth``


@dataclass(frozen=True, eq=False)
class MeasuredKeyframe:
    """The measured depth of a keyframe, found after it was stored."""

    camera: str
    stamp_ns: int
    submap: int
    dense: DenseDepth  # unit of its submap
    found: int | None = None  # pixels in which a search found depth; None: unknown
