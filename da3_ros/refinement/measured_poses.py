"""Relative poses that the robot or the rig measures, as priors of a bundle.

A metre is an unknown of the bundle where a rig is known: the distance between two of its cameras
is the same in all framesets, so that it shows the metre, and the unit of local does not drift.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy.sparse.csgraph import connected_components

from da3_ros.geometry.poses import invert_pose
from da3_ros.inertial.gyro_turns import turn_between
from da3_ros.refinement.bundle import GYRO, RIG, ROBOT, Bundle, Metre, PosePriors, pose_prior_terms
from da3_ros.refinement.track_noise import PoseNoise
from da3_ros.refinement.tracked_view import MeasuredPose, TrackedView
from da3_ros.types import Array

SHORTEST_M = 0.02  # a shorter distance says nothing about the unit
FEWEST_COMMON = 30  # tracks that two cameras see at the same time, which connect them
FEWEST_SHARED = 3  # distances that determine the unit
UNMEASURED = 1e3  # variances from here on mean: this axis is not measured
# Standard deviations of a declared rig's positions, over the distance of two cameras: of that
# distance and of its direction; metres, at least. Rectified pairs are 1 to 2 degrees off.
RIG_ALONG, RIG_ACROSS, RIG_FLOOR_M = 0.003, 0.03, 0.0005
UNKNOWN_METRE = Metre(0.0, math.inf)
LEAST_TURN_SIGMA = 5e-4  # rad, of a rotation by the gyro: stamps and mount are not exact
KNOWN = 1e-4  # standard deviation of the logarithm of a metre that is kept
SETTLED = 0.02  # standard deviation of the metre's logarithm up to which it is known well
# Of most framesets, rad and over distance, with which a rig is declared wrongly.
WRONG_ROTATION, WRONG_POSITION = 0.1, 0.15


def units_per_metre(views: Sequence[TrackedView]) -> float:
    """Returns the unit of refined views by distances that robot and rig measure; NaN: unknown."""
    ratios = []
    for a, b in itertools.pairwise(views):
        T = measured_motion(a.measured, b.measured)
        if T is None:
            continue
        metres = float(np.linalg.norm(T[:3, 3]))
        if metres > SHORTEST_M:
            units = np.linalg.norm(b.T_local_camera[:3, 3] - a.T_local_camera[:3, 3])
            ratios.append(float(units) / metres)
    return float(np.median(ratios)) if len(ratios) >= FEWEST_SHARED else float("nan")


def measured_poses(
    views: Sequence[TrackedView], units: float, noise: Mapping[int, PoseNoise], depth: float
) -> PosePriors:
    """Returns the relative poses of a window's views, by view id: those by the robot in local,
    those by the rig in metres, and rotations by the gyro.

    units: of local per metre; NaN: unknown, so that only the robot's rotations count. noise: of
    ROBOT and RIG, as tracks have found it. depth: typical one, units of local.
    """
    out = [PosePriors.none()]
    ordered = sorted(views, key=lambda v: v.id)
    scale = units if np.isfinite(units) else 1.0
    for a, b in itertools.pairwise(ordered):
        T = measured_motion(a.measured, b.measured)
        if T is None:
            continue
        if is_one_frameset(a.measured, b.measured):
            out.append(rig_prior(a.id, b.id, T, noise[RIG]))
            continue
        root = _robot_root(a, b, scale, noise[ROBOT], depth)
        if not np.isfinite(units):
            root[3:] = 0.0
        T = T.copy()
        T[:3, 3] *= scale
        ends = np.array([a.id]), np.array([b.id])
        out.append(PosePriors(*ends, T[None], root[None], np.array([ROBOT])))
    return PosePriors.joined([*out, *_gyro_priors(ordered)])


def _gyro_priors(views: Sequence[TrackedView]) -> Iterator[PosePriors]:
    """Yields the rotations by the gyro between consecutive views of each camera."""
    last: dict[str, TrackedView] = {}
    for b in views:
        a, last[b.camera] = last.get(b.camera), b
        turn = None if a is None else turn_between(a.measured.gyro, b.measured.gyro)
        if a is None or turn is None:
            continue
        T, root = np.eye(4), np.zeros((6, 6))
        T[:3, :3] = turn[0]
        root[:3, :3] = np.eye(3) / math.hypot(turn[1], LEAST_TURN_SIGMA)
        ends = np.array([a.id]), np.array([b.id])
        yield PosePriors(*ends, T[None], root[None], np.array([GYRO]))


def is_one_frameset(a: MeasuredPose, b: MeasuredPose) -> bool:
    """Whether two cameras of a rig took these views together."""
    return a.frameset == b.frameset >= 0


def are_connected(
    cameras: Sequence[str], framesets: Sequence[int], view: Array, track: Array
) -> bool:
    """Whether tracks connect all cameras, by what they see at the same time: so that tracks show
    how far the cameras are apart, whatever is known of their motion.

    cameras, framesets: of the views. view, track: [O] observations, by index of the view.
    """
    names = sorted(set(cameras))
    number = np.array([names.index(c) for c in cameras], int)
    pairs = np.column_stack((np.array(framesets, int)[view], track))
    _, at = np.unique(pairs, axis=0, return_inverse=True)
    at = at.ravel()
    seen = np.zeros((len(names), int(at.max(initial=-1)) + 1), np.float32)
    seen[number[view], at] = 1.0
    return bool(connected_components(seen @ seen.T >= FEWEST_COMMON, directed=False)[0] == 1)


def measured_motion(a: MeasuredPose, b: MeasuredPose) -> Array | None:
    """Returns ``T_a_b`` [4, 4], metres, by the rig or by the robot; None: not measured."""
    if is_one_frameset(a, b):
        one, other = a.T_rig_camera, b.T_rig_camera
    else:
        one, other = a.T_prior_camera, b.T_prior_camera
    return None if one is None or other is None else invert_pose(one) @ other


def rig_prior(first: int, second: int, T: Array, noise: PoseNoise) -> PosePriors:
    """Returns the pose ``T_first_second`` [4, 4] of two cameras of a rig as a prior, metres; of
    cameras at one position, which show no metre, only the rotation."""
    ends = np.array([first]), np.array([second])
    root = _rig_root(T[:3, 3], noise)
    if float(np.linalg.norm(T[:3, 3])) <= RIG_FLOOR_M:
        root[3:] = 0.0
    return PosePriors(*ends, T[None], root[None], np.array([RIG]))


def _rig_root(baseline: Array, noise: PoseNoise) -> Array:
    """Returns the root [6, 6] of the inverse covariance of a rig's pose, rad and metres."""
    length = float(np.linalg.norm(baseline))
    ahead = baseline / length if length > RIG_FLOOR_M else np.zeros(3)
    along, across = (max(share * length, RIG_FLOOR_M) for share in (RIG_ALONG, RIG_ACROSS))
    root = np.zeros((6, 6))
    root[:3, :3] = np.eye(3) / noise.rotation
    root[3:, 3:] = np.eye(3) / across + np.outer(ahead, ahead) * (1 / along - 1 / across)
    return root


def _robot_root(
    a: TrackedView, b: TrackedView, units: float, noise: PoseNoise, depth: float
) -> Array:
    """Returns the root [6, 6] of the inverse covariance of the robot's motion from a to b.

    A robot's odometry drifts: its variance grows, and the variance of a motion is the growth
    between both ends; on an axis without growth it is unknown. It is never less than ``noise``,
    which tracks have found: many robots state far too little.
    """
    position = np.full(3, (noise.position * depth / units) ** 2)
    rotation = np.full(3, noise.rotation**2)
    before, after = a.measured.prior_variance, b.measured.prior_variance
    if before is not None and after is not None:
        growth = np.where(after >= UNMEASURED, after, after - before)
        known = np.isfinite(growth) & (growth > 0)
        position = np.where(known[:3], np.maximum(growth[:3], position), position)
        rotation = np.where(known[3:], np.maximum(growth[3:], rotation), rotation)
    assert a.measured.T_prior_camera is not None
    assert b.measured.T_prior_camera is not None
    first, second = a.measured.T_prior_camera[:3, :3], b.measured.T_prior_camera[:3, :3]
    root = np.zeros((6, 6))
    root[:3, :3] = np.diag(1 / np.sqrt(rotation)) @ second
    root[3:, 3:] = np.diag(1 / np.sqrt(position)) @ first / units
    return root


# The rig in a bundle.


def with_metre(bundle: Bundle, known: Metre) -> Bundle:
    """Returns the bundle with the metre as an unknown, if rig priors can show it; else without the
    rig's positions.

    known: of earlier windows.
    """
    p = bundle.poses
    rig = p.source == RIG
    if not rig.any():
        return bundle
    # Held views have the errors of earlier windows, which would be repeated.
    held = rig & ~bundle.free[p.first] & ~bundle.free[p.second]
    p, rig = p.where(~held), rig[~held]
    shows = rig & p.root[:, 3:].any(axis=(1, 2))
    bundle = replace(bundle, poses=p)
    if not shows.any():
        return without_rig_positions(bundle)
    start = known.log if math.isfinite(known.sigma) else _log_metre(bundle, shows)
    root = p.root.copy()
    root[rig, 3:] /= math.exp(start)
    return replace(
        bundle, poses=replace(p, root=root), metre_prior=replace(known, log=start), log_metre=start
    )


def _log_metre(bundle: Bundle, shows: Array) -> float:
    """Returns the logarithm of the metre by the present poses of rig priors ``shows`` [P]."""
    T, p = bundle.T_local_camera, bundle.poses
    first, second = p.first[shows], p.second[shows]
    seen = np.einsum("pji,pj->pi", T[first, :3, :3], T[second, :3, 3] - T[first, :3, 3])
    known = p.T_first_second[shows, :3, 3]
    square = (known**2).sum(1)
    along = (seen * known).sum(1) / square
    length = np.linalg.norm(seen, axis=1) / np.sqrt(square)
    return float(np.log(np.median(np.where(along > 0, along, length)) + 1e-9))


def without_rig_positions(bundle: Bundle) -> Bundle:
    """Returns the bundle in which the rig's positions do not count."""
    root = bundle.poses.root.copy()
    root[bundle.poses.source == RIG, 3:] = 0.0
    return replace(bundle, poses=replace(bundle.poses, root=root), metre_prior=None)


def contradicts_rig(bundle: Bundle) -> bool:
    """Whether most framesets of a solved bundle have another shape than the rig."""
    p, T = bundle.poses, bundle.T_local_camera
    rig = (p.source == RIG) & p.root[:, 3:].any(axis=(1, 2))
    if not rig.any():
        return False
    known = p.T_first_second[rig].copy()
    known[:, :3, 3] *= math.exp(bundle.log_metre)
    first, second = T[p.first[rig]], T[p.second[rig]]
    r, *_ = pose_prior_terms(
        first[:, :3, :3], first[:, :3, 3], second[:, :3, :3], second[:, :3, 3], known
    )
    baseline = np.linalg.norm(known[:, :3, 3], axis=1) + 1e-300
    far = np.linalg.norm(r[:, 3:], axis=1) / baseline
    turned = np.linalg.norm(r[:, :3], axis=1)
    return bool(np.median(turned) > WRONG_ROTATION or np.median(far) > WRONG_POSITION)
