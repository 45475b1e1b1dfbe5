"""Measures a loop in the prediction of a window that sees two visits of a place."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.spatial.transform import Rotation

from da3_ros.geometry.poses import invert_pose
from da3_ros.geometry.projection import backproject, project
from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.alignment import Alignment, WindowAligner
from da3_ros.mapping.drift_model import DriftModel
from da3_ros.mapping.loop_keyframes import PlacedKeyframe
from da3_ros.mapping.map_table import MapTable
from da3_ros.mapping.overlap_view import OverlapView
from da3_ros.types import Array, FloatImage, Prediction

# Of a true loop: share of points that both sides see, and share of those that agree.
MIN_VISIBLE, MIN_AGREEING = 0.15, 0.6
DEPTH_TOLERANCE = 0.1  # relative depth difference of points that agree
NOISE_FACTOR = 2.0  # noise between views of two visits over noise within one window
SIGMAS = 4.0


@dataclass(frozen=True, eq=False)
class Loop:
    """An old and a new keyframe, by the ids of their views, that one window has seen together: a
    measurement of the new one's submap in the frame and unit of the old one's."""

    old: int
    new: int
    T_old_new: Similarity
    variance: Array  # [3] of log scale, rotation and position of the new camera, in its submap

    def drift(self, T_local_old: Similarity, T_local_new: Similarity) -> Similarity:
        """Returns what maps, in the frame of odometry, the surroundings of the new keyframe to
        where the old one measures them; given the poses of both submaps."""
        return T_local_old @ self.T_old_new @ T_local_new.inverse()


def placed_ends(loop: Loop, table: MapTable) -> tuple[PlacedKeyframe, PlacedKeyframe]:
    """Returns both keyframes of a loop where they are now. Raises KeyError."""
    old, new = (PlacedKeyframe.of(table.keyframes[id], table) for id in (loop.old, loop.new))
    return old, new


def measured_loop(
    old: PlacedKeyframe,
    new: PlacedKeyframe,
    views: Sequence[OverlapView],
    split: int,
    prediction: Prediction,
    aligner: WindowAligner,
) -> Loop | None:
    """Returns the loop that the prediction of a window measures; None if either side does not fit,
    or both do not see the same surface.

    views: of the window. split: index of the first one of the new side. aligner: the stream's, for
    the noise of views within a window; it is not changed.
    """
    fits = []
    for indices in (range(split), range(split, len(views))):
        own = copy.deepcopy(aligner)  # the stream's own must not learn from it
        own.forget_unit()
        fit = own.align([views[i] for i in indices], prediction, indices)
        if fit is None or not fit.accepted:
            return None
        fits.append(fit)
    if not see_same_surface(prediction, split, 0):
        return None
    drift = fits[0].T_local_window @ fits[1].T_local_window.inverse()
    variance = NOISE_FACTOR**2 * sum(fit_variance(f, prediction, split) for f in fits)
    T_old_new = old.T_local_submap.inverse() @ drift @ new.T_local_submap
    variance = np.asarray(variance) / [1, 1, new.T_local_submap.scale**2]
    return Loop(old.keyframe.id, new.keyframe.id, T_old_new, variance)


def fit_variance(fit: Alignment, prediction: Prediction, index: int) -> Array:
    """Returns the variance [3] of an alignment at the camera of view ``index``."""
    assert fit.covariance is not None
    assert fit.pivot is not None
    spread = np.diag(fit.covariance)
    arm = prediction.T_window_camera[index, :3, 3] - fit.pivot
    model = DriftModel()
    model.add(np.array([spread[0], spread[1:4].mean(), spread[4:].mean()]), np.zeros(3))
    return model.variance_at(fit.T_local_window.scale * arm)


def within_sigmas(a: Similarity, b: Similarity, point: Array, variance: Array) -> bool:
    """True if two similarities differ at a point by no more than the variance [3] explains."""
    residual = np.array([
        abs(math.log(a.scale / b.scale)),
        float(Rotation.from_matrix(a.R.T @ b.R).magnitude()) / math.sqrt(3),
        float(np.linalg.norm(a.points(point) - b.points(point))) / math.sqrt(3),
    ])  # fmt: skip
    return bool((residual <= SIGMAS * np.sqrt(variance)).all())


def see_same_surface(prediction: Prediction, source: int, target: int) -> bool:
    """True if the source view sees enough surfaces of the target view, at the same depth."""
    depth, other = prediction.depth[source], prediction.depth[target]
    points = backproject(depth, prediction.K[source]).reshape(-1, 3)
    points = points[np.isfinite(points).all(axis=1)].astype(np.float64)
    if not len(points):
        return False
    T = invert_pose(prediction.T_window_camera[target]) @ prediction.T_window_camera[source]
    there = points @ T[:3, :3].T + T[:3, 3]
    inside, seen = visible_depths(there, prediction.K[target], other)
    agree = np.abs(np.log(seen / there[inside, 2])) < DEPTH_TOLERANCE
    return bool(inside.mean() > MIN_VISIBLE and agree.mean() > MIN_AGREEING)


def visible_depths(points: Array, K: Array, depth: FloatImage) -> tuple[Array, Array]:
    """Returns which camera points [M, 3] project into a depth image, and its depth there."""
    height, width = depth.shape
    with np.errstate(invalid="ignore", divide="ignore"):
        column, row = np.floor(project(points, K)).T
    inside = (points[:, 2] > 0) & (column >= 0) & (column < width) & (row >= 0) & (row < height)
    seen = np.full(len(points), np.nan)
    seen[inside] = depth[row[inside].astype(int), column[inside].astype(int)]
    inside &= np.isfinite(seen) & (seen > 0)
    return inside, seen[inside]
