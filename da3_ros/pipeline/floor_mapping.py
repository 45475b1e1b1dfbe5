"""What keyframes see of the floor goes into the map's occupancy grid: with the network's depth at
once, and with measured depth as soon as there is some."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from da3_ros.config import PipelineConfig
from da3_ros.derived.measuring import Measured
from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.depth_filter import filter_depth, without_smears
from da3_ros.mapping.floor_view import FloorView, FloorViews, floor_view
from da3_ros.mapping.frames import LocalFrame
from da3_ros.mapping.map_table import MapTable
from da3_ros.navigation.occupancy import OccupancyMap
from da3_ros.navigation.sighting import floor_height, sight, why_not_sighted
from da3_ros.types import Array, FloatImage


class FloorMapping:
    """Makes the floor views of keyframes; owner of the occupancy map."""

    def __init__(self, config: PipelineConfig, table: MapTable) -> None:
        self.config = config
        self.occupancy = OccupancyMap(table, config.occupancy.resolution_m)

    def reconfigure(self, config: PipelineConfig) -> None:
        """Sets the parameters that may change between windows."""
        self.config = config

    def add(
        self, frame: LocalFrame, submap: int, T_submap_camera: Array, unit: float,
        T_ros_map: Similarity, *, waiting: bool, read_only: bool = False,
    ) -> None:  # fmt: skip
        """Adds a keyframe, or another frame while no keyframes come; without its height over the
        floor it says nothing.

        T_submap_camera: [4, 4] its pose. unit: of odometry, per unit of the submap. T_ros_map: as
        in ``OccupancyMap``. waiting: whether ``measure`` follows. read_only: whether nothing is
        added, and the frame shows only in which storey the camera is.
        """
        T = frame.T_level_camera
        if T is None or not np.isfinite(T[2, 3]) or not frame.scale.metric:
            return
        if why_not_sighted(T, self.config):
            return
        T_ros_submap = T_ros_map @ self.occupancy.table.submaps[submap].T_map_submap
        T_ros_camera = T_ros_submap.pose(T_submap_camera)
        height = float(T[2, 3]) - floor_height(self.config)
        foot = T_ros_camera[:3, 3] - [0.0, 0.0, height]
        self.occupancy.stand_on(submap, foot, T_ros_map)
        if read_only or not (
            frame.keyframe or self.occupancy.is_due(frame.camera, frame.stamp_ns, T_ros_camera)
        ):
            return
        if not frame.keyframe and self.config.depth.edge_filter:
            frame = replace(frame, depth=without_smears(frame.depth))
        T_level_camera = np.array(frame.T_level_camera, np.float64)
        T_level_camera[2, 3] = height
        view = self._view(
            (frame.stamp_ns, frame.camera, submap), frame.depth / np.float32(unit), frame.K,
            T_level_camera, self._metres(submap, T_ros_map),
        )  # fmt: skip
        if not frame.keyframe:
            self.occupancy.look(view, T_submap_camera, T_ros_map)
            return
        self.occupancy.add(
            view, T_submap_camera, T_ros_map, waiting=waiting, radius=self.config.map.radius_m
        )

    def measure(self, one: Measured, T_ros_map: Similarity) -> None:
        """Takes the measured depth of a keyframe, once it stays."""
        keyframe = one.keyframe
        key = keyframe.camera, keyframe.stamp_ns
        before = self.occupancy.view(keyframe.submap, key)
        if before is None or not one.stays:
            return
        if one.dense is not None:
            depth, filters = one.dense.depth, self.config.depth
            sky = np.isposinf(depth)
            depth = filter_depth(depth, keyframe.confidence, filters, sky=sky)
            depth = without_smears(depth) if filters.edge_filter else depth
            metres = self._metres(keyframe.submap, T_ros_map)
            self.occupancy.replace(self._view(
                (keyframe.stamp_ns, keyframe.camera, keyframe.submap), depth, keyframe.K,
                before.T_level_camera(metres), metres,
            ))  # fmt: skip
        self.occupancy.end_waiting(keyframe.submap, key)

    def views(self, submaps: Collection[int]) -> FloorViews:
        """Returns the views of keyframes in these submaps."""
        views = tuple(v for v in self.occupancy.views() if v.submap in submaps)
        return FloorViews(self.config.occupancy.resolution_m, views)

    def _view(
        self, frame: tuple[int, str, int], depth: FloatImage, K: Array, T_level_camera: Array,
        metres: float,
    ) -> FloorView:  # fmt: skip
        """Returns the view of a keyframe; depth [h, w]: unit of its submap. metres: per unit."""
        seen = sight(np.float32(metres) * depth, K, T_level_camera, self.config.obstacles)
        cell_m = self.config.occupancy.resolution_m / 2
        return floor_view(frame, seen.marks, seen.floor, T_level_camera, metres, cell_m)

    def _metres(self, submap: int, T_ros_map: Similarity) -> float:
        """Returns metres per unit of a submap."""
        return T_ros_map.scale * self.occupancy.table.submaps[submap].T_map_submap.scale
