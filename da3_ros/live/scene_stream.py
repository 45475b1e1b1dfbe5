"""One pipeline of the live node, with the queue before it and the publishing after it."""

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
from da3_ros.messages.output_topics import (
    FRAME_TOPICS,
    MAX_DISPLAY,
    MAX_PATH,
    SCENE_TOPICS,
    SceneViews,
)
from da3_ros.messages.outputs import Published
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.sensors.rig_sync import Instant, RigSync
from da3_ros.sensors.transform_tree import TransformTree
from da3_ros.types import Calibration, TrackedFrame


@dataclass(frozen=True, eq=False)
class RawFrame:
    """An image that waits for the worker, still undecoded."""

    stamp_ns: int
    message: Any  # sensor_msgs/Image or CompressedImage
    frame_id: str
    calibration: Calibration | None
    rectified: bool
    topic: str
    camera: str = ""  # name within a rig; empty for a single camera


class Host(Protocol):
    """The part of the node that a stream uses."""

    def publish(self, published: Published) -> None: ...
    def wanted(self, topic: str) -> bool: ...
    def now_ns(self) -> int: ...
    def warn(self, text: str, every_s: float = 0.0) -> None: ...
    def stopping(self) -> bool: ...


class SceneStream:
    """The stream of one scene: of all cameras, or of one of several independent cameras.

    additional: True for all but the first independent camera.
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
        additional: bool = False,
    ) -> None:
        self.pipeline, self.host = pipeline, host
        self.sync: RigSync[RawFrame] = RigSync.of(pipeline.config)
        self.queue: FrameQueue[Instant[RawFrame]] = FrameQueue(
            pipeline.config.window.new, config.input.max_frame_age_s, images=len
        )
        self.output = SceneOutput(
            pipeline.scene_map, lib, config, transforms, host.warn,
            camera=name, additional=additional, prior=prior,
        )  # fmt: skip
        self._lock = threading.Lock()  # callbacks add images while the worker resets
        self._views = SceneViews(
            path=lambda: pipeline.path(MAX_PATH),
            scene=lambda: pipeline.map.view.thinned(MAX_DISPLAY, pipeline.scene_map.T_map_world),
        )
        self._sent_at = dict.fromkeys(SCENE_TOPICS, 0.0)
        # Revision of the map that was last published on each topic.
        self._shown = dict.fromkeys(SCENE_TOPICS, pipeline.map.revision)

    def put(self, raw: RawFrame) -> None:
        """Add a new image; called from callbacks."""
        with self._lock:
            for instant in self.sync.add(raw):
                self.queue.put(instant)

    def put_rest(self) -> None:
        """Queue incomplete instants: no more images will come."""
        with self._lock:
            for instant in self.sync.flush():
                self.queue.put(instant)

    def reset(self) -> None:
        """Forget window, odometry and map."""
        self._clear_inputs()
        self.pipeline.reset()
        self.output.reset()

    def resume(self, saved: Snapshot) -> str:
        """Continue in a saved scene; returns a note for the user (see ``Pipeline.resume``).

        Raises SceneFileError, and then changes nothing.
        """
        text = self.pipeline.resume(saved)
        self._clear_inputs()
        self.output.reset()
        return text

    def reconfigure(self, config: PipelineConfig) -> None:
        """Apply parameters that may change while the node is configured."""
        self.pipeline.reconfigure(config)
        self.output.messages.config = config.depth

    def deliver(self, frame: TrackedFrame) -> None:
        """Publish one processed frame. Thread-safe: does not use the pipeline."""
        for published in self.output.messages.frame(frame, self.host.wanted):
            self.host.publish(published)

    def repeat_transforms(self) -> None:
        """Publish the last transforms again if there are no recent ones."""
        transforms = self.output.tf.repeat()
        if transforms:
            message = build.tf(self.output.messages.lib, transforms)
            self.host.publish(("/tf", FRAME_TOPICS["/tf"].type, message))

    def publish_map(self) -> None:
        """Publish what shows the map to its subscribers, also if it has not changed."""
        store = self.pipeline.map
        for topic, row in SCENE_TOPICS.items():
            always_empty = not len(store.table.path) and self._shown[topic] == store.revision
            if row.on_change and not always_empty and self._is_wanted(topic):
                self._publish_of_map(topic)

    def refresh_map(self) -> None:
        """Publish what shows the map, if it has changed, is due and has a subscriber."""
        for topic, row in SCENE_TOPICS.items():
            changed = row.on_change and self.pipeline.map.revision != self._shown[topic]
            if changed and self._is_due(topic) and self._is_wanted(topic):
                self._publish_of_map(topic)

    def publish_scene(self, frame: TrackedFrame) -> None:
        """Publish what is due of the scene, after a frame."""
        for topic, row in SCENE_TOPICS.items():
            if not row.on_change and self._is_due(topic) and self._is_wanted(topic):
                self._publish_of_scene(topic, frame.stamp_ns)
        self.refresh_map()

    def _is_due(self, topic: str) -> bool:
        return time.monotonic() - self._sent_at[topic] >= SCENE_TOPICS[topic].period_s

    def _is_wanted(self, topic: str) -> bool:
        return self.host.wanted(self.output.messages.of_scene(topic))

    def _publish_of_map(self, topic: str) -> None:
        self._shown[topic] = self.pipeline.map.revision
        self._publish_of_scene(topic, self.pipeline.map.newest_stamp_ns or self.host.now_ns())

    def _publish_of_scene(self, topic: str, stamp_ns: int) -> None:
        self._sent_at[topic] = time.monotonic()
        self.host.publish(self.output.messages.scene(topic, self._views, stamp_ns))

    def _clear_inputs(self) -> None:
        with self._lock:
            for instant in self.sync.flush():  # so that the queue counts them as cleared
                self.queue.put(instant)
            self.queue.clear()
