"""The scene: submaps, loop closure and scale, and the transforms to map and odometry.

A frame arrives in segment coordinates. It is added to the submaps (scene) and to loop closure
(``vo``), and is published (world). Only this module makes scene and world coordinates.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable

import numpy as np

from da3_ros.config import PipelineConfig
from da3_ros.geometry.poses import T_MAP_WORLD, invert_pose
from da3_ros.geometry.similarity import Similarity
from da3_ros.keyframe_store.array_spill import ArraySpill
from da3_ros.keyframe_store.recorder import Flush
from da3_ros.keyframe_store.store import MapState
from da3_ros.mapping.alignment import Alignment, WindowAligner
from da3_ros.mapping.covariance import PoseUncertainty
from da3_ros.mapping.depth_filter import without_smears
from da3_ros.mapping.frames import SceneFrame, SegmentFrame
from da3_ros.mapping.graph_solution import Correction
from da3_ros.mapping.metric_scale import SceneScale, scaled_depth, scaled_pose
from da3_ros.mapping.place_hint import PlaceHint
from da3_ros.mapping.shared_view import SharedView
from da3_ros.mapping.submaps import Snapshot, SubmapStore
from da3_ros.pipeline.delivery import drift_of, tracked_frame, with_covariance
from da3_ros.pipeline.keyframe_recording import KeyframeRecording, Seen
from da3_ros.pipeline.loop_scheduler import LoopScheduler
from da3_ros.pipeline.map_following import MapFollowing
from da3_ros.pipeline.map_mode import set_read_only
from da3_ros.pipeline.saved_places import usable_recognition, with_recognition
from da3_ros.refinement.refiner import RefinedWindow
from da3_ros.types import Array, FloatImage, Prediction, Scale, TrackedFrame, Window

log = logging.getLogger(__name__)


class SceneMap:
    """Owns the submaps, the loops, the scene's scale and ``T_map_world``."""

    def __init__(self, config: PipelineConfig) -> None:
        self.config = config
        self.scale = SceneScale(config.scale)
        self.submaps = SubmapStore(config.map)
        self.loops = LoopScheduler()
        self.recording: KeyframeRecording | None = None
        self.following = MapFollowing(config.pose_prior.corrections)
        self._spill: ArraySpill | None = None
        self._unit = 1.0  # segment units per network unit of the newest stored frame
        self._newest_leading = -1  # id of the newest published frame of the first camera
        self._reset_map_place()
        self._apply_mode()

    def reconfigure(self, config: PipelineConfig) -> None:
        """Sets the parameters that may change between windows."""
        self.config = config
        self._apply_mode()

    @property
    def localizes(self) -> bool:
        """Whether the map is read-only: the camera is only localized in it."""
        return self.submaps.localized is not None

    def _apply_mode(self) -> None:
        """Makes the map read-only, or lets it grow, by the parameter ``mode``."""
        set_read_only(self.config.mode == "localization", self.submaps, self.loops, self.scale)

    def forget_place(self) -> None:
        """Forgets where the camera is in a read-only map; odometry goes on."""
        self.submaps.forget_place()
        self.loops.forget_place()

    def forget(self) -> None:
        """Begins with an empty map."""
        if self._spill is not None:
            self._spill.begin()
        self.submaps = SubmapStore(self.config.map, self._spill)
        self.loops.restart()
        self.scale.forget()
        self._apply_mode()
        self.following.forget_submaps()
        if self.recording is not None:
            self.recording.begin()

    def reset(self) -> None:
        """Begins with an empty map at the default place."""
        self.forget()
        self.following.restart()
        self._reset_map_place()

    def place_map(self, T_map_world: Array | None) -> None:
        """Sets the map's place, once per scene; None: the default place."""
        self.map_placed = True
        if T_map_world is not None:
            self.T_map_world = T_map_world

    def _reset_map_place(self) -> None:
        self.T_map_world = T_MAP_WORLD  # [4, 4]; its only owner
        self.map_placed = False  # whether ``place_map`` was called

    def start_segment(self, newest: dict[str, Array]) -> None:
        """Begins a new segment of odometry at the last poses of the old one.

        newest: ``T_segment_camera`` [4, 4] of each camera in the old segment; empty: at the
        origin. The new segment's unit is unknown and, unless it begins at the origin, its place
        too.
        """
        unplaced = self.scale.learns and not self.scale.known and not self.localizes
        if unplaced and len(self.submaps.trajectory):
            log.warning(
                "no metric scale found for the old segment; its points are removed from the map"
            )
            self.forget()
            if newest:  # as if the removed segment were still in the map
                self.submaps.parts_of_scene.begin_guessed()
        metric = self.scale.scale.metric
        self.scale.restart(next(iter(newest.values()), np.eye(4)))
        if metric and self.config.scale.source == "fixed" and not self.scale.declared:
            log.warning(
                "scale.factor holds for the first segment only: lengths are not metric from now "
                "on; call ~/reset to begin a new scene with scale.factor"
            )
        self.submaps.start_segment()
        # In a read-only map it is looked for everywhere: it may have been carried.
        self.loops.start_segment(lost=bool(newest) and not self.localizes)

    def restore(self, saved: Snapshot) -> None:
        """Begins with a saved scene."""
        self.forget()
        self.submaps.localize(False)  # until the scene is there
        self.following.restart(loaded=True)
        self.scale.resume(saved.metric)
        known = usable_recognition(saved, self.config)
        self.submaps.restore(
            saved, searched=known is not None, whole=self.config.mode == "localization"
        )
        if known is not None:
            self.loops.restore(known)
        self._apply_mode()
        self.place_map(saved.T_map_world)

    def snapshot(self, unit: float) -> Snapshot:
        """Returns the whole scene as it is now; cheap, and not changed by later frames."""
        saved = self.submaps.snapshot(self.T_map_world, self.scale.known, unit)
        known = self.loops.recognition(self.scale.scene_scale)
        return with_recognition(saved, known, self.config)

    def update_scale(
        self, window: Window, prediction: Prediction, at: Similarity | None, *, own_motion: bool
    ) -> Scale:
        """Returns the scale after a window (as ``SceneScale.update``; ``at`` is its
        ``T_segment_window``); also updates the limits on memory.
        """
        before = self.scale.known
        scale = self.scale.update(window, prediction, at, own_motion=own_motion)
        self.loops.set_enabled(self.config.loop.enabled)
        room = self.loops.limit_memory(self.config.map.memory_mb)
        limits = dataclasses.replace(self.config.map, memory_mb=room)
        self.submaps.set_limits(limits, self.scale.scene_scale)
        if self.scale.known and not before and self.scale.learns:
            log.info("metric scale found (%s): %.4g metres per unit", scale.source, scale.value)
            self.submaps.regrid()
        return scale

    def add_drift(
        self, window: Window, prediction: Prediction, placed: Alignment,
        refined: RefinedWindow | None,
    ) -> None:  # fmt: skip
        """Adds the covariance of an accepted window to the drift of ``vo``."""
        T_vo_segment = self.scale.T_vo_segment
        if drift := drift_of(window, prediction, placed, refined, T_vo_segment):
            self.loops.add_window(*drift)

    @property
    def records(self) -> bool:
        """Whether frames are stored: none in a read-only map."""
        return self._recorder is not None

    @property
    def _recorder(self) -> KeyframeRecording | None:
        return None if self.localizes else self.recording

    def record(self, recording: KeyframeRecording, spill: ArraySpill | None = None) -> None:
        """Stores all frames from now on. spill: where points and keyframes go that memory cannot
        hold; None: they are dropped."""
        self.recording, self._spill = recording, spill
        if spill is not None:
            self.submaps.spill_to(spill)
            self.loops.spill_to(spill)

    def flush_recording(self) -> Flush | None:
        """Begins to store all that waits, and returns at once; None if nothing is stored."""
        if self.recording is None:
            return None
        return self.recording.flush(self._map_state())

    def finish_recording(self, timeout_s: float | None = None) -> bool:
        """Stores all that waits, and no more; False if the disk is still busy after a time."""
        if self.recording is None:
            return True
        recording, self.recording = self.recording, None
        return recording.finish(self._map_state(), timeout_s)

    def add(
        self, frame: SegmentFrame, shared_view: SharedView | None,
        descriptor: FloatImage | None, seen: Seen | None = None,
    ) -> int:  # fmt: skip
        """Adds a frame to the map.

        shared_view: the frame as a shared view, in its segment. seen: of a keyframe to
        be stored, depth in segment units. Returns the id of the frame's
        submap, or -1 if the frame has no place in the scene yet.
        """
        if not self.scale.has_place(frame):
            return -1
        in_scene = self._in_scene(frame)
        submap = self.submaps.add(in_scene)
        if self._recorder is not None:
            if seen is not None:
                seen = seen.scaled(self.scale.unit)
            self._unit = frame.window.unit
            place = self.submaps.submaps[submap]
            self._recorder.add(in_scene, seen, place, self._map_state())
        if shared_view is not None and frame.keyframe:
            in_vo = shared_view.moved(self.scale.T_vo_segment)
            self.loops.add_keyframe(dataclasses.replace(in_vo, submap=submap), descriptor)
        return submap

    def _map_state(self) -> MapState:
        """Returns how the scene relates to map and metres."""
        known, metres = self.scale.known, self.scale.scene_scale
        return MapState(known, metres, self._unit * self.scale.unit * metres, self.T_map_world)

    def correct_poses(self, shared_views: Iterable[SharedView], moved: Collection[int]) -> None:
        """Takes over refined poses of shared views; ``moved``: their ids.

        Points stay where they are: poses of the newest frames move by millimetres.
        """
        T_vo_segment, stored = self.scale.T_vo_segment, {}
        for view in (a.moved(T_vo_segment) for a in shared_views if a.view.id in moved):
            T = self.loops.T_scene_vo @ view.T_ref_camera
            camera, stamp_ns = view.view.camera, view.view.stamp_ns
            in_submap = self.submaps.correct_pose(view.submap, stamp_ns, camera, T)
            if in_submap is not None:
                stored[camera, stamp_ns] = in_submap
        if self._recorder is not None:
            self._recorder.correct(stored)

    def adopt(self, refined: RefinedWindow) -> None:
        """Takes over what refinement has changed of earlier windows, and the segment's unit.

        Odometry stays where it was.
        """
        moved = refined.moved.get(self._newest_leading)
        before = None if moved is None else self.scale.pose_in_vo(moved[0])
        self.scale.change_unit(depth=refined.change.depth, motion=refined.change.motion)
        if moved is not None and before is not None:
            self.scale.keep_odometry(before, self.scale.pose_in_vo(moved[1]))

    def published(self, frame: SegmentFrame, uncertainty: PoseUncertainty) -> TrackedFrame:
        """Returns the frame to publish: in the world, in metres if its scale is known.

        A frame without a place in the scene keeps its segment coordinates. Call once per frame.
        """
        if frame.leads:
            self._newest_leading = frame.id
        metric = frame.scale.metric
        unit = self.scale.scene_scale if metric else 1.0  # published units per scene unit
        T_vo_camera = self.scale.T_vo_camera(frame)
        T_odom_vo = self.scale.T_odom_vo(T_vo_camera, metric=metric, leads=frame.leads)
        T_world_camera, T_odom_world = scaled_pose(T_vo_camera, unit), T_odom_vo
        if self.loops.corrected:  # else vo and world are the same
            T_world_vo = scaled_pose(self.loops.T_scene_vo, unit)
            T_world_camera = T_world_vo @ T_world_camera
            T_odom_world = T_odom_vo @ invert_pose(T_world_vo)
        depth_m = scaled_depth(self.scale.scene_depth(frame), unit)
        out = tracked_frame(frame, depth_m, T_world_camera, T_odom_world)
        # A followed SLAM's errors count, and it does not state them.
        known = self.submaps.place_known and not self.following.enabled
        R_scene_vo = self.loops.T_scene_vo[:3, :3] if known else None
        return with_covariance(
            out, T_odom_vo, scaled_pose(T_vo_camera, unit), self.scale.unit * unit, R_scene_vo,
            uncertainty,
        )  # fmt: skip

    def close_loop(self, *, wait: bool = False) -> Correction | None:
        """Corrects the submaps if a loop was found and solved; the newest submap stays.

        wait: until the loop that was found is solved.
        """
        if (correction := self.loops.collect(wait=wait)) is not None:
            self.correct(correction)
        return correction

    def correct(self, correction: Correction) -> None:
        """Moves submaps, graph and keyframes, in memory and on the disk; joins parts."""
        places = {id: s.T_scene_submap for id, s in self.submaps.all_submaps().items()}
        self.submaps.move(self.loops.apply(correction, places))
        self.submaps.merge_parts(correction.loops)
        self.scale.rescale(correction.unit)
        if self.submaps.place_known:
            self.scale.take_from_map(correction.covariance)
        if self._recorder is not None:
            self._recorder.move(self.submaps.submaps.values())

    def try_close_loop(
        self,
        window_id: int,
        views: int,
        infer: Callable[[Window], Prediction],
        aligner: WindowAligner,
        refine: Callable[[Window, int, Prediction], Prediction | None] | None,
        hint: PlaceHint | None = None,
    ) -> None:
        """Verifies a candidate for a loop; see ``LoopScheduler.try_close_loop``.

        hint: where the camera may be, in the map. A followed SLAM owns the map's shape: then only
        the place in a loaded scene is searched.
        """
        if self.following.enabled and not self.following.loaded:
            return
        if hint is not None:
            T_world_vo = scaled_pose(self.loops.T_scene_vo, self.scale.scene_scale)
            hint = hint.moved(self.T_map_world @ T_world_vo, 1 / self.scale.scene_scale)
        self.loops.try_close_loop(
            window_id, self.config.loop, views, infer, aligner, self.scale.measured, refine,
            self.submaps.place_known, hint,
        )  # fmt: skip

    def _in_scene(self, frame: SegmentFrame) -> SceneFrame:
        """Returns a frame that has a place in the scene, in scene coordinates."""
        depth = self.scale.scene_depth(frame)
        filtered = self.config.map.enabled and self.config.depth.edge_filter
        if frame.keyframe and filtered and not self.localizes:
            depth = without_smears(depth)
        return frame.in_scene(depth, self.loops.T_scene_vo @ self.scale.T_vo_camera(frame))
