"""One pipeline of the live node: what waits before it, and what its results become."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any, Protocol

from da3_ros.config import NodeConfig, PipelineConfig
from da3_ros.live.frame_queue import FrameQueue
from da3_ros.live.tf_output import TfOutput, level_of
from da3_ros.mapping.submaps import Snapshot
from da3_ros.messages import build
from da3_ros.messages.library import MessageLibrary
from da3_ros.messages.outputs import (
    FRAME_TOPICS,
    MAP_TOPIC,
    MAX_DISPLAY,
    MAX_PATH,
    PATH_TOPIC,
    Outputs,
    Published,
)
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.sensors.rig_sync import Instant, RigSync
from da3_ros.sensors.transform_tree import TransformTree
from da3_ros.types import Calibration, TrackedFrame

PATH_PERIOD_S = 1.0
MAP_PERIOD_S = 1.0


@dataclass(frozen=True, eq=False)
class RawFrame:
    """An image that waits for the worker, still as it came."""

    stamp_ns: int
    message: Any  # sensor_msgs/Image or CompressedImage
    frame_id: str
    calibration: Calibration | None
    rectified: bool
    topic: str
    camera: str = ""  # name within a rig; empty for a single camera


class Host(Protocol):
    """What a lane needs of the node."""

    def publish(self, published: Published) -> None: ...
    def wanted(self, topic: str) -> bool: ...
    def now_ns(self) -> int: ...
    def warn(self, text: str, every_s: float = 0.0) -> None: ...
    def stopping(self) -> bool: ...


class SceneStream:
    """All cameras together, or one of several that go each its own way.

    The first camera's lane has the robot's frames; one ``beside`` it has frames of its own, named
    ``<camera>/map`` and ``<camera>/odom``.
    """

    def __init__(
        self,
        name: str,
        pipeline: Pipeline,
        config: NodeConfig,
        lib: MessageLibrary,
        host: Host,
        transforms: TransformTree,
        *,
        prior: bool,
        beside: bool = False,
    ) -> None:
        self.pipeline, self.host, self.transforms = pipeline, host, transforms
        self._base = config.base_frame
        window, own = pipeline.config.window, f"{name}/" if beside else ""
        self.sync: RigSync[RawFrame] = RigSync.of(pipeline.config)
        self.inbox: FrameQueue[Instant[RawFrame]] = FrameQueue(
            window.new, config.input.max_frame_age_s, images=len
        )
        self.outputs = Outputs(
            lib,
            config.pipeline.depth,
            window_size=window.size,
            map_frame=own + config.map_frame,
            odom_frame=own + config.odom_frame,
            tf=lambda frame: self.tf.edges(frame),
            scene_prefix=name,
        )
        self.tf = TfOutput(
            config, transforms, self.outputs, host.warn, prior=prior,
            camera=name if beside else "",
        )  # fmt: skip
        self._lock = threading.Lock()  # callbacks put while the worker resets
        self._path_at = self._map_at = 0.0
        self._shown = pipeline.map.revision  # of the map that was published last
        self._placed = False  # whether it is decided where the map lies

    def put(self, pending: RawFrame) -> None:
        """A new image; called from callbacks."""
        with self._lock:
            for instant in self.sync.add(pending):
                self.inbox.put(instant)

    def put_rest(self) -> None:
        """No more images come: what waits for other cameras goes on without them."""
        with self._lock:
            for instant in self.sync.flush():
                self.inbox.put(instant)

    def reset(self) -> None:
        """Forget window, odometry and map."""
        self._clear_inputs()
        self.pipeline.reset()
        self.outputs.reset()
        self.tf.reset()
        self._placed = False

    def resume(self, saved: Snapshot) -> str:
        """Go on in a saved scene; says where. Raises SceneFileError, and changes nothing."""
        said = self.pipeline.resume(saved)
        self._clear_inputs()
        self.outputs.reset()
        self.tf.reset()
        self.outputs.T_map_world = saved.T_map_world
        self._placed = True
        return said

    def reconfigure(self, config: PipelineConfig) -> None:
        """Take over parameters that are read anew at every frame."""
        self.pipeline.reconfigure(config)
        self.outputs.config = config.depth

    def place(self, frame: TrackedFrame) -> None:
        """Decide where the map lies, before the first frame goes out."""
        if not self._placed:
            self._placed = True
            self._level(frame)

    def deliver(self, frame: TrackedFrame) -> None:
        """Publish one processed frame. Needs nothing of the pipeline: any thread may do it."""
        for published in self.outputs.frame(frame, self.host.wanted):
            self.host.publish(published)

    def repeat_transforms(self) -> None:
        """Publish the last transforms again, if nothing newer has come for a while."""
        transforms = self.tf.repeat()
        if transforms:
            message = build.tf(self.outputs.lib, transforms)
            self.host.publish(("/tf", FRAME_TOPICS["/tf"], message))

    def publish_map(self) -> None:
        """Publish the map's cloud for display."""
        store = self.pipeline.map
        if not len(store.trajectory) and self._shown == store.revision:
            return  # nothing was ever there
        self._map_at, self._shown = time.monotonic(), store.revision
        stamp_ns = store.trajectory.newest_stamp_ns if len(store.trajectory) else 0
        scene = store.thinned(MAX_DISPLAY, self.pipeline.scene_map.T_map_world)
        self.host.publish(self.outputs.map_points(scene, stamp_ns or self.host.now_ns()))

    def refresh_map(self) -> None:
        """Publish the map's cloud if it has changed, has a subscriber, and is due."""
        changed = self.pipeline.map.revision != self._shown
        topic = self.outputs.of_scene(MAP_TOPIC)[0]
        if changed and time.monotonic() - self._map_at >= MAP_PERIOD_S and self.host.wanted(topic):
            self.publish_map()

    def publish_scene(self, frame: TrackedFrame) -> None:
        """Publish the path and the map, now and then."""
        path, now = self.outputs.of_scene(PATH_TOPIC)[0], time.monotonic()
        if self.host.wanted(path) and now - self._path_at >= PATH_PERIOD_S:
            self._path_at = now
            self.host.publish(self.outputs.path(self.pipeline.path(MAX_PATH), frame.stamp_ns))
        self.refresh_map()

    def _clear_inputs(self) -> None:
        with self._lock:
            for instant in self.sync.flush():  # so that the inbox counts them
                self.inbox.put(instant)
            self.inbox.clear()

    def _level(self, frame: TrackedFrame) -> None:
        """With a known base the map begins at the base, level as the robot stands."""
        T = level_of(self.transforms, self._base, frame, self.host.warn)
        if T is not None:
            self.pipeline.scene_map.T_map_world = self.outputs.T_map_world = T
