"""The occupancy grid of a scene that is complete: all its views, carved in their order."""

from __future__ import annotations

import numpy as np

from da3_ros.geometry.poses import T_ROS_MAP
from da3_ros.mapping.scene import REFERENCE, Scene
from da3_ros.navigation.floor_grid import FloorGrid, OccupancyGrid
from da3_ros.types import Array


def grid_of_scene(scene: Scene) -> OccupancyGrid | None:
    """Returns the grid of the scene's oldest component with views of the floor; None: what is up
    is not known, or no keyframe has seen the floor."""
    component_of = [scene.component_of.get(v.submap, REFERENCE) for v in scene.floor.views]
    if not component_of or np.array_equal(scene.T_ros_map, T_ROS_MAP):
        return None
    grid, poses, oldest = FloorGrid(scene.floor.resolution), _keyframes(scene), min(component_of)
    for view, component in zip(scene.floor.views, component_of, strict=True):
        T_map_camera = poses.get((view.submap, *view.key))
        if component == oldest and T_map_camera is not None:
            T_ros_camera = scene.T_ros_map[:3] @ np.vstack((T_map_camera, (0, 0, 0, 1)))
            grid.carve(view, view.place(T_ros_camera), scene.unit_of[view.submap])
    return grid.occupancy()


def _keyframes(scene: Scene) -> dict[tuple[int, str, int], Array]:
    """Returns the poses [3, 4] of keyframes in the map, by submap, camera and stamp."""
    rows, cameras = scene.poses.rows, scene.poses.cameras
    return {
        (int(row["submap"]), cameras[row["camera"]], int(row["stamp_ns"])): row["T"]
        for row in rows[rows["keyframe"]]
    }
