"""Makes frames and window reports from predictions. Functions only."""

from __future__ import annotations

import dataclasses

import numpy as np

from da3_ros.config import DepthConfig
from da3_ros.geometry.similarity import IDENTITY, Similarity
from da3_ros.mapping.alignment import Alignment
from da3_ros.mapping.covariance import PoseUncertainty, in_metres, kept_error, rotated_covariance
from da3_ros.mapping.depth_filter import filter_depth, sky_mask
from da3_ros.mapping.frames import LocalFrame
from da3_ros.pipeline.window_builder import PreparedView
from da3_ros.refinement.refiner import NO_TRACKS, RefinedWindow, Tracks
from da3_ros.types import (
    Array,
    FloatImage,
    Prediction,
    Scale,
    TrackedFrame,
    Window,
    WindowReport,
)

# The alignment of a window of a single-image network.
UNPLACED = Alignment(IDENTITY, False, float("nan"), float("nan"))

# The window of frames before the first one.
NO_WINDOW = WindowReport(
    id=-1, stamp_ns=0, view_ids=(), new_frames=0, aligned=False, alignment_rms=float("nan"),
    alignment_inliers=float("nan"), unit=float("nan"),
)  # fmt: skip


def report_of(
    window: Window,
    prediction: Prediction,
    placed: Alignment,
    scale: Scale,
    *,
    segment: int,
    loop_closed: bool,
    total_s: float,
    tracks: Tracks = NO_TRACKS,
    refinement_s: float = 0.0,
) -> WindowReport:
    """Returns the report of a window."""
    return WindowReport(
        id=window.id,
        stamp_ns=max(view.stamp_ns for view in window.views[-window.new :]),
        view_ids=tuple(view.id for view in window.views),
        new_frames=window.new,
        aligned=placed.accepted,
        alignment_rms=placed.rms,
        alignment_inliers=placed.inliers,
        unit=placed.T_local_window.scale,
        scale=scale,
        loop_closed=loop_closed,
        segment=segment,
        focal_ratio=_focal_ratio(window, prediction),
        refined=tracks.refined,
        tracks=tracks.count,
        reprojection_px=tracks.reprojection_px,
        refinement_s=refinement_s,
        inference_s=prediction.inference_s,
        total_s=total_s,
    )


def local_frame(
    prepared: PreparedView,
    index: int,
    prediction: Prediction,
    T_local_window: Similarity,
    report: WindowReport,
    config: DepthConfig,
) -> LocalFrame:
    """Returns the frame of view ``index`` in the frame of odometry, with filtered depth."""
    view, confidence = prepared.view, prediction.confidence[index]
    depth = prediction.depth[index] * np.float32(T_local_window.scale)
    sky = None if prediction.sky is None else sky_mask(prediction.sky[index])
    # A single-image network gives no confidence: none of its depth is filtered by it.
    trusted = confidence if prediction.posed else np.full_like(confidence, 1e30)
    return LocalFrame(
        id=view.id,
        stamp_ns=view.stamp_ns,
        frame_id=view.frame_id,
        camera=view.camera,
        image=view.image,
        depth=filter_depth(depth, trusted, config, view.valid, sky),
        confidence=confidence,
        K=prediction.K[index] if view.K is None else view.K,
        T_local_camera=T_local_window.pose(prediction.T_window_camera[index]),
        scale=report.scale,
        window=report,
        leads=prepared.leads,
    )


def unfiltered_depth(
    prepared: PreparedView, prediction: Prediction, index: int, unit: float
) -> FloatImage:
    """Returns the depth [h, w] of view ``index`` in units of odometry, without confidence filter.

    NaN where nothing is known or the robot is seen, +Inf sky. unit: of odometry, per network unit.
    """
    depth = prediction.depth[index] * np.float32(unit)
    sky = None if prediction.sky is None else sky_mask(prediction.sky[index])
    everything = np.full_like(depth, 1e30)
    return filter_depth(
        depth, everything, DepthConfig(edge_filter=False), prepared.view.valid, sky
    )


def tracked_frame(
    frame: LocalFrame, depth_m: FloatImage, T_world_camera: Array, T_odom_world: Array
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
        T_world_camera=T_world_camera,
        keyframe=frame.keyframe,
        scale=frame.scale,
        window=frame.window,
        T_odom_world=T_odom_world,
        leads=frame.leads,
    )


def _focal_ratio(window: Window, prediction: Prediction) -> float:
    """Returns the predicted over the calibrated focal length; NaN without calibration."""
    views = zip(window.views, prediction.K, strict=True)
    ratios = [K[0, 0] / view.K[0, 0] for view, K in views if view.K is not None]
    return float(np.median(ratios)) if ratios else float("nan")


def with_covariance(
    frame: TrackedFrame, T_odom_local: Array, T_local_camera: Array, unit: float,
    R_map_local: Array | None, uncertainty: PoseUncertainty,
) -> TrackedFrame:  # fmt: skip
    """Returns the frame with its covariances, in the world's axes and the published unit.

    Transforms [4, 4] are in the published unit; ``unit``: of those per unit of odometry.
    ``T_odom_local`` is what odometry has not taken over of later estimates: a known part of its
    error. R_map_local [3, 3]: None if the place in the map is unknown.
    """
    sigma, T = frame.scale.sigma, frame.T_world_camera
    in_odom = uncertainty.odometry(frame.id)
    if in_odom is not None:
        place = (T_odom_local @ T_local_camera)[:3, 3]
        in_odom = in_metres(in_odom, unit, sigma, place)
        in_odom = in_odom + kept_error(T_odom_local, T_local_camera)
    in_map = None if R_map_local is None else uncertainty.in_map(frame.id)
    if in_map is not None and R_map_local is not None:
        in_map = rotated_covariance(in_map, R_map_local)
        in_map = in_metres(in_map, unit, sigma, T[:3, 3])
    return dataclasses.replace(frame, covariance_odom=in_odom, covariance_map=in_map)


def drift_of(
    window: Window, prediction: Prediction, placed: Alignment, refined: RefinedWindow | None
) -> tuple[Alignment, Array, float] | None:
    """Returns a window's alignment, the centre [3] of its newest camera, and the mean age of its
    shared views, in windows; None if it adds no known drift."""
    ids = [view.id for view in window.views]
    lag = (ids[-window.new] - float(np.mean(ids[: -window.new] or ids))) / window.new
    if refined is not None:  # relative to the held views
        placed = dataclasses.replace(placed, covariance=refined.views.newest_covariance)
        lag = len(refined.views.ids) / window.new
    if not placed.accepted or placed.covariance is None:
        return None
    camera = placed.T_local_window.points(prediction.T_window_camera[-1, :3, 3])
    return placed, camera, lag
