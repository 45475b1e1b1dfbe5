"""Errors of a reconstruction of a synthetic room: depth, trajectory and cloud.

Used by the demo and the end-to-end tests. evo is not a dependency of the package: it is imported
only when a trajectory is measured. Independent of ROS, network and pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from da3_ros.geometry.similarity import Similarity
from da3_ros.synthetic.rooms import Room, distance_to_surface
from da3_ros.types import Array, FloatImage

SAME_DEPTH = 1.25  # the factor of "delta-1"


@dataclass(frozen=True, eq=False)
class FramePair:
    """A reconstructed frame, in any unit, and its truth in metres."""

    depth: FloatImage  # [h, w], NaN unknown
    T_map_camera: Array  # [4, 4] in whatever axes the map has
    true_depth: FloatImage  # [H, W] of the same image, +Inf for sky
    T_room_camera: Array  # [4, 4]


@dataclass(frozen=True)
class DepthErrors:
    """Errors over all pixels with both depths known, after scaling all frames by one factor."""

    abs_rel: float  # mean of |depth - truth| / truth
    delta1: float  # share 0..1 within a factor of 1.25
    scale: float  # metres per unit: the median ratio


@dataclass(frozen=True)
class CloudErrors:
    """Distances from the points of a cloud to the nearest true surface, metres."""

    points: int
    median_m: float
    p90_m: float  # 90 % are nearer


@dataclass(frozen=True)
class Errors:
    """All errors of a reconstruction; lengths in metres."""

    frames: int
    depth: DepthErrors
    path_m: float  # length of the true path
    ate_m: float  # see trajectory_error
    scale: float  # metres per unit, fitted to the path
    cloud: CloudErrors  # aligned by the path, with the path's scale
    cloud_by_depth: CloudErrors  # aligned by the path, with the depth's scale

    def text(self) -> str:
        """The errors as text, one line per kind."""
        depth, cloud, own = self.depth, self.cloud, self.cloud_by_depth
        return (
            f"depth of {self.frames} frames: AbsRel {depth.abs_rel:.3f}, "
            f"{100 * depth.delta1:.0f} % within a factor of {SAME_DEPTH}\n"
            f"trajectory of {self.path_m:.2f} m: ATE {self.ate_m:.3f} m (RMSE after Sim(3), evo)\n"
            f"cloud of {cloud.points} points to the room's surfaces: "
            f"median {cloud.median_m:.3f} m, 90 % within {cloud.p90_m:.3f} m "
            f"(with the scale from depth {own.median_m:.3f} m and {own.p90_m:.3f} m)\n"
            f"fitted scale, m per unit: {self.scale:.3f} from the path, {depth.scale:.3f} from "
            "depth\n"
        )


def measure(room: Room, frames: Sequence[FramePair], cloud: Array) -> Errors:
    """Compare frames and a cloud [M, 3] (in the map frame of ``T_map_camera``) with ``room``.

    The cloud is aligned to the room by the trajectory, see ``fit_poses``. Raises ImportError
    without evo.
    """
    estimated = np.array([f.T_map_camera for f in frames])
    true = np.array([f.T_room_camera for f in frames])
    depth = depth_errors(frames)
    T_room_map = fit_poses(estimated, true, depth.scale)
    by_depth = rescaled(T_room_map, depth.scale, estimated[:, :3, 3].mean(0))
    cloud = np.asarray(cloud, np.float64)
    return Errors(
        frames=len(frames),
        depth=depth,
        path_m=float(np.linalg.norm(np.diff(true[:, :3, 3], axis=0), axis=1).sum()),
        ate_m=trajectory_error(estimated, true, T_room_map),
        scale=T_room_map.scale,
        cloud=cloud_errors(room, T_room_map.points(cloud)),
        cloud_by_depth=cloud_errors(room, by_depth.points(cloud)),
    )


def depth_errors(frames: Sequence[FramePair]) -> DepthErrors:
    """Depth errors of all frames; NaN if no pixel has both depths."""
    ratio = np.concatenate([_ratio(f) for f in frames])
    if not len(ratio):
        return DepthErrors(float("nan"), float("nan"), float("nan"))
    scale = float(np.median(ratio))
    scaled = scale / ratio  # depth over truth after scaling
    within = np.maximum(scaled, 1 / scaled) < SAME_DEPTH
    return DepthErrors(float(np.abs(scaled - 1).mean()), float(within.mean()), scale)


def _ratio(frame: FramePair) -> Array:
    """Ratio of truth to depth [M] at pixels with both."""
    true = resize_nearest(frame.true_depth, frame.depth.shape).astype(np.float64)
    known = np.isfinite(frame.depth) & (frame.depth > 0) & np.isfinite(true)
    return np.asarray(true[known] / frame.depth[known])


def resize_nearest(depth: FloatImage, shape: tuple[int, ...]) -> FloatImage:
    """Resize depth [H, W] to [h, w] by the nearest pixel: no averages across depth edges."""
    rows, columns = (
        ((np.arange(new) + 0.5) * old / new).astype(int)
        for new, old in zip(shape, depth.shape, strict=True)
    )
    return depth[rows][:, columns]


def fit_poses(estimated: Array, true: Array, scale: float = 1.0) -> Similarity:
    """Similarity that maps poses [N, 4, 4] to true ones, as ``Similarity.aligning``; ``scale`` is
    used if the estimated centres do not move."""
    return Similarity.aligning(true, estimated, unmoved=scale)


def rescaled(fit: Similarity, scale: float, fixed: Array) -> Similarity:
    """The same similarity with another scale about the fixed source point ``fixed`` [3].

    The scales of depth and path may differ. With the depth's scale, the error of the cloud's
    shape does not depend on the path's length.
    """
    return Similarity(scale, fit.R, fit.points(fixed) - scale * fit.R @ fixed)


def trajectory_error(estimated: Array, true: Array, fallback: Similarity | None = None) -> float:
    """ATE: RMSE of camera centres in metres after the best Sim(3) alignment, by evo.

    evo cannot align centres that do not move or lie exactly on a line: then ``fallback`` (default:
    ``fit_poses``) is used.
    """
    from evo.core.geometry import GeometryException
    from evo.core.metrics import APE, PoseRelation, StatisticsType
    from evo.core.trajectory import PosePath3D

    path, reference = PosePath3D(poses_se3=list(estimated)), PosePath3D(poses_se3=list(true))
    try:
        path.align(reference, correct_scale=True)
    except GeometryException:
        fit = fallback or fit_poses(estimated, true)
        path = PosePath3D(poses_se3=[fit.pose(T) for T in estimated])
    error = APE(PoseRelation.translation_part)
    error.process_data((reference, path))
    return float(error.get_statistic(StatisticsType.rmse))


def cloud_errors(room: Room, points: Array) -> CloudErrors:
    """Distances of points [M, 3] in the room from its planes and boxes.

    The distances are exact. Distances to rendered points would add their spacing, and cover only
    surfaces that a camera has seen.
    """
    if not len(points):
        return CloudErrors(0, float("nan"), float("nan"))
    distance = distance_to_surface(room, points)
    median, p90 = np.percentile(distance, (50, 90))
    return CloudErrors(len(points), float(median), float(p90))


def constant_baseline(frames: Sequence[FramePair]) -> list[FramePair]:
    """A trivial reconstruction of the same frames for comparison: constant depth, no motion."""
    return [replace(f, depth=np.ones_like(f.true_depth), T_map_camera=np.eye(4)) for f in frames]
