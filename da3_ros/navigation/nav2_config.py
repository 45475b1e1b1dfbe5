"""Writes Nav2's costmap parameters for one camera whose height above the floor is known.

The rules of Nav2 that decide the values are in docs/navigation.md, each with its source file.
Knows nothing of ROS: the result is text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from da3_ros.config import LevelConfig, ObstacleConfig
from da3_ros.navigation.sighting import BEYOND
from da3_ros.parameter_schema import ConfigError

LAYERS = ("voxel", "stvl")
NODE_NAME = re.compile(r"(/[A-Za-z_][A-Za-z0-9_]*)+")
CAMERA_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")

RESOLUTION_M = 0.05  # side of a cell, and the least height of a voxel
MOST_LEVELS = 16  # of a VoxelLayer
CAMERA_MARGIN_M = 0.1  # the camera stays in the grid when the robot tilts or its odometry drifts
EVERY_HEIGHT_M = 100.0  # a band that cuts nothing
TRANSFORM_TOLERANCE_S = 1.0
SILENT_S = 2.0

# Name, value (a list: the rows of a group) and comment.
Row = tuple[str, Any, str]


@dataclass(frozen=True)
class CostmapRequest:
    """What the parameters are made for. m, degrees; heights above the floor.

    robot_height_m: what is higher, the robot passes beneath. max_range_m, floor_z_m: the node's
    ``obstacles.max_range`` and ``level.floor_z``. node: full name. fov_deg: horizontal and
    vertical field of view, for STVL alone, which clears by it; None: it clears by time alone.
    cameras: names of several cameras of a rig (the node's ``cameras``), with the height of the
    highest and the field of view of each; empty: one without a name.
    """

    camera_height_m: float
    max_range_m: float = ObstacleConfig().max_range
    robot_height_m: float = ObstacleConfig().max_height
    floor_z_m: float = LevelConfig().floor_z
    layer: str = "voxel"
    node: str = "/da3"
    fov_deg: tuple[float, float] | None = None
    cameras: tuple[str, ...] = ()

    @property
    def inputs(self) -> list[tuple[str, str]]:
        """What begins the names of sources, and of topics, of each camera."""
        names = [(f"{name}_", f"{self.node}/{name}/points") for name in self.cameras]
        return names or [("", f"{self.node}/points")]

    def check(self) -> None:
        """Raises ConfigError, which names the option of `da3_ros nav2-config`."""
        _check_range("--camera-height", self.camera_height_m, 0.02, 5.0, "m")
        _check_range("--robot-height", self.robot_height_m, 0.1, 5.0, "m")
        _check_range("--max-range", self.max_range_m, 0.5, 50.0, "m")
        _check_range("--floor-z", self.floor_z_m, -5.0, 5.0, "m")
        if self.layer not in LAYERS:
            raise ConfigError(f"--layer {self.layer!r}: one of {', '.join(LAYERS)}")
        if not NODE_NAME.fullmatch(self.node):
            raise ConfigError(f"--node {self.node!r}: write the node's full name, such as /da3")
        for name in self.cameras:
            if not CAMERA_NAME.fullmatch(name) or self.cameras.count(name) > 1:
                raise ConfigError(f"--cameras {name!r}: names as in the node's cameras, each once")
        for angle in self.fov_deg or ():
            _check_range("--fov", angle, 5.0, 170.0, "degrees")
        if self.fov_deg and self.layer != "stvl":
            raise ConfigError(f"--fov is for --layer stvl: a {self.layer} layer clears by rays")


@dataclass(frozen=True)
class VoxelLevels:
    """Levels of a VoxelLayer: ``count`` of ``height_m`` each, from ``begin_m`` above the floor."""

    begin_m: float
    height_m: float
    count: int

    @property
    def end_m(self) -> float:
        """Height of the grid's end above the floor."""
        return self.begin_m + self.count * self.height_m


def voxel_levels(camera_height_m: float, robot_height_m: float) -> VoxelLevels:
    """Returns levels that hold the camera and all that is as high as the robot.

    One lies below the floor, so that rays to floor points with noise end in the grid. Heights are
    whole centimetres, at least a cell's side.
    """
    top_cm = math.ceil(round(100 * max(robot_height_m, camera_height_m + CAMERA_MARGIN_M), 6))
    height_cm = max(round(100 * RESOLUTION_M), math.ceil(top_cm / (MOST_LEVELS - 1)))
    return VoxelLevels(-height_cm / 100, height_cm / 100, 1 + math.ceil(top_cm / height_cm))


def costmap_text(request: CostmapRequest) -> str:
    """Returns the YAML file: parameters of Nav2's local and global costmap. Raises ConfigError."""
    request.check()
    header = [
        f"# Nav2 costmaps for a camera {request.camera_height_m:g} m above the floor: "
        "docs/navigation.md.",
        f"# Written by: {_command(request)}",
        "# Put both blocks in place of those in your nav2_params.yaml (Humble and later).",
    ]
    rows = [
        ("local_costmap", [_node("local_costmap", _local(request))], ""),
        ("global_costmap", [_node("global_costmap", _global(request))], ""),
    ]
    return "\n".join([*header, *_lines(rows, 0)]) + "\n"


def _check_range(name: str, value: float, low: float, high: float, unit: str) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{name} {value:g}: {low:g} to {high:g} {unit}")


def _command(request: CostmapRequest) -> str:
    """Returns the line that writes this file."""
    defaults = CostmapRequest(request.camera_height_m)
    words = ["da3_ros nav2-config", f"--camera-height {request.camera_height_m:g}"]
    for name, option in (
        ("max_range_m", "--max-range"), ("robot_height_m", "--robot-height"),
        ("floor_z_m", "--floor-z"), ("layer", "--layer"), ("node", "--node"),
    ):  # fmt: skip
        value = getattr(request, name)
        if value != getattr(defaults, name):
            words.append(f"{option} {value if isinstance(value, str) else f'{value:g}'}")
    if request.fov_deg:
        words.append("--fov {:g}x{:g}".format(*request.fov_deg))
    if request.cameras:
        words.append(f"--cameras {' '.join(request.cameras)}")
    return " ".join(words)


def _node(name: str, rows: list[Row]) -> Row:
    return name, [("ros__parameters", rows, "")], ""


def _local(request: CostmapRequest) -> list[Row]:
    side = 2 * math.ceil(request.max_range_m + BEYOND + RESOLUTION_M)
    return [
        ("global_frame", "odom", "heights below are z in this frame"),
        ("robot_base_frame", "base_link", "the node's base_frame"),
        ("rolling_window", True, "the costmap moves with the robot"),
        ("width", side, "m; holds all rays: Humble loses some of those that leave it"),
        ("height", side, "m"),
        *_shared(),
        ("track_unknown_space", False, "what no camera has seen is free for the controller"),
        ("update_frequency", 5.0, "Hz"),
        ("publish_frequency", 2.0, "Hz"),
        ("plugins", ["camera_layer", "inflation_layer"], "a lidar's layer: before camera_layer"),
        _camera_layer(request, unknown=False),
        _inflation_layer(),
    ]  # fmt: skip


def _global(request: CostmapRequest) -> list[Row]:
    return [
        ("global_frame", "map", "the node's map_frame"),
        ("robot_base_frame", "base_link", "the node's base_frame"),
        ("rolling_window", False, "the map's size is that of the static layer"),
        *_shared(),
        ("track_unknown_space", True, "the planner sees what is unknown (its allow_unknown)"),
        ("update_frequency", 1.0, "Hz"),
        ("publish_frequency", 1.0, "Hz"),
        ("plugins", ["static_layer", "camera_layer", "inflation_layer"], "in this order"),
        ("static_layer", [
            ("plugin", "nav2_costmap_2d::StaticLayer", ""),
            ("map_topic", f"{request.node}/map/occupancy", "resizes all layers when it grows"),
            ("map_subscribe_transient_local", True, "as the node publishes it"),
        ], "the node's map; without map_topic: a map_server's"),
        _camera_layer(request, unknown=True),
        _inflation_layer(),
    ]  # fmt: skip


def _shared() -> list[Row]:
    return [
        ("resolution", RESOLUTION_M, "m, side of a cell"),
        ("robot_radius", 0.22, "m; that of your robot, or its footprint instead"),
        ("transform_tolerance", TRANSFORM_TOLERANCE_S,
         "s that a cloud waits for transforms: more than the node's latency"),
    ]  # fmt: skip


def _inflation_layer() -> Row:
    return "inflation_layer", [
        ("plugin", "nav2_costmap_2d::InflationLayer", ""),
        ("inflation_radius", 0.7, "m; more than the robot's radius"),
        ("cost_scaling_factor", 3.0, "higher: costs fall faster beside obstacles"),
    ], ""  # fmt: skip


def _camera_layer(request: CostmapRequest, unknown: bool) -> Row:
    """The camera's own layer; unknown: whether its costmap tracks unknown space."""
    own = "of its own: the camera clears nothing that a lidar's layer has marked"
    rows = _stvl_rows(request, unknown) if request.layer == "stvl" else _voxel_rows(request)
    return "camera_layer", rows, own


def _voxel_rows(request: CostmapRequest) -> list[Row]:
    levels = voxel_levels(request.camera_height_m, request.robot_height_m)
    floor, top = request.floor_z_m, request.floor_z_m + levels.end_m
    reach = math.hypot(request.max_range_m + BEYOND, levels.end_m - levels.begin_m)
    longest = float(math.ceil(reach))  # ray in the grid; the node's range is along the floor
    sources = [source for prefix, topic in request.inputs
               for source in _voxel_sources(request, prefix, topic, longest)]  # fmt: skip
    return [
        ("plugin", "nav2_costmap_2d::VoxelLayer", ""),
        ("enabled", True, ""),
        ("combination_method", 1, "maximum: other layers' obstacles stay"),
        ("origin_z", _round(floor + levels.begin_m), "m; one level below the floor, for noise"),
        ("z_resolution", levels.height_m, "m, height of a level"),
        ("z_voxels", levels.count, f"levels, at most {MOST_LEVELS}: the grid ends at {top:.2f} m, "
         "above camera and robot"),
        ("unknown_threshold", 15, "a column with one known level is known"),
        ("mark_threshold", 0, "one marked level makes an obstacle"),
        ("min_obstacle_height", -EVERY_HEIGHT_M, "m; of this layer: it limits marking alone"),
        ("max_obstacle_height", _round(top), "m; the grid's end"),
        ("publish_voxel_map", False, "true: for RViz, on the topic voxel_grid"),
        ("observation_sources", " ".join(name for name, _, _ in sources), ""),
        *sources,
    ]  # fmt: skip


def _voxel_sources(request: CostmapRequest, prefix: str, topic: str, longest: float) -> list[Row]:
    """The two sources of a camera; longest: ray in the grid, metres."""
    return [
        (f"{prefix}obstacles", [
            *_source(f"{topic}/obstacles", marking=True, clearing=True),
            ("min_obstacle_height", -EVERY_HEIGHT_M,
             "m; the node has left out the floor, and z may drift"),
            ("max_obstacle_height", _round(request.floor_z_m + request.robot_height_m),
             "m; what is higher is no obstacle; the default, 0.0, drops all"),
            ("obstacle_max_range", longest, "m; the node cuts earlier: obstacles.max_range"),
            ("obstacle_min_range", 0.0, "m"),
            ("raytrace_max_range", longest, "m; what is behind clears what has gone"),
            ("raytrace_min_range", 0.0, "m"),
        ], "what marks"),
        (f"{prefix}clearing", [
            *_source(f"{topic}/clearing", marking=False, clearing=True),
            ("min_obstacle_height", -EVERY_HEIGHT_M, "m; no ray is cut: noise puts floor below 0"),
            ("max_obstacle_height", EVERY_HEIGHT_M, "m; rays to the ceiling clear too"),
            ("raytrace_max_range", longest, "m; the longest ray in the grid"),
            ("raytrace_min_range", 0.0, "m"),
        ], "floor and free rays: clears only"),
    ]  # fmt: skip


def _source(topic: str, *, marking: bool, clearing: bool) -> list[Row]:
    return [
        ("topic", topic, ""),
        ("data_type", "PointCloud2", "the default is LaserScan"),
        ("sensor_frame", "", "empty: rays begin at the cloud's frame, which is the camera's"),
        ("marking", marking, ""),
        ("clearing", clearing, ""),
        ("observation_persistence", 0.0, "s; 0: the newest cloud counts until the next one"),
        ("expected_update_rate", SILENT_S, "a period, s: without a cloud for so long, Nav2 stops"),
    ]  # fmt: skip


def _stvl_sources(request: CostmapRequest, prefix: str, topic: str) -> list[Row]:
    """The sources of a camera; topic: of its obstacles."""
    sources: list[Row] = [(f"{prefix}obstacles", [
        ("topic", topic, ""),
        ("data_type", "PointCloud2", ""),
        ("marking", True, ""),
        ("clearing", False, ""),
        ("min_obstacle_height", -EVERY_HEIGHT_M,
         "m; the node has left out the floor, and z may drift"),
        ("max_obstacle_height", _round(request.floor_z_m + request.robot_height_m),
         "m; what is higher is no obstacle"),
        ("obstacle_range", _round(request.max_range_m + request.robot_height_m),
         "m; the node cuts earlier: obstacles.max_range"),
        ("observation_persistence", 0.0, "s; 0: the newest cloud alone"),
        ("expected_update_rate", SILENT_S, "a period, s: without a cloud for so long, Nav2 stops"),
        ("filter", "passthrough", "cuts by height, keeps all points: the node has thinned them"),
        ("clear_after_reading", True, "else the last cloud is marked again and never decays"),
    ], "what marks")]  # fmt: skip
    if request.fov_deg:
        horizontal, vertical = (round(math.radians(angle), 4) for angle in request.fov_deg)
        sources.append((f"{prefix}clearing", [
            ("topic", topic, "only stamp and frame count: STVL clears by a frustum"),
            ("data_type", "PointCloud2", ""),
            ("marking", False, ""),
            ("clearing", True, ""),
            ("min_z", 0.1, "m along the optical axis"),
            ("max_z", _round(request.max_range_m), "m; what is marked farther decays by time"),
            ("horizontal_fov_angle", horizontal, "rad; clears behind obstacles too"),
            ("vertical_fov_angle", vertical, "rad"),
            ("decay_acceleration", 15.0, "1/s^2; what is in the frustum goes within two seconds"),
            ("model_type", 0, "frustum of a camera"),
            ("expected_update_rate", 0.0, "STVL never counts a clearing source as updated"),
            ("clear_after_reading", True, "else the last frustum goes on clearing"),
        ], "shortens the decay of what is in view and not seen again"))  # fmt: skip
    return sources


def _stvl_rows(request: CostmapRequest, unknown: bool) -> list[Row]:
    sources = [source for prefix, topic in request.inputs
               for source in _stvl_sources(request, prefix, f"{topic}/obstacles")]  # fmt: skip
    return [
        ("plugin", "spatio_temporal_voxel_layer/SpatioTemporalVoxelLayer", ""),
        ("enabled", True, ""),
        ("combination_method", 1, "maximum: other layers' obstacles stay"),
        ("voxel_size", RESOLUTION_M, "m"),
        ("decay_model", 0, "linear"),
        ("voxel_decay", 15.0, "s until an obstacle that is not seen again is forgotten"),
        ("mark_threshold", 0, "one marked voxel makes an obstacle"),
        ("track_unknown_space", unknown, "as the costmap"),
        ("update_footprint_enabled", True, "free where the robot stands"),
        ("transform_tolerance", TRANSFORM_TOLERANCE_S, "s; STVL has its own"),
        ("publish_voxel_map", False, "true: for RViz, on the topic voxel_grid"),
        ("observation_sources", " ".join(name for name, _, _ in sources), ""),
        *sources,
    ]  # fmt: skip


def _round(value: float) -> float:
    """Returns metres as written: whole centimetres, a float, which Nav2's parameters must be."""
    return float(round(value, 2))


def _lines(rows: list[Row], depth: int) -> Iterator[str]:
    for name, value, comment in rows:
        indent, end = "  " * depth, f"  # {comment}" if comment else ""
        if isinstance(value, list) and value and isinstance(value[0], tuple):
            yield f"{indent}{name}:{end}"
            yield from _lines(value, depth + 1)
        else:
            yield f"{indent}{name}: {json.dumps(value)}{end}"
