"""One pipeline of the live node: what waits before it, and what its results become."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any, Protocol

from da3_ros.config import NodeConfig, PipelineConfig
from da3_ros.live.frame_queue import FrameQueue
from da3_ros.live.scene_output import SceneOutput
from da3_ros.mapping.submaps import Snapshot
from da3_ros.messages import build
from da3_ros.messages.library import MessageLibrary
from da3_ros.messages.outputs import (
    FRAME_TOPICS,
    MAP_TOPIC,
    MAX_DISPLAY,
    MAX_PATH,
    PATH_TOPIC,
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
    """What a stream needs of the node."""

    def publish(self, published: Published) -> None: ...
    def wanted(self, topic: str) -> bool: ...
    def now_ns(self) -> int: ...
    def warn(self, text: str, every_s: float = 0.0) -> None: ...
    def stopping(self) -> bool: ...


class SceneStream:
    """All cameras together, or one of several that go each its own way (``beside`` the first)."""

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
        self.pipeline, self.host = pipeline, host
        self.sync: RigSync[RawFrame] = RigSync.of(pipeline.config)
        self.queue: FrameQueue[Instant[RawFrame]] = FrameQueue(
            pipeline.config.window.new, config.input.max_frame_age_s, images=len
        )
        self.output = SceneOutput(
            pipeline.scene_map, lib, config, transforms, host.warn,
            camera=name, beside=beside, prior=prior,
        )  # fmt: skip
        self._lock = threading.Lock()  # callbacks put while the worker resets
        self._path_at = self._map_at = 0.0
        self._shown = pipeline.map.revision  # of the map that was published last

    def put(self, raw: RawFrame) -> None:
        """A new image; called from callbacks."""
        with self._lock:
            for instant in self.sync.add(raw):
                self.queue.put(instant)

    def put_rest(self) -> None:
        """No more images come: what waits for other cameras goes on without them."""
        with self._lock:
            for instant in self.sync.flush():
                self.queue.put(instant)

    def reset(self) -> None:
        """Forget window, odometry and map."""
        self._clear_inputs()
        self.pipeline.reset()
        self.output.reset()

    def resume(self, saved: Snapshot) -> str:
        """Go on in a saved scene; says where. Raises SceneFileError, and changes nothing."""
        said = self.pipeline.resume(saved)
        self._clear_inputs()
        self.output.reset()
        return said

    def reconfigure(self, config: PipelineConfig) -> None:
        """Take over parameters that are read anew at every frame."""
        self.pipeline.reconfigure(config)
        self.output.messages.config = config.depth

    def deliver(self, frame: TrackedFrame) -> None:
        """Publish one processed frame. Needs nothing of the pipeline: any thread may do it."""
        for published in self.output.messages.frame(frame, self.host.wanted):
            self.host.publish(published)

    def repeat_transforms(self) -> None:
        """Publish the last transforms again, if nothing newer has come for a while."""
        transforms = self.output.tf.repeat()
        if transforms:
            message = build.tf(self.output.messages.lib, transforms)
            self.host.publish(("/tf", FRAME_TOPICS["/tf"], message))

    def publish_map(self) -> None:
        """Publish the map's cloud for display."""
        store = self.pipeline.map
        if not len(store.trajectory) and self._shown == store.revision:
            return  # nothing was ever there
        self._map_at, self._shown = time.monotonic(), store.revision
        stamp_ns = store.trajectory.newest_stamp_ns if len(store.trajectory) else 0
        scene = store.thinned(MAX_DISPLAY, self.pipeline.scene_map.T_map_world)
        stamp_ns = stamp_ns or self.host.now_ns()
        self.host.publish(self.output.messages.map_points(scene, stamp_ns))

    def refresh_map(self) -> None:
        """Publish the map's cloud if it has changed, has a subscriber, and is due."""
        changed = self.pipeline.map.revision != self._shown
        topic = self.output.messages.of_scene(MAP_TOPIC)[0]
        if changed and time.monotonic() - self._map_at >= MAP_PERIOD_S and self.host.wanted(topic):
            self.publish_map()

    def publish_scene(self, frame: TrackedFrame) -> None:
        """Publish the path and the map, now and then."""
        messages, now = self.output.messages, time.monotonic()
        wanted = self.host.wanted(messages.of_scene(PATH_TOPIC)[0])
        if wanted and now - self._path_at >= PATH_PERIOD_S:
            self._path_at = now
            self.host.publish(messages.path(self.pipeline.path(MAX_PATH), frame.stamp_ns))
        self.refresh_map()

    def _clear_inputs(self) -> None:
        with self._lock:
            for instant in self.sync.flush():  # so that the queue counts them
                self.queue.put(instant)
            self.queue.clear()
