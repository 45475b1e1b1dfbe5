"""Processed frames inside the pipeline: in segment coordinates, then in scene coordinates.

Neither is in metres. The published frame, in world coordinates and in metres where the scale is
known, is ``types.TrackedFrame``.
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
    T_segment_camera: Array  # [4, 4]; NaN from a single-image network
    scale: Scale
    window: WindowReport
    leads: bool = True  # whether it is the first camera's frame of its instant
    keyframe: bool = False

    def in_scene(self, depth: FloatImage, T_scene_camera: Array) -> SceneFrame:
        """Returns the frame in the scene, with depth [h, w] and pose [4, 4] in scene units."""
        return SceneFrame(
            self.stamp_ns, self.camera, self.image, depth, self.confidence, self.K,
            T_scene_camera, self.keyframe,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class SceneFrame:
    """The part of a frame that goes into the map, in the scene's coordinates and unit."""

    stamp_ns: int
    camera: str
    image: Image  # [h, w, 3] RGB, rectified, at the depth's size
    depth: FloatImage  # [h, w] z-depth in scene units; values that are not finite give no point
    confidence: FloatImage  # [h, w]
    K: Array  # [3, 3] corner rule, pixels of ``depth``
    T_scene_camera: Array  # [4, 4]
    keyframe: bool
