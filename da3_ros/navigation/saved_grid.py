"""The occupancy grid of a scene that is complete: its views of one storey, in their order."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from da3_ros.mapping.floor_view import FloorView
from da3_ros.mapping.scene import REFERENCE, Scene
from da3_ros.navigation.floor_grid import STOREY, FloorGrid, OccupancyGrid
from da3_ros.types import Array

log = logging.getLogger(__name__)

NEWEST = 5  # views that tell the storey, by the one in the middle: a floor may be wrong


def grid_of_scene(scene: Scene, box: Sequence[float] = ()) -> OccupancyGrid | None:
    """Returns the grid of the scene; None: no keyframe has seen the floor where the scene is
    level. Unconnected components are left out, and storeys but that of the newest keyframes.

    box: least and largest x, y and z [6] of the floor that is wanted, metres in the map; empty:
    none.
    """
    grid, placed = FloorGrid(scene.floor.resolution), list(_placed(scene))
    wanted = _of_storey(placed, box[2], box[5]) if box else _newest_storey(placed)
    for view, place in wanted:
        grid.carve(view, place, scene.unit_of[view.submap])
    if box:
        grid.limit(np.array(box[:2]), np.array(box[3:5]))
    return grid.occupancy()


Placed = tuple[FloorView, Array]  # x, y, yaw, z [4] in the map as it goes out, metres


def _placed(scene: Scene) -> Iterator[Placed]:
    poses = _poses(scene, {v.key for v in scene.floor.views})
    for view in scene.floor.views:
        T_map_camera = poses.get((view.submap, *view.key))
        known = scene.component_of.get(view.submap, REFERENCE) == REFERENCE
        if known and T_map_camera is not None:
            T_ros_camera = scene.T_ros_map[:3] @ np.vstack((T_map_camera, (0, 0, 0, 1)))
            yield view, view.place(T_ros_camera, scene.unit_of[view.submap])


def _of_storey(placed: Sequence[Placed], low: float, high: float) -> list[Placed]:
    return [(view, place) for view, place in placed if low <= place[3] <= high]


def _newest_storey(placed: Sequence[Placed]) -> list[Placed]:
    """Returns the views in the storey of the newest ones; says how many others there are."""
    if not placed:
        return []
    newest = sorted(placed, key=lambda one: one[0].stamp_ns)[-NEWEST:]
    floor = sorted(float(place[3]) for _, place in newest)[len(newest) // 2]
    own = _of_storey(placed, floor - STOREY, floor + STOREY)
    if len(own) < len(placed):
        floors = [place[3] for _, place in placed]
        log.warning(
            "the scene has several storeys, with floors from %.1f to %.1f m: the grid is that at "
            "%.1f m, and leaves out %d keyframes of others; choose another one by a box (crop)",
            min(floors), max(floors), floor, len(placed) - len(own),
        )  # fmt: skip
    return own


def _poses(scene: Scene, wanted: Collection[tuple[str, int]]) -> dict[tuple[int, str, int], Array]:
    """Returns the poses [3, 4] in the map of ``wanted`` frames (camera, stamp), by submap, camera
    and stamp."""
    rows, cameras = scene.poses.rows, scene.poses.cameras
    stamps = np.array([stamp for _, stamp in wanted], rows["stamp_ns"].dtype)
    return {
        (int(row["submap"]), cameras[row["camera"]], int(row["stamp_ns"])): row["T"]
        for row in rows[np.isin(rows["stamp_ns"], stamps)]
    }
