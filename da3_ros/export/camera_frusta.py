"""Cameras and path of a scene as line segments, for drawings and viewers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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
    return camera_lines(pose.T_map_camera[:3, 3], rim)


def camera_lines(centre: Array, rim: Array) -> Array:
    """Returns lines [8, 2, 3]: from ``centre`` [3] to the corners ``rim`` [4, 3], and the rim."""
    rays = np.stack((np.repeat(centre[None], 4, axis=0), rim), axis=1)
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


def path_lines(scene: Scene) -> Array:
    """Returns lines [N, 2, 3] between neighbours on the path, in the map frame; none between
    chains, whose relative motion was not seen, and so none between components and sessions."""
    centres = [T_map_camera[:, :3, 3] for T_map_camera in path_of_chains(scene)]
    lines = [np.stack((c[:-1], c[1:]), axis=1) for c in centres]
    return np.concatenate([np.zeros((0, 2, 3)), *lines])


def path_stamps(scene: Scene) -> Array:
    """Returns when each of ``path_lines`` ends, ns [N]."""
    stamps = scene.poses.leading().rows["stamp_ns"]
    ends = [part[1:] for part in np.split(stamps, _chain_starts(scene))]
    return np.concatenate([np.zeros(0, np.int64), *ends])


def path_of_chains(scene: Scene) -> tuple[Array, ...]:
    """Returns the poses T_map_camera [N, 4, 4] of the leading camera, in the map frame, one array
    for each chain."""
    rows = scene.poses.leading().rows
    if not len(rows):
        return ()
    T_map_camera = np.tile(np.eye(4), (len(rows), 1, 1))
    T_map_camera[:, :3] = rows["T"]
    return tuple(np.split(scene.T_ros_map @ T_map_camera, _chain_starts(scene)))


def _chain_starts(scene: Scene) -> NDArray[np.int64]:
    """Returns the indices of the leading camera's poses at which a chain begins, but the first."""
    submaps = scene.poses.leading().rows["submap"]
    chain = np.array([scene.chain_of.get(int(id), 0) for id in submaps], int)
    return np.flatnonzero(np.diff(chain)) + 1


def chosen_frusta(poses: Poses) -> list[Pose]:
    """Returns an even choice of at most MAX_FRUSTA keyframes."""
    keyframes = np.flatnonzero(poses.rows["keyframe"])
    return list(poses.take(keyframes[:: max(1, -(-len(keyframes) // MAX_FRUSTA))]))
