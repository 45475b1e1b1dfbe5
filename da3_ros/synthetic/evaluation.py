"""How far a reconstruction is from the exact room: depth, trajectory and cloud.

The demo and the end-to-end tests share it. Knows NumPy, rooms, and evo, which is no dependency of
the package and is imported when a trajectory is measured. Knows no ROS, network or pipeline.
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
    """One frame as it was reconstructed, in any unit and world, and as it is, in metres."""

    depth: FloatImage  # [h, w], NaN unknown
    T_map_camera: Array  # [4, 4]
    true_depth: FloatImage  # [H, W] of the same picture, +Inf for sky
    T_room_camera: Array  # [4, 4]


@dataclass(frozen=True)
class DepthErrors:
    """Of all pixels where both depths are known, after one scale for all frames."""

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
    """Everything that is measured of a reconstruction; lengths in metres."""

    frames: int
    depth: DepthErrors
    path_m: float  # length of the true path
    ate_m: float  # see trajectory_error
    scale: float  # metres per unit, fitted to the path
    cloud: CloudErrors  # placed by the path, its scale too
    cloud_by_depth: CloudErrors  # placed by the path, with the scale that fits the depth

    def text(self) -> str:
        """A line per figure."""
        depth, cloud, own = self.depth, self.cloud, self.cloud_by_depth
        return (
            f"depth of {self.frames} frames: AbsRel {depth.abs_rel:.3f}, "
            f"{100 * depth.delta1:.0f} % within a factor of {SAME_DEPTH}\n"
            f"trajectory of {self.path_m:.2f} m: ATE {self.ate_m:.3f} m (RMSE after Sim(3), evo)\n"
            f"cloud of {cloud.points} points to the room's surfaces: "
            f"median {cloud.median_m:.3f} m, 90 % within {cloud.p90_m:.3f} m "
            f"(with the depth's scale {own.median_m:.3f} m and {own.p90_m:.3f} m)\n"
            f"fitted scale: {self.scale:.3f} m per unit by the path, {depth.scale:.3f} by depth\n"
        )


def measure(room: Room, frames: Sequence[FramePair], cloud: Array) -> Errors:
    """Compare frames and a cloud [M, 3] (in the map that ``T_map_camera`` maps to) with ``room``.

    The cloud is placed in the room by the trajectory: see ``fit_poses``. Raises ImportError
    without evo.
    """
    ours = np.array([f.T_map_camera for f in frames])
    true = np.array([f.T_room_camera for f in frames])
    depth = depth_errors(frames)
    T_room_map = fit_poses(ours, true, depth.scale)
    by_depth = rescaled(T_room_map, depth.scale, ours[:, :3, 3].mean(0))
    cloud = np.asarray(cloud, np.float64)
    return Errors(
        frames=len(frames),
        depth=depth,
        path_m=float(np.linalg.norm(np.diff(true[:, :3, 3], axis=0), axis=1).sum()),
        ate_m=trajectory_error(ours, true, T_room_map),
        scale=T_room_map.scale,
        cloud=cloud_errors(room, T_room_map.points(cloud)),
        cloud_by_depth=cloud_errors(room, by_depth.points(cloud)),
    )


def depth_errors(frames: Sequence[FramePair]) -> DepthErrors:
    """Depth against the truth; NaN where nothing is known of both."""
    ratio = np.concatenate([_ratio(f) for f in frames])
    if not len(ratio):
        return DepthErrors(float("nan"), float("nan"), float("nan"))
    scale = float(np.median(ratio))
    off = scale / ratio
    within = np.maximum(off, 1 / off) < SAME_DEPTH
    return DepthErrors(float(np.abs(off - 1).mean()), float(within.mean()), scale)


def _ratio(frame: FramePair) -> Array:
    """Truth over depth [M] of the known pixels."""
    true = resize_nearest(frame.true_depth, frame.depth.shape).astype(np.float64)
    known = np.isfinite(frame.depth) & (frame.depth > 0) & np.isfinite(true)
    return np.asarray(true[known] / frame.depth[known])


def resize_nearest(depth: FloatImage, shape: tuple[int, ...]) -> FloatImage:
    """Depth [h, w] of [H, W]: averages across a depth edge would be depths that nothing has."""
    rows, columns = (
        ((np.arange(new) + 0.5) * old / new).astype(int)
        for new, old in zip(shape, depth.shape, strict=True)
    )
    return depth[rows][:, columns]


def fit_poses(ours: Array, true: Array, scale: float = 1.0) -> Similarity:
    """Similarity that maps poses [N, 4, 4] onto true ones: mean rotation, then least squares.

    Orientations say how the two worlds are turned also where the centres lie on a line, about
    which a fit of centres alone may turn freely, and a cloud far from the path with it.
    ``scale`` is taken where our centres do not move.
    """
    turn = np.einsum("nij,nkj->ik", true[:, :3, :3], ours[:, :3, :3])
    u, _, vt = np.linalg.svd(turn)
    R = (u * [1.0, 1.0, np.sign(np.linalg.det(u @ vt))]) @ vt
    centre, true_centre = ours[:, :3, 3].mean(0), true[:, :3, 3].mean(0)
    moved, true_moved = (ours[:, :3, 3] - centre) @ R.T, true[:, :3, 3] - true_centre
    extent = float((moved**2).sum())
    fitted = float((moved * true_moved).sum()) / extent if extent > 1e-12 else 0.0
    scale = fitted if fitted > 0 else scale
    return Similarity(scale, R, true_centre - scale * R @ centre)


def rescaled(fit: Similarity, scale: float, fixed: Array) -> Similarity:
    """The same similarity with another scale, about the point ``fixed`` [3] of the source.

    A network may agree with itself on depth and err on how far it moved: then the two scales
    differ, and this one tells the shape of the cloud from the length of the path.
    """
    return Similarity(scale, fit.R, fit.points(fixed) - scale * fit.R @ fixed)


def trajectory_error(ours: Array, true: Array, fallback: Similarity | None = None) -> float:
    """ATE: RMSE of camera centres, metres, after the Sim(3) that fits them best, by evo.

    evo refuses centres that do not move, or only along an exact line; there ``fallback`` (default:
    ``fit_poses``) takes the fit's place.
    """
    from evo.core.geometry import GeometryException
    from evo.core.metrics import APE, PoseRelation, StatisticsType
    from evo.core.trajectory import PosePath3D

    path, reference = PosePath3D(poses_se3=list(ours)), PosePath3D(poses_se3=list(true))
    try:
        path.align(reference, correct_scale=True)
    except GeometryException:
        fit = fallback or fit_poses(ours, true)
        path = PosePath3D(poses_se3=[fit.pose(T) for T in ours])
    error = APE(PoseRelation.translation_part)
    error.process_data((reference, path))
    return float(error.get_statistic(StatisticsType.rmse))


def cloud_errors(room: Room, points: Array) -> CloudErrors:
    """Of points [M, 3] in the room, against its planes and boxes.

    The distance to them is a formula, exact at every point; rendered points in a search tree would
    add their own spacing, and know only surfaces that a camera has seen.
    """
    if not len(points):
        return CloudErrors(0, float("nan"), float("nan"))
    distance = distance_to_surface(room, points)
    median, p90 = np.percentile(distance, (50, 90))
    return CloudErrors(len(points), float(median), float(p90))


def seen_blindly(frames: Sequence[FramePair]) -> list[FramePair]:
    """The same frames from a method that does not look: one depth everywhere, and no motion."""
    return [replace(f, depth=np.ones_like(f.true_depth), T_map_camera=np.eye(4)) for f in frames]
