"""The one place where every parameter of the pipeline has its name, default, range and text.

ROS parameter descriptors, the README's table and the YAML files are generated from these classes
or checked against them. A group's fields are named ``group.field`` outside (``window.size``); some
groups have no prefix (``model``). Knows no ROS and no other room.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from da3_ros.parameter_schema import (
    ConfigError,
    T,
    build_config,
    convert,
    convert_list,
    group,
    nearest,
    option,
    parameters,
    word_of,
)


@dataclass(frozen=True)
class InferenceConfig:
    """Which network runs where."""

    model: str = option(
        "da3-small", "one of `da3_ros models`; da3mono and da3metric: no poses, no map"
    )
    checkpoint: str = option(
        "", "folder, hub name, `random` (no meaning, for tests), or empty: shipped or hub cache"
    )
    device: str = option(
        "auto",
        "where the network runs; cuda:1 is the second card",
        choices=("auto", "cuda", "mps", "cpu"),
        pattern=r"cuda:\d+",
    )
    performance_mode: str = option(
        "balanced",
        "minimal: least memory, half of the CPU; max: also compiler and CUDA graphs",
        choices=("minimal", "balanced", "max"),
    )
    mixed_precision: str = option(
        "auto",
        "smaller numbers in matrix products; auto: 16 bits where the chip is faster with them; "
        "int8: linear layers, on a CPU",
        choices=("auto", "off", "float16", "bfloat16", "int8"),
    )
    compile: str = option(
        "auto",
        "torch.compile, of window shapes that come in a row; auto: on CUDA in mode max",
        choices=("auto", "on", "off"),
    )
    memory_budget_gb: float = option(
        0.0, "GiB for weights, activations and driver; 0: 90 % of what is free", low=0.0
    )
    process_res: int = option(504, "longest side in the network, pixels", low=28, high=2016)


@dataclass(frozen=True)
class WindowConfig:
    """How frames are put together."""

    size: int = option(8, "views per pass", low=2, high=512)
    new: int = option(1, "new frames per pass; must leave a shared frame", low=1, high=511)
    keyframes: int = option(
        2, "of the shared frames at most so many are keyframes seen from nearby", low=0, high=510
    )
    mode: str = option(
        "joint",
        "several cameras: one window of all, or windows of each camera alone",
        choices=("joint", "independent"),
    )


@dataclass(frozen=True)
class RigConfig:
    """How frames of several cameras belong together, and where the cameras are."""

    max_skew_s: float = option(
        0.02, "frames of several cameras whose stamps lie this close are of one instant", low=0.0
    )
    max_wait_s: float = option(
        0.2, "how long, by stamps, an instant waits for a camera that is late", low=0.0
    )
    poses: tuple[float, ...] = option(
        (),
        "x, y, z, qx, qy, qz, qw of each camera's optical frame on the rig, in the order of "
        "`cameras`; empty: from TF",
        items=float,
    )


@dataclass(frozen=True)
class KeyframeConfig:
    """Motion that makes a keyframe; it never decides whether a frame gets depth."""

    rotation_deg: float = option(10.0, "rotation since the last keyframe, degrees", low=0.0)
    parallax: float = option(0.05, "translation since then over the median depth", low=0.0)


@dataclass(frozen=True)
class ScaleConfig:
    """Where metres come from."""

    source: str = option(
        "none",
        "who says what a network unit is in metres",
        choices=("none", "fixed", "metric_model", "odometry", "rig"),
    )
    factor: float = option(1.0, "metres per unit of the first window (source `fixed`)", low=1e-6)
    metric_every: int = option(10, "windows between two looks of the metric model", low=1)
    metric_checkpoint: str = option(
        "", "of da3metric-large: folder, hub name, `random`, or empty: the local hub cache"
    )
    max_step: float = option(
        0.02, "largest relative change of a known scale from window to window", low=1e-6, high=1.0
    )


@dataclass(frozen=True)
class PosePriorConfig:
    """What the robot knows of its own motion, given to the network."""

    source: str = option(
        "none",
        "camera poses for the network: from topic `odometry`, or tf's odom_frame to the camera",
        choices=("none", "odometry", "tf"),
    )
    max_age_s: float = option(
        0.2, "oldest pose, and longest gap between two, that a frame is given", low=0.0
    )
    output: str = option(
        "prior",
        "poses that go out: refined by the network (better than a prior that is more than about a "
        "degree off from frame to frame), or the prior's own",
        choices=("refined", "prior"),
    )


@dataclass(frozen=True)
class DepthConfig:
    """The size of published depth, what becomes of sky and doubt, and the colours."""

    size: str = option(
        "network",
        "size of all published images; input: of the camera's, never mixed across depth edges",
        choices=("network", "input"),
    )
    min_confidence: float = option(0.0, "depth below this confidence is NaN", low=0.0)
    confidence_percentile: float = option(
        0.0, "this share of each frame, the least confident, is NaN", low=0.0, high=99.0
    )
    edge_filter: bool = option(
        True, "flying pixels on depth edges are NaN; wider smears stay out of the map alone"
    )
    sky: str = option(
        "inf", "what sky becomes, where the model or its ruler sees sky", choices=("inf", "nan")
    )
    color_range_m: tuple[float, float] = option((0.3, 10.0), "range of the coloured depth")
    color_map: str = option(
        "spectral", "colours of depth and confidence", choices=("spectral", "turbo")
    )


@dataclass(frozen=True)
class MapConfig:
    """The accumulated scene."""

    enabled: bool = option(True, "accumulate a scene")
    voxel_m: float = option(0.02, "edge of a voxel; first window's unit if not metric", low=1e-4)
    max_points: int = option(
        5_000_000, "most points held; the oldest leave first; 0: no limit", low=0
    )
    radius_m: float = option(
        0.0, "points farther than this from the camera leave; unit as voxel_m; 0: none", low=0.0
    )
    memory_mb: int = option(
        1024, "most MiB held: points, poses, images; the oldest leave first; 0: no limit", low=0
    )
    keep_images: bool = option(True, "keep keyframes' images (JPEG), for COLMAP exports")
    export_guessed: bool = option(
        True, "exports of the service hold the parts of the scene whose place is guessed too"
    )


@dataclass(frozen=True)
class LoopConfig:
    """Places that are seen again."""

    enabled: bool = option(True, "notice places that are seen again, and correct the map by them")
    every: int = option(4, "least windows between two looks at such places", low=1)


@dataclass(frozen=True)
class PipelineConfig:
    """Everything the pipeline can be told."""

    inference: InferenceConfig = group(InferenceConfig, "")
    cameras: tuple[str, ...] = option(
        (), "names of several cameras, which prefix their topics; empty: one without", items=str
    )
    window: WindowConfig = group(WindowConfig, "window.")
    rig: RigConfig = group(RigConfig, "rig.")
    keyframe: KeyframeConfig = group(KeyframeConfig, "keyframe.")
    scale: ScaleConfig = group(ScaleConfig, "scale.")
    pose_prior: PosePriorConfig = group(PosePriorConfig, "pose_prior.")
    depth: DepthConfig = group(DepthConfig, "depth.")
    map: MapConfig = group(MapConfig, "map.")
    loop: LoopConfig = group(LoopConfig, "loop.")
    max_late_s: float = option(
        0.5, "a stamp this far back is late (dropped, counted); farther is a time jump", low=0.0
    )

    def __post_init__(self) -> None:
        for parameter in parameters(self):
            parameter.check()
        if self.window.new >= self.window.size:
            raise ConfigError(
                f"window.new is {self.window.new}, but must be below window.size "
                f"({self.window.size}): windows join by the frames they share"
            )
        _check_cameras(self)
        low, high = self.depth.color_range_m
        if not 0 <= low < high:
            raise ConfigError(f"depth.color_range_m is {[low, high]}: give [near, far], 0 <= near")


CAMERA_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*(/[A-Za-z][A-Za-z0-9_]*)*")
POSE_NUMBERS = 7


def _check_cameras(config: PipelineConfig) -> None:
    """Raise ConfigError where cameras, window and rig do not go together."""
    names, window, poses = config.cameras, config.window, config.rig.poses
    for name in names:
        if not CAMERA_NAME.fullmatch(name) or name == "map":
            raise ConfigError(
                f"cameras has {name!r}: a name of letters, digits and _ (not `map`), as in topics"
            )
    if len(set(names)) < len(names):
        raise ConfigError(f"cameras is {list(names)}: each name once")
    needed = len(names) * (window.new + 1)
    if window.mode == "joint" and len(names) > 1 and window.size < needed:
        raise ConfigError(
            f"window.size is {window.size}, but {len(names)} cameras need at least {needed}: "
            f"window.new ({window.new}) and one shared view of each; or window.mode: independent"
        )
    if poses and len(poses) != POSE_NUMBERS * len(names):
        raise ConfigError(
            f"rig.poses has {len(poses)} numbers: x, y, z, qx, qy, qz, qw for each of `cameras` "
            f"({POSE_NUMBERS * len(names)})"
        )
    turns = [poses[i + 3 : i + POSE_NUMBERS] for i in range(0, len(poses), POSE_NUMBERS)]
    if not all(map(math.isfinite, poses)) or any(not any(q) for q in turns):
        raise ConfigError("rig.poses has a number that is not finite, or a quaternion of zeros")
    if config.scale.source == "rig" and (len(names) < 2 or window.mode != "joint"):
        raise ConfigError(
            "scale.source is rig: it needs two or more `cameras` and window.mode: joint"
        )


def prior_source(config: PipelineConfig) -> str:
    """Where the robot's own poses come from, for the network or for the scale: or none."""
    if config.pose_prior.source == "none" and config.scale.source == "odometry":
        return "odometry"
    return config.pose_prior.source


@dataclass(frozen=True)
class InputConfig:
    """How images reach the live node."""

    image_transport: str = option("raw", "which image topic", choices=("raw", "compressed"))
    image_reliability: str = option(
        "auto",
        "auto: reliable if and only if every publisher offers it",
        choices=("auto", "reliable", "best_effort"),
    )
    input_rectified: str = option(
        "auto",
        "whether images are rectified already; auto: the topic's name contains `rect`",
        choices=("auto", "true", "false"),
    )
    camera_info_timeout_s: float = option(
        2.0, "images wait this long for a camera_info, then the network's own K is used", low=0.0
    )
    max_image_hz: float = option(
        240.0, "images per second of one camera; what exceeds it is dropped; 0: no limit", low=0.0
    )
    max_frame_age_s: float = option(0.0, "older waiting frames are dropped; 0: none", low=0.0)


@dataclass(frozen=True)
class TfConfig:
    """Which transforms the node publishes."""

    publish: str = option(
        "auto",
        "auto: odom to base_frame, else to the camera, else map to odom, else nothing",
        choices=("auto", "base", "camera", "map_only", "none"),
    )


@dataclass(frozen=True)
class NodeConfig:
    """Everything the live node can be told."""

    pipeline: PipelineConfig = group(PipelineConfig, "")
    input: InputConfig = group(InputConfig, "")
    tf: TfConfig = group(TfConfig, "tf.")
    map_frame: str = option("map", "frame of the scene")
    odom_frame: str = option("odom", "frame of continuous motion")
    base_frame: str = option("", "the robot's base; empty: a camera alone")
    export_dir: str = option("~/.ros/da3", "nothing is read or written outside it")
    autostart: bool = option(True, "configure and activate at start")

    def __post_init__(self) -> None:
        for parameter in parameters(self):
            parameter.check()


def config_from_parameters(values: Mapping[str, Any], cls: type[T] = PipelineConfig) -> T:  # type: ignore[assignment]
    """A config of class ``cls`` from outside names; what is not given keeps its default.

    Raises ConfigError for an unknown name, a wrong type or a value out of range.
    """
    known = {p.name: p for p in parameters(cls())}
    unknown = sorted(set(values) - set(known))
    if unknown:
        named = ", ".join(f"{name!r}{nearest(name, list(known))}" for name in unknown)
        raise ConfigError(f"unknown parameter {named}: --help and docs/reference.md list all")
    given = {
        name: convert(name, word_of(value, known[name].choices), known[name].value)
        if known[name].items is None
        else convert_list(name, value, known[name].items)
        for name, value in values.items()
    }
    return build_config(cls, given, "")
