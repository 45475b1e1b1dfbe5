"""Walks with an IMU: poses of the camera in a frame and a unit of their own, and stretches."""

import numpy as np
from scipy.spatial.transform import Rotation

from da3_ros.synthetic import make_room, make_walk
from da3_ros.synthetic.imu import imu_samples
from da3_ros.types import ImuNoise

UNIT = 0.4  # units of the path per metre
CHIP = ImuNoise()
BODY = np.eye(4)  # mount of an IMU with the axes of a body beside the camera
BODY[:3, :3] = [[0, -1, 0], [0, 0, -1], [1, 0, 0]]
BODY[:3, 3] = 0.05, 0.02, -0.03


def rover(seed, seconds):
    """Poses of a camera on a robot that brakes, speeds up, and turns about the vertical alone."""
    t = np.arange(round(10 * seconds) + 1) / 10
    speed = 0.6 + 0.4 * np.sin(2 * np.pi * t / (3.1 + seed)) + 0.15 * np.sin(2 * np.pi * t / 1.3)
    rate = 0.5 * np.sin(2 * np.pi * t / 5.3 + seed) + 0.4 * np.sin(2 * np.pi * t / 2.9)
    yaw = np.cumsum(rate) / 10
    T = np.tile(np.eye(4), (len(t), 1, 1))
    turn = Rotation.from_euler("z", yaw[:, None]).as_matrix()
    T[:, :3, :3] = turn @ [[0, 0, 1], [-1, 0, 0], [0, -1, 0]]
    ahead = np.column_stack([np.cos(yaw), np.sin(yaw)])
    T[:, :2, 3] = np.cumsum(speed[:, None] * ahead, axis=0) / 10
    return T


class InertialWalk:
    """A walk of ``seconds`` at 10 Hz; ``position_m`` and ``rotation_deg``: noise of its poses."""

    def __init__(self, kind, seed, seconds, *, noise=CHIP, position_m=0.0, rotation_deg=0.0,
                 poses=None, mount=BODY, stated=None, **imu):  # fmt: skip
        count = round(10 * seconds) + 1
        poses = make_walk(make_room(seed), kind, count, seed) if poses is None else poses
        self.true, self.at = poses, 1_000_000_000 + 100_000_000 * np.arange(len(poses))
        samples = imu_samples(poses, self.at, T_camera_imu=mount, noise=noise, seed=seed, **imu)
        self.samples, self.stretches = samples, samples.stretches(self.at, stated)
        rng = np.random.default_rng(seed)
        self.R_local_room = Rotation.random(random_state=seed).as_matrix()
        self.poses = poses.copy()
        turn = np.radians(rotation_deg) * rng.normal(size=(len(poses), 3))
        self.poses[:, :3, :3] = (
            self.R_local_room @ poses[:, :3, :3] @ Rotation.from_rotvec(turn).as_matrix()
        )
        off = position_m * rng.normal(size=(len(poses), 3))
        self.poses[:, :3, 3] = UNIT * (poses[:, :3, 3] + off) @ self.R_local_room.T
        self.up_local = self.R_local_room @ [0.0, 0.0, 1.0]

    def tilt(self, up_local):
        """Angle in radians between an estimate of up and the truth."""
        return float(np.arccos(np.clip(up_local @ self.up_local, -1, 1)))
