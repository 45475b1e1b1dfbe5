"""The scene: submaps, loop closure and the scale, and where odometry and the map lie in it.

A frame comes in its segment's coordinates and goes three ways: into the submaps (scene), to loop
closure (``vo``), and out (world). Nothing else makes scene or world coordinates.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

import numpy as np

from da3_ros.config import PipelineConfig
from da3_ros.geometry.poses import T_MAP_WORLD, invert_pose
from da3_ros.mapping.alignment import Alignment, WindowAligner
from da3_ros.mapping.covariance import PoseUncertainty, in_metres, turned
from da3_ros.mapping.frames import SceneFrame, SegmentFrame
from da3_ros.mapping.metric_scale import SceneScale, scaled_depth, scaled_pose
from da3_ros.mapping.shared_view import SharedView
from da3_ros.mapping.submap_graph import Correction
from da3_ros.mapping.submaps import Snapshot, SubmapStore
from da3_ros.pipeline.delivery import tracked_frame
from da3_ros.pipeline.depth_filter import without_smears
from da3_ros.pipeline.loop_scheduler import LoopScheduler
from da3_ros.types import Array, FloatImage, Prediction, Scale, TrackedFrame, Window

log = logging.getLogger(__name__)


class SceneMap:
    """Owns the submaps, the loops, the scene's scale and ``T_map_world``."""

    def __init__(self, config: PipelineConfig) -> None:
        self.config = config
        self.scale = SceneScale(config.scale)
        self.submaps = SubmapStore(config.map)
        self.loops = LoopScheduler()
        self._unplace_map()

    def forget(self) -> None:
        """Begin with an empty map."""
        self.submaps = SubmapStore(self.config.map)
        self.loops.restart()
        self.scale.forget()

    def reset(self) -> None:
        """Begin with an empty map at the default place."""
        self.forget()
        self._unplace_map()

    def place_map(self, T_map_world: Array | None) -> None:
        """Decide where the map lies, once in a scene; None: it stays at the default place."""
        self.map_placed = True
        if T_map_world is not None:
            self.T_map_world = T_map_world

    def _unplace_map(self) -> None:
        self.T_map_world = T_MAP_WORLD  # [4, 4]; all who need it ask here
        self.map_placed = False  # whether it is decided

    def start_segment(self, newest: dict[str, Array]) -> None:
        """A new segment of odometry begins, at these poses of the last one (empty: at the origin).

        newest: ``T_segment_camera`` [4, 4] of each camera.

        Its unit and, unless it begins at the origin, its place are not known yet.
        """
        if self.scale.learns and not self.scale.known and len(self.submaps.trajectory):
            log.warning("the scale of the scene so far stays unknown: it leaves the map")
            self.forget()
            if newest:  # what comes begins at a guess, as it would beside what has left
                self.submaps.begin_guessed()
        metric = self.scale.scale.metric
        self.scale.restart(next(iter(newest.values()), np.eye(4)))
        if metric and self.config.scale.source == "fixed" and not self.scale.declared:
            log.warning(
                "scale.factor holds for the first segment only: lengths are no metres from here; "
                "~/reset begins a scene that it holds for again"
            )
        self.submaps.start_segment()
        self.loops.start_segment(lost=bool(newest))

    def restore(self, saved: Snapshot) -> None:
        """Begin with a saved scene."""
        self.forget()
        self.scale.resume(saved.metric and self.config.scale.source != "none")
        self.submaps.restore(saved)
        self.place_map(saved.T_map_world)

    def snapshot(self, unit: float) -> Snapshot:
        """The whole scene as it is now; cheap, and it does not change later."""
        return self.submaps.snapshot(self.T_map_world, self.scale.known, unit)

    def update_scale(
        self, window: Window, prediction: Prediction, placed: Alignment, *, fits: bool
    ) -> Scale:
        """Take a window that was placed in its segment into the scale, and bound the memory."""
        before = self.scale.known
        scale = self.scale.update(window, prediction, placed.T_ref_window if fits else None)
        self.loops.switch(self.config.loop.enabled)
        room = self.loops.bound(self.config.map.memory_mb)
        self.submaps.limits = dataclasses.replace(self.config.map, memory_mb=room)
        self.submaps.metres = self.scale.metres
        if self.scale.known and not before and self.scale.learns:
            log.info("the scale is known (%s): %.4g metres per unit", scale.source, scale.value)
            self.submaps.regrid()
        return scale

    def note_drift(self, window: Window, prediction: Prediction, placed: Alignment) -> None:
        """Add the covariance of a window's place in its segment to how far vo may drift."""
        if not placed.accepted or placed.covariance is None:
            return
        ids = [view.id for view in window.views]
        lag = (ids[-window.new] - float(np.mean(ids[: -window.new] or ids))) / window.new
        T_vo_segment = self.scale.T_vo_segment
        units = np.array([1, 1, 1, 1, *[T_vo_segment.scale] * 3])
        in_vo = dataclasses.replace(placed, covariance=placed.covariance * np.outer(units, units))
        camera = placed.T_ref_window.points(prediction.T_window_camera[-1, :3, 3])
        self.loops.add_window(in_vo, T_vo_segment.points(camera), lag)

    def add(
        self, frame: SegmentFrame, anchor: SharedView | None, descriptor: FloatImage | None
    ) -> int:
        """Take a frame into the map.

        anchor: the frame as later windows share it, in its segment too. Returns the frame's
        submap, or -1 where it has no place in the scene yet.
        """
        if not self.scale.has_place(frame):
            return -1
        submap = self.submaps.add(self._in_scene(frame))
        if anchor is not None and frame.keyframe:
            in_vo = anchor.moved(self.scale.T_vo_segment)
            self.loops.add_keyframe(dataclasses.replace(in_vo, submap=submap), descriptor)
        return submap

    def published(self, frame: SegmentFrame, uncertainty: PoseUncertainty) -> TrackedFrame:
        """A frame as it goes out: in the world, in metres where its scale is known.

        One that has no place in the scene goes out as it lies in its segment. Call once per frame.
        """
        metric = frame.scale.metric
        unit = self.scale.metres if metric else 1.0  # published units per scene unit
        T_vo_camera = self.scale.T_vo_camera(frame)
        T_odom_vo = self.scale.T_odom_vo(T_vo_camera, metric=metric, leads=frame.leads)
        T_world_camera, T_odom_world = scaled_pose(T_vo_camera, unit), T_odom_vo
        if self.loops.closed:  # else vo is the world
            T_world_vo = scaled_pose(self.loops.T_scene_vo, unit)
            T_world_camera = T_world_vo @ T_world_camera
            T_odom_world = T_odom_vo @ invert_pose(T_world_vo)
        depth_m = scaled_depth(self.scale.scene_depth(frame), unit)
        out = tracked_frame(frame, depth_m, T_world_camera, T_odom_world)
        return self._with_covariance(out, uncertainty)

    def published_alone(self, frame: SegmentFrame) -> TrackedFrame:
        """A frame of a view that the network saw alone: its depth is all that is known."""
        return tracked_frame(frame, frame.depth, frame.T_segment_camera, np.eye(4))

    def close_loop(self) -> Correction | None:
        """Move the submaps as a loop says, if one was found; the newest stays where it is."""
        correction = self.loops.collect()
        if correction is None:
            return None
        places = {id: s.T_scene_submap for id, s in self.submaps.submaps.items()}
        self.submaps.move(self.loops.apply(correction, places))
        self.submaps.join_parts(correction.joined)
        return correction

    def look_for_loop(
        self,
        window_id: int,
        views: int,
        infer: Callable[[Window], Prediction],
        aligner: WindowAligner,
    ) -> None:
        """Compare the newest keyframe with an old one that it looks like, if it is time to."""
        self.loops.look(window_id, self.config.loop, views, infer, aligner, self.scale.known)

    def _in_scene(self, frame: SegmentFrame) -> SceneFrame:
        """A frame that has a place in the scene, as the submaps take it."""
        depth = self.scale.scene_depth(frame)
        if frame.keyframe and self.config.map.enabled and self.config.depth.edge_filter:
            depth = without_smears(depth)
        return SceneFrame(
            stamp_ns=frame.stamp_ns,
            camera=frame.camera,
            image=frame.image,
            depth=depth,
            confidence=frame.confidence,
            K=frame.K,
            T_scene_camera=self.loops.T_scene_vo @ self.scale.T_vo_camera(frame),
            keyframe=frame.keyframe,
        )

    def _with_covariance(self, frame: TrackedFrame, uncertainty: PoseUncertainty) -> TrackedFrame:
        """The frame with its covariances, in the world's axes and the published unit."""
        unit = self.scale.unit
        unit *= self.scale.metres if frame.scale.metric else 1.0
        sigma, T = frame.scale.sigma, frame.T_world_camera
        in_odom = uncertainty.odometry(frame.id)
        if in_odom is not None:
            in_odom = in_metres(in_odom, unit, sigma, (frame.T_odom_world @ T)[:3, 3])
        in_map = uncertainty.in_map(frame.id) if self.submaps.place_known else None
        if in_map is not None:
            in_map = turned(in_map, self.loops.T_scene_vo[:3, :3])
            in_map = in_metres(in_map, unit, sigma, T[:3, 3])
        return dataclasses.replace(frame, covariance_odom=in_odom, covariance_map=in_map)
