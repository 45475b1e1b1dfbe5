"""Range sensors on a camera that walks through a rendered room: exact distances at their times.

A spinning LiDAR, whose returns are spread over a sweep while the camera moves on, and a range
finder with a cone.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.spatial.transform import Rotation

from da3_ros.geometry.poses import interpolate
from da3_ros.geometry.projection import backproject
from da3_ros.synthetic.camera import SyntheticCamera, intrinsics
from da3_ros.synthetic.renderer import render_batch
from da3_ros.synthetic.rooms import stack_rooms
from da3_ros.types import Array, FloatImage

# Sensor axes (REP-103: x forward, y left, z up) in the camera's optical axes.
_R_CAMERA_SENSOR = np.array([[0.0, -1.0, 0.0], [0.0, 0.0, -1.0], [1.0, 0.0, 0.0]])
SECTORS = 36  # of a sweep, each seen at one time
CONE_PIXELS = 15  # along the side of the image in which a cone is searched


def mount(x: float, y: float, z: float) -> Array:
    """Returns ``T_camera_sensor`` [4, 4] of a sensor that looks where the camera does, at a
    position in the camera's optical axes, metres."""
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = _R_CAMERA_SENSOR, (x, y, z)
    return T


class RenderedRanges:
    """The range sensors of a camera's robot. Times are seconds since the camera's first frame."""

    def __init__(self, camera: SyntheticCamera, device: str = "cpu") -> None:
        self._camera = camera
        self._rooms = stack_rooms([camera.room], device)

    def T_room_camera(self, seconds: float) -> Array:
        """Returns the camera's pose [4, 4] between its frames; at the ends, that of the first or
        last."""
        poses = self._camera.T_room_camera
        at = min(max(seconds * self._camera.rate_hz, 0.0), len(poses) - 1.0)
        first = min(int(at), max(len(poses) - 2, 0))
        if len(poses) == 1:
            return np.asarray(poses[0])
        return interpolate(poses[first], poses[first + 1], at - first)

    def sweep(
        self, T_camera_sensor: Array, start_s: float, duration_s: float,
        *, rows: int = 32, columns: int = 360, half_height_deg: float = 22.5,
    ) -> tuple[FloatImage, Array]:  # fmt: skip
        """Returns the points [N, 3] of a sweep, in the sensor's axes at their own times, metres,
        and these times after ``start_s`` [N], seconds."""
        turns = 2 * math.pi * (np.arange(SECTORS) / SECTORS - 0.5)
        offsets = duration_s * (np.arange(SECTORS) + 0.5) / SECTORS
        width = max(1, columns // SECTORS)
        size, half = (width, rows), math.pi / SECTORS
        K = intrinsics(size, math.degrees(2 * half))
        K[1, 1] = rows / 2 / math.tan(math.radians(half_height_deg))
        R_sensor_sector = (
            Rotation.from_rotvec(np.outer(turns, (0, 0, 1))).as_matrix() @ _R_CAMERA_SENSOR.T
        )
        poses = np.array([
            self.T_room_camera(start_s + t) @ T_camera_sensor @ _turned(R)
            for t, R in zip(offsets, R_sensor_sector, strict=True)
        ])  # fmt: skip
        points, times = [], []
        depths = render_batch(self._rooms, poses, K, size).depth.cpu().numpy()
        for depth, R, offset in zip(depths, R_sensor_sector, offsets, strict=True):
            seen = backproject(depth, K).reshape(-1, 3)
            seen = seen[np.isfinite(seen).all(axis=1)]
            points.append(seen @ R.T)
            times.append(np.full(len(seen), offset))
        return np.concatenate(points).astype(np.float32), np.concatenate(times)

    def distance(self, T_camera_sensor: Array, seconds: float, half_angle: float) -> float:
        """Returns the distance to the nearest surface in a cone around x of the sensor, metres;
        Inf if there is none."""
        size = (CONE_PIXELS, CONE_PIXELS)
        K = intrinsics(size, math.degrees(2 * half_angle))
        pose = self.T_room_camera(seconds) @ T_camera_sensor @ _turned(_R_CAMERA_SENSOR.T)
        depth = render_batch(self._rooms, pose[None], K, size).depth.cpu().numpy()[0]
        points = backproject(depth, K).reshape(-1, 3)
        distance = np.linalg.norm(points, axis=1)
        inside = points[:, 2] >= math.cos(half_angle) * distance
        return float(np.min(distance[inside], initial=math.inf))


def _turned(R: Array) -> Array:
    T = np.eye(4)
    T[:3, :3] = R
    return T
