"""Runs the networks on a window; handles known poses, exhausted memory and unusable output."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from da3_ros.config import PipelineConfig
from da3_ros.inference import WindowTooLargeError
from da3_ros.inference.interfaces import MetricModel, Session
from da3_ros.inference.planner import wanted_views
from da3_ros.mapping.map_table import OverlapView
from da3_ros.pipeline.pose_conditioning import WindowPrior, window_prior
from da3_ros.pipeline.window_builder import PreparedView
from da3_ros.types import Prediction, View, Window, WindowEstimate

log = logging.getLogger(__name__)

FOCAL = (0.05, 50.0)  # range of credible focal lengths, over the image's width


class WindowInference:
    """Runs the session and the metric model. Owns window ids."""

    def __init__(
        self,
        config: PipelineConfig,
        session: Session,
        metric_model: MetricModel | None,
        counters: Counter[str],
    ) -> None:
        self.config, self.counters = config, counters
        self.session, self.metric_model = session, metric_model
        self.prior_fault = ""  # why the newest window has no prior poses, or no scale from them
        self._next_window = 0

    def reconfigure(self, config: PipelineConfig) -> None:
        """Sets the parameters that may change between windows."""
        self.config = config

    def plan_ahead(self) -> None:
        """Plans typical windows. Raises BudgetError if the memory budget admits none."""
        self.session.plan_ahead(*self._typical)

    def warm_up(self, stopping: Callable[[], bool]) -> bool:
        """Runs typical windows before the first frame; returns whether it was completed.

        Raises BudgetError or WindowTooLargeError.
        """
        done = self.session.warm_up(*self._typical, stopping=stopping)
        if done is None:
            return False
        if self.metric_model is not None:
            window, prediction = done
            self.metric_model.measure(window, WindowEstimate.of(prediction))
        return True

    @property
    def _typical(self) -> tuple[int, int]:
        """Views and new views of a full window."""
        window, cameras = self.config.window, max(1, len(self.config.cameras))
        return window.size, window.new * cameras

    def run(
        self, shared: list[OverlapView], new: Sequence[PreparedView]
    ) -> tuple[Window, list[OverlapView], Prediction] | None:
        """Runs a window; returns it with its overlap views and prediction.

        None, counted and logged, if the output is unusable. If memory runs out, the window runs
        again with half of its overlap views. At least the newest one stays: without it the window
        could not be aligned to the scene.
        """
        done = self._run(shared, new)
        if done is None:
            return None
        window, _, prediction = done
        fault = _fault(prediction, window)
        if fault:
            self.counters["dropped_unusable"] += len(new)
            log.error("window %d dropped: %s", window.id, fault)
            return None
        return done

    def run_loop(self, window: Window) -> WindowEstimate | None:
        """Returns the geometry of the views of a loop; None if they do not fit into memory, or if
        the output is unusable."""
        try:
            prediction = self.session.infer(window)
        except WindowTooLargeError as error:
            log.warning("loop-closure check skipped (out of memory): %s", error)
            return None
        if fault := _fault(prediction, window):
            self.counters["loops_unusable"] += 1
            log.warning("loop-closure check skipped: %s", fault)
            return None
        return without_invalid_depth(window, WindowEstimate.of(prediction))

    def with_metric_model(self, window: Window, estimate: WindowEstimate) -> WindowEstimate:
        """Returns the estimate with the metric model's measurement and sky, if there is one."""
        if self.metric_model is None:
            return estimate
        return self.metric_model.measure(window, estimate)

    def _run(
        self, shared: list[OverlapView], new: Sequence[PreparedView]
    ) -> tuple[Window, list[OverlapView], Prediction] | None:
        window_id = self._next_window
        self._next_window += 1
        while True:
            views = tuple(overlap_view.view for overlap_view in shared) + tuple(
                p.view for p in new
            )
            wanted = wanted_views(
                [one.keyframe for one in shared], [v.camera for v in views[: len(shared)]],
                len(new),
            )  # fmt: skip
            window = Window(
                window_id, views, len(new), wanted, self._window_prior(views).T_prior_camera
            )
            try:
                return window, shared, self.session.infer(window)
            except WindowTooLargeError as error:
                if len(shared) < 2:
                    self.counters["dropped_out_of_memory"] += len(new)
                    log.error("window %d dropped: %s", window_id, error)
                    return None
            shared = shared[-(len(shared) // 2) :]
            log.warning("window %d runs again with %d overlap views", window_id, len(shared))

    def _window_prior(self, views: tuple[View, ...]) -> WindowPrior:
        """Returns the robot's own poses for the network, if usable; logs changes."""
        if self.config.pose_prior.source == "none":
            return WindowPrior(None, False)
        given = window_prior(views)
        if given.reason != self.prior_fault:
            self.prior_fault = given.reason
            if given.reason:
                without = "poses without scale" if given.T_prior_camera is not None else "no poses"
                log.warning("pose_prior: %s; the network gets %s", given.reason, without)
            else:
                log.info("pose_prior: the network gets poses")
        return given


def without_invalid_depth(window: Window, estimate: WindowEstimate) -> WindowEstimate:
    """Returns the estimate with NaN for the depth of pixels that are not valid (see ``View``).

    For estimates: depth that moves with the camera would distort scale and alignment. Published
    depth is filtered from the network's whole depth, because to the filter of depth edges the
    border of such pixels would be an edge.
    """
    masks = [view.valid for view in window.views]
    if all(valid is None for valid in masks):
        return estimate
    depth = estimate.depth.copy()
    for one, valid in zip(depth, masks, strict=True):
        if valid is not None:
            one[~valid] = np.nan
    return dataclasses.replace(estimate, depth=depth)


def _fault(prediction: Prediction, window: Window) -> str:
    """Returns why a prediction is unusable, or an empty text."""
    if not prediction.posed:
        return ""
    if not np.isfinite(prediction.T_window_camera).all():
        return "the network's poses are not finite"
    width = prediction.depth.shape[-1]
    for view, K in zip(window.views, prediction.K, strict=True):
        # A field of view that the decoder clips to zero becomes a focal length of 5e5 widths.
        if view.K is None and not FOCAL[0] * width < K[0, 0] < FOCAL[1] * width:
            return (
                f"the network's focal length ({K[0, 0]:.3g} pixels at a width of {width}) is not "
                "credible: publish a camera_info"
            )
    return ""
