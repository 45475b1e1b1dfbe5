"""Poses, similarity transforms and pinhole projection. Depends only on ``types``."""

from da3_ros.geometry.poses import (
    T_ROS_MAP,
    invert_pose,
    matrix_from_quaternion,
    quaternion_from_matrix,
)
from da3_ros.geometry.projection import backproject, project
from da3_ros.geometry.similarity import Similarity

__all__ = [
    "T_ROS_MAP",
    "Similarity",
    "backproject",
    "invert_pose",
    "matrix_from_quaternion",
    "project",
    "quaternion_from_matrix",
]
