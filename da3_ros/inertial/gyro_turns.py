"""How cameras turn from view to view, by the gyro; its bias is learned from refined poses.

A gyro is believed once it has agreed with the camera over some rotation: until then nobody knows
whether its mount and its stamps are right.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.spatial.transform import Rotation

from da3_ros.types import Array, ImuStretch, View

# Standard deviations: of white noise, rad / sqrt(s), the double of a consumer chip's; of the scale
# factor and of the mount, per angle; of the bias that nothing is known of, and its walk,
# rad/s / sqrt(s); of a rotation by tracks, by a network alone, and of a camera at rest, rad.
WHITE, SCALE_FACTOR, FIRST_BIAS, BIAS_WALK = 3e-4, 0.01, 0.02, 1e-4
BY_TRACKS, BY_NETWORK, AT_REST = 0.003, 0.015, 0.001
MEMORY = 0.998  # share of what is known of the agreement that stays at the next pair of views
TURNED = 0.2  # rad, of pairs together, that show whether the gyro agrees
AGREES, DISAGREES = 0.2, 0.5  # error over rotation, root mean squares
MAX_BIAS = 0.2  # rad/s; more is a fault


@dataclass(frozen=True, eq=False)
class GyroPose:
    """The orientation of a camera by the gyro alone, in a frame of its own."""

    chain: int  # poses of one chain have one frame
    time_s: float  # since its beginning
    R: Array  # [3, 3] of the camera in that frame
    angle: float  # sum of all rotations, rad
    bias_sigma: float  # of the gyro's bias, rad/s


def turn_between(a: GyroPose | None, b: GyroPose | None) -> tuple[Array, float] | None:
    """Returns the rotation [3, 3] from a later view's axes to those of an earlier one, and its
    standard deviation, rad; None: not measured."""
    if a is None or b is None or a.chain != b.chain or b.time_s < a.time_s:
        return None
    seconds, angle = b.time_s - a.time_s, b.angle - a.angle
    sigma = math.hypot(WHITE * math.sqrt(seconds), b.bias_sigma * seconds, SCALE_FACTOR * angle)
    return np.asarray(a.R.T @ b.R), sigma


class _Gyro:
    """The gyro as one camera has it: all values in that camera's axes."""

    def __init__(self) -> None:
        self.pose = GyroPose(0, 0.0, np.eye(3), 0.0, FIRST_BIAS)
        self.stamp_ns = -1
        self.bias = np.zeros(3)
        self.variance = FIRST_BIAS**2
        self.turned = self.missed = 0.0  # sums of squares, rad^2: of rotations, of differences
        self.angle = 0.0  # sum of the rotations that were compared, rad

    def add(self, stamp_ns: int, stretch: ImuStretch | None) -> GyroPose:
        """Returns the orientation at the next view."""
        last = self.pose
        sigma = math.sqrt(self.variance)
        if stretch is None or int(stretch.stamps_ns[0]) != self.stamp_ns:
            self.pose = GyroPose(last.chain + 1, 0.0, np.eye(3), 0.0, sigma)
        else:
            R, angle = self._rotation(stretch)
            seconds = (stamp_ns - self.stamp_ns) / 1e9
            self.variance += BIAS_WALK**2 * seconds
            self.pose = GyroPose(
                last.chain, last.time_s + seconds, last.R @ R, last.angle + angle, sigma
            )
        self.stamp_ns = stamp_ns
        return self.pose

    def _rotation(self, stretch: ImuStretch) -> tuple[Array, float]:
        step = np.diff(stretch.stamps_ns)[:, None] / 1e9
        middle = (stretch.gyro[1:] + stretch.gyro[:-1]) / 2 - self.bias
        R, turns = np.eye(3), Rotation.from_rotvec(step * middle)
        for turn in turns.as_matrix():
            R = R @ turn
        return R, float(np.sum(np.linalg.norm(step * middle, axis=1)))

    def compare(self, a: GyroPose, b: GyroPose, R_seen: Array, sigma: float) -> None:
        """Learns from the rotation [3, 3] between two views; sigma: of each one's, rad."""
        turn = turn_between(a, b)
        seconds = b.time_s - a.time_s
        if turn is None or seconds <= 0:
            return
        difference = Rotation.from_matrix(turn[0].T @ R_seen).as_rotvec()
        seen = float(Rotation.from_matrix(R_seen).magnitude())
        # A difference as large as the poses are wrong says nothing against the gyro.
        missed = max(0.0, float(np.linalg.norm(difference)) - sigma)
        self.turned = MEMORY * self.turned + seen**2
        self.missed = MEMORY * self.missed + missed**2
        self.angle += seen
        gain = self.variance / (self.variance + 2 * (sigma / seconds) ** 2)
        bias = self.bias - gain * difference / seconds
        self.bias = bias * min(1.0, MAX_BIAS / max(float(np.linalg.norm(bias)), 1e-12))
        self.variance *= 1 - gain

    @property
    def share(self) -> float:
        """The error of its rotations over the rotations; NaN: unknown yet."""
        if self.angle < TURNED or not self.turned > 0:
            return math.nan
        return math.sqrt(self.missed / self.turned)

    @property
    def state(self) -> str:
        """What the camera's rotations say of it: agrees, contradicts, unknown."""
        if self.share > DISAGREES:
            return "contradicts"
        return "agrees" if self.share < AGREES else "unknown"


class GyroTurns:
    """The rotations of one scene's cameras by the gyro. Not thread-safe."""

    def __init__(self) -> None:
        self._gyros: dict[str, _Gyro] = {}
        self._poses: dict[int, tuple[str, GyroPose]] = {}  # camera and pose, by view

    def add(self, view: View) -> None:
        """Takes the next view of a camera, also one that shows nothing."""
        if view.imu is None and view.camera not in self._gyros:
            return
        gyro = self._gyros.setdefault(view.camera, _Gyro())
        self._poses[view.id] = view.camera, gyro.add(view.stamp_ns, view.imu)

    def keep(self, ids: Collection[int]) -> None:
        """Forgets all views but these and the newest one of each camera."""
        newest = {camera: id for id, (camera, _) in self._poses.items()}
        ids = {*ids, *newest.values()}
        self._poses = {id: pose for id, pose in self._poses.items() if id in ids}

    def pose(self, id: int) -> GyroPose | None:
        """Returns the orientation at a view by a gyro that agrees with its camera; None: there is
        none."""
        camera, pose = self._poses.get(id, ("", None))
        return pose if self.state(camera) == "agrees" else None

    def turn(self, first: int, second: int) -> tuple[Array, float] | None:
        """Returns the rotation [3, 3] of view ``second`` in the axes of an earlier one of its
        camera, and its standard deviation, rad; None: not measured."""
        return turn_between(self.pose(first), self.pose(second))

    @property
    def states(self) -> dict[str, tuple[str, float]]:
        """By camera: whether its rotations say that the gyro ``agrees`` or ``contradicts``, or
        ``unknown``, and the size of the gyro's bias, rad/s."""
        return {
            camera: (gyro.state, float(np.linalg.norm(gyro.bias)))
            for camera, gyro in self._gyros.items()
        }

    def state(self, camera: str) -> str:
        """Returns what the rotations of a camera say of the gyro, as in ``states``."""
        gyro = self._gyros.get(camera)
        return "unknown" if gyro is None else gyro.state

    def note_rest(self, first: int, second: int) -> None:
        """Takes over that a camera has not moved from one view to a later one: all that the gyro
        has measured is its bias."""
        a, b = self._poses.get(first), self._poses.get(second)
        if a is not None and b is not None:
            self._gyros[a[0]].compare(a[1], b[1], np.eye(3), AT_REST)

    def learn(
        self, views: Iterable[View], poses: Mapping[int, Array], *, by_tracks: bool = True
    ) -> None:
        """Compares the rotations between each camera's newest two views that have poses.

        poses: [4, 4] by id. by_tracks: else by a network alone.
        """
        sigma = BY_TRACKS if by_tracks else BY_NETWORK
        by_camera: dict[str, list[int]] = {}
        for view in views:
            if view.id in poses and view.id in self._poses:
                by_camera.setdefault(view.camera, []).append(view.id)
        for camera, ids in by_camera.items():
            for first, second in itertools.pairwise(sorted(ids)[-2:]):
                R = poses[first][:3, :3].T @ poses[second][:3, :3]
                a, b = self._poses[first][1], self._poses[second][1]
                self._gyros[camera].compare(a, b, R, sigma)
