"""Small pure functions on poses and pixels, in the conventions of ``types``."""

from __future__ import annotations

import numpy as np
from scipy.spatial.transform import Rotation

from da3_ros.types import Array, FloatImage

# World (first camera's optical axes) to the ROS map (REP-103: x forward, y left, z up).
T_MAP_WORLD = np.array(
    [[0.0, 0.0, 1.0, 0.0], [-1.0, 0.0, 0.0, 0.0], [0.0, -1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
)


def invert_pose(T: Array) -> Array:
    """Inverse of a rigid transform [4, 4]."""
    out = np.eye(4)
    out[:3, :3] = T[:3, :3].T
    out[:3, 3] = -T[:3, :3].T @ T[:3, 3]
    return out


def quaternion_from_matrix(R: Array) -> Array:
    """Unit quaternion [4] (x, y, z, w), w >= 0, of a rotation [3, 3]."""
    q = Rotation.from_matrix(R).as_quat()
    return np.asarray(-q if q[3] < 0 else q)


def matrix_from_quaternion(q: Array) -> Array:
    """Rotation [3, 3] of a quaternion [4] (x, y, z, w) of any non-zero length."""
    return np.asarray(Rotation.from_quat(q).as_matrix())


def backproject(depth: FloatImage, K: Array) -> FloatImage:
    """Points [h, w, 3] in the camera's optical axes of z-depth [h, w]; NaN stays NaN.

    Corner rule: the ray of pixel (row i, column j) passes (j + 0.5, i + 0.5).
    """
    height, width = depth.shape
    inverse = np.linalg.inv(K)
    u, v = np.arange(width) + 0.5, np.arange(height) + 0.5
    x = inverse[0, 0] * u[None] + inverse[0, 1] * v[:, None] + inverse[0, 2]
    y = np.broadcast_to((inverse[1, 1] * v + inverse[1, 2])[:, None], depth.shape)
    with np.errstate(invalid="ignore"):
        return np.stack((x * depth, y * depth, depth), axis=-1).astype(np.float32)


def project(points: Array, K: Array) -> Array:
    """Pixels [..., 2] (column, row; corner rule) of camera points [..., 3]; NaN behind it."""
    z = np.where(points[..., 2] > 0, points[..., 2], np.nan)
    return (points / z[..., None] @ K.T)[..., :2]
