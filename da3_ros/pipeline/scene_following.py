"""Lets a scene follow another SLAM, between two windows."""

from __future__ import annotations

from collections.abc import Sequence

from da3_ros.pipeline.scene_map import SceneMap
from da3_ros.types import View


def follow(scene_map: SceneMap, views: Sequence[View]) -> None:
    """Corrects the submaps if another SLAM asks for it, before the window of new ``views``."""
    following, submaps = scene_map.following, scene_map.submaps
    if not following.enabled:
        return
    # Of a rig, the leading camera counts.
    camera = next(iter(scene_map.config.cameras or submaps.cameras), "")
    for view in views:
        if view.camera == (camera or view.camera):
            following.add(view)
            T_slam_world = following.begin(view)
            if T_slam_world is not None:
                scene_map.place_map(T_slam_world)
    scale = scene_map.scale.metres if scene_map.scale.known else None
    correction = following.correction(
        submaps.submaps, scene_map.table.path.poses, camera, scale,
        scene_map.table.T_map_local, scene_map.T_map_world,
    )  # fmt: skip
    if correction is not None:
        scene_map.correct(correction)
