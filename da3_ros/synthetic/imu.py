"""A simulated IMU that moves with a camera: what it measures between rendered frames.

The motion between the frames is a spline through their poses, so that images and IMU agree.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.spatial.transform import Rotation, RotationSpline

from da3_ros.inertial.noise import GRAVITY, NO_NOISE
from da3_ros.types import Array, ImuNoise, ImuStretch

_GRAVITY_ROOM = np.array([0.0, 0.0, -GRAVITY])  # z is up


@dataclass(frozen=True, eq=False)
class ImuSamples:
    """What an IMU measured, in its own axes, as its driver publishes it."""

    stamps_ns: Array  # int64 [N], ascending
    gyro: Array  # [N, 3] rad/s
    acceleration: Array  # [N, 3] m/s^2, specific force: 9.8 upwards at rest
    gyro_bias: Array  # [N, 3] rad/s, the truth
    acceleration_bias: Array  # [N, 3] m/s^2, the truth
    T_camera_imu: Array = field(default_factory=lambda: np.eye(4))  # [4, 4] the true mount

    def between(
        self, first_ns: int, last_ns: int, T_camera_imu: Array | None = None
    ) -> ImuStretch:
        """Returns the samples of a stretch, in the axes of the camera; its ends are interpolated.

        T_camera_imu: [4, 4] the stated mount; None: the true one.
        """
        T = self.T_camera_imu if T_camera_imu is None else T_camera_imu
        inside = self.stamps_ns[(self.stamps_ns > first_ns) & (self.stamps_ns < last_ns)]
        stamps = np.concatenate(([first_ns], inside, [last_ns]))
        gyro, acceleration = (
            np.column_stack([
                np.interp(stamps - first_ns, self.stamps_ns - first_ns, axis) for axis in values.T
            ]) @ T[:3, :3].T
            for values in (self.gyro, self.acceleration)
        )  # fmt: skip
        return ImuStretch(stamps, gyro, acceleration, T[:3, 3].copy())

    def stretches(
        self, stamps_ns: Iterable[int], T_camera_imu: Array | None = None
    ) -> list[ImuStretch]:
        """Returns the stretches between consecutive stamps of frames, one fewer than these."""
        pairs = itertools.pairwise(stamps_ns)
        return [self.between(int(a), int(b), T_camera_imu) for a, b in pairs]


def imu_samples(
    T_room_camera: Array,
    stamps_ns: Array,
    *,
    T_camera_imu: Array | None = None,
    noise: ImuNoise | None = None,
    rate_hz: float = 200.0,
    seed: int = 0,
    late_s: float = 0.0,
    limits: tuple[float, float] = (np.inf, np.inf),
) -> ImuSamples:
    """Returns what an IMU on a camera measures along its frames.

    Args:
        T_room_camera: [F, 4, 4] poses of the frames (optical axes; z of the room up, metres).
        stamps_ns: int64 [F] their stamps, ascending.
        T_camera_imu: [4, 4] mount of the IMU; None: in the camera, with its optical axes.
        noise: its errors, drawn by ``seed``; None: exact.
        rate_hz: samples per second; they begin before the first frame and end after the last one.
        late_s: by how much the samples' stamps are later than what they measured.
        limits: largest rate (rad/s) and acceleration (m/s^2) of an axis, beyond which it is cut.

    Raises:
        ValueError: stamps that do not ascend, or another number of them.
    """
    stamps_ns = np.asarray(stamps_ns, np.int64)
    if (
        len(stamps_ns) != len(T_room_camera)
        or len(stamps_ns) < 2
        or (np.diff(stamps_ns) <= 0).any()
    ):
        raise ValueError("an IMU needs two frames or more, with ascending stamps")
    T_camera_imu = np.eye(4) if T_camera_imu is None else T_camera_imu
    noise = noise or NO_NOISE
    rng = np.random.default_rng([seed, 0x1B])
    step = 1 / rate_hz
    length = (stamps_ns[-1] - stamps_ns[0]) / 1e9
    times = np.arange(-step * rng.uniform(1.0, 2.0), length + abs(late_s) + 2 * step, step)
    gyro, acceleration = _exact(
        T_room_camera, (stamps_ns - stamps_ns[0]) / 1e9, times - late_s, T_camera_imu
    )
    gyro_bias = _bias(rng, len(times), step, noise.gyro_bias, noise.gyro_walk)
    acceleration_bias = _bias(
        rng, len(times), step, noise.acceleration_bias, noise.acceleration_walk
    )
    white = np.sqrt(rate_hz) * rng.normal(size=(2, len(times), 3))
    gyro = gyro + gyro_bias + noise.gyro * white[0]
    acceleration = acceleration + acceleration_bias + noise.acceleration * white[1]
    return ImuSamples(
        stamps_ns[0] + np.round(1e9 * times).astype(np.int64),
        gyro.clip(-limits[0], limits[0]),
        acceleration.clip(-limits[1], limits[1]),
        gyro_bias,
        acceleration_bias,
        T_camera_imu,
    )


def _exact(
    T_room_camera: Array, frame_times: Array, times: Array, T_camera_imu: Array
) -> tuple[Array, Array]:
    """Returns rates and specific forces [N, 3] in the IMU's axes at times, seconds."""
    turning = RotationSpline(frame_times, Rotation.from_matrix(T_room_camera[:, :3, :3]))
    R = turning(times).as_matrix()
    rate, spin = turning(times, 1), turning(times, 2)  # in the camera's axes
    arm = np.broadcast_to(T_camera_imu[:3, 3], rate.shape)
    moved = CubicSpline(frame_times, T_room_camera[:, :3, 3])(times, 2)
    forces = np.einsum("nji,nj->ni", R, moved - _GRAVITY_ROOM)
    forces = forces + np.cross(spin, arm) + np.cross(rate, np.cross(rate, arm))
    return rate @ T_camera_imu[:3, :3], forces @ T_camera_imu[:3, :3]


def _bias(rng: np.random.Generator, count: int, step: float, offset: float, walk: float) -> Array:
    """Returns a bias [N, 3] that begins at a random offset and walks."""
    steps = walk * np.sqrt(step) * rng.normal(size=(count, 3))
    return np.asarray(offset * rng.normal(size=3) + np.cumsum(steps, axis=0))
