"""The map: submaps, loop closure and scale, and the transforms to what is published.

A frame arrives in the frame of odometry (``local``), is added to submaps and loop closure, and is
published in the map. Only this module makes map coordinates.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from scipy.spatial.transform import Rotation

from da3_ros.config import PipelineConfig
from da3_ros.derived.dense_depth import nothing_measured
from da3_ros.derived.depth_correction import CorrectedKeyframe, corrected_depth
from da3_ros.derived.measuring import Measurable, Measured
from da3_ros.derived.measuring import Pose as MeasuredPose
from da3_ros.derived.plane_sweep import SweepView, grey_of
from da3_ros.geometry.poses import T_ROS_MAP, invert_pose
from da3_ros.geometry.similarity import Similarity
from da3_ros.inertial.mount_check import MountCheck
from da3_ros.keyframe_store.array_spill import ArraySpill
from da3_ros.keyframe_store.keyframe import MeasuredKeyframe
from da3_ros.keyframe_store.recorder import Flush, KeyframeRecorder
from da3_ros.keyframe_store.store import MapState
from da3_ros.mapping.alignment import WindowAligner
from da3_ros.mapping.covariance import PoseUncertainty
from da3_ros.mapping.depth_filter import without_smears
from da3_ros.mapping.floor_view import FloorViews
from da3_ros.mapping.frames import LocalFrame, PoseInSubmap
from da3_ros.mapping.graph_solution import Correction
from da3_ros.mapping.loop_candidates import Matching, Placing
from da3_ros.mapping.loop_closure import Infer, LoopClosure, Refine
from da3_ros.mapping.map_table import NO_SUBMAP, MapListener, MapTable
from da3_ros.mapping.metric_scale import MapScale, OdomFrame, scaled_depth, scaled_pose
from da3_ros.mapping.pose_hint import PoseHint
from da3_ros.mapping.scene import REFERENCE
from da3_ros.mapping.submaps import Snapshot, SubmapStore
from da3_ros.navigation.floor import below_first_camera
from da3_ros.navigation.floor_grid import OccupancyGrid
from da3_ros.pipeline.anchoring import Anchoring
from da3_ros.pipeline.delivery import PlacedWindow, tracked_frame, with_covariance
from da3_ros.pipeline.depth_mapping import DepthMapping, Found, PointsMaker
from da3_ros.pipeline.floor_mapping import FloorMapping
from da3_ros.pipeline.keyframe_recording import KeyframeData, KeyframeRecording
from da3_ros.pipeline.level_finder import LevelFinder
from da3_ros.pipeline.map_adjustment import MapAdjustment
from da3_ros.pipeline.map_following import MapFollowing
from da3_ros.pipeline.saved_recognition import usable_recognition, with_recognition
from da3_ros.refinement.bundle import Metre
from da3_ros.refinement.refiner import RefinedWindow
from da3_ros.refinement.tracked_view import TrackedView
from da3_ros.types import Array, ImuStretch, Scale, TrackedFrame, View, Window, WindowEstimate

log = logging.getLogger(__name__)


FINISH_S = 1.0  # for keyframes that wait for later ones, when the map becomes read-only
SLIPPED_NS = 5 * 10**9  # before what is up was seen to slip, in which it is not believed,
DOUBTED_NS = 15 * 10**9  # and before the IMU was found to be wrong
SETTLED_NS = 2 * 10**9  # after a doubt, before the published map is turned again
BETTER = 0.5  # share of the deviation of what is up, from which on the map is levelled again
SEEN_TURN = np.radians(1.0)  # of the map's axes, which is worth a line
MUCH_MORE = 1.5  # times the measured pixels, for which depth that may change is stored again
MANY_SUBMAPS = 64  # number of submaps' poses at which those that nothing needs are removed


class SceneMap(MapListener):
    """Owns the map's table, the submaps, the loops, the map's scale and ``T_ros_map``."""

    T_ros_map: Array  # [4, 4]
    map_placed: bool  # whether a frame or another map has set it
    _is_given: bool  # whether it is that of another map
    _has_axes: bool  # whether its axes are level, if not the height of the floor
    is_level: bool  # whether its z is known to be up, and its z = 0 to be the floor
    turned: bool  # whether its axes have changed after frames were published
    level_finder: LevelFinder
    _up_sigma: float  # of gravity, with which the map was levelled, rad; inf: it was not
    _level_ns: int  # stamp of the frame that the map was levelled by
    _doubted_ns: int  # when that was doubted last
    _slipped: bool  # whether up has turned faster than a network bends the way

    def __init__(
        self, config: PipelineConfig, counters: Counter[str], device: str = "cpu",
        mount: MountCheck | None = None,
    ) -> None:  # fmt: skip
        """device: of the network, which measures depth too. mount: of the IMU; None: a new one."""
        self.config, self._mount = config, mount or MountCheck()
        self.table = MapTable()
        self.scale = MapScale(config.scale, self.table)
        self.submaps = SubmapStore(config.map, table=self.table)
        self.loops = LoopClosure(self.table)
        self.dense = DepthMapping(config.dense, counters, device)
        self.adjustment = MapAdjustment(self.table, counters)
        self.table.listeners.append(self)
        self.floor_map = FloorMapping(config, self.table)
        self.odom = OdomFrame()
        self._prune_at = MANY_SUBMAPS
        self.recording: KeyframeRecording | None = None
        self.following = MapFollowing(config.pose_prior.corrections)
        self.anchoring, self._counters = Anchoring(counters), counters
        self._spill: ArraySpill | None = None
        # Keyframes whose stored depth may still change: the pixels that are measured in it.
        self._stored_early = dict[int, int]()
        self._newest_leading = -1  # id of the newest published frame of the first camera
        # Whether the gyro has bridged a gap since loops have last corrected the map: then nobody
        # knows how far the camera has moved in it.
        self._is_bridged = False
        self._up_is_trusted = True  # whether nothing contradicts the IMU
        self._reset_map_pose()
        self._apply_mode()

    def reconfigure(self, config: PipelineConfig) -> None:
        """Sets the parameters that may change between windows."""
        self.config = config
        self.floor_map.reconfigure(config)
        self._apply_mode()

    def _apply_mode(self) -> None:
        """Makes the map read-only, or lets it grow, by the parameter ``mode``."""
        if self.config.mode == "localization":
            if not self.table.read_only:
                self.finish_depth(FINISH_S)
            self.dense.clear()
        set_read_only(self.config.mode == "localization", self.submaps, self.loops)

    def forget_pose(self) -> None:
        """Forgets where the camera is in a read-only map; odometry goes on."""
        self.submaps.forget_pose()
        self.loops.forget_pose()

    def forget(self) -> None:
        """Begins with an empty map."""
        if self._spill is not None:
            self._spill.begin()
        self.table.clear()
        self.dense.restart()
        self._stored_early.clear()
        self.submaps.restart(self.config.map, self._spill)
        self.odom, self._prune_at = OdomFrame(), MANY_SUBMAPS
        self._is_bridged = False
        self._apply_mode()
        self.following.forget_submaps()
        if self.recording is not None:
            self.recording.begin()

    def reset(self) -> None:
        """Begins with an empty map at the default pose."""
        self.forget()
        self.following.restart()
        self.anchoring.restart()
        self._reset_map_pose()

    def level(self, frame: TrackedFrame) -> None:
        """Makes the map level by the first frame that says what is up, before it is published;
        again where gravity is known much better than then.

        By the base, the map begins there; where that is known later, by the floor and by gravity,
        it begins below the first camera.
        """
        up = self.level_finder.up if self.config.level.source == "imu" else None
        better = up is not None and up.sigma < BETTER * self._up_sigma
        settled = frame.stamp_ns > self._doubted_ns + SETTLED_NS
        better &= settled and not self.loops.up_is_doubted
        if (self.is_level and not better) or self._is_given or frame.blind:
            return
        T, shown = frame.T_level_camera, self.map_placed
        self.map_placed = True
        by_floor = self.config.level.source != "base"
        # The floor's height is that in metres.
        final = frame.height_known and (frame.scale.metric or not by_floor)
        if T is None or (self._has_axes and not final and not better):
            return
        if not frame.posed or not self._is_placed:
            return
        T_ros_map = np.nan_to_num(T) @ invert_pose(frame.T_map_camera)
        if by_floor or shown:
            T_ros_map = below_first_camera(T_ros_map)
        if not frame.height_known:  # z = 0 is that of the first camera until it is
            T_ros_map[2, 3] = self.T_ros_map[2, 3] if self._has_axes else 0.0
        turn = Rotation.from_matrix(T_ros_map[:3, :3] @ self.T_ros_map[:3, :3].T).magnitude()
        if shown and turn > SEEN_TURN:
            log.warning(
                "what is up is known %s: map and odom turn by %.1f degrees",
                "better" if self._has_axes else "from now on",
                np.degrees(turn),
            )
        self.turned |= shown
        self.T_ros_map = T_ros_map
        self._has_axes, self.is_level = True, self.is_level or final
        self._up_sigma, self._level_ns = np.inf if up is None else up.sigma, frame.stamp_ns

    @property
    def _is_placed(self) -> bool:
        """Whether new frames say how the map lies: their poses in it are measured, or there is
        nothing else in it."""
        current = self.submaps.components_of_scene.current
        others = (s.component != current for s in self.submaps.submaps.values())
        return self.submaps.pose_known or not any(others)

    def place_map(self, T_ros_map: Array, *, is_level: bool) -> None:
        """Sets the map's pose in the axes of ROS as another map has it."""
        self.map_placed = self._is_given = True
        self.T_ros_map, self.is_level = T_ros_map, is_level

    def _reset_map_pose(self) -> None:
        self.T_ros_map = T_ROS_MAP
        self.map_placed = self._is_given = self._has_axes = self.is_level = self.turned = False
        self._up_sigma, self._level_ns, self._doubted_ns = np.inf, 0, -SETTLED_NS
        self._slipped = False
        self.level_finder = LevelFinder(self.config, self._mount)

    def to_origin(self) -> None:
        """Places the next chain at the map's origin, not at the end of the last one; any stamp may
        follow."""
        self.scale.to_origin()
        self.odom = OdomFrame()
        self.anchoring.forget_waiting()

    def start_chain(self, newest: dict[str, Array]) -> None:
        """Begins a new chain of odometry at the last poses of the old one.

        newest: ``T_local_camera`` [4, 4] of each camera; empty: at the origin. The new chain's
        unit is unknown and, unless it begins at the origin, its pose too.
        """
        unplaced = self.scale.source.learns and not self.scale.known and not self.table.read_only
        if unplaced and len(self.table.path):
            log.warning(
                "no metric scale found for the old chain; its points are removed from the map"
            )
            self.forget()
            if newest:  # as if the removed chain were still in the map
                self.submaps.components_of_scene.begin_unconnected()
        metric, source = self.scale.scale.metric, self.scale.source
        self.scale.restart(next(iter(newest.values()), np.eye(4)))
        if metric and source.declared_by and not self.scale.filter.declared:
            log.warning(
                "%s: lengths are not metric from now on; call ~/reset to begin a new scene with "
                "%s", source.why_unknown(self.config.scale.source), source.declared_by
            )  # fmt: skip
        self.submaps.start_chain()
        # In a read-only map it is looked for everywhere: it may have been carried.
        self.loops.start_chain(lost=bool(newest) and not self.table.read_only)

    def begin_bridge(self, variance: Array) -> None:
        """Goes on in a new submap after a gap in which the camera was not seen to move.

        variance: [3] of the motion: log scale, rotation, and position over the depth.
        """
        self.submaps.begin_submap()
        self.loops.add_gap(variance)
        self.scale.doubt()
        self._is_bridged = True

    def restore(self, saved: Snapshot) -> None:
        """Begins with a saved scene."""
        self.forget()
        self.submaps.localize(False)  # until the scene is there
        self.following.restart(loaded=True)
        self.anchoring.restore(saved.anchors)
        self.scale.resume(saved.metric)
        known = usable_recognition(saved, self.config)
        self.submaps.restore(
            saved, searched=known is not None, whole=self.config.mode == "localization"
        )
        self.adjustment.begin(self.submaps.next_id)
        if known is not None:
            self.loops.restore(known)
        self._apply_mode()
        self.place_map(saved.T_ros_map, is_level=saved.is_level)
        if self.config.level.source == "imu" and not saved.is_level:
            log.warning(
                "level.source is imu, but the loaded scene is not known to be level, and stays as "
                "it is: there are no obstacles, no scan and no occupancy grid"
            )
        self.floor_map.occupancy.restore(saved.floor.views)

    def snapshot(self) -> Snapshot:
        """Returns the whole scene as it is now; cheap, and not changed by later frames."""
        unit = self.table.unit * self.scale.unit
        saved = self.submaps.snapshot(self.T_ros_map, self.scale.known, unit)
        known = self.loops.recognition(self.table.metres)
        floor = self.floor_map.views({s.id for s in saved.submaps})
        if not self.is_level:  # what was seen of the floor has no place on it
            floor = FloorViews()
        anchors = self.anchoring.held({s.id for s in saved.submaps})
        saved = dataclasses.replace(saved, floor=floor, is_level=self.is_level, anchors=anchors)
        return with_recognition(saved, known, self.config)

    def update_scale(
        self, window: Window, estimate: WindowEstimate, at: Similarity | None, *, own_motion: bool
    ) -> Scale:
        """Returns the scale after a window (as ``MapScale.update``; ``at`` is its
        ``T_local_window``); also updates the limits on memory.
        """
        before, unit = self.scale.known, self.scale.unit
        scale = self.scale.update(window, estimate, at, own_motion=own_motion)
        self._note_unit(unit)
        self.loops.set_enabled(self.config.loop.enabled)
        room = self.loops.limit_memory(self.config.map.memory_mb)
        limits = dataclasses.replace(self.config.map, memory_mb=room)
        self.submaps.set_limits(limits)
        if self.scale.known and not before and self.scale.source.learns:
            log.info("metric scale found (%s): %.4g metres per unit", scale.source, scale.value)
            self.submaps.regrid()
        return scale

    def _note_unit(self, before: float) -> None:
        """Tells loop closure that the unit of odometry has changed, if it has."""
        if self.scale.unit != before:
            self.loops.change_unit(before / self.scale.unit, self.scale.begin)

    def add_drift(self, placed: PlacedWindow) -> None:
        """Adds the covariance of an accepted window to the drift of odometry."""
        if drift := placed.drift():
            self.loops.add_window(*drift)

    @property
    def records(self) -> bool:
        """Whether frames are stored: none in a read-only map."""
        return self._recorder is not None

    @property
    def _recorder(self) -> KeyframeRecording | None:
        return None if self.table.read_only else self.recording

    def record(self, recording: KeyframeRecording, spill: ArraySpill | None = None) -> None:
        """Stores all frames from now on. spill: where points and keyframes go that memory cannot
        hold; None: they are dropped."""
        self.recording, self._spill = recording, spill
        if spill is not None:
            self.submaps.points.spill_to(spill)
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

    def add_frame(
        self, frame: LocalFrame, data: KeyframeData | None = None, *, measure: bool = False
    ) -> int:
        """Adds a frame to the map.

        data: of a keyframe to be stored or measured. measure: whether its depth is to be measured.
        Returns the id of the frame's submap, or ``NO_SUBMAP`` if the frame has no pose in the map
        yet.
        """
        if not self.scale.has_pose(frame.scale):
            return NO_SUBMAP
        measure &= data is not None and not self.table.read_only
        frame = self._without_smears(frame)
        submap, T_submap_camera = self.submaps.add_frame(frame, waiting=measure)
        unit = self.table.T_local_submap(submap.id).scale
        if frame.T_level_camera is not None:
            self.floor_map.add(
                frame, submap.id, T_submap_camera, unit, self._T_ros_map, waiting=measure,
                read_only=self.table.read_only,
            )  # fmt: skip
        if measure and data is not None:
            self.dense.add_keyframe(Measurable(
                frame.id, frame.window.chain, submap.id, frame.camera, frame.stamp_ns, frame.image,
                frame.K, scaled_depth(data.depth, 1 / unit), frame.confidence, data.returns,
                data.by_images,
            ))  # fmt: skip
        if self._recorder is not None:
            self._recorder.add_frame(frame, data, submap, T_submap_camera, unit, self._map_state())
        self._forget_poses()
        return submap.id

    @property
    def adjusts(self) -> bool:
        """Whether keyframes are adjusted together: not in a read-only map, or in that of another
        SLAM."""
        refinement = self.config.refinement
        owned = self.table.read_only or self.following.enabled
        return refinement.enabled and refinement.map and not owned

    def adjust(self, metre: Metre, *, ends: bool = False) -> Metre | None:
        """Goes on to adjust the map's keyframes together, after a window. ends: none follows.

        metre: in the frame of odometry, by the rig. Returns the metre as all keyframes show it;
        None if they do not.
        """
        if not self.adjusts:
            if not self.adjustment.is_empty:
                self.adjustment.forget_features()
            return None
        if self.loops.is_solving:  # what is found now would be of another map
            return None
        source = self.scale.source
        found = self.adjustment.end_window(
            self.table.edges, rigid=self.scale.measured,
            by_depth=self.scale.measured and (source.by_depth or not source.learns), ends=ends,
            metre=metre, chain=self.table.chain, check_lenses=self.config.refinement.lens,
        )  # fmt: skip
        if found is None:
            return None
        self.correct(found.correction, found.frames)
        return found.metre

    def levelled(
        self, frame: LocalFrame, stretch: ImuStretch | None, trust: str, *, still: bool
    ) -> LocalFrame:
        """Returns a frame with what is up by gravity or floor; see ``LevelFinder.follow``."""
        unit = self.scale.published_unit(frame.scale)
        if frame.camera == self.level_finder.camera:  # the others have nothing to say
            if trust == "no" and self._up_is_trusted:
                self._doubt_up(frame.stamp_ns, DOUBTED_NS)
            self._up_is_trusted = trust != "no"
        return self.level_finder.follow(frame, stretch, unit, trust=trust, still=still)

    def add_view(
        self, frame: LocalFrame, submap: int, descriptor: Array | None, tracked: TrackedView | None
    ) -> None:
        """Adds the newest frame, whose submap has it and which windows may share, to what corrects
        the map: loops, gravity, and the adjustment of keyframes.

        descriptor: [D] as in ``Prediction``. tracked: with its features, if they were refined.
        """
        if frame.keyframe:
            self.loops.add_keyframe(frame.id, descriptor)
            self._take_up(frame, submap)
        if tracked is not None and self.adjusts:
            self.adjustment.add(
                tracked, frame.stamp_ns, submap, keyframe=frame.keyframe, chain=frame.window.chain
            )

    def _take_up(self, frame: LocalFrame, submap: int) -> None:
        """Takes over what gravity says is up in a keyframe, which is the newest frame."""
        up = self.level_finder.up
        if up is not None:
            R = self.table.T_local_submap(submap).R.T @ frame.T_local_camera[:3, :3]
            up = dataclasses.replace(up, direction=R @ up.direction, stamp_ns=frame.stamp_ns)
            doubted = self.loops.up_is_doubted
            found = self.loops.add_up(submap, up, self._up_map)
            if doubted and not self.loops.up_is_doubted:  # it is believed again
                self._up_sigma = np.inf
            if found is not None and found.slips:
                self._report_slip()
                self._doubt_up(frame.stamp_ns, SLIPPED_NS)
            elif found is not None and found.bends:
                self.submaps.end_submap(submap)

    def _report_slip(self) -> None:
        """Logs the first slip of a scene."""
        if not self._slipped:
            self._slipped = True
            log.warning(
                "imu: what it calls up has turned faster than any network bends the way: that of "
                "the last %.0f s does not count. Check its mount, and its accelerations",
                SLIPPED_NS / 1e9,
            )

    def _doubt_up(self, stamp_ns: int, since_ns: int) -> None:
        """Begins anew to find what is up: the IMU is wrong, and may have been for some time."""
        known = self.loops.up_is_doubted or self._level_ns < stamp_ns - since_ns
        level = known and self._up_map is not None
        self.loops.doubt_up(stamp_ns, since_ns, level=level)
        self._doubted_ns = stamp_ns
        self._counters["level_doubted"] += 1
        self.level_finder.doubt()
        if not self.loops.up_is_doubted:  # nothing says that the published map is right
            self._up_sigma = np.inf

    def hold_level(self, *, ends: bool = False) -> None:
        """Begins to level submaps that do not agree about what is up. ends: no window follows."""
        up_map = self._up_map
        if not self.loops.is_tilted(up_map, ends=ends):
            return
        if self.anchoring.placed and not self._why_no_anchors():
            self.anchoring.ask()  # a map has one solution: for both
        else:
            self.loops.solve(self.scale.measured, levelled=True, up_map=up_map)

    @property
    def _up_map(self) -> Array | None:
        """Up in the map [3], if an IMU has made it level, or is to hold it so; else None."""
        by_imu = self._has_axes and not self._is_given
        # REP-105: z of the frame of global poses is up.
        known = self.config.level.source == "imu" and (by_imu or self.anchoring.placed)
        return self.T_ros_map[2, :3] if known else None

    def measure_depth(self, *, pause: bool = False) -> None:
        """Goes on to measure the depth of keyframes, after a window.

        pause: no window has come for a while, so that keyframes wait for no later ones.
        """
        dense = self.dense
        if dense.is_idle:  # as where ``dense.enabled`` is off
            return
        self._note_metres()
        found = dense.pause if pause else dense.end_window
        self._take_depth(found(self._pose_of, self._points_maker))

    @property
    def _T_ros_map(self) -> Similarity:
        """The map in its published axes, with metres per map unit."""
        T = self.T_ros_map
        return Similarity(self.table.metres, T[:3, :3], T[:3, 3])

    def carve_floor(self) -> None:
        """Goes on to carve the occupancy grid anew, after a window, if the map was corrected."""
        if not self.is_level:  # nobody is shown the grid before
            return
        self.floor_map.occupancy.end_window(self._T_ros_map)

    def occupancy(self, *, finished: bool = False) -> OccupancyGrid | None:
        """Returns the occupancy grid; None if what is up is not known, or no keyframe has seen the
        floor in metres. finished: with all corrections, however long that takes."""
        if not self.is_level:
            return None
        if finished:
            self.floor_map.occupancy.finish(self._T_ros_map)
        return self.floor_map.occupancy.grid(self._T_ros_map)

    def finish_depth(self, timeout_s: float | None = None) -> None:
        """Measures the depth of all keyframes that wait for later ones; as many of them as there
        is time for."""
        self._note_metres()
        self._take_depth(self.dense.finish(self._pose_of, self._points_maker, timeout_s))

    def _note_metres(self) -> None:
        """Tells the measurement the metres per unit of odometry, if the map has some."""
        scale = self.scale.scale
        self.dense.note_metres(self.scale.published_unit(scale) if scale.metric else math.nan)

    def corrected(self, frame: LocalFrame) -> LocalFrame:
        """Returns a frame with its depth as the newest measured keyframe says, where the images
        agree better with it."""
        newest = self.dense.newest.get(frame.camera)
        if newest is None or newest.dense is None or not frame.window.aligned:
            return frame
        if newest.keyframe.image.shape != frame.image.shape:
            return frame
        pose = self._pose_of(newest.keyframe)
        if pose is None or newest.keyframe.chain != frame.window.chain:
            return frame
        T, unit = pose[0], np.float32(pose[1])
        view = SweepView(grey_of(frame.image), frame.K, frame.T_local_camera)
        one = newest.keyframe
        there = SweepView(grey_of(one.image), one.K, T, one.shown)
        keyframe = CorrectedKeyframe(there, unit * one.depth, unit * newest.dense.depth)
        depth = corrected_depth(view, frame.depth, keyframe)
        self.dense.counters["frames_depth_corrected"] += depth is not None
        return frame if depth is None else dataclasses.replace(frame, depth=depth)

    def _pose_of(self, keyframe: Measurable) -> MeasuredPose | None:
        """Returns the pose [4, 4] of a keyframe in odometry, and the unit of its submap there."""
        T_submap_camera = self._T_submap_camera(keyframe)
        if T_submap_camera is None or keyframe.submap not in self.table.submaps:
            return None
        T_local_submap = self.table.T_local_submap(keyframe.submap)
        return T_local_submap.pose(T_submap_camera), T_local_submap.scale

    def _T_submap_camera(self, keyframe: Measurable) -> Array | None:
        T = self.table.path.pose_of(keyframe.stamp_ns, keyframe.camera, keyframe.submap)
        return None if T is None else np.vstack((T, [0, 0, 0, 1]))

    def _take_depth(self, results: Iterable[Found]) -> None:
        """Gives measured depth to points and recording."""
        points = defaultdict(list)
        for found in results:
            one, keyframe = found.measured, found.measured.keyframe
            points[keyframe.submap].append((keyframe.id, found.points, one.stays))
            self.floor_map.measure(one, self._T_ros_map)
            if (one.stays or one.is_settled) and self._recorder is not None:
                self._store_depth(one, self._recorder.recorder)
        for submap, keyframes in points.items():
            self.submaps.replace_points(submap, keyframes)

    def _store_depth(self, one: Measured, recorder: KeyframeRecorder) -> None:
        """Stores what was measured of a keyframe: once, if it stays; before, if no window came for
        a while, so that it may be the last time. At the next pauses again only if much more is
        measured by then: a camera may pause at each keyframe."""
        keyframe, dense = one.keyframe, one.dense
        before = self._stored_early.pop(keyframe.id, None)
        if dense is None and before:  # it does not hold any more
            dense = nothing_measured(keyframe.depth)
        measured = 0 if dense is None else int(dense.measured.sum())
        is_new = (
            one.stays
            or before is None
            or (measured != before and not before / MUCH_MORE < measured < MUCH_MORE * before)
        )
        if dense is not None and is_new:
            recorder.measure(MeasuredKeyframe(
                keyframe.camera, keyframe.stamp_ns, keyframe.submap, dense, one.found
            ))  # fmt: skip
            before = measured
        if not one.stays and before is not None:
            self._stored_early[keyframe.id] = before

    def _points_maker(self, keyframes: Iterable[Measurable]) -> PointsMaker:
        """Returns what makes points of keyframes when they are measured, as the map is now."""
        places = {}
        for one in keyframes:
            T_submap_camera, bins = self._T_submap_camera(one), self.submaps.bins(one.submap)
            if T_submap_camera is not None and bins is not None:
                places[one.id] = T_submap_camera, bins
        return PointsMaker(self.config.depth, places)

    def _without_smears(self, frame: LocalFrame) -> LocalFrame:
        filtered = self.config.map.enabled and self.config.depth.edge_filter
        if not frame.keyframe or not filtered or self.table.read_only:
            return frame
        return dataclasses.replace(frame, depth=without_smears(frame.depth))

    def _forget_poses(self) -> None:
        """Forgets the poses of submaps that nothing needs, from time to time."""
        if len(self.table.submaps) >= self._prune_at:
            self.table.keep(self.submaps.all_submaps().keys() | self.loops.submaps_in_use)
            self._prune_at = 2 * len(self.table.submaps) + MANY_SUBMAPS

    def _map_state(self) -> MapState:
        """Returns how the scene relates to map and metres."""
        known, metres = self.scale.known, self.table.metres
        unit = self.table.unit * self.scale.unit
        return MapState(known, metres, unit * metres, self.T_ros_map)

    def on_refinement(self, frames: Sequence[PoseInSubmap]) -> None:
        """Stores refined poses of frames that are in the map."""
        if self._recorder is not None:
            self._recorder.correct(f for f in frames if f.submap in self.submaps.submaps)

    def adopt(self, refined: RefinedWindow) -> None:
        """Applies the poses of earlier windows that were refined, and the unit of odometry.

        Odometry stays where it was.
        """
        moved, unit = refined.moved.get(self._newest_leading), self.scale.unit
        before = None if moved is None else self.scale.shifted(moved[0], self.scale.scale)
        self.scale.change_unit(depth=refined.change.depth, motion=refined.change.motion)
        self._note_unit(unit)
        if moved is not None and before is not None:
            after = self.scale.shifted(moved[1], self.scale.scale)
            self.odom.refined(before, after, self.scale.published_unit(self.scale.scale))

    def published(self, frame: LocalFrame, uncertainty: PoseUncertainty) -> TrackedFrame:
        """Returns the frame to publish: in the map, in metres if its scale is known.

        A frame without a pose in the map keeps its pose in the frame of odometry. Call once per
        frame.
        """
        if frame.is_reference:
            self._newest_leading = frame.id
        metric, unit = frame.scale.metric, self.scale.published_unit(frame.scale)
        T_local_camera = self.scale.shifted(frame.T_local_camera, frame.scale)
        T_map_local = self._T_map_local(frame.scale)
        T_odom_local = self.odom.add(
            T_local_camera, unit, metric=metric, is_reference=frame.is_reference
        )
        T_local_camera = scaled_pose(T_local_camera, unit)
        out = tracked_frame(
            frame, scaled_depth(frame.depth, unit), T_map_local @ T_local_camera,
            T_odom_local @ invert_pose(T_map_local),
        )  # fmt: skip
        # A followed SLAM's errors count, and it does not state them.
        known = self.submaps.pose_known and not (self.following.enabled or self._is_bridged)
        R_map_local = T_map_local[:3, :3] if known else None
        return with_covariance(
            out, T_odom_local, T_local_camera, unit, R_map_local, uncertainty, self._scale_centre
        )

    def _T_map_local(self, scale: Scale) -> Array:
        """Returns the frame of odometry in the map [4, 4], published units, for windows with this
        scale; the identity where these have no pose in the map."""
        T_map_local = np.eye(4)
        if self.scale.has_pose(scale):
            T = self.table.T_map_local
            T_map_local[:3, :3] = T.R
            T_map_local[:3, 3] = T.t * (self.table.metres if scale.metric else 1.0)
            T_map_local[:3, 3] -= T.R @ (self.scale.published_unit(scale) * self.scale.shift)
        return T_map_local

    def poses_of(self, placed: PlacedWindow, scale: Scale) -> Array:
        """Returns the poses [N, 4, 4] in the map as it is now of all views of a window with this
        scale, as frames are published; NaN for a view that is not shared any longer."""
        T_map_local, unit = self._T_map_local(scale), self.scale.published_unit(scale)
        shared = len(placed.window.views) - placed.window.new
        out = np.full((len(placed.window.views), 4, 4), np.nan)
        for index, view in enumerate(placed.window.views):
            if index < shared and view.id not in self.table.shared:
                continue
            new = index >= shared
            T = placed.T_local_camera(index) if new else self.table.poses([view.id])[0][0]
            out[index] = T_map_local @ scaled_pose(self.scale.shifted(T, scale), unit)
        return out

    @property
    def _scale_centre(self) -> Array:
        """The place [3] in the map, metres, that a new scale does not move: its origin, unless
        global poses hold the map."""
        if self.anchoring.centre is None:
            return np.zeros(3)
        T_map_ros = invert_pose(self.T_ros_map)
        return np.asarray(T_map_ros[:3, :3] @ self.anchoring.centre + T_map_ros[:3, 3])

    def close_loop(self, *, wait: bool = False) -> bool:
        """Corrects the submaps if a loop was found and solved; returns whether. The newest submap
        stays in the frame of odometry.

        wait: until the loop that was found is solved.
        """
        correction = self.loops.collect(wait=wait)
        if correction is None:
            return False
        self.correct(correction.at(self.table.T_map_local))
        return True

    def hold_by_anchors(self, views: Sequence[View] = (), *, ends: bool = False) -> None:
        """Moves the map to global poses of the robot, before the window of new ``views``. ends: no
        window follows."""
        for view in views:
            if view.anchors:
                self.anchoring.add(view)
        if not self.anchoring.has_begun:
            return
        if not self.anchoring.is_due(self._why_no_anchors()) or self.loops.is_solving:
            return
        was_placed = self.anchoring.placed
        correction = self.anchoring.correction(
            self.submaps.submaps, self.table.path, self.loops.problem(), self._T_ros_map,
            level=self.is_level or self._has_axes, scale_sigma=self._scale_sigma,
            by_gravity=self._up_map is not None, ends=ends,
        )  # fmt: skip
        if self.anchoring.placed and not was_placed:  # REP-105: z of their frame is up
            is_level = self.is_level or self.anchoring.says_up
            self.place_map(self.T_ros_map, is_level=is_level)
        if correction is not None:
            self.correct(correction)

    def hold_by_scale(self) -> None:
        """Moves the map to where global poses hold it after a new scale, which has moved it in
        proportion to the distance from its origin: before poses are published with that scale."""
        if self.anchoring.centre is None or self.loops.is_solving or self._why_no_anchors():
            return
        correction = self.anchoring.shifted(
            self.submaps.submaps, self.table.T_map_local, self._T_ros_map
        )
        if correction is not None:
            self.correct(correction)

    @property
    def _scale_sigma(self) -> float:
        """Relative standard deviation of the metres; 0: they are given, or not known."""
        sigma = self.scale.scale.sigma
        return sigma if math.isfinite(sigma) else 0.0

    def _why_no_anchors(self) -> str:
        """Returns why global poses cannot hold the map now; empty if they can."""
        if self.table.read_only:
            return "the map is read-only"
        if self.following.enabled:
            return "another SLAM decides where the map lies (pose_prior.corrections)"
        if not self.loops.enabled:
            return "loop.enabled is false, so that there is no graph of the map"
        if not self.submaps.pose_known:
            return "where the camera is in the map is not known yet"
        if self.scale.known:
            return ""
        learns = self.scale.source.learns
        return "they wait for metres" + ("" if learns else ": set scale.source")

    def correct(self, correction: Correction, frames: Sequence[PoseInSubmap] = ()) -> None:
        """Moves submaps, and all that has its pose in them: every correction of the map comes
        here. frames: those that have other poses in their submaps after it."""
        far = self.table.correct(correction, self.submaps.staying, frames)
        what = "another SLAM is followed" if correction.followed else "loop closed"
        if correction.adjusted:
            what = "keyframes adjusted"
        elif correction.levelled:
            what = "submaps levelled by gravity"
        elif correction.anchored:
            what = "the map moves to global poses"
        # A path may come each second.
        quiet = correction.followed or correction.anchored
        level = logging.DEBUG if quiet else logging.INFO
        log.log(level, "%s: submaps move by up to %.3g (map units)", what, far)

    def on_correction(self, correction: Correction, before: Mapping[int, Similarity]) -> None:
        """Joins the components that loops connect; takes the scale of a loaded map, once the
        camera is found in it; stores where the submaps are now."""
        self.submaps.note_correction(correction.loops)
        self._is_bridged &= not correction.loops
        if self.submaps.pose_known:
            self.scale.take_from_map(correction.covariance)
        if self._recorder is not None:
            self._recorder.move(self.submaps.submaps.values(), before, self._map_state())

    @property
    def looks_for_loops(self) -> bool:
        """Whether locations that are seen again are recognised."""
        follows = self.following.enabled and not self.following.loaded
        return self.loops.enabled and not follows

    def try_close_loop(
        self,
        window_id: int,
        views: int,
        infer: Infer,
        aligner: WindowAligner,
        refine: Refine | None,
        hint: PoseHint | None = None,
        matching: Matching | None = None,
        placing: Placing | None = None,
    ) -> None:
        """Verifies a candidate for a loop; see ``LoopClosure.try_close_loop``.

        hint: where the camera may be, in the map. A followed SLAM owns the map's shape: then only
        the pose in a loaded scene is searched.
        """
        if not self.looks_for_loops:
            return
        if hint is not None:
            T, unit = self.table.T_map_local, self.scale.unit * self.table.metres
            T_map_local = Similarity(1.0, T.R, self.table.metres * T.t).pose(np.eye(4))
            hint = hint.moved(self.T_ros_map @ T_map_local, 1 / unit)
        self.loops.try_close_loop(
            window_id, self.config.loop, views, infer, aligner, self.scale.measured, refine,
            self.submaps.pose_known, hint, matching, placing,
        )  # fmt: skip


# Switches between a map that grows and one that is read-only (the parameter ``mode``).


def set_read_only(on: bool, submaps: SubmapStore, loops: LoopClosure) -> None:
    """Makes the map read-only, or lets it grow again, for new frames."""
    if on == submaps.table.read_only:
        return
    if on:
        _begin(submaps, loops)
        return
    connected = loops.end_localization()
    submaps.localize(False)
    if submaps.pose_known and not connected and submaps.submaps:
        submaps.begin_component()  # what is mapped from now on has no measured pose in the map


def _begin(submaps: SubmapStore, loops: LoopClosure) -> None:
    if not submaps.pose_known:  # an unconnected component would become part of the map
        submaps.begin_component()
        loops.start_chain(lost=False)
    submaps.localize(True)
    known = frozenset(s.id for s in submaps.submaps.values() if s.component == REFERENCE)
    if not loops.localize(known) and len(submaps.table.path):
        log.warning(
            "mode is localization, but the map has no keyframes that recognise its locations: "
            "poses are those of odometry"
        )
