"""The order of steps for each window: infer, place, update the map, deliver.

Owns the parts that the steps ask: builder, session, odometry, refinement, map, features of places,
gyro, IMU, search for the pose, standing, blind frames. Of its own it has what one window leaves
for the next: whether the robot stands, and a gap that a gyro bridges.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.config import PipelineConfig
from da3_ros.geometry.projection import resize_K
from da3_ros.geometry.similarity import Similarity
from da3_ros.inertial.gyro_turns import GyroTurns
from da3_ros.mapping.covariance import UNMEASURED
from da3_ros.mapping.depth_filter import STEP
from da3_ros.mapping.frames import LocalFrame
from da3_ros.mapping.graph_solution import Correction
from da3_ros.mapping.map_table import NO_SUBMAP, MapListener, OverlapView
from da3_ros.mapping.pose_hint import PoseHint
from da3_ros.mapping.resizing import Cut
from da3_ros.pipeline.blind_frames import REFUSED, BlindFrames, Bridge
from da3_ros.pipeline.delivery import (
    UNPLACED,
    PlacedWindow,
    less_certain,
    report_of,
    tracked_frame,
)
from da3_ros.pipeline.keyframe_recording import KeyframeData
from da3_ros.pipeline.place_features import PlaceFeatures
from da3_ros.pipeline.pose_conditioning import unit_by_prior
from da3_ros.pipeline.scene_map import SceneMap
from da3_ros.pipeline.standing import Standing
from da3_ros.pipeline.window_builder import ImageFormat, PreparedView, WindowBuilder
from da3_ros.pipeline.window_imu import WindowImu
from da3_ros.pipeline.window_inference import WindowInference, without_invalid_depth
from da3_ros.pipeline.window_odometry import WindowOdometry
from da3_ros.pipeline.window_refinement import WindowRefinement, in_refined_unit
from da3_ros.refinement.refiner import CameraImage
from da3_ros.refinement.solver_limits import SolverLimits
from da3_ros.scale_sources.metric_model import scale_of_depth
from da3_ros.splats.relative import RelativeSplats, keep_visible
from da3_ros.types import (
    Array,
    FloatImage,
    Image,
    Prediction,
    PreparedImage,
    Scale,
    TrackedFrame,
    View,
    Window,
    WindowEstimate,
    WindowReport,
)

log = logging.getLogger(__name__)


class WindowSteps(MapListener):
    """Runs the windows that ``builder`` has gathered. Not thread-safe."""

    def __init__(
        self,
        config: PipelineConfig,
        inference: WindowInference,
        counters: Counter[str],
        limits: SolverLimits | None = None,
    ) -> None:
        """limits: of the refinement; None: chosen by the parameters."""
        self.config, self.counters = config, counters
        self.builder = WindowBuilder(config, counters)
        self.inference = inference
        self.gyro = GyroTurns()
        self.scene_map = SceneMap(
            config, counters, inference.session.status().device, self.gyro.mount
        )
        error = inference.session.motion_error or UNMEASURED
        self.odometry = WindowOdometry(config, error, counters, self.scene_map.table)
        self.places = PlaceFeatures()
        self.scene_map.table.listeners.extend((self, self.places))
        self._imu: WindowImu | None = None  # None: no view has had data of one
        self._bridged: Bridge | None = None  # a gap, until the first window after it
        self.refinement = WindowRefinement(config, counters, limits, self.gyro)
        self.scene_map.table.listeners.append(self.refinement.placing)
        self.pose_search = PoseSearch()
        self.standing, self._stands = Standing(), False  # whether it did in the newest window
        self.blind = BlindFrames(
            config, self.odometry, self.refinement, self.scene_map, self.gyro, counters
        )

    def reconfigure(self, config: PipelineConfig) -> None:
        """Sets the parameters that may change between windows."""
        if config.mode != self.config.mode:  # the map becomes read-only as it was measured
            self.scene_map.close_loop(wait=True)
        self.config = config
        for part in (
            self.builder, self.inference, self.odometry, self.refinement, self.scene_map,
            self.blind,
        ):  # fmt: skip
            part.reconfigure(config)

    def begin(self, ready: PreparedImage) -> None:
        """Starts detecting the features of a prepared frame of the next windows; saves time."""
        if not self._stands:
            self.refinement.begin([CameraImage(ready.full, ready.full_valid)])

    def run(self) -> Iterator[TrackedFrame]:
        """Runs one window of the waiting views and yields its new frames.

        Applies a solved loop closure, or a correction of another SLAM, before; afterwards begins a
        new chain if the camera is lost, else looks for a loop. Yields nothing if the window
        fails.
        """
        taken = self.builder.take()
        if self._imu is None and any(prepared.view.imu is not None for prepared in taken):
            self._imu = WindowImu(self.gyro, self.scene_map, self.counters)
        if self._imu is not None:
            taken = self._imu.take(taken)
        closed = self.scene_map.close_loop()
        graph = self.refinement.refiner.graph
        metre = self.scene_map.adjust(graph.metre)
        if metre is not None:
            graph.take_metre(metre)
        follow(self.scene_map, [prepared.view for prepared in taken])
        self.scene_map.hold_by_anchors([prepared.view for prepared in taken])
        new = [p for p in taken if not p.blind]
        frames = self._run_window(new, closed=closed) if new else iter(())
        # In order, so that a blind view is held where the view before it is; within a frameset
        # after the views that see, with which it moves.
        for prepared in sorted(taken, key=lambda p: (p.view.frameset, bool(p.blind))):
            if prepared.blind:
                yield self._deliver_blind(prepared)
            elif prepared is new[-1]:
                yield from frames  # to its end, so that the window is finished
            elif (frame := next(frames, None)) is not None:
                yield frame
        self.take_lenses()

    def take_lenses(self) -> bool:
        """Takes over what keyframes have shown of lenses whose camera_info is wrong; returns
        whether they have shown any. No view may wait for a window: it is rectified already."""
        lenses = self.scene_map.adjustment.take_lenses()
        for camera, found in lenses.items():
            if self.builder.correct(camera, found.lens):
                self.scene_map.adjustment.correct(camera, found.lens)
                self.refinement.correct(camera, found)
            else:
                self.refinement.refuse_lens(camera, found)
        return bool(lenses)

    def _run_window(self, new: list[PreparedView], *, closed: bool) -> Iterator[TrackedFrame]:
        """Runs a window of views that show something, and yields their frames.

        closed: whether a loop was closed before.
        """
        start = time.perf_counter()
        room = max(1, self.builder.window_size - len(new))
        stands = self._stands = self.standing.holds(new)
        done = self.inference.run(self.blind.choose(room, new), new)
        if done is None:
            return
        window, shared, prediction = done
        if not prediction.posed:
            yield from self._deliver_unposed(new, window, prediction, start)
            return
        if stands and (held := self._held(window, prediction)) is not None:
            yield from self._deliver_held(new, held, start)
            return
        if self.blind.is_unrelated(window, shared):
            self._go_on_elsewhere(new[0].view)
        if not shared:
            self._end_bridge(new)
        estimate = self.refinement.calibrated(window, new, WindowEstimate.of(prediction))
        if self._imu is not None:
            estimate = self._imu.turned(window, estimate)
        estimate, cause = self.blind.judge(window, shared, new, estimate)
        if cause:
            yield from self._deliver_untrusted(new, prediction, cause)
            return
        placed = self._place(window, shared, new, prediction, estimate)
        if self.odometry.refusal and self.blind.is_contradicted(placed):
            self.odometry.report_refusal(window)
            yield from self._deliver_untrusted(new, prediction, REFUSED)
            self._finish_window(window)
            return
        scale = self._take_over(placed)
        report = report_of(
            placed, scale, chain=self.scene_map.table.use_chain(), loop_closed=closed,
            total_s=time.perf_counter() - start,
            T_map_camera=self.scene_map.poses_of(placed, scale), tracks=self.refinement.tracks,
            refinement_s=self.refinement.seconds,
        )  # fmt: skip
        for index, prepared in enumerate(new, len(shared)):
            yield self._deliver(prepared, index, placed, report)
        if self.config.hold_when_blind:
            refined = placed.refined
            by_features = refined is not None and refined.by_features
            self.blind.sight.note_window(refined=None if self.refinement.skipped else by_features)
        self._finish_window(window)

    def _held(self, window: Window, prediction: Prediction) -> PlacedWindow | None:
        """Returns a window in which the robot stands, with its held poses; None if there is more
        to do in it than to repeat them: to find the camera, or the scale."""
        scale, sight = self.scene_map.scale, self.blind.sight
        learns = scale.source.learns and not scale.scale.metric and any(
            source.by_depth or source.needs_rig for source in scale.source.members
        )  # fmt: skip
        searches = sight.was_blind or sight.attempts or not self.scene_map.submaps.pose_known
        if learns or searches or not self.odometry.fits or self.odometry.prior.leads_poses(window):
            return None
        deviations = self.odometry.uncertainty.at_rest
        return self.standing.placed(window, prediction, self.odometry.newest, deviations)

    def _deliver_held(
        self, new: list[PreparedView], placed: PlacedWindow, start: float
    ) -> Iterator[TrackedFrame]:
        """Yields the frames of a window in which the robot stands. They change neither odometry
        nor the scale nor keyframes."""
        scale = self.scene_map.scale.scale
        report = report_of(
            placed, scale, chain=self.scene_map.table.use_chain(), loop_closed=False,
            total_s=time.perf_counter() - start,
            T_map_camera=self.scene_map.poses_of(placed, scale),
        )  # fmt: skip
        for index, prepared in enumerate(new, len(placed.window.views) - len(new)):
            frame = placed.frame(prepared, index, report, self.config.depth)
            frame = self._levelled(frame, prepared.view, still=True)
            frame = self.scene_map.corrected(frame)
            self.scene_map.add_frame(frame)
            self.counters["processed"] += 1
            self.counters["frames_standing"] += 1
            self.pose_search.add(frame.stamp_ns, known=True)
            # The pose is that of the last placed view, and so are its errors.
            of_pose = dataclasses.replace(frame, id=self.standing.id_of(frame.camera))
            out = self.scene_map.published(of_pose, self.odometry.uncertainty)
            unseen = self.standing.unseen(
                frame.camera, prepared.view.id, self.odometry.uncertainty.at_rest
            )
            unit = self.scene_map.scale.published_unit(frame.scale)
            out = less_certain(dataclasses.replace(out, id=frame.id), unseen, unit)
            if self.config.hold_when_blind:
                self.blind.sight.see(out, prepared.view.frameset, frame.T_local_camera)
            yield self._at_published_size(out, prepared)
            self.gyro.note_rest(frame.id, frame.T_local_camera[:3, :3])
        self.scene_map.measure_depth()
        self.scene_map.carve_floor()
        self._forget_gyro_poses()

    def _place(
        self, window: Window, shared: list[OverlapView], new: list[PreparedView],
        prediction: Prediction, estimate: WindowEstimate,
    ) -> PlacedWindow:  # fmt: skip
        """Returns a window with its pose by its overlap views, by a prior and by tracks, and with
        its scale."""
        scale, depth = self.scene_map.scale, estimate.depth
        known = self._measured(window, without_invalid_depth(window, estimate))
        aligned, alignment = self.odometry.place(window, shared, known, scale.unit_of(known))
        graph = self.refinement.refiner.graph
        metre_known = graph.knows_metre
        by_tracks, alignment, refined = self.refinement.run(
            window, new, aligned, alignment, self.odometry, self.scene_map.table
        )
        if refined is not None:
            metre_known |= refined.views.metre_is_known or refined.views.metre_is_open
        if not metre_known:
            scale.source.report_missing()
        if graph.gave_up_metre:
            scale.doubt_rig()
        if refined is None:
            return PlacedWindow(window, prediction, aligned, alignment, depth)
        by_tracks = in_refined_unit(window, aligned, by_tracks, refined, scale.source.members)
        depth = refined.scaled(depth)
        return PlacedWindow(window, prediction, by_tracks, alignment, depth, refined)

    def _measured(self, window: Window, estimate: WindowEstimate) -> WindowEstimate:
        """Returns the estimate with the scale sources' measurements of its unit, and with the
        prior's poses if they are published."""
        scale = self.scene_map.scale
        if scale.filter.wants_metric_model(window.id):
            estimate = self.inference.with_metric_model(window, estimate)
        if window.T_prior_camera is not None:
            self.counters["windows_with_prior"] += 1
        by_prior = unit_by_prior(window, estimate)
        graph = self.refinement.refiner.graph
        measures = tuple(
            None if source.needs_rig and graph.knows_metre
            else source.measure(window, estimate, by_prior)
            for source in scale.source.members
        )  # fmt: skip
        estimate = dataclasses.replace(estimate, measures=measures)
        return self.odometry.prior.apply(window, estimate, by_prior)

    def _take_over(self, placed: PlacedWindow) -> Scale:
        """Takes over into odometry and map what a window says of earlier views, of its unit and of
        the scale; returns the scale."""
        window = placed.window
        if placed.refined is not None:
            self.scene_map.adopt(placed.refined)  # the unit, in which its poses are
            self.odometry.apply_refinement(placed.refined)
        if self._imu is not None:
            self._imu.learn(placed, by_network=not self.config.refinement.enabled)
        self.odometry.report_refusal(window)
        if self.blind.sight.attempts:  # found by keyframes: the newest views are elsewhere
            self.odometry.overlap_views.forget_newest()
        fits = placed.alignment.accepted or window.new == len(window.views)
        scale = self.scene_map.update_scale(
            window, placed.estimate, placed.alignment.T_local_window if fits else None,
            # To the prior itself its poses are a witness only where the network agrees with them.
            own_motion=not self.odometry.prior.leads_poses(window),
        )  # fmt: skip
        self.scene_map.hold_by_scale()
        self.scene_map.add_drift(placed)
        return scale

    def _finish_window(self, window: Window) -> None:
        """Forgets what no later window needs; begins a new chain if the camera is lost, else
        looks for a loop."""
        self.scene_map.measure_depth()
        self.scene_map.carve_floor()
        self.odometry.finish_window()
        self.refinement.keep(self.scene_map.table)
        self._forget_gyro_poses()
        if self.odometry.is_lost:
            log.warning(
                "%d windows in a row do not fit: a new chain begins", self.odometry.refused
            )
            self.start_chain(self.odometry.newest)
        elif self.odometry.fits:
            found = self.scene_map.loops.found
            self.scene_map.try_close_loop(
                window.id,
                self.builder.window_size,
                self.inference.run_loop,
                self.odometry.aligner,
                self.refinement.loop if self.config.refinement.enabled else None,
                self.pose_search.hint,
                self.places.matching if self.config.refinement.enabled else None,
                self.refinement.placed if self.config.refinement.enabled else None,
            )
            if self._imu is not None:  # else nothing has said what is up in a submap
                self.scene_map.hold_level()
            if self.scene_map.submaps.pose_known:  # else two may contradict each other
                self.pose_search.note_found(self.scene_map.loops.found - found)

    def _deliver(
        self, prepared: PreparedView, index: int, placed: PlacedWindow, report: WindowReport
    ) -> TrackedFrame:
        """Adds the frame of view ``index`` to overlap views and map; returns it in map
        coordinates."""
        frame = placed.frame(prepared, index, report, self.config.depth)
        frame = self._levelled(frame, prepared.view)
        if self.blind.sight.was_blind:
            self.blind.keep_odometry(frame)
        overlap_view = self.odometry.overlap_view_of(prepared.view, frame)
        if overlap_view is not None:
            keyframe = self.odometry.is_keyframe(overlap_view, self.pose_search.motion)
            frame = dataclasses.replace(frame, keyframe=keyframe)
        descriptors = placed.prediction.descriptor
        descriptor = None if descriptors is None else descriptors[index]
        data = None
        by_images, returns = self._is_measurable(placed), prepared.view.returns
        by_returns = self.config.dense.enabled and returns is not None
        measure = frame.keyframe and (by_images or by_returns)
        if frame.keyframe and (measure or self.scene_map.records):
            data = self._keyframe_data(prepared, index, placed, descriptor)
            points = None if returns is None else returns.points
            data = dataclasses.replace(data, returns=points, by_images=by_images)
        # After what keeps the network's depth: views that later windows share, stored keyframes.
        frame = self.scene_map.corrected(frame)
        submap = self.scene_map.add_frame(frame, data, measure=measure)
        if overlap_view is not None:
            self.odometry.share(
                dataclasses.replace(overlap_view, submap=submap),
                keyframe=frame.keyframe,
                descriptor=descriptor,
            )
            if submap != NO_SUBMAP:
                self.scene_map.add_view(frame, submap, descriptor, self.refinement.view(frame.id))
        self.counters["processed"] += 1
        self.standing.note(prepared, placed, index, self.odometry.uncertainty.at_rest)
        known = self.scene_map.submaps.pose_known
        self.pose_search.add(frame.stamp_ns, known=known, keyframe=frame.keyframe)
        out = self.scene_map.published(frame, self.odometry.uncertainty)
        if out.scale.metric and not self.odometry.unit_known:
            # Its unit is only assumed from earlier windows, so that its depth is not metric.
            out = dataclasses.replace(out, depth_m=np.full_like(out.depth_m, np.nan))
        if self.config.hold_when_blind:
            self.blind.sight.see(out, prepared.view.frameset, frame.T_local_camera)
        return self._at_published_size(out, prepared)

    def _is_measurable(self, placed: PlacedWindow) -> bool:
        """Whether the poses of a window are good enough to compare images by them."""
        if not (self.config.dense.enabled and self.config.refinement.enabled):
            return False
        window = placed.window
        is_first = window.new == len(window.views)  # of its chain: later windows refine it
        return is_first or placed.refined is not None or self.odometry.prior.leads_poses(window)

    def _keyframe_data(
        self, prepared: PreparedView, index: int, placed: PlacedWindow, descriptor: Array | None
    ) -> KeyframeData:
        """Returns what is stored of a keyframe, view ``index`` of its window."""
        depth = placed.unfiltered_depth(prepared, index)
        tracks = self.refinement.tracks_of(prepared.view.id, prepared.full.shape)
        splats = None
        if placed.prediction.splats is not None:  # of the last views
            values = placed.prediction.splats[index - len(placed.depth)]
            splats = keep_visible(values, depth)
            self._note_splats(splats, depth)
        return KeyframeData(prepared.full, depth, descriptor, tracks, splats)

    def _deliver_untrusted(
        self, new: list[PreparedView], prediction: Prediction, cause: str
    ) -> Iterator[TrackedFrame]:
        """Yields the frames of a window that cannot be trusted, as blind ones."""
        for prepared in new:
            yield self._deliver_blind(dataclasses.replace(prepared, blind=cause))
        if self.blind.gives_up(cause, prediction):
            self._go_on_elsewhere(new[-1].view)

    def _go_on_elsewhere(self, view: View) -> None:
        """Goes on where no earlier view is seen: where the camera has turned to by the gyro, if it
        has hardly moved, else in a new chain."""
        bridge = self.blind.bridge(view)
        if bridge is None:
            self.blind.report_lost()
            self.start_chain(self.odometry.newest)
            return
        log.info(
            "the camera sees other things than %.1f s before: it goes on where the gyro says",
            bridge.seconds,
        )
        self.counters["gaps_bridged"] += 1
        self._bridged = bridge
        self.gyro.start_chain()
        self.odometry.forget_views()
        self.scene_map.begin_bridge(bridge.variance)
        self.refinement.refiner.restart()
        self.blind.sight.end_gap()

    def _end_bridge(self, new: Sequence[PreparedView]) -> None:
        """Turns the cameras' newest poses as the gyro says, before the first window after a gap,
        which has these new views: as one of its first frameset has turned since it was placed."""
        bridge, self._bridged = self._bridged, None
        if bridge is None:
            return
        for view in (p.view for p in new if p.view.frameset == new[0].view.frameset):
            last = self.blind.sight.last(view.camera)
            turn = None if last is None else self.gyro.turn(last.id, view.id)
            if turn is not None:
                self.odometry.turn_cameras(view.camera, turn[0])
                return

    def _levelled(self, frame: LocalFrame, view: View, *, still: bool = False) -> LocalFrame:
        if self._imu is not None:
            return self._imu.levelled(frame, view, still=still)
        if self.config.level.source not in ("ground", "imu"):  # nothing else is asked what is up
            return frame
        return self.scene_map.levelled(frame, None, "unknown", still=still)

    def _forget_gyro_poses(self) -> None:
        if self._imu is None:
            return
        held = self.standing.ids
        self.gyro.keep({*self.scene_map.table.shared, *self.blind.sight.last_views, *held})

    def _deliver_blind(self, prepared: PreparedView) -> TrackedFrame:
        return self._at_published_size(self.blind.frame(prepared), prepared)

    def _note_splats(self, splats: RelativeSplats, depth: FloatImage) -> None:
        """Says once if a keyframe has depth but no Gaussian."""
        if len(splats) or not np.isfinite(depth).any():
            return
        self.counters["keyframes_without_splats"] += 1
        if self.counters["keyframes_without_splats"] == 1:
            log.warning(
                "a keyframe has no Gaussian that can be used: if that goes on, set "
                "mixed_precision to off"
            )

    def _deliver_unposed(
        self, new: list[PreparedView], window: Window, prediction: Prediction, start: float
    ) -> Iterator[TrackedFrame]:
        """Yields the frames of a single-image network: depth without a pose in the map."""
        scale = scale_of_depth(prediction.measure)
        self.scene_map.scale.set_unplaced(scale)
        estimate = WindowEstimate.of(prediction)
        placed = PlacedWindow(window, prediction, estimate, UNPLACED, prediction.depth)
        report = report_of(
            placed, scale, chain=self.scene_map.table.use_chain(), loop_closed=False,
            total_s=time.perf_counter() - start,
        )  # fmt: skip
        for index, prepared in enumerate(new, len(window.views) - len(new)):
            frame = placed.frame(prepared, index, report, self.config.depth)
            self.counters["processed"] += 1
            out = tracked_frame(frame, frame.depth, frame.T_local_camera, np.eye(4))
            yield self._at_published_size(out, prepared)

    def _at_published_size(self, frame: TrackedFrame, prepared: PreparedView) -> TrackedFrame:
        if self.config.depth.size != "input":
            return frame
        return at_size_of(frame, prepared.full, prepared.full_valid)

    def on_correction(self, correction: Correction, _before: Mapping[int, Similarity]) -> None:
        """Notes in odometry that submaps have moved."""
        self.odometry.apply_correction(correction, self.scene_map.scale.scale.value)

    def start_at_origin(self) -> None:
        """Begins a new chain at the scene's origin, without overlap views; any stamp may
        follow."""
        self.builder.restart()
        self.blind.sight.restart()
        self.scene_map.adjustment.forget_features()  # stamps may be those of earlier frames
        self.scene_map.to_origin()
        self.start_chain({})
        declared = self.scene_map.scale.filter.declared
        self.scene_map.table.set_unit(self.config.scale.factor if declared else 1.0)

    def start_chain(self, newest: dict[str, Array]) -> None:
        """Begins a chain in scene and odometry, without overlap views.

        newest: as in ``WindowOdometry.start_chain``.
        """
        self._bridged = None
        self.gyro.start_chain()
        self.scene_map.start_chain(newest)
        self.odometry.start_chain(newest)
        self.refinement.refiner.restart()
        self.standing.restart()
        self.blind.sight.start_chain()

    def flush(self) -> Iterator[TrackedFrame]:
        """Runs a window of the views that wait, if there are any."""
        if self.builder.waiting:
            yield from self.run()

    def adapt(self, views: Sequence[PreparedView]) -> Iterator[TrackedFrame]:
        """Brings earlier views to the calibration and the image size of new ones; yields the
        frames that wait, where those cannot be brought to it."""
        for camera, first in self.builder.take_recalibrated().items():
            self.scene_map.adjustment.recalibrate(camera, first)
            self.refinement.corrected.discard(camera)
        if late := self.builder.calibrated_late(views):
            yield from self.flush()
            self.rectify_again(late)
        changed = self.builder.changed_format(views)
        if changed is not None and not self.resize(changed):
            yield from self.flush()
            self.hold_pose()

    def resize(self, new: ImageFormat) -> bool:
        """Brings all views to a new image size; returns False if too little would remain."""
        assert self.builder.image_format is not None
        cut = Cut.of(self.builder.image_format.shape, new.shape)
        if cut is None or not self.odometry.resize(cut):
            return False
        self.scene_map.loops.candidates.wait()
        self.builder.resize(cut, new)
        self.standing.restart()
        self.refinement.refiner.forget_calibration()
        self.scene_map.adjustment.forget_features()
        self.counters["size_changes"] += 1
        return True

    def rectify_again(self, late: Sequence[PreparedView]) -> None:
        """Takes over calibrations that came after the first images: the newest views of these
        cameras are rectified again, and the chain continues from them."""
        for prepared in late:
            self.odometry.rectify_again(prepared)
        self.standing.restart()
        self.refinement.refiner.restart()
        self.scene_map.adjustment.forget_features()
        self.scene_map.scale.doubt()
        self.counters["late_calibrations"] += len(late)

    def hold_pose(self) -> None:
        """Begins a new chain at the last poses of the cameras; motion since is unknown."""
        log.warning("overlap views cannot be brought to the new image size: the pose is held")
        self.counters["poses_held"] += 1
        self.builder.forget_format()
        self.refinement.refiner.forget_calibration()
        self.scene_map.adjustment.forget_features()
        self.start_chain(self.odometry.newest)


# Upsamples published depth to the camera's image size, without interpolating across depth edges.
#
# NumPy and OpenCV only.


def at_size_of(
    frame: TrackedFrame, image: Image, valid: NDArray[np.bool_] | None = None
) -> TrackedFrame:
    """Returns the frame with depth, confidence and K at the size of its rectified ``image``.

    ``valid`` [H, W]: pixels of ``image`` that may have depth; None: all.
    """
    shape, size = frame.depth_m.shape, (image.shape[1], image.shape[0])
    if shape == image.shape[:2]:
        return dataclasses.replace(frame, image=image)
    depth_m = resize_depth(frame.depth_m, size)
    if valid is not None:
        depth_m[~valid] = np.nan
    return dataclasses.replace(
        frame,
        image=image,
        depth_m=depth_m,
        confidence=_nearest(frame.confidence, size),
        K=resize_K(frame.K, (shape[1], shape[0]), size),
    )


def resize_depth(depth: FloatImage, size: tuple[int, int]) -> FloatImage:
    """Returns z-depth [h, w] resized to ``size`` (width, height).

    If the four neighbours of a new pixel are one surface, their inverse depth, which is linear
    over any plane, is interpolated; otherwise the nearest pixel's value is used. So NaN, +Inf and
    steps stay sharp, and no depth appears between two surfaces.
    """
    known = np.isfinite(depth) & (depth > 0)
    inverse = np.divide(1, depth, out=np.zeros_like(depth), where=known)
    smooth = cv2.resize(inverse, size, interpolation=cv2.INTER_LINEAR)
    whole = _one_surface(inverse)[np.ix_(_cells(depth.shape[0], size[1]),
                                         _cells(depth.shape[1], size[0]))]  # fmt: skip
    out: FloatImage = _nearest(depth, size)
    np.divide(1, smooth, out=out, where=whole)
    return out


def _one_surface(inverse: FloatImage) -> Array:
    """Returns bool [h + 1, w + 1]: whether the four pixels around each corner are one surface.

    Corner (0, 0) is the image's top left; border pixels are repeated beyond the border.
    """
    around = np.pad(inverse, 1, mode="edge")
    four = np.stack((around[:-1, :-1], around[:-1, 1:], around[1:, :-1], around[1:, 1:]))
    low, high = four.min(axis=0), four.max(axis=0)
    return np.asarray((low > 0) & (high <= STEP * low))


def _cells(source: int, target: int) -> Array:
    """Returns the index of the corner nearest to each new pixel of one axis, [target]."""
    centres = (np.arange(target) + 0.5) * (source / target)
    return np.floor(centres + 0.5).astype(np.int64)


def _nearest(values: FloatImage, size: tuple[int, int]) -> FloatImage:
    return cv2.resize(values, size, interpolation=cv2.INTER_NEAREST_EXACT).astype(np.float32)


# The search for the camera's pose in the map: how long it took, and where a user says it is.

CONFIRMED = 2  # loops that confirm a hint
HINT_S = 30.0  # a camera that was not found is elsewhere by then
# While the pose is looked for, frames become keyframes, and are compared with the map, after this
# share of the usual motion; up to a number of keyframes, since the place may be unknown.
SEARCH_MOTION, SEARCH_KEYFRAMES = 0.25, 40


class PoseSearch:
    """The search for the pose of new frames. Not thread-safe."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begins in another scene."""
        self._hint: PoseHint | None = None
        self._hint_ends = -math.inf
        self._found = 0  # verified loops since the hint
        self._begin_ns: int | None = None
        self._keyframes = 0  # since then
        self.motion = 1.0  # share of the usual one after which a frame becomes a keyframe
        self.seconds = math.nan  # of the current or last search, by stamps; NaN: there was none

    @property
    def hint(self) -> PoseHint | None:
        """Where the camera may be, in the map; None: anywhere."""
        return self._hint if time.monotonic() < self._hint_ends else None

    def narrow(self, hint: PoseHint) -> None:
        """Looks near a location first, for ``HINT_S``."""
        self._hint, self._hint_ends = hint, time.monotonic() + HINT_S
        self._found = 0

    def note_found(self, count: int) -> None:
        """Notes verified loops: a hint that was confirmed has served."""
        self._found += count
        if self._found >= CONFIRMED:
            self._hint = None

    def add(self, stamp_ns: int, *, known: bool, keyframe: bool = False) -> None:
        """Adds a frame, whether its pose in the map is known, and whether it is a keyframe."""
        if known and self._begin_ns is None:
            return
        if self._begin_ns is None or stamp_ns < self._begin_ns:
            self._begin_ns, self._keyframes = stamp_ns, 0
        self._keyframes += keyframe
        searches = not known and self._keyframes < SEARCH_KEYFRAMES
        self.motion = SEARCH_MOTION if searches else 1.0
        self.seconds = (stamp_ns - self._begin_ns) / 1e9
        if known:
            self._begin_ns = self._hint = None


# Lets a scene follow another SLAM, between two windows.


def leading_camera(scene_map: SceneMap) -> str:
    """Returns the camera whose poses are the path; empty before its first one."""
    return next(iter(scene_map.config.cameras or scene_map.submaps.cameras), "")


def follow(scene_map: SceneMap, views: Sequence[View]) -> None:
    """Corrects the submaps if another SLAM asks for it, before the window of new ``views``."""
    following, submaps = scene_map.following, scene_map.submaps
    if not following.enabled:
        return
    camera = leading_camera(scene_map)
    for view in views:
        if view.camera == (camera or view.camera):
            following.add(view)
            T_slam_map = following.begin(view)
            if T_slam_map is not None:
                scene_map.place_map(T_slam_map, is_level=True)  # REP-105: its z is up
    scale = scene_map.table.known_metres
    correction = following.correction(
        submaps.submaps, scene_map.table.path.poses, camera, scale,
        scene_map.table.T_map_local, scene_map.T_ros_map,
    )  # fmt: skip
    if correction is not None:
        scene_map.correct(correction)
