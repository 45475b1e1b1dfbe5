"""All parameters with name, default, range and text, declared only here.

ROS parameter descriptors, docs/reference.md and the YAML files are generated from these classes
or checked against them. A group's field has the public name ``group.field`` (``window.size``);
some groups have no prefix (``model``). Independent of ROS and of all rooms.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from da3_ros.backends import backend_choices
from da3_ros.parameter_schema import (
    ConfigError,
    Parameter,
    T,
    bool_to_word,
    build_config,
    convert,
    convert_list,
    group,
    join_choices,
    nearest,
    option,
    parameters,
)
from da3_ros.scale_sources import scale_choices, scale_source


@dataclass(frozen=True)
class InferenceConfig:
    """Network, device, precision and memory."""

    model: str = option(
        "da3-small",
        "network to run, listed by `da3_ros models`; da3mono and da3metric: no poses, no map",
    )
    checkpoint: str = option(
        "",
        "weights: a folder, a hub name or `random` (meaningless, for tests); empty: those in the "
        "package, else the local hub cache",
    )
    device: str = option(
        "auto",
        "device of the network; cuda:1 is the second GPU",
        choices=("auto", "cuda", "mps", "cpu"),
        pattern=r"cuda:\d+",
    )
    backend: str = option(
        "auto",
        "runtime of the network; auto: OpenVINO on a CPU, else torch",
        choices=backend_choices,
    )
    cache_dir: str = option(
        "auto",
        "folder where engines of OpenVINO are kept; auto: the user's cache folder; empty: none",
    )
    performance_mode: str = option(
        "balanced",
        "minimal: least memory, half of the CPU cores; max: also torch.compile and CUDA graphs",
        choices=("minimal", "balanced", "max"),
    )
    mixed_precision: str = option(
        "auto",
        "precision of matrix products; auto: 16 bits where the device is faster with them; int8: "
        "linear layers, CPU only",
        choices=("auto", "off", "float16", "bfloat16", "int8"),
    )
    compile: str = option(
        "auto",
        "torch.compile of window shapes that repeat; auto: on CUDA with performance_mode max",
        choices=("auto", "on", "off"),
    )
    memory_budget_gb: float = option(
        0.0,
        "limit in GiB for weights, activations and driver; 0: 90 % of the free memory",
        low=0.0,
        live=True,
    )
    process_res: int = option(
        504, "image side in the network that process_res_method names, pixels", low=28, high=2016
    )
    process_res_method: str = option(
        "upper_bound_resize",
        "side that process_res determines: the longest (upper_bound_resize) or the shortest "
        "(lower_bound_resize); both become multiples of 14",
        choices=("upper_bound_resize", "lower_bound_resize"),
        reason="methods that crop are not offered: the border that camera_info describes would "
        "be lost",
    )


@dataclass(frozen=True)
class WindowConfig:
    """How frames are combined into windows."""

    size: int = option(8, "views per window, which the network processes at once", low=2, high=512)
    new: int = option(
        1,
        "new frames per window; less than window.size, so that windows share views",
        low=1,
        high=511,
    )
    keyframes: int = option(
        2,
        "most overlap views that are older keyframes; the others are the newest frames",
        low=0,
        high=510,
    )
    mode: str = option(
        "joint",
        "several cameras: one window of all cameras, or separate windows for each camera",
        choices=("joint", "independent"),
    )


@dataclass(frozen=True)
class RigConfig:
    """How frames of several cameras are synchronised, and the cameras' poses."""

    max_skew_s: float = option(
        0.02,
        "largest difference of stamps within one frameset, seconds",
        low=0.0,
    )
    max_wait_s: float = option(
        0.2, "time by stamps that a frameset waits for a late camera, seconds", low=0.0
    )
    poses: tuple[float, ...] = option(
        (),
        "pose x, y, z, qx, qy, qz, qw of each camera's optical frame on the rig, in the order of "
        "`cameras`; empty: from TF",
        items=float,
    )


@dataclass(frozen=True)
class KeyframeConfig:
    """Motion that makes a frame a keyframe. Every processed frame gets depth, keyframe or not."""

    rotation_deg: float = option(
        10.0,
        "a frame becomes a keyframe if, relative to every keyframe, it is rotated by more than "
        "this, degrees, or moved by more than keyframe.parallax",
        low=0.0,
        live=True,
    )
    parallax: float = option(
        0.05,
        "limit of a frame's motion relative to a keyframe (see keyframe.rotation_deg): "
        "translation divided by the median depth of the keyframe",
        low=0.0,
        live=True,
    )


@dataclass(frozen=True)
class ScaleConfig:
    """Source of metric scale."""

    source: str = option(
        "none",
        "source of metres for the network's unit, or a list of sources that measure together",
        choices=scale_choices,
        several=True,
    )
    factor: float = option(
        1.0, "metres per unit of the first window, for source `fixed`", low=1e-6
    )
    metric_every: int = option(10, "windows between two measurements of the metric model", low=1)
    metric_checkpoint: str = option(
        "",
        "weights of da3metric-large: a folder, a hub name or `random`; empty: the local hub cache",
    )
    max_step: float = option(
        0.02, "largest relative change of a known scale from window to window", low=1e-6, high=1.0
    )


@dataclass(frozen=True)
class PosePriorConfig:
    """The robot's own poses as input of the network."""

    source: str = option(
        "none",
        "source of camera poses for the network: topic `odometry`, or TF (odom_frame to camera)",
        choices=("none", "odometry", "tf"),
    )
    max_age_s: float = option(
        0.2,
        "largest age of a pose, and largest gap between two poses, seconds",
        low=0.0,
    )
    output: str = option(
        "prior",
        "published poses: the prior's own, or refined by network and feature tracks, which is "
        "better where the prior is more than 0.2 degrees wrong from frame to frame",
        choices=("refined", "prior"),
    )
    corrections: str = option(
        "none",
        "corrections of another SLAM that the map follows: jumps of TF map_frame to odom_frame, "
        "or its whole path on topic `slam_path`, sent again and again",
        choices=("none", "tf", "path"),
    )
    map_frame: str = option(
        "",
        "frame id of the other SLAM's map; needed for corrections: tf. With path: that of its "
        "header, empty: of the first one",
    )


# From near, warm or bright, to far.
COLOR_MAPS = ("spectral", "turbo", "viridis", "plasma", "magma", "inferno", "grey")


@dataclass(frozen=True)
class DepthConfig:
    """Size of published depth, handling of sky and of low confidence, and colours."""

    size: str = option(
        "network",
        "size of all published images: the network's, or the camera's (`input`) without "
        "interpolating across depth edges",
        choices=("network", "input"),
        live=True,
    )
    min_confidence: float = option(0.0, "depth below this confidence is NaN", low=0.0, live=True)
    confidence_percentile: float = option(
        0.0,
        "the least confident pixels of each frame that become NaN, percent",
        low=0.0,
        high=99.0,
        live=True,
    )
    edge_filter: bool = option(
        True,
        "flying pixels at depth edges become NaN; wider smears are only kept out of the map",
        live=True,
    )
    sky: str = option(
        "inf",
        "value of sky, where the model or the metric model sees sky",
        choices=("inf", "nan"),
        live=True,
    )
    color_range_m: tuple[float, float] = option(
        (0.3, 10.0), "range of the coloured depth, metres", live=True
    )
    color_map: str = option(
        "spectral", "colour map of depth and confidence", choices=COLOR_MAPS, live=True
    )


@dataclass(frozen=True)
class MapConfig:
    """The accumulated scene."""

    enabled: bool = option(True, "whether a scene is accumulated")
    voxel_m: float = option(
        0.02,
        "edge of a voxel, metres, or units of the first window while the scale is unknown",
        low=1e-4,
    )
    max_points: int = option(
        5_000_000,
        "most points in memory; the oldest leave it first: to the disk if keyframes are stored, "
        "else for good; 0: no limit",
        low=0,
    )
    radius_m: float = option(
        0.0,
        "points farther than this from the camera are removed; unit as voxel_m; 0: no limit",
        low=0.0,
    )
    memory_mb: int = option(
        1024,
        "most MiB of points, poses and images in memory; the oldest leave it first: points to the "
        "disk if keyframes are stored, else for good; 0: no limit",
        low=0,
    )
    keep_images: bool = option(
        True, "whether keyframes' images are kept (JPEG), for COLMAP exports"
    )
    remove_movers: bool = option(
        True,
        "whether dynamic points are removed: those that later keyframes see through. Also "
        "thin or glassy things that depth misses now and then",
    )
    export_guessed: bool = option(
        True,
        "whether exports by the service contain unconnected components of the scene",
        live=True,
    )
    load: str = option(
        "",
        "saved scene under export_dir in which the node begins: a folder of save_scene or of a "
        "replay. Its locations are recognised; until then the pose of new frames is unknown. "
        "Empty: "
        "a new scene. Live only: a replay has --resume",
    )
    store: str = option(
        "",
        "folder under export_dir in which keyframes are stored while the node runs, a new one for "
        "each run, with what max_points and memory_mb take from memory; empty: none. A replay "
        "always stores them",
    )
    disk_gb: float = option(
        -1.0,
        "most GB of a run's stored keyframes and of the points that leave memory, together; then "
        "storing is paused; a replay limits each file; -1: no limit",
        low=-1.0,
    )


@dataclass(frozen=True)
class LoopConfig:
    """Loop closure: locations that are seen again."""

    enabled: bool = option(
        True, "whether loops are closed: locations that are seen again correct the map"
    )
    every: int = option(4, "fewest windows between two attempts to close a loop", low=1)


@dataclass(frozen=True)
class RefinementConfig:
    """Refinement of windows by feature tracks (bundle adjustment)."""

    enabled: bool = option(
        True, "whether poses and depth are refined by features that are tracked through the images"
    )
    max_features: int = option(400, "most features per image", low=50, high=4000)
    max_ms: float = option(
        0.0,
        "most time per window, ms: fewer features and steps are chosen for it at the start; live, "
        "as many windows pass unrefined as keep the mean below it; 0: no limit",
        low=0.0,
        high=10000.0,
    )
    map: bool = option(
        True,
        "whether the keyframes of the map are adjusted together, by features that those nearby "
        "have in common: every few keyframes, after a loop, and at the end of a recording",
    )
    lens: bool = option(
        True,
        "whether a camera_info is corrected that does not fit the images: focal length, principal "
        "point and radial distortion are then those that the keyframes of the map show; needs "
        "refinement.map",
    )


@dataclass(frozen=True)
class DenseConfig:
    """Depth of keyframes, measured by the images of those beside them."""

    enabled: bool = option(
        True,
        "whether the depth of keyframes is measured by the images of those beside them, for the "
        "map and exports; needs refinement.enabled, also where poses are the robot's; and by the "
        "returns of range_topics, without it too",
    )
    size: int = option(
        0,
        "longest side of the images in which depth is measured, pixels; its correction is then "
        "enlarged, and nothing is measured beside edges; 0: that of the network's depth; else at "
        "least 112",
        low=0,
    )
    max_ms: float = option(
        0.0,
        "live: most time per keyframe, ms, on average; keyframes beyond that are not measured; "
        "0: as many as one thread can",
        low=0.0,
        high=10000.0,
    )


@dataclass(frozen=True)
class LevelConfig:
    """What is up, for the map and the outputs for navigation."""

    source: str = option(
        "base",
        "what is up: z of base_frame, topic `imu`, or the floor that the camera sees (ground: a "
        "camera without a robot's transforms, held upright); none: unknown",
        choices=("base", "imu", "ground", "none"),
    )
    floor_z: float = option(
        0.0, "height of the floor in base_frame, metres; for source `base`", low=-10.0, high=10.0
    )


@dataclass(frozen=True)
class ImuConfig:
    """The robot's inertial measurement unit, topic `imu`."""

    enabled: bool = option(
        False,
        "whether topic `imu` is used: rotation from frame to frame, also where the camera sees "
        "nothing, and gravity; always with level.source or scale.source imu",
    )
    time_offset_s: float = option(0.0, "added to the stamps of `imu`, seconds", low=-1.0, high=1.0)
    bridge_s: float = option(
        2.0,
        "longest time without a view that shows anything known, after which the camera goes on "
        "where the gyro says, if it has hardly moved, seconds; 0: a new component begins",
        low=0.0,
        high=5.0,
    )
    max_gap_s: float = option(
        0.05, "longest time between two messages of `imu` that is bridged, seconds", low=0.001,
        high=1.0,
    )  # fmt: skip
    # Names of Kalibr's files; the defaults are those of ``types.ImuNoise``.
    accelerometer_noise_density: float = option(
        2.8e-3, "white noise of the accelerometer, m/s^2 per root Hz", low=1e-5,
        high=1.0,
    )  # fmt: skip
    accelerometer_random_walk: float = option(
        8.6e-4, "walk of the accelerometer's bias, m/s^2 per root s",
        low=1e-7, high=0.1,
    )  # fmt: skip
    gyroscope_noise_density: float = option(
        1.6e-4, "white noise of the gyro, rad/s per root Hz", low=1e-6, high=0.1
    )
    gyroscope_random_walk: float = option(
        2.2e-5, "walk of the gyro's bias, rad/s per root s", low=1e-8, high=0.01
    )


@dataclass(frozen=True)
class ObstacleConfig:
    """What counts as an obstacle, in `~/points/obstacles`, `~/scan` and `~/map/occupancy`."""

    min_height: float = option(
        0.1,
        "surfaces lower than this above the floor are floor, metres: more than the errors of "
        "depth, level and mount",
        low=0.0,
        live=True,
    )
    max_height: float = option(
        2.0, "surfaces higher than this above the floor are passed under, metres", low=0.01,
        live=True,
    )  # fmt: skip
    max_range: float = option(
        4.0,
        "surfaces farther than this from the camera are no obstacles yet, metres: errors of depth "
        "grow with it; rays clear a little farther",
        low=0.1,
        live=True,
    )
    drop: float = option(
        0.0,
        "ways down (stairs, kerbs) deeper than this are obstacles, metres, and so are mirror "
        "images in a shiny floor; 0: none are",
        low=0.0,
        live=True,
    )


@dataclass(frozen=True)
class OccupancyConfig:
    """The grid of the map, `~/map/occupancy`."""

    resolution_m: float = option(
        0.05,
        "edge of a cell, metres. Nav2 plans in cells of this size; smaller ones show errors of "
        "depth, which are 2 % of the distance and more",
        low=0.01,
        high=1.0,
    )
    updates: bool = option(
        False,
        "whether only changed cells are sent, in `~/map/occupancy_updates`, while the grid's size "
        "stays. Each subscriber to the grid must take both: Nav2 by `subscribe_to_updates`",
    )


@dataclass(frozen=True)
class SplatsConfig:
    """Gaussian splats of keyframes."""

    enabled: bool = option(
        False,
        "whether a Gaussian per pixel is computed and stored with each keyframe, for exports as "
        "splats: model da3-giant or da3nested-giant-large; live also map.store",
    )


@dataclass(frozen=True)
class PipelineConfig:
    """All parameters of the pipeline."""

    inference: InferenceConfig = group(InferenceConfig, "")
    cameras: tuple[str, ...] = option(
        (),
        "names of several cameras, which prefix their topics; empty: one camera without a prefix",
        items=str,
    )
    mode: str = option(
        "mapping",
        "localization: the map is read-only, and the camera is localized in it: no points, "
        "keyframes or submaps are added, memory stays constant; needs a map (map.load, or what "
        "was mapped before) and loop.enabled",
        choices=("mapping", "localization"),
        live=True,
    )
    mask: str = option(
        "",
        "image file whose black pixels show the robot itself and get no depth; `{camera}` stands "
        "for the camera's name; empty: none",
    )
    hold_when_blind: bool = option(
        True,
        "whether images that show nothing (dark, overexposed, blurred, noise, frozen) get no "
        "depth and hold the pose; false: every image is processed",
    )
    window: WindowConfig = group(WindowConfig, "window.")
    rig: RigConfig = group(RigConfig, "rig.")
    keyframe: KeyframeConfig = group(KeyframeConfig, "keyframe.")
    scale: ScaleConfig = group(ScaleConfig, "scale.")
    pose_prior: PosePriorConfig = group(PosePriorConfig, "pose_prior.")
    depth: DepthConfig = group(DepthConfig, "depth.")
    map: MapConfig = group(MapConfig, "map.")
    loop: LoopConfig = group(LoopConfig, "loop.")
    refinement: RefinementConfig = group(RefinementConfig, "refinement.")
    dense: DenseConfig = group(DenseConfig, "dense.")
    splats: SplatsConfig = group(SplatsConfig, "splats.")
    level: LevelConfig = group(LevelConfig, "level.")
    imu: ImuConfig = group(ImuConfig, "imu.")
    obstacles: ObstacleConfig = group(ObstacleConfig, "obstacles.")
    occupancy: OccupancyConfig = group(OccupancyConfig, "occupancy.")
    max_late_s: float = option(
        0.5,
        "a frame up to this much older than the newest is dropped as late; an older one is a time "
        "jump, seconds",
        low=0.0,
    )

    def __post_init__(self) -> None:
        for parameter in parameters(self):
            parameter.check()
        if self.window.new >= self.window.size:
            raise ConfigError(
                f"window.new is {self.window.new}, but must be below window.size "
                f"({self.window.size}): windows are aligned by the views they share"
            )
        _check_cameras(self)
        _check_mask(self)
        if self.mode == "localization" and not self.loop.enabled:
            raise ConfigError(
                "mode is localization, but loop.enabled is false: the camera is localized by "
                "loops; set loop.enabled to true"
            )
        if self.mode == "localization" and self.pose_prior.corrections != "none":
            raise ConfigError(
                f"mode is localization, but pose_prior.corrections is "
                f"{self.pose_prior.corrections}: a read-only map cannot follow another SLAM; set "
                "one of them to its default"
            )
        _check_corrections(self.pose_prior)
        if 0 < self.dense.size < LEAST_DENSE_SIZE:
            raise ConfigError(
                f"dense.size is {self.dense.size}, but must be 0 or at least {LEAST_DENSE_SIZE}: "
                "smaller images have too little in them to compare"
            )
        if self.splats.enabled and (self.mode == "localization" or not self.map.enabled):
            raise ConfigError(
                "splats.enabled is true, but no keyframes are stored with mode localization or "
                "without map.enabled: change one of them"
            )
        if self.obstacles.min_height >= self.obstacles.max_height:
            raise ConfigError(
                f"obstacles.min_height is {self.obstacles.min_height}, but must be below "
                f"obstacles.max_height ({self.obstacles.max_height})"
            )
        low, high = self.depth.color_range_m
        if not 0 <= low < high:
            raise ConfigError(
                f"depth.color_range_m is {[low, high]}: must be [near, far] with 0 <= near < far"
            )


LEAST_DENSE_SIZE = 112  # pixels
CAMERA_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*(/[A-Za-z][A-Za-z0-9_]*)*")
POSE_NUMBERS = 7
TOPIC_NAME = re.compile(r"(~?/)?[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*")


def _check_cameras(config: PipelineConfig) -> None:
    """Raise ConfigError if the parameters of cameras, window and rig contradict each other."""
    names, window, poses = config.cameras, config.window, config.rig.poses
    for name in names:
        if not CAMERA_NAME.fullmatch(name) or name == "map":
            raise ConfigError(
                f"cameras contains {name!r}: names consist of letters, digits, _ and / as in "
                "topics, and cannot be `map`"
            )
    if len(set(names)) < len(names):
        raise ConfigError(f"cameras is {list(names)}: names must be distinct")
    needed = len(names) * (window.new + 1)
    if window.mode == "joint" and len(names) > 1 and window.size < needed:
        raise ConfigError(
            f"window.size is {window.size}, but {len(names)} cameras need at least {needed}: "
            f"window.new ({window.new}) and one overlap view each; or set window.mode to "
            "independent"
        )
    if poses and len(poses) != POSE_NUMBERS * len(names):
        raise ConfigError(
            f"rig.poses has {len(poses)} numbers: must have {POSE_NUMBERS * len(names)}, which "
            "are x, y, z, qx, qy, qz, qw for each of `cameras`"
        )
    rotations = [poses[i + 3 : i + POSE_NUMBERS] for i in range(0, len(poses), POSE_NUMBERS)]
    if not all(map(math.isfinite, poses)) or any(not any(q) for q in rotations):
        raise ConfigError("rig.poses contains a non-finite number or a zero quaternion")
    source = config.scale.source
    unsuited = scale_source(source).unsuited(len(names) if window.mode == "joint" else 1)
    if unsuited:
        raise ConfigError(f"scale.source is {source}: {unsuited}")


def _check_mask(config: PipelineConfig) -> None:
    """Raise ConfigError for a placeholder in ``mask`` that stands for nothing."""
    found = re.findall(r"\{[^{}]*\}?", config.mask)
    other = [text for text in found if text != "{camera}"]
    if other:
        raise ConfigError(
            f"mask is {config.mask!r}: {other[0]} has no meaning, only {{camera}} has"
        )
    if found and not config.cameras:
        raise ConfigError(
            f"mask is {config.mask!r}, but `cameras` is empty: {{camera}} stands for their names; "
            "write the file's name"
        )


def _check_corrections(prior: PosePriorConfig) -> None:
    """Raise ConfigError if there is nothing that corrections could correct."""
    if prior.corrections == "none":
        return
    if prior.source == "none":
        raise ConfigError(
            f"pose_prior.corrections is {prior.corrections}, but pose_prior.source is none: set "
            "it to odometry or tf, the poses that the other SLAM corrects"
        )
    if prior.corrections == "tf" and not prior.map_frame:
        raise ConfigError(
            "pose_prior.corrections is tf, but pose_prior.map_frame is empty: set it to the frame "
            "in which the other SLAM places odom_frame, mostly `map`"
        )


def prior_source(config: PipelineConfig) -> str:
    """Source of the robot's own poses, needed by the network or for the scale; or none."""
    if config.pose_prior.source == "none" and scale_source(config.scale.source).needs_prior:
        return "odometry"
    return config.pose_prior.source


def needs_ranges(config: PipelineConfig) -> bool:
    """Whether the source of metres needs the returns of range sensors."""
    return scale_source(config.scale.source).needs_ranges


def needs_global_poses(config: PipelineConfig) -> bool:
    """Whether the source of metres needs global poses of the robot."""
    return scale_source(config.scale.source).needs_global_poses


def uses_imu(config: PipelineConfig) -> bool:
    """Whether topic `imu` is needed."""
    needed = scale_source(config.scale.source).needs_imu or config.level.source == "imu"
    return config.imu.enabled or needed


@dataclass(frozen=True)
class InputConfig:
    """Reception of images by the live node."""

    image_transport: str = option(
        "raw", "transport of the image topic", choices=("raw", "compressed")
    )
    image_reliability: str = option(
        "auto",
        "reliability of the image subscription; auto: reliable if every publisher offers it",
        choices=("auto", "reliable", "best_effort"),
    )
    input_rectified: str = option(
        "auto",
        "whether images are already rectified; auto: yes if the topic's name contains `rect`",
        choices=("auto", "true", "false"),
    )
    camera_info_timeout_s: float = option(
        2.0,
        "time that images wait for a camera_info before the network's own K is used, seconds",
        low=0.0,
    )
    max_image_hz: float = option(
        240.0, "most images per second of one camera; more are dropped; 0: no limit", low=0.0
    )
    max_frame_age_s: float = option(
        0.0, "waiting frames older than this are dropped, seconds; 0: none", low=0.0
    )


@dataclass(frozen=True)
class TfConfig:
    """Transforms that the node publishes."""

    publish: str = option(
        "auto",
        "published transforms; auto: odom to base_frame, else odom to the camera, else map to "
        "odom, else none",
        choices=("auto", "base", "camera", "map_only", "none"),
    )


@dataclass(frozen=True)
class ViewerConfig:
    """The view in a browser."""

    port: int = option(
        0, "port of the live view in a browser; 0: none; needs viser (extra `viewer`)",
        low=0, high=65535,
    )  # fmt: skip
    host: str = option(
        "127.0.0.1",
        "address that the viewer listens on; other than 127.0.0.1: everyone in the network sees "
        "images and map, without a password",
    )
    control: bool = option(
        False,
        "whether the viewer's page may export, save, reset, pause, and change live parameters",
    )
    max_points: int = option(
        1_000_000, "most points that the viewer shows; 9 bytes each", low=1000, high=20_000_000
    )


@dataclass(frozen=True)
class NodeConfig:
    """All parameters of the live node."""

    pipeline: PipelineConfig = group(PipelineConfig, "")
    input: InputConfig = group(InputConfig, "")
    tf: TfConfig = group(TfConfig, "tf.")
    viewer: ViewerConfig = group(ViewerConfig, "viewer.")
    map_frame: str = option("map", "frame id of the scene")
    odom_frame: str = option("odom", "frame id of odometry, which never jumps")
    range_topics: tuple[str, ...] = option(
        (),
        "topics of range sensors (PointCloud2, LaserScan, Range), for scale.source `range` and "
        "the depth of keyframes; their frames need a transform to the camera. Empty: none; in "
        "replays with scale.source `range` all that the bag has",
        items=str,
    )
    base_frame: str = option(
        "", "frame id of the robot's base; empty: the camera is not on a robot"
    )
    export_dir: str = option(
        "~/.ros/da3", "folder for exports and saved scenes; nothing is read or written outside it"
    )
    autostart: bool = option(True, "whether the node configures and activates itself at start")

    def __post_init__(self) -> None:
        for parameter in parameters(self):
            parameter.check()
        _check_range_topics(self.range_topics)
        prior = self.pipeline.pose_prior
        if prior.corrections == "path" and prior.source == "tf" and not self.base_frame:
            raise ConfigError(
                "pose_prior.corrections is path and pose_prior.source is tf, but base_frame is "
                "empty: set it to the frame whose poses the path has"
            )
        if prior.corrections == "tf" and prior.map_frame.strip("/") == self.odom_frame.strip("/"):
            raise ConfigError(
                f"pose_prior.map_frame and odom_frame are both {self.odom_frame!r}: the first is "
                "the other SLAM's map, in which it places the second"
            )


def _check_range_topics(topics: tuple[str, ...]) -> None:
    """Raise ConfigError for a name that no topic has, or one that is there twice."""
    for name in topics:
        if not TOPIC_NAME.fullmatch(name):
            raise ConfigError(
                f"range_topics contains {name!r}: names consist of letters, digits, _ and /, as "
                "in /lidar/points"
            )
    if len(set(topics)) < len(topics):
        raise ConfigError(f"range_topics is {list(topics)}: names must be distinct")


def config_from_parameters(values: Mapping[str, Any], cls: type[T] = PipelineConfig) -> T:  # type: ignore[assignment]
    """Make a config of class ``cls`` from public names; missing parameters keep their defaults.

    Raises ConfigError for an unknown name, a wrong type or a value out of range.
    """
    known = {p.name: p for p in parameters(cls())}
    unknown = sorted(set(values) - set(known))
    if unknown:
        named = ", ".join(f"{name!r}{nearest(name, list(known))}" for name in unknown)
        raise ConfigError(
            f"unknown parameter {named}: see --help or docs/reference.md for all names"
        )
    given = {name: _converted(known[name], value) for name, value in values.items()}
    return build_config(cls, given, "")


def _converted(known: Parameter, value: Any) -> Any:
    if known.items is not None:
        return convert_list(known.name, value, known.items)
    if known.several:
        value = join_choices(known.name, value)
    return convert(known.name, bool_to_word(value, known.choices), known.value)
