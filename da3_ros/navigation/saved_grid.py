"""The occupancy grid of a scene that is complete: all its views, carved in their order."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from da3_ros.mapping.scene import REFERENCE, Scene
from da3_ros.navigation.floor_grid import FloorGrid, OccupancyGrid
from da3_ros.types import Array


def grid_of_scene(scene: Scene) -> OccupancyGrid | None:
    """Returns the grid of the scene; None: no keyframe has seen the floor where the scene is
    level. Unconnected components are left out."""
    grid, wanted = FloorGrid(scene.floor.resolution), {v.key for v in scene.floor.views}
    poses = _poses(scene, wanted)
    for view in scene.floor.views:
        T_map_camera = poses.get((view.submap, *view.key))
        known = scene.component_of.get(view.submap, REFERENCE) == REFERENCE
        if known and T_map_camera is not None:
            T_ros_camera = scene.T_ros_map[:3] @ np.vstack((T_map_camera, (0, 0, 0, 1)))
            grid.carve(view, view.place(T_ros_camera), scene.unit_of[view.submap])
    return grid.occupancy()


def _poses(scene: Scene, wanted: Collection[tuple[str, int]]) -> dict[tuple[int, str, int], Array]:
    """Returns the poses [3, 4] in the map of ``wanted`` frames (camera, stamp), by submap, camera
    and stamp."""
    rows, cameras = scene.poses.rows, scene.poses.cameras
    stamps = np.array([stamp for _, stamp in wanted], rows["stamp_ns"].dtype)
    return {
        (int(row["submap"]), cameras[row["camera"]], int(row["stamp_ns"])): row["T"]
        for row in rows[np.isin(rows["stamp_ns"], stamps)]
    }
