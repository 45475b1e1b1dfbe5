"""Visual odometry over windows: what a window shares, and where it lies in its segment.

All poses are in segment coordinates: the first camera of a stretch of windows that are aligned to
each other, in the unit of the first of them. So is ``ref`` of shared views and alignments here.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

import numpy as np

from da3_ros.config import PipelineConfig
from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.alignment import Alignment, WindowAligner
from da3_ros.mapping.covariance import MotionError, Observed, PoseUncertainty
from da3_ros.mapping.frames import SegmentFrame
from da3_ros.mapping.keyframes import KeyframeSelector, shares_taken
from da3_ros.mapping.resizing import Cut
from da3_ros.mapping.shared_view import SharedView
from da3_ros.mapping.submap_graph import Correction
from da3_ros.pipeline.loop_scheduler import conjugated
from da3_ros.pipeline.pose_conditioning import PriorPoseSubstitution, with_poses
from da3_ros.pipeline.window_builder import PreparedView
from da3_ros.types import Array, Prediction, View, Window

log = logging.getLogger(__name__)

REFUSALS = 5  # windows in a row that do not fit, after which the scene goes on in a new segment


class WindowOdometry:
    """Owns the shared views, the aligner, the newest poses, refusals, unit and covariance."""

    def __init__(
        self, config: PipelineConfig, motion_error: MotionError, counters: Counter[str]
    ) -> None:
        self.config, self.counters = config, counters
        self.prior = PriorPoseSubstitution(config.pose_prior.output)
        self.uncertainty = PoseUncertainty(motion_error)
        self.segment = -1
        self.unit = 1.0  # segment units per network unit of the newest window

    def start_segment(self, newest: dict[str, Array]) -> None:
        """Share nothing with what was before.

        newest: last pose [4, 4] of each camera, in segment coordinates, where the new segment
        begins; empty: at the origin.
        """
        self.prior.restart()
        self.uncertainty.start_segment(known=not newest)
        self.segment += 1
        self._share_nothing()
        self.newest = newest

    def _share_nothing(self) -> None:
        self.shared_views = KeyframeSelector(self.config.keyframe, self.config.window.size - 1)
        self.aligner = WindowAligner()
        self.refused = 0  # windows in a row
        self._unit_guessed = False  # of the newest window that did not fit
        self._unfit = 0  # windows in a row that a prior led although they do not fit

    @property
    def is_lost(self) -> bool:
        """Whether so many windows did not fit that a new segment must begin."""
        return self.refused >= REFUSALS

    @property
    def fits(self) -> bool:
        """Whether the newest window fits the scene."""
        return not self.refused and not self._unfit

    @property
    def unit_known(self) -> bool:
        """Whether the newest window's unit was found by its fit, or measured."""
        return self.fits or not self._unit_guessed

    def choose(self, room: int, new: Sequence[PreparedView]) -> list[SharedView]:
        """The views that the next window shares, at most ``room``."""
        shared = self.shared_views.choose(room, self.config.window.keyframes)
        if self.config.pose_prior.source == "none":
            return shared
        return with_poses(shared, lambda a: a.view, [p.view for p in new])

    def resize(self, cut: Cut) -> bool:
        """Bring shared views to another image size; False, unchanged, where too little is left."""
        newest = self.shared_views.newest
        if newest is not None and not cut.fits(newest):
            return False
        self.shared_views.resize(cut)
        return True

    def with_prior(self, window: Window, prediction: Prediction) -> Prediction:
        """``prediction`` with the unit that the prior gives, and with its poses if they go out."""
        return self.prior.apply(window, prediction, self.config.scale.source == "odometry")

    def place(
        self,
        window: Window,
        shared: list[SharedView],
        prediction: Prediction,
        unit: tuple[float, float] | None,
    ) -> tuple[Prediction, Alignment]:
        """Where a window lies in the segment; the prediction has the prior's poses if they lead.

        unit: segment units per network unit and its relative sigma, where the window was measured.
        """
        placed = self._place(window, shared, prediction, unit)
        prediction, placed = self.prior.place(window, prediction, placed)
        self._observe(window, shared, prediction, placed)
        self.unit = placed.T_ref_window.scale
        return prediction, placed

    def remember(self, view: View, frame: SegmentFrame) -> SharedView | None:
        """A delivered frame as one that later windows may share.

        None for a window that did not fit: it would spoil what was right so far. Its pose may be
        known all the same, by a prior; its depth is not.
        """
        self.newest[view.camera] = frame.T_segment_camera
        return SharedView.of(view, frame) if self.fits else None

    def is_keyframe(self, anchor: SharedView) -> bool:
        """Whether a view shows something new."""
        self.shared_views.limits = self.config.keyframe  # may have changed since
        return self.shared_views.is_new(anchor)

    def share(self, anchor: SharedView, *, keyframe: bool) -> None:
        """Later windows may share this view."""
        self.shared_views.add(anchor, keyframe)
        self.uncertainty.enter_submap(anchor.submap, anchor.view.id)

    def follow(self, correction: Correction, T_vo_segment: Similarity) -> None:
        """Move the shared views, and restate their covariance, as a loop corrected the scene."""
        self.shared_views.move(conjugated(correction.moves, T_vo_segment))
        newest = self.shared_views.newest
        if correction.covariance is None or newest is None:
            return
        views = {a.view.id: a for a in self.shared_views.all()}
        units = np.array([1, 1, 1, 1, *[1 / T_vo_segment.scale] * 3])
        self.uncertainty.close_loop(
            correction.covariance * np.outer(units, units),
            newest.view.id,
            [old for old, _ in correction.joined],
            {id: anchor.T_ref_camera[:3, 3] for id, anchor in views.items()},
            [id for id, anchor in views.items() if anchor.submap in correction.moves],
        )

    def finish_window(self) -> None:
        """Forget the covariance of views that no later window can share."""
        self.uncertainty.keep({anchor.view.id for anchor in self.shared_views.all()})

    def _place(
        self,
        window: Window,
        shared: list[SharedView],
        prediction: Prediction,
        unit: tuple[float, float] | None,
    ) -> Alignment:
        """Where the window lies; where it does not fit, motion goes on from the newest view."""
        if not shared:
            index = self._begins_at(window)
            begin = self.newest.get(window.views[index].camera, np.eye(4))
            at = Similarity.between(begin, prediction.T_window_camera[index], self.unit)
            return Alignment(at, self.counters["processed"] == 0, float("nan"), float("nan"))
        fit = self._fit(shared, prediction, unit)
        if fit is not None and fit.accepted:
            self.refused = self._unfit = 0
            self.shared_views.observe(shared, prediction, fit)
            return fit
        inliers = fit.inliers if fit is not None else 0.0
        newest = prediction.T_window_camera[len(shared) - 1]
        said = self.prior.unit or unit
        self._unit_guessed = said is None
        held = Similarity.between(
            shared[-1].T_ref_camera, newest, self.unit if said is None else said[0]
        )
        reason = "no depth in common" if fit is None else fit.reason
        log.warning("window %d does not fit the scene: %s", window.id, reason)
        self.counters["windows_refused"] += 1
        if self.prior.leads(window):  # which says where it lies, whatever its depths are worth
            self.refused = 0
            self._unfit += 1
            if self._unfit > REFUSALS and self.prior.knows_unit:
                log.warning("it is what they share that is wrong: the prior alone goes on")
                self._share_nothing()  # but what this window brings
            return Alignment(held, True, float("nan"), inliers)
        self.refused += 1
        return Alignment(held, False, float("nan"), inliers)

    def _begins_at(self, window: Window) -> int:
        """Index of the view that places a segment's first window: of a camera seen before."""
        known = [i for i, view in enumerate(window.views) if view.camera in self.newest]
        return known[0] if known else 0

    def _fit(
        self, shared: list[SharedView], prediction: Prediction, unit: tuple[float, float] | None
    ) -> Alignment | None:
        """With the measured unit; without it, where that would spoil the fit."""
        indices = range(len(shared))
        if unit is not None:
            fit = self.aligner.join(shared, prediction, indices, unit)
            if fit is not None and fit.accepted:
                return fit
        return self.aligner.join(shared, prediction, indices)

    def _observe(
        self, window: Window, shared: list[SharedView], prediction: Prediction, placed: Alignment
    ) -> None:
        """Propagate the covariance of poses through a window; after a misfit it is unknown.

        Where the prior's own poses go out, they are as sure as the robot knows and we do not.
        """
        if self.refused or (placed.gains is None and shared) or self.prior.in_place:
            return
        T_segment_window = placed.T_ref_window
        depths = [np.median(a.depth) for a in shared if len(a.depth)]
        known = prediction.depth[np.isfinite(prediction.depth)]
        unit = T_segment_window.scale
        depth = np.median(depths) if depths else unit * np.median(known) if len(known) else 1.0
        seen = Observed(
            ids=[view.id for view in window.views],
            poses=np.stack([T_segment_window.pose(T) for T in prediction.T_window_camera]),
            depth=float(depth),
            about=np.zeros(3) if placed.about is None else T_segment_window.points(placed.about),
            gains=placed.gains if placed.gains is not None else np.zeros((0, 7, 7)),
            residuals=placed.residuals if placed.residuals is not None else np.zeros((0, 7)),
            taken=shares_taken(shared, prediction),
        )
        if shared:
            self.uncertainty.join(seen)
        else:
            self.uncertainty.begin(seen, self._begins_at(window))
