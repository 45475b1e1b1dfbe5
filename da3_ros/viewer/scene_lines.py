"""Path and keyframes as lines, from arrays that came as a message."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from da3_ros.types import Array


@dataclass(frozen=True, eq=False)
class PathCameras:
    """Camera poses on the path."""

    T_map_camera: Array  # [N, 3, 4]
    K: Array  # [N, 4] fx fy cx cy by the corner rule
    size: Array  # [N, 2] width and height that K belongs to
    keyframe: Array  # [N] bool
    chain: Array  # [N] poses of one chain have a known motion between them


def path_lines(cameras: PathCameras) -> Array:
    """Returns lines [M, 2, 3] between neighbours of one chain, in the map."""
    centres = cameras.T_map_camera[:, :, 3]
    lines = np.stack((centres[:-1], centres[1:]), axis=1)
    return np.asarray(lines[cameras.chain[:-1] == cameras.chain[1:]])


def frustum_lines(cameras: PathCameras, size: float) -> Array:
    """Returns lines [8 K, 2, 3] of the K keyframes in the map: four rays, and the rim.

    size: distance of the rim from the camera, in the map's unit.
    """
    T, (fx, fy, cx, cy) = cameras.T_map_camera[cameras.keyframe], cameras.K[cameras.keyframe].T
    width, height = cameras.size[cameras.keyframe].T
    corners = [(0 * width, 0 * height), (width, 0 * height), (width, height), (0 * width, height)]
    rays = [np.stack(((x - cx) / fx, (y - cy) / fy, np.ones(len(T))), axis=1) for x, y in corners]
    rim = np.einsum("nij,nkj->nki", T[:, :, :3], size * np.stack(rays, axis=1))
    rim = rim + T[:, None, :, 3]
    apex = np.broadcast_to(T[:, None, :, 3], rim.shape)
    lines = (np.stack((apex, rim), axis=2), np.stack((rim, np.roll(rim, -1, axis=1)), axis=2))
    return np.concatenate(lines, axis=1).reshape(-1, 2, 3)
