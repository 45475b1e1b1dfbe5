"""Reads global poses of the robot, live or recorded. No middleware."""

from __future__ import annotations

from typing import Any

import numpy as np

from da3_ros.config import NodeConfig
from da3_ros.geometry.poses import matrix_from_quaternion
from da3_ros.messages.decode import stamp_ns
from da3_ros.sensors.global_poses import GivenPose, GlobalPoses
from da3_ros.sensors.transform_tree import TransformTree
from da3_ros.types import UNKNOWN_M2, UNKNOWN_RAD2, Array

POSE = "geometry_msgs/msg/PoseWithCovarianceStamped"
TOPIC = "~/global_pose"
NOT_STATED_M = 0.5  # standard deviation of a position whose variances are all zero
UPRIGHT_RAD = 0.05  # of a rotation whose variance is zero where others are not
LEAST_M, LEAST_RAD = 1e-3, 1e-3  # least standard deviations
MOST_RAD2 = 1.0  # variance of a rotation from which on nothing is known of it


class GlobalPoseError(ValueError):
    """A global pose cannot be used; one line with the cause."""


def open_global_poses(config: NodeConfig, transforms: TransformTree) -> GlobalPoses:
    """Returns what gives global poses to frames, by the parameters."""
    cameras, mode = config.pipeline.cameras, config.pipeline.window.mode
    return GlobalPoses(
        transforms, config.map_frame, config.odom_frame, config.base_frame,
        leading=next(iter(cameras), ""), shared=mode == "joint",
    )  # fmt: skip


def given_pose(message: Any) -> GivenPose:
    """Returns what a geometry_msgs/PoseWithCovarianceStamped says. Raises GlobalPoseError."""
    frame, stamp = message.header.frame_id.lstrip("/"), stamp_ns(message.header.stamp)
    p, q = message.pose.pose.position, message.pose.pose.orientation
    position, quaternion = np.array([p.x, p.y, p.z]), np.array([q.x, q.y, q.z, q.w])
    if not frame:
        raise GlobalPoseError("its header has no frame_id")
    if stamp <= 0:
        raise GlobalPoseError("its header has no stamp: it must be that of the measurement")
    if not (np.isfinite(position).all() and np.isfinite(quaternion).all()):
        raise GlobalPoseError("its pose is not finite")
    covariance = stated(np.asarray(message.pose.covariance, np.float64))
    T = np.eye(4)
    if quaternion.any():
        T[:3, :3] = matrix_from_quaternion(quaternion)
    else:
        covariance = without_rotation(covariance)
    T[:3, 3] = position
    if (np.diag(covariance)[:2] >= UNKNOWN_M2).any():
        raise GlobalPoseError("its covariance says that the position is unknown")
    return GivenPose(stamp, frame, T, covariance)


def stated(covariance: Array) -> Array:
    """Returns the covariance [6, 6] of a message's one [36], with what is unknown as
    ``GlobalPose`` has it.

    Position: three zeros are not stated, and stand for ``NOT_STATED_M``; one zero takes the
    largest of the others. Rotation: three zeros, or a radian and more, are unknown; one zero is
    ``UPRIGHT_RAD``. What is negative or not finite is unknown.
    """
    full = covariance.reshape(6, 6) if covariance.size == 36 else np.zeros((6, 6))
    full = (full + full.T) / 2
    position, rotation = np.diag(full)[:3].copy(), np.diag(full)[3:].copy()
    known = np.concatenate((position, rotation))
    usable = np.isfinite(known) & (known >= 0)
    position[~usable[:3] | (position > UNKNOWN_M2)] = UNKNOWN_M2
    if not position.any():
        position[:] = NOT_STATED_M**2
    position[position == 0] = position.max()
    rotation[~usable[3:]] = MOST_RAD2
    if not rotation.any():
        rotation[:] = MOST_RAD2
    rotation[rotation == 0] = UPRIGHT_RAD**2
    rotation[rotation >= MOST_RAD2] = UNKNOWN_RAD2
    position, rotation = np.maximum(position, LEAST_M**2), np.maximum(rotation, LEAST_RAD**2)
    alone = np.diag(np.concatenate((position, rotation)))
    same = np.isclose(np.diag(alone), np.diag(full))
    both = np.where(np.outer(same, same) & np.isfinite(full), full, 0.0)
    np.fill_diagonal(both, np.diag(alone))
    scaled = both / np.sqrt(np.outer(np.diag(alone), np.diag(alone)))
    return both if np.linalg.eigvalsh(scaled)[0] > 1e-6 else alone


def without_rotation(covariance: Array) -> Array:
    """Returns a covariance [6, 6] with an unknown rotation."""
    out = covariance.copy()
    out[3:, :], out[:, 3:] = 0.0, 0.0
    out[3:, 3:] = UNKNOWN_RAD2 * np.eye(3)
    return out
