"""Pure functions on poses and rotations, in the conventions of ``types``."""

from __future__ import annotations

import numpy as np
from scipy.spatial.transform import Rotation, Slerp

from da3_ros.types import Array

# The map (first camera's optical axes) in the axes that ROS publishes (REP-103: x forward, y left,
# z up).
T_ROS_MAP = np.array(
    [[0.0, 0.0, 1.0, 0.0], [-1.0, 0.0, 0.0, 0.0], [0.0, -1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
)


def invert_pose(T: Array) -> Array:
    """Inverse of a rigid transform [4, 4]."""
    out = np.eye(4)
    out[:3, :3] = T[:3, :3].T
    out[:3, 3] = -T[:3, :3].T @ T[:3, 3]
    return out


def quaternion_from_matrix(R: Array) -> Array:
    """Convert a rotation [3, 3] to a unit quaternion [4] (x, y, z, w) with w >= 0."""
    q = Rotation.from_matrix(R).as_quat()
    return np.asarray(-q if q[3] < 0 else q)


def matrix_from_quaternion(q: Array) -> Array:
    """Convert quaternions [4] or [N, 4] (x, y, z, w) of any non-zero length to rotations [3, 3]
    or [N, 3, 3]."""
    return np.asarray(Rotation.from_quat(q).as_matrix())


def turned(T: Array, R: Array) -> Array:
    """Returns a pose [4, 4] turned by R [3, 3] in its own axes, at the same position."""
    out = T.copy()
    out[:3, :3] = T[:3, :3] @ R
    return out


def turn_between(first: Array, second: Array) -> Array:
    """Returns the smallest rotation [3, 3] that turns one unit vector [3] into another one."""
    axis, cosine = np.cross(first, second), float(first @ second)
    if cosine < -1 + 1e-12:  # any axis across
        across = np.eye(3)[np.argmin(np.abs(first))]
        axis = np.cross(first, across)
        axis /= np.linalg.norm(axis)
        return np.asarray(2 * np.outer(axis, axis) - np.eye(3))
    x, y, z = axis
    K = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    return np.asarray(np.eye(3) + K + K @ K / (1 + cosine))


def nearest_rotation(R: Array) -> Array:
    """The rotation [3, 3] nearest to a matrix that is one but for rounding."""
    return np.asarray(Rotation.from_matrix(R).as_matrix())


def interpolate(a: Array, b: Array, share: float) -> Array:
    """Interpolate between poses ``a`` (share 0) and ``b`` (share 1), [4, 4]: linear and slerp."""
    out = np.eye(4)
    rotations = Rotation.from_matrix(np.stack((a[:3, :3], b[:3, :3])))
    out[:3, :3] = Slerp([0.0, 1.0], rotations)(share).as_matrix()
    out[:3, 3] = (1 - share) * a[:3, 3] + share * b[:3, 3]
    return out


def between(a: Array, b: Array, share: Array) -> Array:
    """Returns poses [N, 4, 4] between ``a`` (share 0) and ``b`` (share 1): linear and slerp."""
    out, R = a.copy(), a[:, :3, :3]
    turn = Rotation.from_matrix(R.transpose(0, 2, 1) @ b[:, :3, :3]).as_rotvec()
    out[:, :3, :3] = R @ Rotation.from_rotvec(share[:, None] * turn).as_matrix()
    out[:, :3, 3] += share[:, None] * (b[:, :3, 3] - a[:, :3, 3])
    return out


def cross_matrices(v: Array) -> Array:
    """Returns the matrices [..., 3, 3] of the cross products with vectors [..., 3]."""
    out = np.zeros((*v.shape, 3))
    out[..., 0, 1], out[..., 0, 2], out[..., 1, 2] = -v[..., 2], v[..., 1], -v[..., 0]
    out[..., 1, 0], out[..., 2, 0], out[..., 2, 1] = v[..., 2], -v[..., 1], v[..., 0]
    return out


def inverse_right_jacobian(v: Array) -> Array:
    """Returns the inverse right Jacobians [N, 3, 3] of SO(3) at rotation vectors [N, 3]: by how
    much these change with small rotations in the turned axes."""
    angle = np.linalg.norm(v, axis=1)
    small = angle < 1e-4
    a = np.where(small, 1.0, angle)
    k = np.where(small, 1 / 12, 1 / a**2 - (1 + np.cos(a)) / (2 * a * np.sin(a) + 1e-300))
    S = cross_matrices(v)
    return np.asarray(np.eye(3) + S / 2 + k[:, None, None] * (S @ S))


def mean_rotation(T_a_camera: Array, T_b_camera: Array) -> Array:
    """Returns the rotation [3, 3] from frame ``b`` to frame ``a``, the mean of those that cameras
    [N, 4, 4] say, which are known in both."""
    return best_rotation(np.einsum("nij,nkj->ik", T_a_camera[:, :3, :3], T_b_camera[:, :3, :3]))


def best_rotation(products: Array) -> Array:
    """Returns the rotation [3, 3] that turns vectors to others best, by the sum of the outer
    products [3, 3] of where they should be and where they are (Kabsch 1976)."""
    U, _, V = np.linalg.svd(products)
    return np.asarray(U @ np.diag([1.0, 1.0, np.sign(np.linalg.det(U @ V))]) @ V)


def spread(positions: Array, groups: Array) -> Array:
    """Returns positions [N, 3] less the mean of their group [N]."""
    out = positions.copy()
    for group in np.unique(groups):
        out[groups == group] -= positions[groups == group].mean(axis=0)
    return out


def is_pose(T: Array) -> bool:
    """Whether ``T`` [4, 4] is a finite rigid transform."""
    R = T[:3, :3]
    return bool(
        np.isfinite(T).all() and np.abs(R @ R.T - np.eye(3)).max() < 1e-3 and np.linalg.det(R) > 0
    )


def extrapolate(a: Array, b: Array, share: float) -> Array:
    """The pose [4, 4] after ``b``, further by ``share`` of the motion from ``a`` to ``b``."""
    step = invert_pose(a) @ b
    out = np.eye(4)
    rotation = Rotation.from_matrix(step[:3, :3]).as_rotvec() * share
    out[:3, :3] = Rotation.from_rotvec(rotation).as_matrix()
    out[:3, 3] = step[:3, 3] * share
    return b @ out
