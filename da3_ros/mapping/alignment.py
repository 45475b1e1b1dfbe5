"""Joins a window to the scene: a Sim(3) from pixels that both have seen.

A frame that was delivered before and is in the new window too has, for the very same pixels,
points in the scene and points in the window. The similarity between the two sets is well posed for
straight driving and for turning on the spot alike, where camera centres alone leave it open.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from da3_ros.geometry import backproject
from da3_ros.types import Array, FloatImage, Prediction, TrackedFrame

SAMPLES = 8192  # pixels of all shared frames together
MIN_POINTS = 50
INLIER = 0.05  # residual over depth that still counts as agreement


@dataclass(frozen=True, eq=False)
class Similarity:
    """x -> scale * R @ x + t."""

    scale: float
    R: Array  # [3, 3]
    t: Array  # [3]

    def points(self, x: Array) -> Array:
        """Map points [..., 3]."""
        return self.scale * x @ self.R.T + self.t

    def pose(self, T: Array) -> Array:
        """Map a rigid pose [4, 4] (its unit changes, its rotation stays a rotation)."""
        out = np.eye(4)
        out[:3, :3] = self.R @ T[:3, :3]
        out[:3, 3] = self.points(T[:3, 3])
        return out

    @staticmethod
    def between(T_target: Array, T_source: Array, scale: float) -> Similarity:
        """The similarity of a known scale that maps pose ``T_source`` onto ``T_target``."""
        R = T_target[:3, :3] @ T_source[:3, :3].T
        return Similarity(scale, R, T_target[:3, 3] - scale * R @ T_source[:3, 3])


@dataclass(frozen=True, eq=False)
class Alignment:
    """A window's place in the scene and how well it fits."""

    T_scene_window: Similarity
    accepted: bool
    rms: float  # scene units, over the inliers
    inliers: float  # share 0..1


def fit_similarity(
    source: Array, target: Array, weights: Array, *, on_a_line: bool = False
) -> Similarity | None:
    """Weighted least-squares Sim(3) of points [M, 3] (Umeyama, PAMI 1991), or None.

    Points on one line leave the rotation about it open: None, unless ``on_a_line`` allows any.
    """
    total = weights.sum()
    if len(source) < 3 or not np.isfinite(total) or total <= 0:
        return None
    w = (weights / total)[:, None]
    mean_s, mean_t = (w * source).sum(axis=0), (w * target).sum(axis=0)
    s, t = source - mean_s, target - mean_t
    u, d, vt = np.linalg.svd((w * t).T @ s)
    sign = np.array([1.0, 1.0, np.sign(np.linalg.det(u @ vt))])
    variance = (w * s * s).sum()
    if variance <= 0 or (d[1] <= 1e-12 * d[0] and not on_a_line):
        return None
    R = (u * sign) @ vt
    scale = float((d * sign).sum() / variance)
    return Similarity(scale, R, mean_t - scale * R @ mean_s) if scale > 0 else None


def align_window(
    known: list[TrackedFrame], prediction: Prediction, indices: list[int]
) -> Alignment | None:
    """Place ``prediction`` in the scene by frames it shares with it.

    known: delivered frames, with depth and pose in the scene.
    indices: where each of them stands in the window.

    Returns None when the shared pixels do not determine a similarity.
    """
    per_frame = SAMPLES // max(1, len(known))
    parts = [
        _shared_points(frame, prediction, i, per_frame)
        for frame, i in zip(known, indices, strict=True)
    ]
    source, target, weights, depth = (np.concatenate(p) for p in zip(*parts, strict=True))
    fit = fit_similarity(source, target, weights) if len(source) >= MIN_POINTS else None
    if fit is None:
        return None
    residual = np.linalg.norm(fit.points(source) - target, axis=1)
    good = residual < INLIER * depth
    rms = float(np.sqrt(np.mean(residual[good] ** 2))) if good.any() else float("nan")
    return Alignment(fit, True, rms, float(good.mean()))


def _shared_points(
    frame: TrackedFrame, prediction: Prediction, index: int, count: int
) -> tuple[Array, Array, Array, Array]:
    """Points of one frame in the window and in the scene, weights, and scene depth.

    One K serves both sides: with two, a wobble of the predicted focal would pass for motion.
    """
    ours, theirs = prediction.depth[index], frame.depth_m
    pick = _sample(np.isfinite(ours) & (ours > 0) & np.isfinite(theirs), count)
    T_window_camera = prediction.T_window_camera[index]
    source = _points(ours, frame.K, T_window_camera, pick)
    target = _points(theirs, frame.K, frame.T_world_camera, pick)
    depth = theirs.reshape(-1)[pick].astype(np.float64)
    confidence = np.minimum(frame.confidence, prediction.confidence[index]).reshape(-1)[pick]
    # Depth errors grow with depth: a point's say falls with its square.
    return source, target, confidence / depth**2, depth


def _points(depth: FloatImage, K: Array, T: Array, pick: Array) -> Array:
    points = backproject(depth, K).reshape(-1, 3)[pick].astype(np.float64)
    return points @ T[:3, :3].T + T[:3, 3]


def _sample(valid: Array, count: int) -> Array:
    """Indices of at most ``count`` valid pixels, evenly strided: repeatable, no random draw."""
    index = np.flatnonzero(valid)
    return index[:: max(1, -(-len(index) // count))]
