"""Output messages of frames and scenes; the same list for live node and replay.

Topic names are relative to the node (``~/``) unless they begin with a slash. No middleware.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from da3_ros.config import DepthConfig
from da3_ros.drawing.colormaps import colorize_confidence, colorize_depth
from da3_ros.geometry.poses import T_MAP_WORLD, invert_pose
from da3_ros.mapping.covariance import rotated_covariance
from da3_ros.mapping.scene import Scene
from da3_ros.mapping.trajectory import Poses
from da3_ros.messages import build
from da3_ros.messages.library import MessageLibrary
from da3_ros.types import Array, TrackedFrame

MAX_PATH = 1000  # poses in ~/path
MAX_DISPLAY = 500_000  # points in ~/map/points
KEYFRAMES = 1000  # keyframes kept for the messages of later windows that share them
Published = tuple[str, str, Any]  # topic, type, message
Edge = tuple[str, str, Array]  # parent, child, T_parent_child

FRAME_TOPICS = {
    "depth/image": "sensor_msgs/msg/Image",
    "depth/camera_info": "sensor_msgs/msg/CameraInfo",
    "rgb/image": "sensor_msgs/msg/Image",
    "depth/image_color": "sensor_msgs/msg/Image",
    "confidence/image": "sensor_msgs/msg/Image",
    "confidence/image_color": "sensor_msgs/msg/Image",
    "points": "sensor_msgs/msg/PointCloud2",
    "pose": "geometry_msgs/msg/PoseWithCovarianceStamped",
    "odom": "nav_msgs/msg/Odometry",
    "/tf": "tf2_msgs/msg/TFMessage",
}
WINDOW_TOPIC = ("window", "da3_ros/msg/Window")
PATH_TOPIC = ("path", "nav_msgs/msg/Path")
MAP_TOPIC = ("map/points", "sensor_msgs/msg/PointCloud2")


def topics(cameras: Sequence[str], scenes: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yields (name, name without prefix, type) of all topics.

    Names in ``cameras`` prefix frame topics, those in ``scenes`` scene topics; "": no prefix.
    """
    for name, kind in FRAME_TOPICS.items():
        if name.startswith("/"):
            yield name, name, kind
            continue
        yield from ((_prefixed(camera, name), name, kind) for camera in cameras)
    for name, kind in (WINDOW_TOPIC, PATH_TOPIC, MAP_TOPIC):
        yield from ((_prefixed(scene, name), name, kind) for scene in scenes)


def _is_available(frame: TrackedFrame, topic: str) -> bool:
    """True if a frame has the data of a topic; single-image models have no poses."""
    if topic in ("pose", "odom", "/tf"):
        return frame.posed
    if topic in ("depth/camera_info", "points"):
        return bool(np.isfinite(frame.K).all())
    return not topic.startswith("confidence/") or frame.posed


def _levelled(covariance: Array | None, T_map_world: Array) -> Array | None:
    """Rotates a covariance [6, 6] to the axes of the map; None: unknown."""
    return None if covariance is None else rotated_covariance(covariance, T_map_world[:3, :3])


def _prefixed(prefix: str, topic: str) -> str:
    return f"{prefix}/{topic}" if prefix else topic


class Outputs:
    """Builds the messages of one stream; keeps the frames that a window's message lists."""

    def __init__(
        self,
        lib: MessageLibrary,
        config: DepthConfig,
        *,
        window_size: int,
        map_frame: str = "map",
        odom_frame: str = "odom",
        timings: bool = True,
        T_map_world: Callable[[], Array] = lambda: T_MAP_WORLD,
        tf: Callable[[TrackedFrame], list[Edge]] | None = None,
        scene_prefix: str = "",
    ) -> None:
        """timings: False replaces values that differ from run to run by NaN.

        T_map_world: returns the current pose of the world in the map frame [4, 4]. tf: returns the
        transforms of a frame; by default map to odom to camera. scene_prefix: prefix of the topics
        of the scene, as the camera's name is the prefix of the topics of its frames.
        """
        self.lib = lib
        self.config = config
        self.map_frame, self.odom_frame = map_frame, odom_frame
        self._T_map_world = T_map_world
        self.scene_prefix = scene_prefix
        self._window_size = window_size
        self._timings = timings
        self._tf = tf or self._default_edges
        self._recent: OrderedDict[int, TrackedFrame] = OrderedDict()
        self._keyframes: OrderedDict[int, TrackedFrame] = OrderedDict()

    def frame(
        self, frame: TrackedFrame, wanted: Callable[[str], bool] = lambda topic: True
    ) -> Iterator[Published]:
        """Yields the messages of one delivered frame; skips topics that are not ``wanted``.

        The window's own message follows after its last new frame.
        """
        self._remember(frame)
        for topic, kind in FRAME_TOPICS.items():
            name = _prefixed(frame.camera, topic)
            if not _is_available(frame, topic):
                continue
            if topic == "/tf":
                transforms = self._tf(frame)
                if transforms:
                    yield topic, kind, self._transforms(frame.stamp_ns, transforms)
            elif wanted(name):
                yield name, kind, self._build(topic, frame)
        if frame.ends_window and wanted(self.of_scene(WINDOW_TOPIC)[0]):
            known = {**self._keyframes, **self._recent}
            frames = [known[i] for i in frame.window.view_ids if i in known and known[i].posed]
            report = frame.window
            if not self._timings:
                report = dataclasses.replace(report, inference_s=np.nan, total_s=np.nan)
            message = build.window(self.lib, report, frames, self.map_frame, self.T_map_world)
            yield (*self.of_scene(WINDOW_TOPIC), message)

    def _remember(self, frame: TrackedFrame) -> None:
        """Keep the data of a frame that later window messages need."""
        nothing = np.zeros((0, 0), np.float32)
        finite = frame.confidence[np.isfinite(frame.confidence)]
        middle = np.median(finite, keepdims=True) if finite.size else nothing
        slim = dataclasses.replace(
            frame, image=np.zeros((0, 0, 3), np.uint8), depth_m=nothing, confidence=middle
        )
        for held, most in ((self._recent, self._window_size), (self._keyframes, KEYFRAMES)):
            if held is self._recent or frame.keyframe:
                held[frame.id] = slim
            while len(held) > most:
                held.popitem(last=False)

    @property
    def T_map_world(self) -> Array:
        """Current pose of the world in the map frame [4, 4]."""
        return self._T_map_world()

    def reset(self) -> None:
        """Start a new stream: forget the frames of the old one."""
        self._recent.clear()
        self._keyframes.clear()

    def T_map_odom(self, frame: TrackedFrame) -> Array:
        """Pose of odom in the map [4, 4]: loop and scale corrections, which odometry omits."""
        L = self.T_map_world
        return L @ invert_pose(frame.T_odom_world) @ invert_pose(L)

    def path(self, poses: Poses, stamp_ns: int) -> Published:
        """Returns the path of the camera, evenly thinned."""
        stride = max(1, -(-len(poses) // MAX_PATH))
        thinned = poses.take(slice(None, None, stride))
        chosen = [(p.stamp_ns, self.T_map_world @ p.T_world_camera) for p in thinned]
        return (*self.of_scene(PATH_TOPIC), build.path(self.lib, stamp_ns, self.map_frame, chosen))

    def map_points(self, scene: Scene, stamp_ns: int) -> Published:
        """Returns the scene's point cloud in the map frame, evenly thinned for display."""
        cloud = scene.cloud(MAX_DISPLAY)
        return (
            *self.of_scene(MAP_TOPIC),
            build.point_cloud(self.lib, stamp_ns, self.map_frame, cloud.xyz, cloud.rgb),
        )

    def of_scene(self, topic: tuple[str, str]) -> tuple[str, str]:
        """Returns name and type of a scene topic, with the scene's prefix."""
        return _prefixed(self.scene_prefix, topic[0]), topic[1]

    def _build(self, topic: str, frame: TrackedFrame) -> Any:
        lib, stamp, camera = self.lib, frame.stamp_ns, frame.frame_id
        if topic == "depth/camera_info":
            height, width = frame.depth_m.shape
            return build.camera_info(lib, stamp, camera, frame.K, width, height)
        if topic == "points":
            return build.depth_cloud(lib, stamp, camera, frame.depth_m, frame.K, frame.image)
        L = self.T_map_world
        if topic == "pose":
            return build.pose_with_covariance(
                lib, stamp, self.map_frame, L @ frame.T_world_camera,
                _levelled(frame.covariance_map, L),
            )  # fmt: skip
        if topic == "odom":
            return build.odometry(
                lib, stamp, self.odom_frame, camera, L @ frame.T_odom_world @ frame.T_world_camera,
                _levelled(frame.covariance_odom, L),
            )  # fmt: skip
        return build.image(lib, stamp, camera, self._pixels(topic, frame))

    def _transforms(self, stamp_ns: int, edges: list[Edge]) -> Any:
        return build.tf(self.lib, [(stamp_ns, *edge) for edge in edges])

    def _default_edges(self, frame: TrackedFrame) -> list[Edge]:
        T_odom_camera = self.T_map_world @ frame.T_odom_world @ frame.T_world_camera
        return [
            (self.map_frame, self.odom_frame, self.T_map_odom(frame)),
            (self.odom_frame, frame.frame_id, T_odom_camera),
        ]

    def _pixels(self, topic: str, frame: TrackedFrame) -> Any:
        if topic == "depth/image_color":
            return colorize_depth(frame.depth_m, self.config.color_range_m, self.config.color_map)
        if topic == "confidence/image_color":
            return colorize_confidence(frame.confidence, self.config.color_map)
        return {
            "depth/image": frame.depth_m,
            "rgb/image": frame.image,
            "confidence/image": frame.confidence,
        }[topic]
