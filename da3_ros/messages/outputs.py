"""Output messages of frames and scenes; the same for live node and replay. No middleware."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from da3_ros.config import DepthConfig
from da3_ros.geometry.poses import T_MAP_WORLD, invert_pose
from da3_ros.messages.library import MessageLibrary
from da3_ros.messages.output_topics import (
    FRAME_TOPICS,
    SCENE_TOPICS,
    Edge,
    SceneViews,
    Topic,
    output_topics,
)
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
        """Yields the messages of one delivered frame; skips topics that are not ``wanted``."""
        self._remember(frame)
        for topic, row in FRAME_TOPICS.items():
            name = _prefixed(self.scene_prefix if row.of_scene else frame.camera, topic)
            if row.has(frame) and (row.unasked or wanted(name)):
                message = row.build(self, frame)
                if message is not None:
                    yield name, row.type, message

    def scene(self, topic: str, views: SceneViews, stamp_ns: int) -> Published:
        """Returns the message of a topic of the scene, one of SCENE_TOPICS."""
        row = SCENE_TOPICS[topic]
        return self.of_scene(topic), row.type, row.build(self, views, stamp_ns)

    def of_scene(self, topic: str) -> str:
        """Returns the name of a topic of the scene, with the scene's prefix."""
        return _prefixed(self.scene_prefix, topic)

    def edges(self, frame: TrackedFrame) -> list[Edge]:
        """Returns the transforms to publish with a frame."""
        return self._tf(frame)

    def report(self, frame: TrackedFrame) -> WindowReport:
        """Returns how the window of a frame ran."""
        if self._timings:
            return frame.window
        return dataclasses.replace(frame.window, inference_s=np.nan, total_s=np.nan)

    def posed_frames(self, ids: Sequence[int]) -> list[TrackedFrame]:
        """Returns those of these frames that are remembered and have a pose, without images."""
        known = {**self._keyframes, **self._recent}
        return [known[i] for i in ids if i in known and known[i].posed]

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

    def _default_edges(self, frame: TrackedFrame) -> list[Edge]:
        T_odom_camera = self.T_map_world @ frame.T_odom_world @ frame.T_world_camera
        return [
            (self.map_frame, self.odom_frame, self.T_map_odom(frame)),
            (self.odom_frame, frame.frame_id, T_odom_camera),
        ]
