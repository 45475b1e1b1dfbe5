"""Cameras and path of a scene as line segments, for drawings and viewers."""

from __future__ import annotations

import numpy as np

from da3_ros.mapping.scene import Scene
from da3_ros.mapping.trajectory import Pose, Poses
from da3_ros.types import Array

FRUSTUM = 0.03  # camera size over the scene's diagonal
MAX_FRUSTA = 200
MEASURED = 100_000  # points that the scene's size is measured by


def frusta(scene: Scene) -> Array:
    """Returns line segments [M, 2, 3] of the scene's keyframes in the map frame."""
    chosen = chosen_frusta(scene.poses)
    if not chosen:
        return np.zeros((0, 2, 3))
    size = FRUSTUM * scene_size(scene)
    segments = np.concatenate([frustum(pose, size) for pose in chosen])
    return np.asarray(segments @ scene.T_ros_map[:3, :3].T + scene.T_ros_map[:3, 3])


def frustum(pose: Pose, size: float) -> Array:
    """Returns line segments [8, 2, 3] of a camera in the map: four rays, and the rim."""
    width, height = pose.size
    corners = np.array([[0, 0, 1], [width, 0, 1], [width, height, 1], [0, height, 1]], dtype=float)
    rim = size * corners @ np.linalg.inv(pose.K).T
    rim = rim @ pose.T_map_camera[:3, :3].T + pose.T_map_camera[:3, 3]
    apex = np.repeat(pose.T_map_camera[None, :3, 3], 4, axis=0)
    rays = np.stack((apex, rim), axis=1)
    return np.concatenate((rays, np.stack((rim, np.roll(rim, -1, axis=0)), axis=1)))


def scene_size(scene: Scene) -> float:
    """Returns the diagonal of the box around the middle 90 % of points, or of the path; > 0."""
    points = scene.cloud(MEASURED).xyz if len(scene) else path_points(scene)
    if not len(points):
        return 1.0
    low, high = np.percentile(points, (5, 95), axis=0)
    return max(float(np.linalg.norm(high - low)), 1e-3)


def path_points(scene: Scene) -> Array:
    """Returns the centres [N, 3] of the leading camera in the map frame."""
    centres = scene.poses.leading().rows["T"][:, :, 3]
    return np.asarray(centres @ scene.T_ros_map[:3, :3].T + scene.T_ros_map[:3, 3])


def path_segments(scene: Scene) -> Array:
    """Returns lines [N, 2, 3] between neighbours on the path, in the map frame; none between
    segments, where the motion was not seen, and so none between components and sessions."""
    leading, centres = scene.poses.leading(), path_points(scene)
    chain = np.array([scene.chain_of.get(int(id), 0) for id in leading.rows["submap"]], int)
    lines = np.stack((centres[:-1], centres[1:]), axis=1)
    return np.asarray(lines[chain[:-1] == chain[1:]])


def chosen_frusta(poses: Poses) -> list[Pose]:
    """Returns an even choice of at most MAX_FRUSTA keyframes."""
    keyframes = np.flatnonzero(poses.rows["keyframe"])
    return list(poses.take(keyframes[:: max(1, -(-len(keyframes) // MAX_FRUSTA))]))
