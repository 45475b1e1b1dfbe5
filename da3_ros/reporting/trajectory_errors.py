"""Errors of a trajectory against true poses, by the definitions of the TUM RGB-D benchmark.

As the tool evo computes them from the same pairs of poses, drift with its option
``pairs_from_reference``; a test compares both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from da3_ros.geometry.similarity import Similarity
from da3_ros.types import Array

SHARES = (0.1, 0.25, 0.5)  # of the path, over which drift is stated
TOLERANCE = 0.1  # of a distance, within which a pair of poses has it
FEWEST = 3  # poses
AT_ONCE = 1 << 16  # pairs of poses, so that long trajectories need little memory


@dataclass(frozen=True)
class Drift:
    """Mean errors of the motion over a distance on the true path."""

    distance_m: float
    pairs: int
    percent: float  # of the distance
    deg_per_m: float


@dataclass(frozen=True, eq=False)
class Fitted:
    """A trajectory after one fit to the truth, and its errors."""

    T_truth_map: Similarity
    by_orientation: bool  # whether positions leave the rotation open, so that orientations gave it
    error_m: Array  # [N] of the positions
    ate_m: float  # root mean square of ``error_m``
    rpe_m: float  # root mean square of the error of the motion between two poses in a row
    rpe_deg: float  # likewise of its rotation
    drift: tuple[Drift, ...]


@dataclass(frozen=True, eq=False)
class TrajectoryErrors:
    """Errors of a trajectory."""

    poses: int  # that have a true one
    path_m: float  # length of the true path through them
    sim3: Fitted  # after a fit with scale
    se3: Fitted | None  # after a fit without; None: its lengths are not metres

    @property
    def moves(self) -> bool:
        """Whether the true camera moves, so that drift and the scale of the fit are known."""
        return self.path_m > 0


def trajectory_errors(estimated: Array, true: Array, *, metric: bool) -> TrajectoryErrors:
    """Returns the errors of poses T_map_camera [N, 4, 4] against T_truth_camera [N, 4, 4], metres,
    of the same times.

    metric: whether both have metres. Raises ValueError for less than ``FEWEST`` poses.
    """
    if len(estimated) < FEWEST:
        raise ValueError(f"{len(estimated)} poses have a true one: at least {FEWEST} are needed")
    return TrajectoryErrors(
        len(estimated),
        float(_lengths(true)[-1]),
        _fitted(estimated, true, None),
        _fitted(estimated, true, 1.0) if metric else None,
    )


def _fitted(estimated: Array, true: Array, scale: float | None) -> Fitted:
    try:
        fit = Similarity.of_points(true[:, :3, 3], estimated[:, :3, 3], scale)
        by_orientation = False
    except ValueError:
        fit, by_orientation = Similarity.aligning(true, estimated, scale), True
    error = np.linalg.norm(fit.points(estimated[:, :3, 3]) - true[:, :3, 3], axis=1)
    steps = np.arange(len(true) - 1)
    moved, turned = motion_errors(estimated, true, steps, steps + 1, fit.scale)
    length = _lengths(true)
    drift = tuple(
        _drift(estimated, true, length, share * float(length[-1]), fit.scale) for share in SHARES
    )
    return Fitted(
        fit, by_orientation, error, _rms(error), _rms(moved), math.degrees(_rms(turned)), drift
    )


def _drift(estimated: Array, true: Array, length: Array, distance: float, scale: float) -> Drift:
    first, second = pairs_at(length, distance)
    if not distance > 0 or not len(first):
        return Drift(distance, 0, math.nan, math.nan)
    moved, turned = motion_errors(estimated, true, first, second, scale)
    return Drift(
        distance, len(first), float(100 * moved.mean() / distance),
        float(np.degrees(turned).mean() / distance),
    )  # fmt: skip


def pairs_at(length: Array, distance: float) -> tuple[Array, Array]:
    """Returns indices [P] of poses and [P] of the later pose that is nearest to a distance from
    each one along the path; those without one within ``TOLERANCE`` are left out.

    length [N]: of the path up to each pose.
    """
    first = np.arange(len(length) - 1)
    above = np.maximum(np.searchsorted(length, length[:-1] + distance), first + 1)
    above = np.minimum(above, len(length) - 1)
    below = np.maximum(np.searchsorted(length, length[np.maximum(above - 1, 0)]), first + 1)
    misses = [np.abs(length[k] - length[:-1] - distance) for k in (below, above)]
    second = np.where(misses[0] <= misses[1], below, above)
    good = np.minimum(*misses) <= TOLERANCE * distance
    return first[good], second[good]


def motion_errors(
    estimated: Array, true: Array, first: Array, second: Array, scale: float
) -> tuple[Array, Array]:
    """Returns the errors of the motion between pairs of poses: lengths [P] and angles [P], rad.

    scale: true lengths over estimated ones. A fit's rotation and translation change no motion.
    """
    moved, turned = np.zeros(len(first)), np.zeros(len(first))
    for start in range(0, len(first), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        a, b = first[part], second[part]
        moved[part], turned[part] = _motion_errors(
            estimated[a], estimated[b], true[a], true[b], scale
        )
    return moved, turned


def _motion_errors(
    T_a: Array, T_b: Array, true_a: Array, true_b: Array, scale: float
) -> tuple[Array, Array]:
    """Returns the errors [P] of the motion from poses ``a`` [P, 4, 4] to ``b``."""
    estimated = _relative(T_a, T_b)
    estimated[:, :3, 3] *= scale
    error = _relative(_relative(true_a, true_b), estimated)
    sine = np.linalg.norm(
        [error[:, i, j] - error[:, j, i] for i, j in ((2, 1), (0, 2), (1, 0))], axis=0
    )
    cosine = np.trace(error[:, :3, :3], axis1=1, axis2=2) - 1
    return np.linalg.norm(error[:, :3, 3], axis=1), np.arctan2(sine, cosine)


def _relative(T_a: Array, T_b: Array) -> Array:
    """Returns the poses [P, 4, 4] of ``b`` in the frames of ``a``."""
    out = np.tile(np.eye(4), (len(T_a), 1, 1))
    R = T_a[:, :3, :3].transpose(0, 2, 1)
    out[:, :3, :3] = R @ T_b[:, :3, :3]
    out[:, :3, 3] = np.einsum("nij,nj->ni", R, T_b[:, :3, 3] - T_a[:, :3, 3])
    return out


def _lengths(poses: Array) -> Array:
    """Returns the length [N] of the path up to each pose."""
    steps = np.linalg.norm(np.diff(poses[:, :3, 3], axis=0), axis=1)
    return np.concatenate(([0.0], np.cumsum(steps)))


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(values**2)))
