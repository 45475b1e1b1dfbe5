"""Windows that have a pose in odometry, and what is published of them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from da3_ros.config import DepthConfig
from da3_ros.geometry.similarity import IDENTITY
from da3_ros.mapping.alignment import Alignment
from da3_ros.mapping.covariance import PoseUncertainty, in_metres, kept_error, rotated_covariance
from da3_ros.mapping.depth_filter import filter_depth, sky_mask
from da3_ros.mapping.frames import LocalFrame
from da3_ros.pipeline.window_builder import PreparedView
from da3_ros.refinement.refiner import NO_TRACKS, RefinedWindow, TrackSupport
from da3_ros.types import (
    Array,
    FloatImage,
    Prediction,
    Scale,
    TrackedFrame,
    Window,
    WindowEstimate,
    WindowReport,
)

# The alignment of a window of a single-image network.
UNPLACED = Alignment(IDENTITY, False, float("nan"), float("nan"))

# The window of frames before the first one.
NO_WINDOW = WindowReport(
    id=-1, stamp_ns=0, view_ids=(), new_frames=0, aligned=False, alignment_rms=float("nan"),
    alignment_inliers=float("nan"), unit=float("nan"),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class PlacedWindow:
    """A window with its pose in odometry."""

    window: Window
    prediction: Prediction  # of the network
    estimate: WindowEstimate  # by prior and tracks, if any; without depth of masked pixels
    alignment: Alignment
    # [N, h, w] to be published, network units: also that of masked pixels, which ``filter_depth``
    # removes; without it, their border would be an edge.
    depth: FloatImage
    refined: RefinedWindow | None = None  # None: not by tracks

    def unfiltered_depth(self, prepared: PreparedView, index: int) -> FloatImage:
        """Returns the depth [h, w] of view ``index`` in units of odometry, without confidence
        filter: NaN where nothing is known or the robot is seen, +Inf sky."""
        depth = self.depth[index] * np.float32(self.alignment.T_local_window.scale)
        everything = np.full_like(depth, 1e30)
        config = DepthConfig(edge_filter=False)
        return filter_depth(depth, everything, config, prepared.view.valid, self._sky(index))

    def _sky(self, index: int) -> NDArray[np.bool_] | None:
        sky = self.estimate.sky
        return None if sky is None else sky_mask(sky[index])

    def frame(
        self, prepared: PreparedView, index: int, report: WindowReport, config: DepthConfig
    ) -> LocalFrame:
        """Returns the frame of view ``index``, with filtered depth."""
        view, confidence = prepared.view, self.prediction.confidence[index]
        depth = self.depth[index] * np.float32(self.alignment.T_local_window.scale)
        # A single-image network gives no confidence: none of its depth is filtered by it.
        trusted = confidence if self.prediction.posed else np.full_like(confidence, 1e30)
        return LocalFrame(
            id=view.id,
            stamp_ns=view.stamp_ns,
            frame_id=view.frame_id,
            camera=view.camera,
            image=view.image,
            depth=filter_depth(depth, trusted, config, view.valid, self._sky(index)),
            confidence=confidence,
            K=self.estimate.K[index] if view.K is None else view.K,
            T_local_camera=self.T_local_camera(index),
            scale=report.scale,
            window=report,
            is_reference=prepared.is_reference,
            T_level_camera=view.T_level_camera,
        )

    def T_local_camera(self, index: int) -> Array:
        """Returns the pose [4, 4] of view ``index`` in odometry, as this window sees it."""
        return self.alignment.T_local_window.pose(self.estimate.T_window_camera[index])

    def drift(self) -> tuple[Alignment, Array, float] | None:
        """Returns the alignment, the centre [3] of the newest camera, and the mean age of the
        overlap views, in windows; None if the window adds no known drift."""
        new, ids = self.window.new, [view.id for view in self.window.views]
        alignment, lag = self.alignment, (ids[-new] - float(np.mean(ids[:-new] or ids))) / new
        if self.refined is not None:  # relative to the held views
            covariance = self.refined.views.newest_covariance
            alignment = dataclasses.replace(alignment, covariance=covariance)
            lag = len(self.refined.views.ids) / new
        if not alignment.accepted or alignment.covariance is None:
            return None
        camera = self.estimate.T_window_camera[-1, :3, 3]
        return alignment, self.alignment.T_local_window.points(camera), lag


def report_of(
    placed: PlacedWindow,
    scale: Scale,
    *,
    chain: int,
    loop_closed: bool,
    total_s: float,
    T_map_camera: Array | None = None,
    tracks: TrackSupport = NO_TRACKS,
    refinement_s: float = 0.0,
) -> WindowReport:
    """Returns the report of a window. T_map_camera: [N, 4, 4] of its views; None: unknown."""
    window, alignment = placed.window, placed.alignment
    return WindowReport(
        id=window.id,
        stamp_ns=max(view.stamp_ns for view in window.views[-window.new :]),
        view_ids=tuple(view.id for view in window.views),
        new_frames=window.new,
        aligned=alignment.accepted,
        alignment_rms=alignment.rms,
        alignment_inliers=alignment.inliers,
        unit=alignment.T_local_window.scale,
        scale=scale,
        loop_closed=loop_closed,
        chain=chain,
        focal_ratio=_focal_ratio(window, placed.estimate),
        refined=tracks.refined,
        tracks=tracks.count,
        reprojection_px=tracks.reprojection_px,
        refinement_s=refinement_s,
        inference_s=placed.prediction.inference_s,
        total_s=total_s,
        T_map_camera=np.zeros((0, 4, 4)) if T_map_camera is None else T_map_camera,
    )


def tracked_frame(
    frame: LocalFrame, depth_m: FloatImage, T_map_camera: Array, T_odom_map: Array
) -> TrackedFrame:
    """Returns the frame to publish, without covariances."""
    return TrackedFrame(
        id=frame.id,
        stamp_ns=frame.stamp_ns,
        frame_id=frame.frame_id,
        camera=frame.camera,
        image=frame.image,
        depth_m=depth_m,
        confidence=frame.confidence,
        K=frame.K,
        T_map_camera=T_map_camera,
        keyframe=frame.keyframe,
        scale=frame.scale,
        window=frame.window,
        T_odom_map=T_odom_map,
        is_reference=frame.is_reference,
        T_level_camera=frame.T_level_camera,
    )


def _focal_ratio(window: Window, estimate: WindowEstimate) -> float:
    """Returns the predicted over the calibrated focal length; NaN without calibration."""
    views = zip(window.views, estimate.K, strict=True)
    ratios = [K[0, 0] / view.K[0, 0] for view, K in views if view.K is not None]
    return float(np.median(ratios)) if ratios else float("nan")


def with_covariance(
    frame: TrackedFrame, T_odom_local: Array, T_local_camera: Array, unit: float,
    R_map_local: Array | None, uncertainty: PoseUncertainty, centre: Array,
) -> TrackedFrame:  # fmt: skip
    """Returns the frame with its covariances, in the map's axes and the published unit.

    Transforms [4, 4] are in the published unit; ``unit``: of those per unit of odometry.
    ``T_odom_local`` is what odometry has not taken over of later estimates: a known part of its
    error. R_map_local [3, 3]: None if the pose in the map is unknown. centre [3]: the place in the
    map that a new scale does not move.
    """
    sigma, T = frame.scale.sigma, frame.T_map_camera
    in_odom = uncertainty.odometry(frame.id)
    if in_odom is not None:
        position = (T_odom_local @ T_local_camera)[:3, 3]
        in_odom = in_metres(in_odom, unit, sigma, position)
        in_odom = in_odom + kept_error(T_odom_local, T_local_camera)
    in_map = None if R_map_local is None else uncertainty.in_map(frame.id)
    if in_map is not None and R_map_local is not None:
        in_map = rotated_covariance(in_map, R_map_local)
        in_map = in_metres(in_map, unit, sigma, T[:3, 3] - centre)
    return dataclasses.replace(frame, covariance_odom=in_odom, covariance_map=in_map)


def less_certain(frame: TrackedFrame, variances: Array, unit: float) -> TrackedFrame:
    """Returns the frame with variances [6] of (position, rotation) added to its covariances.

    variances: in units of odometry and rad, the same in all directions. unit: published units per
    unit of odometry.
    """
    more = np.diag(variances * np.repeat([unit**2, 1.0], 3))
    odom, in_map = (
        None if covariance is None else covariance + more
        for covariance in (frame.covariance_odom, frame.covariance_map)
    )
    return dataclasses.replace(frame, covariance_odom=odom, covariance_map=in_map)
