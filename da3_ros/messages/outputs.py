"""Output messages of frames and scenes; the same for live node and replay. No middleware."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from da3_ros.config import PipelineConfig
from da3_ros.drawing.colormaps import colorize_confidence, colorize_depth
from da3_ros.geometry.poses import T_ROS_MAP, invert_pose
from da3_ros.mapping.covariance import rotated_covariance
from da3_ros.mapping.scene import Scene
from da3_ros.mapping.trajectory import Poses
from da3_ros.messages import build
from da3_ros.messages.build import MessageLibrary, WindowView
from da3_ros.navigation.floor_grid import GridPart, OccupancyGrid
from da3_ros.navigation.scan import scan_ranges
from da3_ros.navigation.sighting import Sighting, floor_height, sight, why_not_sighted
from da3_ros.types import Array, TrackedFrame, WindowReport

KEYFRAMES = 1000  # keyframes kept for the messages of later windows that share them
Published = tuple[str, str, Any]  # topic, type, message


def topics(cameras: Sequence[str], scenes: Sequence[str]) -> Iterator[tuple[str, Topic]]:
    """Yields name and row of all topics.

    Names in ``cameras`` prefix topics of frames, those in ``scenes`` topics of scenes; "": no
    prefix.
    """
    for name, row in output_topics().items():
        if name.startswith("/"):
            yield name, row
            continue
        of_camera = name in FRAME_TOPICS and not FRAME_TOPICS[name].of_scene
        prefixes = cameras if of_camera else scenes
        yield from ((_prefixed(prefix, name), row) for prefix in prefixes)


def _prefixed(prefix: str, topic: str) -> str:
    return topic if not prefix or topic.startswith("/") else f"{prefix}/{topic}"


class Outputs:
    """Builds the messages of one stream; keeps what windows' messages say of earlier frames."""

    def __init__(
        self,
        lib: MessageLibrary,
        config: PipelineConfig,
        *,
        map_frame: str = "map",
        odom_frame: str = "odom",
        timings: bool = True,
        T_ros_map: Callable[[], Array] = lambda: T_ROS_MAP,
        tf: Callable[[TrackedFrame], list[Edge]] | None = None,
        scene_prefix: str = "",
        base_frame: str = "",
        warn: Callable[..., None] = lambda text, every_s=0.0: None,
    ) -> None:
        """timings: False replaces values that differ from run to run by NaN.

        T_ros_map: returns the map [4, 4] in the axes that are published now. tf: returns the
        transforms of a frame; by default map to odom to camera. scene_prefix: prefix of the topics
        of the scene, as the camera's name is the prefix of the topics of its frames. base_frame:
        the robot's base, which is level. warn: takes a line, and ``every_s``, the shortest time
        between two equal ones.
        """
        self.lib = lib
        self.config = config
        self.map_frame, self.odom_frame = map_frame, odom_frame
        self._T_ros_map = T_ros_map
        self.scene_prefix = scene_prefix
        self._timings = timings
        self._tf = tf or self._default_edges
        self.base_frame, self._warn = base_frame, warn
        self._sighting: tuple[int, Sighting] | None = None  # of the newest frame, by its id
        self._level_frame = ""  # that was published with the newest frame
        self._recent: OrderedDict[int, WindowView] = OrderedDict()
        self._keyframes: OrderedDict[int, WindowView] = OrderedDict()

    def frame(
        self, frame: TrackedFrame, has_subscribers: Callable[[str], bool] = lambda topic: True
    ) -> Iterator[Published]:
        """Yields the messages of one delivered frame; skips topics without subscribers."""
        self._remember(frame)
        for topic, row in FRAME_TOPICS.items():
            name = _prefixed(self.scene_prefix if row.of_scene else frame.camera, topic)
            if not (row.unasked or has_subscribers(name)):
                continue
            if row.silent is not None and (reason := row.silent(self, frame)):
                self._warn(f"~/{name} is silent: {reason}", every_s=SILENT_PERIOD_S)
            elif row.has is None or row.has(frame):
                message = row.build(self, frame)
                if message is not None:
                    yield name, row.type, message

    def transforms(self, edges: Sequence[Edge], stamp_ns: int) -> Published:
        """Returns a message of /tf with these transforms."""
        row = FRAME_TOPICS["/tf"]
        return "/tf", row.type, build.tf(self.lib, [(stamp_ns, *edge) for edge in edges])

    def scene(self, topic: str, views: SceneViews, stamp_ns: int) -> Published | None:
        """Returns the message of a topic of the scene, one of SCENE_TOPICS; None: there is
        nothing to send."""
        row = SCENE_TOPICS[topic]
        message = row.build(self, views, stamp_ns)
        return None if message is None else (self.of_scene(topic), row.type, message)

    def of_scene(self, topic: str) -> str:
        """Returns the name of a topic of the scene, with the scene's prefix."""
        return _prefixed(self.scene_prefix, topic)

    def edges(self, frame: TrackedFrame) -> list[Edge]:
        """Returns the transforms to publish with a frame."""
        edges, T = self._tf(frame), frame.T_level_camera
        of_own = self.config.level.source in ("ground", "imu") and frame.scale.metric
        of_own &= frame.height_known
        self._level_frame = f"{frame.frame_id}_level" if of_own and edges else ""
        if T is None or not self._level_frame:
            return edges
        return [*edges, (frame.frame_id, self._level_frame, invert_pose(T))]

    @property
    def level_frame(self) -> str:
        """The name of the newest frame's level frame; empty if it is in no transform."""
        by_base = self.config.level.source == "base"
        return self.base_frame if by_base else self._level_frame

    def sighting(self, frame: TrackedFrame) -> Sighting:
        """Returns what a frame says of obstacles and free space; made once per frame."""
        if self._sighting is None or self._sighting[0] != frame.id:
            assert frame.T_level_camera is not None
            found = sight(
                frame.depth_m, frame.K, frame.T_level_camera, self.config.obstacles,
                floor_height(self.config),
            )  # fmt: skip
            self._sighting = frame.id, found
        return self._sighting[1]

    def report(self, frame: TrackedFrame) -> WindowReport:
        """Returns how the window of a frame ran."""
        if self._timings:
            return frame.window
        return dataclasses.replace(frame.window, inference_s=np.nan, total_s=np.nan)

    def window_views(self, report: WindowReport) -> list[tuple[WindowView, Array]]:
        """Returns the views of a window that are remembered and have a pose in the map, with that
        pose [4, 4]."""
        known = {**self._keyframes, **self._recent}
        poses = zip(report.view_ids, report.T_map_camera, strict=False)  # none without a pose
        return [(known[i], T) for i, T in poses if i in known and np.isfinite(T).all()]

    def _remember(self, frame: TrackedFrame) -> None:
        """Keep the data of a frame that later window messages need. Not its pose: the map may
        move."""
        view = WindowView.from_frame(frame)
        for held, most in ((self._recent, self.config.window.size), (self._keyframes, KEYFRAMES)):
            if held is self._recent or frame.keyframe:
                held[frame.id] = view
            while len(held) > most:
                held.popitem(last=False)

    @property
    def T_ros_map(self) -> Array:
        """The map [4, 4] in the axes that are published now."""
        return self._T_ros_map()

    def reset(self) -> None:
        """Start a new stream: forget the frames of the old one."""
        self._recent.clear()
        self._keyframes.clear()
        self._sighting = None

    def T_ros_odom(self, frame: TrackedFrame) -> Array:
        """Pose of odom in the map [4, 4]: loop and scale corrections, which odometry omits."""
        L = self.T_ros_map
        return L @ invert_pose(frame.T_odom_map) @ invert_pose(L)

    def _default_edges(self, frame: TrackedFrame) -> list[Edge]:
        T_odom_camera = self.T_ros_map @ frame.T_odom_map @ frame.T_map_camera
        return [
            (self.map_frame, self.odom_frame, self.T_ros_odom(frame)),
            (self.odom_frame, frame.frame_id, T_odom_camera),
        ]


# The topics of frames and scenes: one table of each, with what builds their messages.
#
# Names are relative to the node (``~/``) unless they begin with a slash. No middleware.

SILENT_PERIOD_S = 30.0  # between two lines about a topic that cannot be built
RANGE_MAX = 2.0  # a scan's largest range over obstacles.max_range: its origin is not the camera
MAX_PATH = 1000  # poses in ~/path
MAX_DISPLAY = 500_000  # points in ~/map/points
Edge = tuple[str, str, Array]  # parent, child, T_parent_child


class OutputContext(Protocol):
    """What messages need to know besides a frame or a scene."""

    lib: MessageLibrary
    config: PipelineConfig
    map_frame: str
    odom_frame: str
    base_frame: str  # the robot's base; empty: none

    @property
    def T_ros_map(self) -> Array:
        """The map [4, 4] in the axes that are published now."""

    def edges(self, frame: TrackedFrame) -> list[Edge]:
        """Returns the transforms to publish with a frame."""

    @property
    def level_frame(self) -> str:
        """The name of the newest frame's level frame; empty if it is in no transform."""

    def sighting(self, frame: TrackedFrame) -> Sighting:
        """Returns what a frame says of obstacles and free space."""

    def report(self, frame: TrackedFrame) -> WindowReport:
        """Returns how the window of a frame ran."""

    def window_views(self, report: WindowReport) -> list[tuple[WindowView, Array]]:
        """Returns the views of a window that are remembered and have a pose in the map, with that
        pose [4, 4]."""


@dataclass(frozen=True)
class SceneViews:
    """What is shown of a scene, made when it is asked for."""

    path: Callable[[], Poses]
    scene: Callable[[], Scene]
    # What is to be sent of the occupancy grid: all, or the part that has changed; None: nothing.
    grid: Callable[[], OccupancyGrid | None] = lambda: None
    grid_part: Callable[[], GridPart | None] = lambda: None


@dataclass(frozen=True, kw_only=True)
class Topic:
    """Type and QoS of a topic, and what it is, for the reference."""

    type: str
    text: str
    depth: int = 1  # messages that are kept for slow subscribers
    latched: bool = False  # whether the last message is kept for late subscribers
    recorded: bool = True  # whether a replay writes it
    optional: bool = False  # whether the package of its type may be missing


@dataclass(frozen=True, kw_only=True)
class FrameTopic(Topic):
    """A topic with a message of a frame."""

    build: Callable[[OutputContext, TrackedFrame], Any]  # returns None if there is nothing to send
    # Whether a frame has the data; None: all have it.
    has: Callable[[TrackedFrame], bool] | None = None
    # Why it cannot be built, with the remedy; empty: it can be, or will be without doing anything.
    # None: it always can.
    silent: Callable[[OutputContext, TrackedFrame], str] | None = None
    unasked: bool = False  # whether it is built without subscribers too
    of_scene: bool = False  # whether its prefix is that of the scene, not that of the camera


@dataclass(frozen=True, kw_only=True)
class SceneTopic(Topic):
    """A topic with a message of the scene so far."""

    # Returns None if there is nothing to send. The int: its stamp, ns.
    build: Callable[[OutputContext, SceneViews, int], Any]
    latched: bool = True
    period_s: float = 1.0  # shortest time between two messages
    # Whether it is sent when the map has changed, and at once to a new subscriber; not by frame.
    on_change: bool = False
    of_grid: bool = False  # whether what changes is the occupancy grid, not the points
    # As in FrameTopic, by the newest frame.
    silent: Callable[[OutputContext, TrackedFrame], str] | None = None


# What frames have -------------------------------------------------------------------------------


def _posed(frame: TrackedFrame) -> bool:
    """Single-image networks give neither poses nor confidence."""
    return frame.posed


def _has_K(frame: TrackedFrame) -> bool:
    return bool(np.isfinite(frame.K).all())


def _why_not_metric(s: OutputContext, frame: TrackedFrame) -> str:
    return "" if frame.scale.metric or frame.blind else "the scale is unknown; see scale.source"


def _why_not_navigable(s: OutputContext, frame: TrackedFrame) -> str:
    if not frame.blind and not frame.height_known:
        what = "what is up" if frame.T_level_camera is None else "the camera's height"
        return f"{what} is unknown: {_why_not_level(s, frame)}"
    if not frame.blind and not _has_K(frame):
        return "the focal length is unknown: publish camera_info"
    if reason := _why_not_metric(s, frame):
        return reason
    if frame.blind or frame.T_level_camera is None:
        return ""
    return why_not_sighted(frame.T_level_camera, s.config)


def _why_not_level(s: OutputContext, frame: TrackedFrame) -> str:
    source = s.config.level.source
    if source == "ground" and not frame.posed:
        return "level.source ground needs a model with poses; or set base_frame, and base"
    if source == "ground":
        return "the images have not shown a floor so far (level.source is ground)"
    if source == "imu" and frame.T_level_camera is None:
        return "topic imu has not shown it so far (level.source is imu)"
    if source == "imu":
        return "the images have not shown a floor so far (level.source is imu)"
    if source == "none":
        return "level.source is none; set it to base, imu or ground"
    if s.base_frame:
        return f"no transform from {s.base_frame} to {frame.frame_id} is on /tf"
    return "set base_frame to the robot's base, or level.source to imu or ground"


def _why_no_scan(s: OutputContext, frame: TrackedFrame) -> str:
    reason = _why_not_navigable(s, frame)
    if reason or s.level_frame or frame.blind:
        return reason
    return "its frame is in no transform, because the node publishes none; see tf.publish"


def _sees(frame: TrackedFrame) -> bool:
    """A covered camera must not look like an empty room: its consumers notice the silence."""
    return not frame.blind and _has_K(frame)


# Messages of frames -----------------------------------------------------------------------------


def _image(
    pixels: Callable[[OutputContext, TrackedFrame], Any],
) -> Callable[[OutputContext, TrackedFrame], Any]:
    """Returns a builder of sensor_msgs/Image from what returns its pixels."""
    return lambda s, frame: build.image(s.lib, frame.stamp_ns, frame.frame_id, pixels(s, frame))


def _camera_info(s: OutputContext, frame: TrackedFrame) -> Any:
    height, width = frame.depth_m.shape
    return build.camera_info(s.lib, frame.stamp_ns, frame.frame_id, frame.K, width, height)


def _points(s: OutputContext, frame: TrackedFrame) -> Any:
    return build.depth_cloud(
        s.lib, frame.stamp_ns, frame.frame_id, frame.depth_m, frame.K, frame.image
    )


def _obstacles(s: OutputContext, frame: TrackedFrame) -> Any:
    return build.xyz_cloud(s.lib, frame.stamp_ns, frame.frame_id, s.sighting(frame).marks)


def _clearing(s: OutputContext, frame: TrackedFrame) -> Any:
    return build.xyz_cloud(s.lib, frame.stamp_ns, frame.frame_id, s.sighting(frame).clearing)


def _scan(s: OutputContext, frame: TrackedFrame) -> Any:
    assert frame.T_level_camera is not None
    most = s.config.obstacles.max_range
    ranges = scan_ranges(s.sighting(frame), frame.T_level_camera, most)
    return build.laser_scan(s.lib, frame.stamp_ns, s.level_frame, ranges, RANGE_MAX * most)


def _compressed_depth(s: OutputContext, frame: TrackedFrame) -> Any:
    return build.compressed_depth(s.lib, frame.stamp_ns, frame.frame_id, frame.depth_m)


def _pose(s: OutputContext, frame: TrackedFrame) -> Any:
    L = s.T_ros_map
    return build.pose_with_covariance(
        s.lib, frame.stamp_ns, s.map_frame, L @ frame.T_map_camera,
        _levelled(frame.covariance_map, L),
    )  # fmt: skip


def _odom(s: OutputContext, frame: TrackedFrame) -> Any:
    L = s.T_ros_map
    return build.odometry(
        s.lib, frame.stamp_ns, s.odom_frame, frame.frame_id,
        L @ frame.T_odom_map @ frame.T_map_camera, _levelled(frame.covariance_odom, L),
    )  # fmt: skip


def _levelled(covariance: Array | None, T_ros_map: Array) -> Array | None:
    """Rotates a covariance [6, 6] to the axes of the map; None: unknown."""
    return None if covariance is None else rotated_covariance(covariance, T_ros_map[:3, :3])


def _tf(s: OutputContext, frame: TrackedFrame) -> Any:
    edges = s.edges(frame)
    return build.tf(s.lib, [(frame.stamp_ns, *edge) for edge in edges]) if edges else None


def _window(s: OutputContext, frame: TrackedFrame) -> Any:
    report = s.report(frame)
    return build.window(s.lib, report, s.window_views(report), s.map_frame, s.T_ros_map)


# Messages of scenes -----------------------------------------------------------------------------


def _path(s: OutputContext, views: SceneViews, stamp_ns: int) -> Any:
    poses = views.path()
    stride = max(1, -(-len(poses) // MAX_PATH))
    thinned = poses.take(slice(None, None, stride))
    chosen = [(p.stamp_ns, s.T_ros_map @ p.T_map_camera) for p in thinned]
    return build.path(s.lib, stamp_ns, s.map_frame, chosen)


def _map_points(s: OutputContext, views: SceneViews, stamp_ns: int) -> Any:
    cloud = views.scene().cloud(MAX_DISPLAY)
    return build.point_cloud(s.lib, stamp_ns, s.map_frame, cloud.xyz, cloud.rgb)


def _occupancy(s: OutputContext, views: SceneViews, stamp_ns: int) -> Any:
    grid = views.grid()
    return None if grid is None else build.occupancy_grid(s.lib, stamp_ns, s.map_frame, grid)


def _occupancy_update(s: OutputContext, views: SceneViews, stamp_ns: int) -> Any:
    part = views.grid_part()
    return None if part is None else build.occupancy_update(s.lib, stamp_ns, s.map_frame, part)


# The tables -------------------------------------------------------------------------------------

IMAGE, CLOUD = "sensor_msgs/msg/Image", "sensor_msgs/msg/PointCloud2"
FRAME_TOPICS: dict[str, FrameTopic] = {  # in the order in which they are sent
    "depth/image": FrameTopic(
        type=IMAGE, build=_image(lambda s, frame: frame.depth_m),
        text="32FC1, along the optical axis, metres once the scale is known; NaN: unknown, "
        "+Inf: sky",
    ),
    "depth/camera_info": FrameTopic(
        type="sensor_msgs/msg/CameraInfo", build=_camera_info, has=_has_K,
        text="of exactly that image, without distortion",
    ),
    "rgb/image": FrameTopic(
        type=IMAGE, build=_image(lambda s, frame: frame.image),
        text="rgb8, rectified, at the depth's size",
    ),
    "depth/image_color": FrameTopic(
        type=IMAGE,
        build=_image(lambda s, frame: colorize_depth(
            frame.depth_m, s.config.depth.color_range_m, s.config.depth.color_map)),
        text="rgb8, over the fixed range `depth.color_range_m`",
    ),
    "confidence/image": FrameTopic(
        type=IMAGE, build=_image(lambda s, frame: frame.confidence), has=_posed,
        text="32FC1, at the depth's size, the network's output unchanged",
    ),
    "confidence/image_color": FrameTopic(
        type=IMAGE, has=_posed,
        build=_image(lambda s, frame: colorize_confidence(
            frame.confidence, s.config.depth.color_map)),
        text="rgb8, red is low; fixed range: the logarithm of confidence - 1 from 0.01 to 10",
    ),
    "points": FrameTopic(
        type=CLOUD, build=_points, has=_has_K,
        text="organised, x y z rgb, in the optical frame; NaN where depth is not finite",
    ),
    "depth/image_16uc1": FrameTopic(
        type=IMAGE, build=_image(lambda s, frame: build.millimetres(frame.depth_m)),
        silent=_why_not_metric, has=lambda frame: frame.scale.metric, recorded=False,
        text="16UC1, millimetres; 0: unknown, sky, or beyond 65.5 m; only in metres",
    ),
    "depth/image/compressedDepth": FrameTopic(
        type="sensor_msgs/msg/CompressedImage", build=_compressed_depth, silent=_why_not_metric,
        has=lambda frame: frame.scale.metric, recorded=False,
        text="`depth/image` for image_transport's `compressedDepth`: PNG, exact to d^2 / 20000 "
        "at depth d; up to 100 m; only in metres",
    ),
    "points/obstacles": FrameTopic(
        type=CLOUD, build=_obstacles, has=_sees, silent=_why_not_navigable,
        text="x y z, in the optical frame: surfaces of obstacles, for costmaps to mark",
    ),
    "points/clearing": FrameTopic(
        type=CLOUD, build=_clearing, has=_sees, silent=_why_not_navigable,
        text="x y z, in the optical frame: floor, and ends of free rays, for costmaps to clear up "
        "to",
    ),
    "pose": FrameTopic(
        type="geometry_msgs/msg/PoseWithCovarianceStamped", build=_pose, has=_posed, depth=10,
        text="pose of the optical frame in `map_frame`",
    ),
    "odom": FrameTopic(
        type="nav_msgs/msg/Odometry", build=_odom, has=_posed, depth=10,
        text="pose in `odom_frame`, without jumps",
    ),
    "/tf": FrameTopic(
        type="tf2_msgs/msg/TFMessage", build=_tf, has=_posed, depth=100, unasked=True,
        text="as chosen by `tf.publish`",
    ),
    "scan": FrameTopic(  # after /tf, in which its frame may be
        type="sensor_msgs/msg/LaserScan", build=_scan, has=_sees, silent=_why_no_scan,
        text="nearest obstacle of each half degree, about `base_frame`, or about the floor below "
        "the camera; +Inf: none up to `obstacles.max_range`, NaN: not seen",
    ),
    "window": FrameTopic(  # last: when all frames of the window are remembered
        type="da3_ros/msg/Window", build=_window, has=lambda frame: frame.ends_window, depth=5,
        of_scene=True,
        text="how the newest window ran and was aligned, with the poses of all its views in the "
        "map as it is after this window",
    ),
}  # fmt: skip
SCENE_TOPICS: dict[str, SceneTopic] = {
    "path": SceneTopic(
        type="nav_msgs/msg/Path", build=_path, text="at most 1000 poses, at most once a second"
    ),
    "map/points": SceneTopic(
        type=CLOUD, build=_map_points, on_change=True,
        text="the scene thinned for display, at most once a second",
    ),
    "map/occupancy": SceneTopic(
        type="nav_msgs/msg/OccupancyGrid", build=_occupancy, on_change=True, of_grid=True,
        silent=_why_not_navigable,
        text="where a robot can drive: 0 free, 100 occupied, -1 unknown; at most once a second; "
        "only in metres, in a level map",
    ),
    "map/occupancy_updates": SceneTopic(  # after the grid that it changes
        type="map_msgs/msg/OccupancyGridUpdate", build=_occupancy_update, on_change=True,
        of_grid=True, latched=False, depth=10, recorded=False, optional=True,
        text="the cells of `map/occupancy` that have changed, with `occupancy.updates`; needs the "
        "package map_msgs",
    ),
}  # fmt: skip


def is_recorded(topic: str) -> bool:
    """Whether a replay writes a topic, by its name with any prefix; others repeat what it has."""
    rows = output_topics().items()
    return not any(topic.endswith(name) for name, row in rows if not row.recorded)


def output_topics() -> dict[str, Topic]:
    """Returns all rows of both tables, by the topic's name without prefix."""
    return {**FRAME_TOPICS, **SCENE_TOPICS}
