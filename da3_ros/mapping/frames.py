"""Frames on their way into the scene: placed in their segment, then in the scene.

Neither is in metres. What goes out, in the world and in metres where these are known, is
``types.TrackedFrame``.
"""

from __future__ import annotations

from dataclasses import dataclass

from da3_ros.types import Array, FloatImage, Image, Scale, WindowReport


@dataclass(frozen=True, eq=False)
class SegmentFrame:
    """A processed frame in its segment's coordinates and unit."""

    id: int
    stamp_ns: int
    frame_id: str
    camera: str
    image: Image  # [h, w, 3] RGB, rectified, at the depth's size
    depth: FloatImage  # [h, w] z-depth in segment units, NaN unknown, +Inf sky
    confidence: FloatImage  # [h, w]
    K: Array  # [3, 3] corner rule, pixels of ``depth``
    T_segment_camera: Array  # [4, 4]; NaN of a view that the network saw alone
    scale: Scale
    window: WindowReport
    leads: bool = True  # of several cameras the first one that saw this instant
    keyframe: bool = False


@dataclass(frozen=True, eq=False)
class SceneFrame:
    """What the map takes of a frame, in the scene's coordinates and unit."""

    stamp_ns: int
    camera: str
    image: Image  # [h, w, 3] RGB, rectified, at the depth's size
    depth: FloatImage  # [h, w] z-depth in scene units; what is not finite makes no point
    confidence: FloatImage  # [h, w]
    K: Array  # [3, 3] corner rule, pixels of ``depth``
    T_scene_camera: Array  # [4, 4]
    keyframe: bool
