"""Relative poses that the robot or the rig measures, as priors of a bundle."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from da3_ros.geometry.poses import invert_pose
from da3_ros.refinement.relative_poses import RIG, ROBOT, PosePriors
from da3_ros.refinement.track_noise import PoseNoise
from da3_ros.refinement.tracked_view import TrackedView
from da3_ros.types import Array

SHORTEST_M = 0.02  # a shorter distance says nothing about the unit
FEWEST = 3  # distances that determine the unit
UNMEASURED = 1e3  # variances from here on mean: this axis is not measured
# Standard deviation of a known rig's rotations, rad. Its positions are no prior: their unit would
# be that of earlier windows, and a scale that the rig gives would measure itself.
RIG_ROTATION = 0.002


def units_per_metre(views: Sequence[TrackedView]) -> float:
    """Returns the unit of refined views by distances that robot and rig measure; NaN: unknown."""
    ratios = []
    for a, b in itertools.pairwise(views):
        T = _motion(a, b)
        if T is None:
            continue
        metres = float(np.linalg.norm(T[:3, 3]))
        if metres > SHORTEST_M:
            units = np.linalg.norm(b.T_local_camera[:3, 3] - a.T_local_camera[:3, 3])
            ratios.append(float(units) / metres)
    return float(np.median(ratios)) if len(ratios) >= FEWEST else float("nan")


def measured_poses(
    views: Sequence[TrackedView], units: float, noise: PoseNoise, depth: float
) -> PosePriors:
    """Returns the relative poses of a window's views, by view id.

    units: of local per metre; NaN: unknown, so that only rotations count. noise: of the robot's
    motion, as tracks have found it. depth: typical one, units of local.
    """
    out = [PosePriors.none()]
    ordered = sorted(views, key=lambda v: v.id)
    scale = units if np.isfinite(units) else 1.0
    for a, b in itertools.pairwise(ordered):
        T = _motion(a, b)
        if T is None:
            continue
        if is_one_instant(a, b):
            root, source = np.diag(1 / np.repeat([RIG_ROTATION, np.inf], 3)), RIG
        else:
            root, source = _robot_root(a, b, scale, noise, depth), ROBOT
        if not np.isfinite(units):
            root[3:] = 0.0
        T = T.copy()
        T[:3, 3] *= scale
        ends = np.array([a.id]), np.array([b.id])
        out.append(PosePriors(*ends, T[None], root[None], np.array([source])))
    return PosePriors.joined(out)


def is_one_instant(a: TrackedView, b: TrackedView) -> bool:
    """Whether two cameras of a rig took these views together."""
    return a.measured.instant == b.measured.instant >= 0


def _motion(a: TrackedView, b: TrackedView) -> Array | None:
    """Returns ``T_a_b`` [4, 4], metres, by the rig or by the robot; None: not measured."""
    if is_one_instant(a, b):
        one, other = a.measured.T_rig_camera, b.measured.T_rig_camera
    else:
        one, other = a.measured.T_prior_camera, b.measured.T_prior_camera
    return None if one is None or other is None else invert_pose(one) @ other


def _robot_root(
    a: TrackedView, b: TrackedView, units: float, noise: PoseNoise, depth: float
) -> Array:
    """Returns the root [6, 6] of the inverse covariance of the robot's motion from a to b.

    A robot's odometry drifts: its variance grows, and the variance of a motion is the growth
    between both ends; on an axis without growth it is unknown. It is never less than ``noise``,
    which tracks have found: many robots state far too little.
    """
    place = np.full(3, (noise.place * depth / units) ** 2)
    rotation = np.full(3, noise.rotation**2)
    before, after = a.measured.prior_variance, b.measured.prior_variance
    if before is not None and after is not None:
        growth = np.where(after >= UNMEASURED, after, after - before)
        known = np.isfinite(growth) & (growth > 0)
        place = np.where(known[:3], np.maximum(growth[:3], place), place)
        rotation = np.where(known[3:], np.maximum(growth[3:], rotation), rotation)
    assert a.measured.T_prior_camera is not None
    assert b.measured.T_prior_camera is not None
    first, second = a.measured.T_prior_camera[:3, :3], b.measured.T_prior_camera[:3, :3]
    root = np.zeros((6, 6))
    root[:3, :3] = np.diag(1 / np.sqrt(rotation)) @ second
    root[3:, 3:] = np.diag(1 / np.sqrt(place)) @ first / units
    return root
