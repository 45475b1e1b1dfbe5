"""Visual odometry over windows: selects overlap views, and places each window.

All poses are in the frame of odometry, ``local`` (see ``MapTable``): that of the first camera,
in the unit of the first window.
"""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from da3_ros.config import PipelineConfig
from da3_ros.geometry.poses import invert_pose, turned
from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.alignment import Alignment, WindowAligner
from da3_ros.mapping.covariance import (
    MotionError,
    PoseUncertainty,
    RefinedObservation,
    WindowObservation,
)
from da3_ros.mapping.frames import LocalFrame
from da3_ros.mapping.graph_solution import Correction
from da3_ros.mapping.keyframes import KeyframeSelector, update_weights
from da3_ros.mapping.map_table import MapTable, OverlapView
from da3_ros.mapping.resizing import Cut
from da3_ros.pipeline.pose_conditioning import PriorPoseSubstitution, views_with_poses
from da3_ros.pipeline.window_builder import PreparedView
from da3_ros.refinement.refiner import RefinedWindow
from da3_ros.sensors.calibration import rectification_rotation, resized_calibration
from da3_ros.sensors.distortion import undistort
from da3_ros.sensors.rectifier import Rectifier
from da3_ros.types import Array, Calibration, View, Window, WindowEstimate

log = logging.getLogger(__name__)


REFUSALS = 5  # consecutive refused windows after which a new chain begins


class WindowOdometry:
    """Owns the overlap views, the aligner, the newest poses, refusals, unit and covariance."""

    def __init__(
        self, config: PipelineConfig, motion_error: MotionError, counters: Counter[str],
        table: MapTable,
    ) -> None:  # fmt: skip
        """table: the map's, which has the poses of overlap views."""
        self.config, self.counters, self._table = config, counters, table
        self.prior = PriorPoseSubstitution(config.pose_prior.output)
        self.uncertainty = PoseUncertainty(motion_error)
        self._refined = False  # whether the newest window is refined
        self._depth_doubtful = False  # whether its depth contradicts scene and tracks
        self.refusal = ""  # why the newest window does not fit
        self._clear_overlap_views()

    def reconfigure(self, config: PipelineConfig) -> None:
        """Sets the parameters that may change between windows."""
        self.config = config
        self.overlap_views.reconfigure(config.keyframe)

    def start_chain(self, newest: dict[str, Array]) -> None:
        """Begins a chain that shares no view with earlier windows.

        newest: last pose [4, 4] of each camera, where the chain begins; empty: at the origin.
        """
        self.prior.restart()
        self.uncertainty.start_chain(known=not newest)
        self._clear_overlap_views()
        self.newest = newest

    def forget_views(self) -> None:
        """Forgets the overlap views: the next window begins where the cameras' newest poses are
        set to, with an unknown covariance."""
        self._clear_overlap_views()
        self.uncertainty.start_chain(known=False)

    def turn_cameras(self, camera: str, R: Array) -> None:
        """Turns the newest pose of a camera by R [3, 3] in its own axes, and those of the others
        with it."""
        before = self.newest.get(camera)
        if before is not None:
            move = turned(before, R) @ invert_pose(before)
            self.newest = {name: move @ T for name, T in self.newest.items()}

    def _clear_overlap_views(self) -> None:
        self.overlap_views = KeyframeSelector(
            self.config.keyframe, self.config.window.size - 1, self._table
        )
        self.aligner = WindowAligner()
        self.refused = 0  # consecutive refused windows
        self._unit_guessed = False  # whether the unit of the newest refused window is a guess
        self._unfit = 0  # consecutive windows placed by the prior although they do not fit
        self._suspects: set[int] = set()  # keyframes that refused windows shared

    @property
    def is_lost(self) -> bool:
        """Whether so many consecutive windows were refused that a new chain must begin."""
        return self.refused >= REFUSALS

    @property
    def fits(self) -> bool:
        """Whether the newest window fits the scene."""
        return not self.refused and not self._unfit

    @property
    def unit_known(self) -> bool:
        """Whether the newest window's unit is from its alignment, or measured."""
        return self.fits or not self._unit_guessed

    def choose(self, room: int, new: Sequence[PreparedView]) -> list[OverlapView]:
        """Returns the views that the next window shares, at most ``room``."""
        # A keyframe may be near only by drift: then windows fit without it.
        keyframes = 0 if self.refused else self.config.window.keyframes
        shared = self.overlap_views.choose(room, keyframes)
        if self.config.pose_prior.source == "none":
            return shared
        return views_with_poses(shared, lambda a: a.view, [p.view for p in new])

    def would_fit(self, shared: list[OverlapView], estimate: WindowEstimate) -> bool:
        """Whether a window that shares these views fits the scene; nothing learns from it."""
        aligner = copy.deepcopy(self.aligner)
        aligner.forget_unit()
        fit = aligner.align(shared, estimate, range(len(shared)))
        return fit is not None and fit.accepted

    def would_place(self, shared: list[OverlapView], estimate: WindowEstimate) -> Similarity:
        """Returns ``T_local_window`` as ``place`` would set it without a measured unit; nothing
        learns from it."""
        fit = copy.deepcopy(self.aligner).align(shared, estimate, range(len(shared)))
        if fit is not None and fit.accepted:
            return fit.T_local_window
        return _by_own_motion(shared, estimate, self._table.unit)

    def resize(self, cut: Cut) -> bool:
        """Brings overlap views to another image size; returns False, and changes nothing, if too
        little of the images would remain."""
        newest = self.overlap_views.newest
        if newest is not None and not cut.fits(self._table.shared[newest.view.id]):
            return False
        self.overlap_views.resize(cut)
        return True

    def rectify_again(self, late: PreparedView) -> None:
        """Brings the newest view of a camera without calibration to the one that it has now, and
        drops its others: windows of rectified images continue the chain from there."""
        camera, calibration = late.view.camera, late.calibration
        assert calibration is not None
        self.overlap_views.only_newest(
            camera, lambda a: rectified_again(a, calibration, rectified=late.rectified)
        )
        for a in self.overlap_views.newest_views:
            if a.view.camera == camera:
                self.newest[camera] = a.T_local_camera
        self.aligner = WindowAligner()  # how well windows fitted was learned without it

    def place(
        self,
        window: Window,
        shared: list[OverlapView],
        estimate: WindowEstimate,
        unit: tuple[float, float] | None,
    ) -> tuple[WindowEstimate, Alignment]:
        """Places a window; the estimate gets the prior's poses if configured.

        unit: of odometry, per network unit, and its relative sigma; None if not measured.
        """
        self._refined, self._depth_doubtful, self.refusal = False, False, ""
        placed = self._place(window, shared, estimate, unit)
        by_network = not self.prior.replaces_poses
        estimate, placed = self.prior.place(window, estimate, placed)
        if by_network and self.prior.replaces_poses:
            self._take_prior_poses()
        self._observe(window, shared, estimate, placed)
        self._table.set_unit(placed.T_local_window.scale)
        return estimate, placed

    def overlap_view_of(self, view: View, frame: LocalFrame) -> OverlapView | None:
        """Notes a frame's pose; returns the overlap view that later windows may use.

        None for a frame of a refused window: its depth is wrong, even if a prior gives its pose.
        """
        self.newest[view.camera] = frame.T_local_camera
        if not self.fits:
            return None
        overlap_view = OverlapView.of(view, frame)
        return replace(overlap_view, refined=self._refined or self.prior.replaces_poses)

    def _take_prior_poses(self) -> None:
        """Gives the prior's poses to the views that came before it was aligned."""
        views = [a.view for a in self.overlap_views.all() if not a.refined]
        poses = self.prior.poses_since_gap(views)
        self.overlap_views.adjust({id: (T, 1.0) for id, T in poses.items()})
        for a in self.overlap_views.newest_views:
            self.newest[a.view.camera] = a.T_local_camera

    def is_keyframe(self, overlap_view: OverlapView, motion: float = 1.0) -> bool:
        """True if a view is far enough from all keyframes to become one; doubtful depth must not
        enter the map. motion: share of the usual one that is enough."""
        return not self._depth_doubtful and self.overlap_views.is_new(overlap_view, motion)

    def share(
        self, overlap_view: OverlapView, *, keyframe: bool, descriptor: Array | None = None
    ) -> None:
        """Makes a view available to later windows. descriptor: [D] as in ``Prediction``."""
        self.overlap_views.add_view(overlap_view, keyframe, descriptor)
        self.uncertainty.enter_submap(overlap_view.submap, overlap_view.view.id)

    def apply_refinement(self, refined: RefinedWindow) -> None:
        """Applies the poses of a refined window; it fits, even if alignment refused it."""
        self.refused = self._unfit = 0
        self._suspects = set()
        # Alignment and tracks both contradict the depth: the pose is known all the same.
        self._depth_doubtful = bool(self.refusal) and not refined.depth_agrees
        self._refined, self._unit_guessed, self.refusal = True, False, ""
        self._table.set_unit(refined.T_local_window.scale)
        self.overlap_views.adjust(
            {id: (after, factor) for id, (_, after, factor) in refined.moved.items()}
        )
        for overlap_view in self.overlap_views.newest_views:
            self.newest[overlap_view.view.camera] = overlap_view.T_local_camera
        views = refined.views
        if views.errors is not None:
            errors = views.errors
            self.uncertainty.add_refined(RefinedObservation(
                views.ids, views.held, views.poses, views.depth,
                errors.covariance, errors.by_held, errors.by_network, refined.guessed_focal,
            ))  # fmt: skip

    def report_refusal(self, window: Window) -> None:
        """Logs and counts a window that does not fit the scene, if the newest one does not."""
        if self.refusal:
            log.warning("window %d does not fit the scene: %s", window.id, self.refusal)
            self.counters["windows_refused"] += 1

    def apply_correction(self, correction: Correction, metres: float) -> None:
        """Updates what the prior says of overlap views, and their covariance, after a correction
        of the map.

        metres: per unit of odometry; NaN: unknown.
        """
        T_prior_local = self._place_in_prior(correction, metres)
        if T_prior_local is not None:
            self._correct_prior(correction, T_prior_local)
        self._move_uncertainty(correction)

    def _correct_prior(self, correction: Correction, T_prior_local: Similarity) -> None:
        """Moves the prior's poses of the views of submaps that have moved in odometry."""
        for id in self.overlap_views.ids:
            row = self._table.shared[id]
            T, move = row.view.T_prior_camera, correction.local_move(row.submap)
            if T is not None and move is not None:
                in_prior = T_prior_local @ move @ T_prior_local.inverse()
                view = replace(row.view, T_prior_camera=in_prior.pose(T))
                self._table.set_row(replace(row, view=view))

    def _place_in_prior(self, correction: Correction, metres: float) -> Similarity | None:
        """Returns the frame of odometry in the prior's frame, by the newest view that stays; None
        if it is unknown."""
        for a in reversed(self.overlap_views.newest_views):
            T = a.view.T_prior_camera
            if T is not None and correction.local_move(a.submap) is None and metres > 0:
                return Similarity.between(T, a.T_local_camera, metres)
        return None

    def _move_uncertainty(self, correction: Correction) -> None:
        newest = self.overlap_views.newest
        if correction.adjusted and newest is not None:
            others = self.overlap_views.ids - {newest.view.id}
            self.uncertainty.move_in_odometry(others, newest.view.id)
        if correction.covariance is None or newest is None:
            return
        views = {a.view.id: a for a in self.overlap_views.all()}
        self.uncertainty.close_loop(
            correction.covariance,
            newest.view.id,
            [old for old, _ in correction.loops],
            {id: overlap_view.T_local_camera[:3, 3] for id, overlap_view in views.items()},
            [id for id, overlap_view in views.items() if overlap_view.submap in correction.moves],
        )

    def finish_window(self) -> None:
        """Forgets the covariance of views that no later window can share."""
        self.uncertainty.keep(self.overlap_views.ids)

    def _place(
        self,
        window: Window,
        shared: list[OverlapView],
        estimate: WindowEstimate,
        unit: tuple[float, float] | None,
    ) -> Alignment:
        """Aligns the window to the overlap views.

        A refused window is placed by its own motion from the newest overlap view.
        """
        if not shared:
            index = self._reference_index(window)
            begin = self.newest.get(window.views[index].camera, np.eye(4))
            at = Similarity.between(begin, estimate.T_window_camera[index], self._table.unit)
            return Alignment(at, self.counters["processed"] == 0, float("nan"), float("nan"))
        fit = self._fit(shared, estimate, unit)
        if fit is not None and fit.accepted:
            self.refused = self._unfit = 0
            self.overlap_views.forget(self._suspects)
            self._suspects = set()
            self.overlap_views.observe(shared, estimate, fit)
            return fit
        self._suspects |= {a.view.id for a in shared if a.keyframe}
        inliers = fit.inliers if fit is not None else 0.0
        measured = self.prior.unit or unit
        self._unit_guessed = measured is None
        held = _by_own_motion(
            shared, estimate, self._table.unit if measured is None else measured[0]
        )
        reason = "the overlap views have no depth" if fit is None else fit.reason
        self.refusal = reason
        if self.prior.leads(window):  # the pose is known even if the depth is wrong
            self.refused = 0
            self._unfit += 1
            if self._unfit > REFUSALS and self.prior.knows_unit:
                log.warning(
                    "%d windows in a row do not fit: the overlap views are dropped, "
                    "poses come from the prior alone", self._unfit
                )  # fmt: skip
                self._clear_overlap_views()  # new ones come from this window
            return Alignment(held, True, float("nan"), inliers)
        self.refused += 1
        return Alignment(held, False, float("nan"), inliers)

    def _reference_index(self, window: Window) -> int:
        """Returns the index of the view that places a chain's first window: the first one of a
        known camera."""
        known = [i for i, view in enumerate(window.views) if view.camera in self.newest]
        return known[0] if known else 0

    def _fit(
        self, shared: list[OverlapView], estimate: WindowEstimate, unit: tuple[float, float] | None
    ) -> Alignment | None:
        """Aligns a window with the measured unit, or without it if that is refused."""
        indices = range(len(shared))
        if unit is not None:
            fit = self.aligner.align(shared, estimate, indices, unit)
            if fit is not None and fit.accepted:
                return fit
        return self.aligner.align(shared, estimate, indices)

    def _observe(
        self,
        window: Window,
        shared: list[OverlapView],
        estimate: WindowEstimate,
        placed: Alignment,
    ) -> None:
        """Propagates the covariance of poses through a window; not of a refused one.

        Nor of a window with the prior's own poses: their covariance is unknown.
        """
        if self.refused:
            return
        if (placed.gains is None and shared) or self.prior.replaces_poses:
            self.uncertainty.note_unmeasured()
            return
        refined_later = self.config.refinement.enabled and not self.prior.leads_poses(window)
        T_local_window = placed.T_local_window
        depths = [np.median(a.depth) for a in shared if len(a.depth)]
        known = estimate.depth[np.isfinite(estimate.depth)]
        unit = T_local_window.scale
        depth = np.median(depths) if depths else unit * np.median(known) if len(known) else 1.0
        observation = WindowObservation(
            ids=[view.id for view in window.views],
            poses=np.stack([T_local_window.pose(T) for T in estimate.T_window_camera]),
            depth=float(depth),
            pivot=np.zeros(3) if placed.pivot is None else T_local_window.points(placed.pivot),
            gains=placed.gains if placed.gains is not None else np.zeros((0, 7, 7)),
            residuals=placed.residuals if placed.residuals is not None else np.zeros((0, 7)),
            update_weights=update_weights(shared, estimate),
            refined_later=refined_later,
        )
        if shared:
            self.uncertainty.add_window(observation)
        else:
            self.uncertainty.begin_chain(observation, self._reference_index(window))


def _by_own_motion(
    shared: Sequence[OverlapView], estimate: WindowEstimate, unit: float
) -> Similarity:
    """Returns ``T_local_window`` by the motion in the window from its newest overlap view on."""
    newest = estimate.T_window_camera[len(shared) - 1]
    return Similarity.between(shared[-1].T_local_camera, newest, unit)


# Rectifies a view again whose calibration came late, so that later windows can share it.


def rectified_again(a: OverlapView, calibration: Calibration, *, rectified: bool) -> OverlapView:
    """Returns a view that had no calibration, with its image rectified.

    Each sample of depth moves to the pixel that shows its point now, so that the view aligns
    windows of rectified images to those of before. rectified: the image already was, only K was
    unknown. Raises CalibrationError.
    """
    view, size = a.view, a.view.image.shape[1::-1]
    c, rectifier = resized_calibration(calibration, (size[0], size[1])), Rectifier()
    done = rectifier(view.image, c, rectified)
    valid = done.valid
    if view.valid is not None:
        seen = rectifier(view.valid.astype(np.uint8) * 255, c, rectified).image == 255
        valid = seen if valid is None else valid & seen
    view = replace(view, image=done.image, K=done.K, valid=valid)
    out = replace(a, view=view, K=done.K, observations=1.0, keyframe=False, refined=False)
    return out if rectified else _with_moved_samples(out, c)


def _with_moved_samples(a: OverlapView, c: Calibration) -> OverlapView:
    """Moves pose and samples from the raw image of ``c`` to the rectified one."""
    height, width = a.view.image.shape[:2]
    row, column = np.divmod(a.pixels, width)
    rays = undistort(c, np.stack((column, row), axis=-1).astype(np.float64))
    R = rectification_rotation(c)
    P = c.K if c.P is None else c.P[:, :3]
    points = a.depth[:, None] * np.column_stack((rays, np.ones(len(rays)))) @ R.T
    inside = np.isfinite(points).all(axis=1) & (points[:, 2] > 0)
    projected = points[inside] @ P.T
    x, y = np.round(projected[:, :2] / projected[:, 2:]).astype(np.int64).T
    index, pixels = _in_image(np.flatnonzero(inside), x, y, (width, height))
    T = a.T_local_camera.copy()
    T[:3, :3] = T[:3, :3] @ R.T
    return replace(
        a, T_local_camera=T, pixels=pixels, depth=points[index, 2], confidence=a.confidence[index]
    )


def _in_image(
    index: NDArray[np.intp], x: Array, y: Array, size: tuple[int, int]
) -> tuple[NDArray[np.intp], Array]:
    """Returns which samples lie in the image, one of each pixel, and their flat pixels."""
    inside = (x >= 0) & (x < size[0]) & (y >= 0) & (y < size[1])
    pixels, first = np.unique((y * size[0] + x)[inside], return_index=True)
    return index[inside][first], pixels
