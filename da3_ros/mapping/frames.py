"""Processed frames inside the pipeline, before they are published as ``types.TrackedFrame``."""

from __future__ import annotations

from dataclasses import dataclass

from da3_ros.types import Array, FloatImage, Image, Scale, WindowReport


@dataclass(frozen=True, eq=False)
class LocalFrame:
    """A processed frame in the frame and unit of odometry."""

    id: int
    stamp_ns: int
    frame_id: str
    camera: str
    image: Image  # [h, w, 3] RGB, rectified, at the depth's size
    depth: FloatImage  # [h, w] z-depth, NaN unknown, +Inf sky
    confidence: FloatImage  # [h, w]
    K: Array  # [3, 3] corner rule, pixels of ``depth``
    T_local_camera: Array  # [4, 4]; NaN from a single-image network
    scale: Scale
    window: WindowReport
    is_reference: bool = True  # whether it is the first camera's frame of its frameset
    keyframe: bool = False
    # [4, 4] camera in a level frame, as in TrackedFrame; None: unknown
    T_level_camera: Array | None = None


@dataclass(frozen=True, eq=False)
class PoseInSubmap:
    """A frame's pose in its submap."""

    stamp_ns: int
    camera: str
    submap: int
    T_submap_camera: Array  # [4, 4]
