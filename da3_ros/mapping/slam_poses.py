"""Poses of another SLAM over time: a bounded table, interpolation, and the spreading of a jump.

Pure mathematics on poses and stamps; no submaps, no ROS.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.spatial.transform import Rotation

from da3_ros.geometry.poses import between, mean_rotation
from da3_ros.types import Array

MOST = 100_000  # poses of a table, as many as of a trajectory
ARM_M = 0.5  # metres of path that a turn by one radian counts as
MAX_DRIFT = 0.15  # largest drift that odometry can have, over its path


class PoseTable:
    """Poses [4, 4] by ascending stamps; when full, every second one is dropped."""

    def __init__(self) -> None:
        self.clear()

    def __len__(self) -> int:
        return self._size

    def clear(self) -> None:
        """Forgets all poses."""
        self._size = 0
        self._stamps = np.zeros(64, np.int64)
        self._poses = np.zeros((64, 4, 4))

    @property
    def stamps(self) -> Array:
        """Stamps [N], ns."""
        return self._stamps[: self._size]

    @property
    def poses(self) -> Array:
        """Poses [N, 4, 4]; may be changed in place."""
        return self._poses[: self._size]

    def add(self, stamp_ns: int, T: Array) -> None:
        """Adds a pose that is newer than all others."""
        if self._size == len(self._stamps):
            self._stamps = np.concatenate((self._stamps, np.zeros_like(self._stamps)))
            self._poses = np.concatenate((self._poses, np.zeros_like(self._poses)))
        self._stamps[self._size], self._poses[self._size] = stamp_ns, T
        self._size += 1
        if self._size > MOST:
            half = slice(0, self._size, 2)
            stamps, poses = self._stamps[half].copy(), self._poses[half].copy()
            self._size = len(stamps)
            self._stamps[: self._size], self._poses[: self._size] = stamps, poses


def interpolated(stamps: Array, poses: Array, at: Array) -> Array:
    """Returns poses [M, 4, 4] at the times ``at`` [M]; the first or last one outside of
    ``stamps`` [N]."""
    after = np.clip(np.searchsorted(stamps, at), 1, max(len(stamps) - 1, 1))
    before, after = after - 1, np.minimum(after, len(stamps) - 1)
    span = np.maximum(stamps[after] - stamps[before], 1)
    return between(poses[before], poses[after], np.clip((at - stamps[before]) / span, 0.0, 1.0))


def mean_transform(T_a_camera: Array, T_b_camera: Array) -> Array:
    """Returns ``T_a_b`` [4, 4], the rigid transform between two frames that cameras [N, 4, 4] are
    known in: the mean of the rotations, and with it of the positions."""
    out = np.eye(4)
    out[:3, :3] = mean_rotation(T_a_camera, T_b_camera)
    out[:3, 3] = (T_a_camera[:, :3, 3] - T_b_camera[:, :3, 3] @ out[:3, :3].T).mean(axis=0)
    return out


def chords(first: Array, second: Array, least: float) -> tuple[float, float]:
    """Returns the lengths of two ways at the same times, poses [N, 4, 4] each, as sums of chords.

    A chord ends where either way is ``least`` from the chord's beginning, so that noise on the
    spot adds nothing.
    """
    ways = first[:, :3, 3], second[:, :3, 3]
    at = [0] * bool(len(first))
    for i in range(len(first)):
        if max(np.linalg.norm(way[i] - way[at[-1]]) for way in ways) >= least:
            at.append(i)
    one, other = (float(np.linalg.norm(np.diff(w[at], axis=0), axis=1).sum()) for w in ways)
    return one, other


def jump_size(J: Array, position: Array) -> tuple[float, float]:
    """Returns by how many metres and radians a transform [4, 4] moves a camera at a position."""
    turn = float(Rotation.from_matrix(J[:3, :3]).magnitude())
    return float(np.linalg.norm(J[:3, :3] @ position + J[:3, 3] - position)), turn


def spread_jump(poses: Array, begins: Sequence[int], J: Array) -> tuple[Array, bool]:
    """Returns poses [N, 4, 4] whose last one a jump ``J`` [4, 4] corrects, and whether the jump
    was spread over the path.

    begins: indices at which the path was right, ascending. The jump is the drift of the shortest
    stretch from one of them to the end along which odometry can have drifted so far: each pose
    gets its share, by the length of the path. If none is long enough, the jump is no drift, and
    all poses move as one.
    """
    length = _lengths(poses)
    metres, turn = jump_size(J, poses[-1, :3, 3])
    for begin in reversed(begins):
        if metres + ARM_M * turn <= MAX_DRIFT * (length[-1] - length[begin]):
            out = poses.copy()
            out[begin:] = _bent(poses[begin:], length[begin:] - length[begin], J)
            return out, True
    return J @ poses, False


def _lengths(poses: Array) -> Array:
    """Returns the length [N] of the path up to each pose, metres; turns count too."""
    R = poses[:, :3, :3]
    turns = Rotation.from_matrix(R[:-1].transpose(0, 2, 1) @ R[1:]).magnitude()
    steps = np.linalg.norm(np.diff(poses[:, :3, 3], axis=0), axis=1) + ARM_M * turns
    return np.concatenate(([0.0], np.cumsum(steps)))


def _bent(poses: Array, length: Array, J: Array) -> Array:
    """Returns a path [N, 4, 4] that is bent evenly along its ``length`` [N], so that its last pose
    moves by ``J``."""
    share = length / length[-1]
    turn = Rotation.from_matrix(J[:3, :3]).as_rotvec()
    halfway = Rotation.from_rotvec(((share[1:] + share[:-1]) / 2)[:, None] * turn)
    at = poses[:, :3, 3]
    steps = halfway.apply(np.diff(at, axis=0))
    bent = at[0] + np.concatenate((np.zeros((1, 3)), np.cumsum(steps, axis=0)))
    rest = J[:3, :3] @ at[-1] + J[:3, 3] - bent[-1]
    out = poses.copy()
    out[:, :3, :3] = Rotation.from_rotvec(share[:, None] * turn).as_matrix() @ poses[:, :3, :3]
    out[:, :3, 3] = bent + share[:, None] * rest
    return out
