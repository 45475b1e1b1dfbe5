"""Reads the robot's own poses from live or recorded messages. No middleware."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from da3_ros.config import NodeConfig, prior_source
from da3_ros.geometry.poses import matrix_from_quaternion
from da3_ros.messages.decode import stamp_ns
from da3_ros.sensors.pose_prior import PosePrior, PriorError
from da3_ros.sensors.slam_corrections import SlamCorrections
from da3_ros.sensors.transform_tree import TransformError, TransformTree
from da3_ros.types import Array

log = logging.getLogger(__name__)

ODOMETRY = "nav_msgs/msg/Odometry"
ALWAYS_S = 1e9


def open_prior(config: NodeConfig, transforms: TransformTree, **options: Any) -> PosePrior | None:
    """Returns the pose prior that the parameters choose; None if there is none."""
    source = prior_source(config.pipeline)
    if source == "none":
        return None
    max_age_s = config.pipeline.pose_prior.max_age_s
    return PosePrior(source, max_age_s, transforms, config.odom_frame, **options)


def open_corrections(
    config: NodeConfig, transforms: TransformTree, prior: PosePrior | None
) -> SlamCorrections | None:
    """Returns the corrections of another SLAM that the parameters choose; None if none are."""
    chosen = config.pipeline.pose_prior
    if prior is None or chosen.corrections == "none":
        return None
    log.info(
        "another SLAM is followed (%s): it owns the map's shape, and no loops are closed here",
        chosen.corrections,
    )  # fmt: skip
    base = config.base_frame
    return SlamCorrections(chosen.corrections, chosen.map_frame, transforms, prior, base)


def add_odometry(prior: PosePrior, message: Any) -> None:
    """Add one nav_msgs/Odometry to the prior. Raises PriorError for an invalid pose."""
    try:
        T = rigid(message.pose.pose.position, message.pose.pose.orientation)
    except ValueError as error:
        raise PriorError(str(error)) from error
    stamp, variance = stamp_ns(message.header.stamp), _variance(message.pose.covariance)
    prior.add_odometry(
        message.child_frame_id, T, stamp, variance, message.header.frame_id.lstrip("/")
    )


def _variance(covariance: Any) -> Array | None:
    """Returns the diagonal [6] of a pose's covariance; None if it is zero or broken: unknown."""
    diagonal = np.asarray(covariance, np.float64)[::7]
    known = len(diagonal) == 6 and np.isfinite(diagonal).all() and diagonal.any()
    return diagonal if known else None


def add_transforms(
    tree: TransformTree,
    message: Any,
    *,
    static: bool,
    warn: Callable[[str], None],
    owner: str = "",
) -> None:
    """Add one tf2_msgs/TFMessage of the node ``owner``; ``warn`` is called for invalid ones."""
    topic = "/tf_static" if static else "/tf"
    for item in message.transforms:
        parent, child = item.header.frame_id, item.child_frame_id
        try:
            T = rigid(item.transform.translation, item.transform.rotation)
            tree.add(parent, child, T, stamp_ns(item.header.stamp), static=static, owner=owner)
        except (TransformError, ValueError) as error:
            warn(f"{topic}: transform ignored: {error}")


def rigid(translation: Any, rotation: Any) -> Array:
    """Returns [4, 4] of a vector and a quaternion message. Raises ValueError if that is zero."""
    T = np.eye(4)
    T[:3, :3] = matrix_from_quaternion(np.array([rotation.x, rotation.y, rotation.z, rotation.w]))
    T[:3, 3] = translation.x, translation.y, translation.z
    return T
