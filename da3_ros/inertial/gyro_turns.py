"""How cameras turn from view to view, by the gyro; its bias is learned from refined poses.

A gyro is believed once it has agreed with the camera over some rotation: until then nobody knows
whether its mount and its stamps are right.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.spatial.transform import Rotation

from da3_ros.geometry.poses import cross_matrices
from da3_ros.inertial.mount_check import MountCheck
from da3_ros.types import Array, ImuStretch, View

# Factors on the IMU's own white noise and on the walk of its bias: what else disturbs a chip.
MORE_WHITE, MORE_WALK = 1.875, 4.55
# Standard deviations: of scale factor and mount, per angle, at least; of the mount, rad, and of
# the bias, rad/s, that nothing is known of; of a rotation by tracks, by a network alone, and of a
# camera at rest, rad.
SCALE_FACTOR, FIRST_MOUNT, FIRST_BIAS = 0.01, 0.05, 0.02
BY_TRACKS, BY_NETWORK, AT_REST = 0.003, 0.015, 0.001
MEMORY = 0.97  # share of what is known of the agreement that stays at the next pair of views
# Time between two views that are compared: a shorter one hardly shows a rotation, s.
LEAST_S, MOST_S = 0.25, 5.0
TURNED = 0.2  # rad, of pairs together, that show whether the gyro agrees
FORCE_S = 1.0  # time over which the mean force stands for gravity
SHOWN = 3.0  # standard deviations of a rotation that shows anything
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
    white: float  # standard deviation of the gyro's white noise, rad / sqrt(s)
    misfit: float  # the same of what is proportional to the rotation, per angle
    # Integrals of the specific force in that frame, and its mean over the second before.
    velocity: Array  # [3] m/s
    position: Array  # [3] m
    force: Array  # [3] m/s^2


def turn_between(a: GyroPose | None, b: GyroPose | None) -> tuple[Array, float] | None:
    """Returns the rotation [3, 3] from a later view's axes to those of an earlier one, and its
    standard deviation, rad; None: not measured."""
    if a is None or b is None or a.chain != b.chain or b.time_s < a.time_s:
        return None
    seconds, angle = b.time_s - a.time_s, b.angle - a.angle
    sigma = math.hypot(b.white * math.sqrt(seconds), b.bias_sigma * seconds, b.misfit * angle)
    return np.asarray(a.R.T @ b.R), sigma


def carried_m(a: GyroPose, b: GyroPose) -> float:
    """Returns how far a camera was accelerated out of its way from one view to a later one of the
    same chain, metres: the mean force before the first one stands for gravity."""
    T = b.time_s - a.time_s
    moved = b.position - a.position - T * a.velocity - T**2 / 2 * a.force
    return float(np.linalg.norm(moved))


class _MountError:
    """By how much the mount is wrong, by what the differences of all rotations have in common.

    It turns all views of a bundle alike, so that many rotations are not better than one: its size
    is the deviation of each, however well it is known.
    """

    def __init__(self) -> None:
        self._information, self._weighed = np.zeros((3, 3)), np.zeros(3)

    def learn(self, turn: Array, difference: Array, variance: float) -> None:
        """Takes a rotation vector [3] between two views, and what that of the gyro differs by [3]
        with its variance, rad."""
        # Times a small rotation of the mount: how the turn changes.
        across = -cross_matrices(turn)
        self._information = MEMORY * self._information + across.T @ across / variance
        self._weighed = MEMORY * self._weighed + across.T @ difference / variance

    @property
    def misfit(self) -> float:
        """Standard deviation of a rotation by the gyro, per angle."""
        first = np.eye(3) / FIRST_MOUNT**2
        rotation = np.linalg.solve(self._information + first, self._weighed)
        return max(SCALE_FACTOR, float(np.linalg.norm(rotation)))


class _Gyro:
    """The gyro as one camera has it: all values in that camera's axes."""

    def __init__(self) -> None:
        self.pose = _at_rest(0, FIRST_BIAS)
        self._before: deque[GyroPose] = deque()  # of the second before, of one chain
        self.stamp_ns = -1
        self.bias = np.zeros(3)
        self.variance = FIRST_BIAS**2
        self.turned = self.missed = 0.0  # sums of squares, rad^2: of rotations, of differences
        self.angle = 0.0  # sum of the rotations that were compared, rad
        self._mount = _MountError()
        self.seen: tuple[GyroPose, Array] | None = None  # the last view that was compared, and R

    def add(self, stamp_ns: int, stretch: ImuStretch | None) -> GyroPose:
        """Returns the orientation at the next view."""
        last = self.pose
        sigma = math.sqrt(self.variance)
        if stretch is None or int(stretch.stamps_ns[0]) != self.stamp_ns:
            self.pose = _at_rest(last.chain + 1, sigma)
            self._before.clear()
        else:
            walk = MORE_WALK * stretch.noise.gyro_walk
            self.variance += walk**2 * (stamp_ns - self.stamp_ns) / 1e9
            self.pose = self._moved(last, stretch, sigma)
        self._before.append(self.pose)
        while self.pose.time_s - self._before[0].time_s > FORCE_S:
            self._before.popleft()
        self.stamp_ns = stamp_ns
        return self.pose

    def _moved(self, last: GyroPose, stretch: ImuStretch, sigma: float) -> GyroPose:
        """Returns the orientation after a stretch."""
        R, angle = self._rotation(stretch)
        seconds = float(stretch.stamps_ns[-1] - stretch.stamps_ns[0]) / 1e9
        # The mean of both ends' axes, for the mean force: enough for metres in a second.
        ends = (np.eye(3) + R) / 2
        step = np.diff(stretch.stamps_ns) / 1e9
        mean = step @ (stretch.acceleration[1:] + stretch.acceleration[:-1]) / 2 / seconds
        gained = seconds * last.R @ ends @ mean
        velocity = last.velocity + gained
        position = last.position + seconds * (last.velocity + gained / 2)
        first, time_s = self._before[0], last.time_s + seconds
        force = (velocity - first.velocity) / (time_s - first.time_s)
        return GyroPose(
            last.chain, time_s, last.R @ R, last.angle + angle, sigma,
            MORE_WHITE * stretch.noise.gyro, self._mount.misfit, velocity, position, force,
        )  # fmt: skip

    def _rotation(self, stretch: ImuStretch) -> tuple[Array, float]:
        step = np.diff(stretch.stamps_ns)[:, None] / 1e9
        middle = (stretch.gyro[1:] + stretch.gyro[:-1]) / 2 - self.bias
        R, turns = np.eye(3), Rotation.from_rotvec(step * middle)
        for turn in turns.as_matrix():
            R = R @ turn
        return R, float(np.sum(np.linalg.norm(step * middle, axis=1)))

    def see(self, pose: GyroPose, R: Array, sigma: float) -> None:
        """Learns from the rotation [3, 3] of a view in a frame that does not turn; sigma: its
        standard deviation, rad. Views are compared with the last one, a while before."""
        before = self.seen
        seconds = math.inf if before is None else pose.time_s - before[0].time_s
        if before is None or before[0].chain != pose.chain or seconds > MOST_S:
            self.seen = pose, R
        elif seconds >= LEAST_S:
            self.compare(before[0], pose, before[1].T @ R, sigma)
            self.seen = pose, R

    def compare(self, a: GyroPose, b: GyroPose, R_seen: Array, sigma: float) -> None:
        """Learns from the rotation [3, 3] between two views; sigma: of each one's, rad."""
        turn = turn_between(a, b)
        seconds = b.time_s - a.time_s
        if turn is None or seconds <= 0:
            return
        difference = Rotation.from_matrix(turn[0].T @ R_seen).as_rotvec()
        seen = float(Rotation.from_matrix(R_seen).magnitude())
        largest = max(seen, float(Rotation.from_matrix(turn[0]).magnitude()))
        if largest > SHOWN * (sigma + self.pose.bias_sigma * seconds):
            # A difference as large as the poses are wrong says nothing against the gyro.
            missed = max(0.0, float(np.linalg.norm(difference)) - sigma)
            self.turned = MEMORY * self.turned + largest**2
            self.missed = MEMORY * self.missed + missed**2
            self.angle += largest
        noise = 2 * (sigma / seconds) ** 2 + b.white**2 / seconds
        variance = seconds**2 * (noise + self.variance)
        self._mount.learn(Rotation.from_matrix(R_seen).as_rotvec(), difference, variance)
        gain = self.variance / (self.variance + noise)
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


def _at_rest(chain: int, bias_sigma: float) -> GyroPose:
    """Returns the first orientation of a chain."""
    nothing = np.zeros(3)
    return GyroPose(
        chain, 0.0, np.eye(3), 0.0, bias_sigma, 0.0, SCALE_FACTOR, nothing, nothing, nothing
    )


class GyroTurns:
    """The rotations of one scene's cameras by the gyro. Not thread-safe.

    ``mount``: what else is known to be wrong with the IMU. A mount that is wrong by little hardly
    changes the rotations, so that they agree with the camera's.
    """

    def __init__(self) -> None:
        self.mount = MountCheck()
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
        """Returns the orientation at a view by a gyro that agrees with its camera, and has no
        known fault; None: there is none."""
        camera, pose = self._poses.get(id, ("", None))
        return pose if self.state(camera) == "agrees" and not self.mount.fault else None

    def turn(self, first: int, second: int) -> tuple[Array, float] | None:
        """Returns the rotation [3, 3] of view ``second`` in the axes of an earlier one of its
        camera, and its standard deviation, rad; None: not measured."""
        return turn_between(*self._pair(first, second))

    def _pair(self, first: int, second: int) -> tuple[GyroPose | None, GyroPose | None]:
        """Returns the orientations at two views; none of two cameras, whose frames differ."""
        cameras = {self._poses[id][0] for id in (first, second) if id in self._poses}
        return (self.pose(first), self.pose(second)) if len(cameras) == 1 else (None, None)

    @property
    def states(self) -> dict[str, tuple[str, float]]:
        """By camera: whether its rotations say that the gyro ``agrees`` or ``contradicts``, or
        ``unknown``, and the size of the gyro's bias, rad/s."""
        return {
            camera: (gyro.state, float(np.linalg.norm(gyro.bias)))
            for camera, gyro in self._gyros.items()
        }

    def carried_m(self, first: int, second: int) -> float:
        """Returns ``carried_m`` between two views; inf: unknown."""
        a, b = self._pair(first, second)
        return math.inf if a is None or b is None or a.chain != b.chain else carried_m(a, b)

    def state(self, camera: str) -> str:
        """Returns what the rotations of a camera say of the gyro, as in ``states``."""
        gyro = self._gyros.get(camera)
        return "unknown" if gyro is None else gyro.state

    def note_rest(self, id: int, R: Array) -> None:
        """Takes over that a camera stands with rotation R [3, 3] at a view: all that the gyro
        measures then is its bias."""
        if (known := self._poses.get(id)) is not None:
            self._gyros[known[0]].see(known[1], R, AT_REST)

    def learn(
        self, views: Iterable[View], poses: Mapping[int, Array], *, by_tracks: bool = True
    ) -> None:
        """Compares the rotation of each camera's newest view that has a pose.

        poses: [4, 4] in one frame, by id. by_tracks: else by a network alone.
        """
        sigma = BY_TRACKS if by_tracks else BY_NETWORK
        by_camera: dict[str, list[int]] = {}
        for view in views:
            if view.id in poses and view.id in self._poses:
                by_camera.setdefault(view.camera, []).append(view.id)
        for camera, ids in by_camera.items():
            self._gyros[camera].see(self._poses[max(ids)][1], poses[max(ids)][:3, :3], sigma)

    def start_chain(self) -> None:
        """Takes over that poses have another frame from now on."""
        for gyro in self._gyros.values():
            gyro.seen = None
