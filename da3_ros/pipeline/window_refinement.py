"""Refines placed windows by feature tracks, and says how well tracks support them."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from da3_ros.config import PipelineConfig
from da3_ros.geometry.poses import spread
from da3_ros.geometry.projection import resize_K
from da3_ros.geometry.similarity import Similarity
from da3_ros.inertial.gyro_turns import GyroTurns
from da3_ros.keyframe_store.keyframe import NO_TRACKS as NO_STORED_TRACKS
from da3_ros.keyframe_store.keyframe import Tracks as StoredTracks
from da3_ros.mapping.alignment import Alignment
from da3_ros.mapping.map_table import MapTable, OverlapView
from da3_ros.pipeline.place_features import KeyframePlacing
from da3_ros.pipeline.window_builder import PreparedView
from da3_ros.pipeline.window_odometry import WindowOdometry
from da3_ros.refinement.lens_calibration import LensEstimate
from da3_ros.refinement.loop_check import (
    joined_by_tracks,
    joined_views,
    refined_loop,
    shows_known,
    shows_mostly_known,
)
from da3_ros.refinement.refiner import (
    NO_DEPTH_ERROR,
    NO_TRACKS,
    USUAL,
    CameraImage,
    RefinedWindow,
    TrackSupport,
    WindowRefiner,
)
from da3_ros.refinement.self_calibration import NO_CHANGE
from da3_ros.refinement.solver_limits import SolverLimits, TimeLimit, choose_limits
from da3_ros.refinement.tracked_view import TrackedView, log_depth_at
from da3_ros.scale_sources.interface import ScaleSource
from da3_ros.types import (
    Array,
    FloatImage,
    PlacedView,
    RefinedLoop,
    ScaleMeasurement,
    Window,
    WindowEstimate,
)

log = logging.getLogger(__name__)


REPORTED = 10  # failures that are logged; all are counted
CONTRADICTIONS = 3  # windows that contradict the rig, from which on it is declared wrongly


class WindowRefinement:
    """Owns the refiner; applies its results to odometry."""

    def __init__(
        self, config: PipelineConfig, counters: Counter[str], limits: SolverLimits | None = None,
        gyro: GyroTurns | None = None,
    ) -> None:  # fmt: skip
        """limits: None: chosen for ``refinement.max_ms``, by measurement. gyro: how the cameras
        turn; None: unknown."""
        self.config, self.counters = config, counters
        self.limits = limits or chosen_limits(config)
        self.refiner = WindowRefiner(self.limits, gyro=gyro)
        self.placing = KeyframePlacing()
        self._limit = TimeLimit(0.0)
        self.seconds = 0.0  # that the newest window's refinement has taken
        self._tried_s = 0.0  # that trials of doubted views have taken since the last refinement
        self.skipped = False  # whether there was no time to look for tracks in it
        self._expected = False  # whether the next window is refined, as the newest one was
        self._led_by_prior = False  # whether the last window had the poses of a prior
        self._calibrated: dict[str, bool] = {}  # by camera: whether it has a camera_info
        self.lenses: dict[str, list[LensEstimate]] = {}  # corrections of camera_infos, by camera
        self.corrected: set[str] = set()  # cameras whose present camera_info is corrected

    def skip_when_late(self) -> None:
        """From now on, windows pass as they are while refinement takes more than
        ``refinement.max_ms`` on average."""
        self._limit = TimeLimit(self.config.refinement.max_ms)

    def reconfigure(self, config: PipelineConfig) -> None:
        """Sets the parameters that may change between windows."""
        self.config = config

    def begin(self, images: Iterable[CameraImage]) -> None:
        """Starts detecting the features of images that the next windows refine, on a thread of its
        own; only saves time."""
        if self._expected and self.config.refinement.enabled:
            for image in images:
                self.refiner.ahead.begin(image.image, image.usable)

    def run(
        self,
        window: Window,
        new: Sequence[PreparedView],
        estimate: WindowEstimate,
        placed: Alignment,
        odometry: WindowOdometry,
        table: MapTable,
    ) -> tuple[WindowEstimate, Alignment, RefinedWindow | None]:
        """Returns estimate and alignment of a placed window, refined if tracks support it.

        A window that alignment refused is accepted if tracks support its poses, and if its depth
        has anything to do with them.
        """
        self.seconds, self.skipped, self._expected = 0.0, False, False
        if not self.config.refinement.enabled or odometry.prior.leads_poses(window):
            self.refiner.restart()
            self._led_by_prior = self.config.refinement.enabled
            return estimate, placed, None
        if self._limit.skips():
            self.refiner.skip()
            self.skipped = True
            self.counters["refinement_skipped"] += 1
            return estimate, placed, None
        start, self._expected = time.perf_counter(), True
        try:
            return self._refine(window, new, estimate, placed, odometry, table)
        finally:
            self.seconds, self._tried_s = time.perf_counter() - start + self._tried_s, 0.0
            self._limit.add(self.seconds)

    def _refine(
        self,
        window: Window,
        new: Sequence[PreparedView],
        estimate: WindowEstimate,
        placed: Alignment,
        odometry: WindowOdometry,
        table: MapTable,
    ) -> tuple[WindowEstimate, Alignment, RefinedWindow | None]:
        images = [CameraImage(p.full, p.full_valid) for p in new]
        poses = self._poses(table)
        self.refiner.graph.place(poses, table.corrections)
        if self._led_by_prior:  # whose poses tell the unit
            self._led_by_prior = False
            known = {id: poses[id][0] for id in poses if table.shared[id].refined}
            self._take_up(window, estimate, placed.T_local_window, known)
        try:
            refined = self.refiner.refine(window, images, estimate, placed.T_local_window)
        except Exception as error:
            # The window is as good as without; frames must not be lost for its refinement.
            self._report_failure(f"window {window.id} is not refined", error)
            self.refiner.undo()
            return estimate, placed, None
        if self.refiner.graph.rig_contradicted:
            self._report_contradiction()
        if refined is None:
            self.counters["windows_few_tracks"] += len(window.views) > 1
            return estimate, placed, None
        if odometry.refusal and not refined.depth_means_something:
            self.refiner.undo()  # refused windows leave nothing behind
            return estimate, placed, None
        self.counters["windows_refined"] += 1
        if odometry.refusal:
            placed = dataclasses.replace(placed, accepted=True, reason="")
        placed = dataclasses.replace(placed, T_local_window=refined.T_local_window)
        return refined.estimate, placed, refined

    def _report_contradiction(self) -> None:
        """Counts windows whose tracks contradict the rig, and says so once it is no accident."""
        if not all(self._calibrated.values()):
            return  # a focal length that is only guessed may be what is wrong
        self.counters["rig_contradicted"] += 1
        if self.counters["rig_contradicted"] == CONTRADICTIONS:
            log.warning(
                "feature tracks place the cameras of the rig otherwise than declared: they show "
                "no metres; check rig.poses or the transforms (optical frames, z forward), and "
                "the camera_info of each camera"
            )

    def calibrated(
        self, window: Window, new: Sequence[PreparedView], estimate: WindowEstimate
    ) -> WindowEstimate:
        """Returns the estimate with one focal length for all windows of a camera without a
        camera_info: by tracks, else the median of the network's guesses."""
        self._calibrated.update({v.camera: v.K is not None for v in window.views})
        if not self.config.refinement.enabled:
            return estimate
        for prepared in new:
            if prepared.view.K is None:
                self.refiner.guessed.note_size(prepared.view, prepared.full.shape)
        return self.refiner.calibrated(window, estimate)

    def correct(self, camera: str, found: LensEstimate) -> None:
        """Takes over the lens of a camera whose camera_info does not fit its images; later views
        will be rectified by it."""
        self.lenses.setdefault(camera, []).append(found)
        self.corrected.add(camera)
        self.refiner.calibration.correct(camera, found.lens)
        self.counters["lenses_corrected"] += 1
        log.warning(
            "the camera_info of camera %s does not fit its images: %s, by %d keyframes; their "
            "reprojection error falls from %.2f to %.2f px. It is corrected from here on: "
            "calibrate the camera again (refinement.lens: false keeps the camera_info)",
            camera or "(the only one)", described(found), found.views, found.error_before_px,
            found.error_px,
        )  # fmt: skip

    def refuse_lens(self, camera: str, found: LensEstimate) -> None:
        """Counts a lens that no calibration of the camera's model expresses; says it once."""
        self.counters["lenses_refused"] += 1
        if self.counters["lenses_refused"] == 1:
            log.warning(
                "the camera_info of camera %s does not fit its images (%s), and its "
                "distortion_model cannot express that: it stays; calibrate the camera again",
                camera or "(the only one)", described(found),
            )  # fmt: skip

    @property
    def focal_sources(self) -> dict[str, str]:
        """Where the focal length of each camera is from: camera_info, corrected (camera_info with
        the lens that keyframes show), tracks or network."""
        return {
            camera: self._source(camera, known)
            for camera, known in sorted(self._calibrated.items())
        }

    def _source(self, camera: str, known: bool) -> str:
        if not known:
            return self.refiner.calibration.source(camera)
        return "corrected" if camera in self.corrected else "camera_info"

    @property
    def tracks(self) -> TrackSupport:
        """The tracks of the newest window."""
        return self.refiner.tracks if self.config.refinement.enabled else NO_TRACKS

    def view(self, id: int) -> TrackedView | None:
        """Returns a view of the newest window with its features; None if it has none."""
        return self.refiner.graph.views.get(id) if self.config.refinement.enabled else None

    def tracks_of(self, id: int, shape: tuple[int, ...]) -> StoredTracks:
        """Returns the tracks of a frame of the newest window, in pixels of its image of ``shape``
        (H, W, ...)."""
        view = self.view(id)
        if view is None:
            return NO_STORED_TRACKS
        seen = np.flatnonzero(view.track >= 0)
        height, width = view.features.shape
        pixels = view.features.pixel[seen] * (shape[1] / width, shape[0] / height)
        return StoredTracks(view.track[seen], pixels.astype(np.float32))

    def loop(self, window: Window, split: int, estimate: WindowEstimate) -> RefinedLoop | None:
        """Returns the estimate of a loop's window with poses by tracks; see ``refined_loop``."""
        estimate = self.refiner.calibrated(window, estimate)
        try:
            noise = self.refiner.graph.noise.depth
            return refined_loop(window, split, estimate, self.limits, noise)
        except Exception as error:
            self._report_failure(f"a loop is not refined, window {window.id}", error)
            return None

    def placed(self, new: OverlapView, others: Sequence[OverlapView]) -> PlacedView | None:
        """Returns where tracks place a keyframe among others whose poses are known, by their small
        images; None: they do not."""
        try:
            return self.placing.placed(new, others, self.limits, self.refiner.graph.noise.depth)
        except Exception as error:
            self._report_failure(f"keyframe {new.view.id} is not placed by tracks", error)
            return None

    @property
    def depth_means_nothing(self) -> bool:
        """Whether the network's depth has usually nothing to do with that of tracks, so that no
        depth of one view tells that it shows something else."""
        return self.refiner.graph.noise.depth > NO_DEPTH_ERROR / USUAL

    def _take_up(
        self, window: Window, estimate: WindowEstimate, S: Similarity, known: Mapping[int, Array]
    ) -> None:
        """As ``WindowRefiner.take_up``; if it fails, tracks begin with the window's new views."""
        try:
            self.refiner.take_up(window, estimate, S, known)
        except Exception as error:
            self._report_failure(f"window {window.id} has no tracks of earlier views", error)
            self.refiner.restart()

    def shows_known(
        self, prepared: PreparedView, depth: FloatImage, shared: Sequence[int]
    ) -> bool:
        """Returns whether features of a new view's full image match these views, by id: most of
        them, and with their depth, or, where the depth means nothing, some.

        depth: [h, w] predicted, any unit.
        """
        views, K = self.refiner.graph.views, prepared.view.K
        try:
            features = self.refiner.features(CameraImage(prepared.full, prepared.full_valid))
            if K is not None:
                size = prepared.view.image.shape[1::-1]
                K = resize_K(K, (size[0], size[1]), features.shape[::-1])
            # The newest first: what a view shows is likeliest there.
            known = [views[i] for i in reversed(shared) if i in views]
            if self.depth_means_nothing:
                return shows_known(features, K, known)
            return shows_mostly_known(features, log_depth_at(features, depth), K, known)
        except Exception as error:
            self._report_failure(f"features of view {prepared.view.id} are not compared", error)
            return False

    def would_join(
        self, window: Window, new: Sequence[PreparedView], doubted: Sequence[int],
        estimate: WindowEstimate, S: Similarity, table: MapTable,
    ) -> set[int]:  # fmt: skip
        """Returns which of the ``doubted`` new views, by index, tracks would join to earlier views
        if the window were refined where ``S`` places it in local; none if there is no time for
        that. Nothing changes."""
        if self._limit.is_behind:
            return set()
        start = time.perf_counter()
        try:
            images = [CameraImage(p.full, p.full_valid) for p in new]
            trial = self.refiner.copied(images[-1])
            trial.graph.place(self._poses(table), table.corrections)
            return joined_views(trial, window, images, doubted, estimate, S)
        except Exception as error:
            self._report_failure(f"the doubted views of window {window.id} are not tried", error)
            return set()
        finally:
            self._tried_s += time.perf_counter() - start

    def joined(
        self, window: Window, sides: Sequence[tuple[Sequence[int], Sequence[int]]],
        estimate: WindowEstimate,
    ) -> WindowEstimate | None:  # fmt: skip
        """Returns the estimate of a window with poses by tracks; None if these do not connect
        both views of each pair of ``sides`` (see ``joined_by_tracks``), or if the depth of the
        second ones has nothing to do with them."""
        try:
            noise = self.refiner.graph.noise.depth
            joined = joined_by_tracks(window, sides, estimate, self.limits, noise)
            if joined is None or not joined.depth_means_something:
                return None
            return joined.estimate
        except Exception as error:
            self._report_failure(f"tracks of window {window.id} are not compared", error)
            return None

    def _report_failure(self, what: str, error: Exception) -> None:
        self.counters["refinement_failed"] += 1
        count = self.counters["refinement_failed"]
        if count <= REPORTED:
            log.error("%s: %s: %s", what, type(error).__name__, error, exc_info=count == 1)

    def keep(self, table: MapTable) -> None:
        """Forgets views that no later window can share, and where the others are."""
        units = {id: unit for id, (_, unit) in self._poses(table).items()}
        self.refiner.end_window(units)

    @staticmethod
    def _poses(table: MapTable) -> dict[int, tuple[Array, float]]:
        """Returns the poses of the overlap views, and their units, by id."""
        ids = sorted(table.shared)
        T, units = table.poses(ids)
        return dict(zip(ids, zip(T, units.tolist(), strict=True), strict=True))


def described(found: LensEstimate) -> str:
    """Returns what a lens is beside the camera_info, in words."""
    lens = found.lens
    if lens.is_radial:
        return f"radial distortion k1 {lens.k1:+.3f}, k2 {lens.k2:+.3f}, the rest stays as stated"
    return (
        f"focal length {100 * math.expm1(lens.focal):+.1f} % (standard deviation "
        f"{100 * found.focal_sigma:.1f} %), principal point {lens.centre_x:+.3f} and "
        f"{lens.centre_y:+.3f} focal lengths, k1 {lens.k1:+.3f}, k2 {lens.k2:+.3f}"
    )


def chosen_limits(config: PipelineConfig) -> SolverLimits:
    """Returns the limits that the parameters admit; measures if they limit time."""
    refinement = config.refinement
    return choose_limits(refinement.max_features, refinement.max_ms * refinement.enabled)


# Scale measurements of a window, in the unit that refinement gives it.

LEAST_MOTION = 0.02  # spread of a camera's positions over depth, below which it shows no unit
DOUBT = 0.2  # share of a change of the unit that counts as error


def in_refined_unit(
    window: Window,
    network: WindowEstimate,
    refined: WindowEstimate,
    result: RefinedWindow,
    sources: Sequence[ScaleSource],
) -> WindowEstimate:
    """Returns a refined estimate with the network's scale measurements in its new unit; without
    those if a focal length was found, because what was measured has its error.

    network: the estimate before. sources: of the measurements. Tracks measure the metre of the rig
    themselves. A few returns are compared with the depth anew: where a single beam hits, tracks
    may correct it by more than elsewhere. Other measurements by depth are of all of an image, and
    those by poses have the unit of these, which tracks may bring to another one. Refined poses
    themselves are no measurement: those of earlier windows hold them, so that they repeat one
    error.
    """
    found: list[ScaleMeasurement | None] = []
    for measure, source in zip(network.measures, sources, strict=True):
        by_rig = source.needs_rig
        metre, open_ = result.views.metre, by_rig and result.views.metre_is_open
        if by_rig and metre is not None and result.views.metre_is_known:
            value = result.T_local_window.scale / math.exp(metre.log)
            found.append(ScaleMeasurement(value, metre.sigma))
        elif measure is None or result.change != NO_CHANGE or open_:
            found.append(None)
        elif source.needs_ranges and result.factors_by_tracks:
            seen = dataclasses.replace(refined, depth=result.for_returns(network.depth))
            found.append(source.measure(window, seen, None))
        elif source.by_depth:
            factor = float(np.median(result.factors))
            found.append(dataclasses.replace(measure, value=measure.value / factor))
        else:
            found.append(_by_positions(window, network, refined, measure))
    return dataclasses.replace(refined, measures=tuple(found))


def _by_positions(
    window: Window, network: WindowEstimate, refined: WindowEstimate, measure: ScaleMeasurement
) -> ScaleMeasurement | None:
    """Returns the measurement times the network's units per refined unit; None if no positions
    show them.

    The spread of each camera's positions counts; of a rig that has not moved, the distances
    between its cameras, which repeat an error of tracks in every window.
    """
    known = refined.depth[np.isfinite(refined.depth)]
    depth = float(np.median(known)) if len(known) else math.inf
    cameras = np.array([view.camera for view in window.views])
    for groups in (cameras, np.zeros(len(cameras), int)):
        before, after = (spread(p.T_window_camera[:, :3, 3], groups) for p in (network, refined))
        square = float((after**2).sum())
        if math.sqrt(square / len(after)) < LEAST_MOTION * depth:
            continue
        ratio = float((before * after).sum()) / square  # the network's positions have the errors
        if not ratio > 0:
            continue
        noise = float(((before - ratio * after) ** 2).sum()) / max(1, 3 * len(after) - 4)
        sigma = math.hypot(math.sqrt(noise / square) / ratio, DOUBT * math.log(ratio))
        return ScaleMeasurement(measure.value * ratio, math.hypot(measure.sigma, sigma))
    return None
