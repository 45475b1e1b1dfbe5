"""One pipeline of the live node, with the queue before it and the publishing after it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from da3_ros.config import NodeConfig, PipelineConfig
from da3_ros.live.grid_feed import GridFeed
from da3_ros.live.metrics import ThreadSafeCounter
from da3_ros.live.scene_output import SceneOutput
from da3_ros.mapping.submaps import Snapshot
from da3_ros.messages import build
from da3_ros.messages.build import MessageLibrary
from da3_ros.messages.outputs import (
    FRAME_TOPICS,
    MAX_DISPLAY,
    MAX_PATH,
    SCENE_TOPICS,
    SILENT_PERIOD_S,
    Published,
    SceneTopic,
    SceneViews,
)
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.sensors.rig_sync import Frameset, RigSync
from da3_ros.sensors.transform_tree import TransformTree
from da3_ros.types import Calibration, TrackedFrame

# Ticks of the worker, in a row without a window, after which keyframes are measured that would
# wait for later ones: a camera may be slow, and neighbours on both sides are better.
QUIET_TICKS = 6


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


class StreamHost(Protocol):
    """The part of the node that a stream uses."""

    def publish(self, published: Published) -> None: ...
    def has_subscribers(self, topic: str) -> bool: ...
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
        host: StreamHost,
        transforms: TransformTree,
        *,
        prior: bool,
        additional: bool = False,
    ) -> None:
        self.name, self.pipeline, self.host = name, pipeline, host
        self.sync: RigSync[RawFrame] = RigSync.of(pipeline.config)
        self.queue: FrameQueue[Frameset[RawFrame]] = FrameQueue(
            pipeline.config.window.new, config.input.max_frame_age_s, images=len
        )
        self.output = SceneOutput(
            pipeline.scene_map, lib, config, transforms, host.warn,
            camera=name, additional=additional, prior=prior,
        )  # fmt: skip
        self._lock = threading.Lock()  # callbacks add images while the worker resets
        self._views = SceneViews(
            path=lambda: pipeline.path(MAX_PATH),
            scene=lambda: pipeline.map.view.thinned(MAX_DISPLAY, pipeline.scene_map.T_ros_map),
            grid=lambda: self._grids.whole(),
            grid_part=lambda: self._grids.update(),
        )
        self._grids = GridFeed(
            pipeline.scene_map.occupancy,
            lambda: (
                pipeline.config.occupancy.updates
                and self._has_subscribers("map/occupancy_updates")
            ),
        )
        self._sent_at = dict.fromkeys(SCENE_TOPICS, 0.0)
        # Revision of the map that was last published on each topic.
        self._shown = {topic: self._revision(topic) for topic in SCENE_TOPICS}
        self._windows, self._quiet = 0, 0  # as of the newest tick, and ticks without another

    def put(self, raw: RawFrame) -> None:
        """Add a new image; called from callbacks."""
        with self._lock:
            for frameset in self.sync.add(raw):
                self.queue.put(frameset)

    def tick(self) -> bool:
        """Go on to measure the depth of keyframes if no window has for a while; returns whether
        any waits for that."""
        dense = self.pipeline.scene_map.dense
        self._quiet = self._quiet + 1 if dense.windows == self._windows else 0
        self._windows = dense.windows
        if self._quiet >= QUIET_TICKS:
            self.pipeline.scene_map.measure_depth(pause=True)
        return dense.goes_on

    def put_rest(self) -> None:
        """Queue incomplete framesets: no more images will come."""
        with self._lock:
            for frameset in self.sync.flush():
                self.queue.put(frameset)

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
        self.output.messages.config = config

    def deliver(self, frame: TrackedFrame) -> None:
        """Publish one processed frame. Thread-safe: does not use the pipeline."""
        for published in self.output.messages.frame(frame, self.host.has_subscribers):
            self.host.publish(published)

    def repeat_transforms(self) -> None:
        """Publish the last transforms again if there are no recent ones."""
        transforms = self.output.tf.repeat()
        if transforms:
            message = build.tf(self.output.messages.lib, transforms)
            self.host.publish(("/tf", FRAME_TOPICS["/tf"].type, message))

    def publish_map(self) -> None:
        """Publish what shows the map to its subscribers, also if it has not changed."""
        self._grids.renew()
        has_path = len(self.pipeline.map.table.path) > 0
        for topic, row in SCENE_TOPICS.items():
            always_empty = not has_path and self._shown[topic] == self._revision(topic)
            if row.on_change and not always_empty and self._has_subscribers(topic):
                self._publish_of_map(topic)

    def refresh_map(self) -> None:
        """Publish what shows the map, if it has changed, is due and has a subscriber."""
        for topic, row in SCENE_TOPICS.items():
            changed = row.on_change and self._revision(topic) != self._shown[topic]
            if changed and self._is_due(topic) and self._has_subscribers(topic):
                self._publish_of_map(topic)

    def publish_scene(self, frame: TrackedFrame) -> None:
        """Publish what is due of the scene, after a frame."""
        for topic, row in SCENE_TOPICS.items():
            if not row.on_change and self._is_due(topic) and self._has_subscribers(topic):
                self._publish_of_scene(topic, frame.stamp_ns)
            if (reason := self._why_silent(row, frame)) and self._has_subscribers(topic):
                text = f"~/{self.output.messages.of_scene(topic)} is silent: {reason}"
                self.host.warn(text, every_s=SILENT_PERIOD_S)
        self.refresh_map()

    def _why_silent(self, row: SceneTopic, frame: TrackedFrame) -> str:
        reason = row.silent(self.output.messages, frame) if row.silent is not None else ""
        if reason or not row.of_grid or self.pipeline.scene_map.is_level or frame.blind:
            return reason
        return "the loaded scene is not level: begin another one with ~/reset"

    def _revision(self, topic: str) -> int:
        """Returns a number that changes with what a topic shows of the map."""
        if SCENE_TOPICS[topic].of_grid:
            return self.pipeline.scene_map.floor_map.occupancy.revision
        return self.pipeline.map.revision

    def _is_due(self, topic: str) -> bool:
        return time.monotonic() - self._sent_at[topic] >= SCENE_TOPICS[topic].period_s

    def _has_subscribers(self, topic: str) -> bool:
        return self.host.has_subscribers(self.output.messages.of_scene(topic))

    def _publish_of_map(self, topic: str) -> None:
        self._shown[topic] = self._revision(topic)
        self._publish_of_scene(topic, self.pipeline.map.newest_stamp_ns or self.host.now_ns())

    def _publish_of_scene(self, topic: str, stamp_ns: int) -> None:
        self._sent_at[topic] = time.monotonic()
        published = self.output.messages.scene(topic, self._views, stamp_ns)
        if published is not None:
            self.host.publish(published)

    def _clear_inputs(self) -> None:
        with self._lock:
            for frameset in self.sync.flush():  # so that the queue counts them as cleared
                self.queue.put(frameset)
            self.queue.clear()


# Queue of live frames for the worker: keeps the newest frame and drops the others evenly.
#
# A camera is usually faster than the network. Waiting frames are thinned so that the used ones are
# evenly spaced in time, not a burst of neighbours followed by a gap. No middleware.

SPARE = 4  # queue length per wanted frame, so that an even choice is possible


class HasStamp(Protocol):
    """An object with a header stamp in nanoseconds."""

    @property
    def stamp_ns(self) -> int: ...


Item = TypeVar("Item", bound=HasStamp)


class FrameQueue(Generic[Item]):
    """A bounded, thread-safe queue of frames between two windows.

    ``counts``: dropped images by cause.
    """

    def __init__(
        self, wanted: int, max_age_s: float = 0.0, images: Callable[[Item], int] = lambda _: 1
    ) -> None:
        """wanted: frames per window. max_age_s: older frames are dropped; 0: none.

        images: returns the number of images in a frame, for the counts.
        """
        self.wanted = wanted
        self._images = images
        self._since_ns: int | None = None
        self.max_age_ns = int(max_age_s * 1e9)
        self.counts = ThreadSafeCounter()
        self._frames: list[Item] = []
        self._last_ns: int | None = None  # newest stamp handed out
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._frames)

    def put(self, frame: Item) -> None:
        """Add the newest frame; drops a waiting frame if the queue is full."""
        with self._lock:
            self._frames.append(frame)
            self._since_ns = frame.stamp_ns if self._since_ns is None else self._since_ns
            limit = 1 if self.wanted == 1 else SPARE * self.wanted
            if len(self._frames) > limit:
                self.counts.add("busy", self._images(self._frames.pop(self._most_crowded())))

    @property
    def since_ns(self) -> float:
        """Stamp of the first frame since the last pass, dropped or not; inf if there is none."""
        since = self._since_ns
        return math.inf if since is None else since

    def take(self, now_ns: int | None = None) -> list[Item]:
        """Remove and return the frames of the next pass in order of arrival, newest included.

        Empty if too few frames wait. now_ns: time that stamps are compared with for their age.
        """
        with self._lock:
            if now_ns is not None and self.max_age_ns:
                self._drop_old(now_ns)
            if len(self._frames) < self.wanted:
                return []
            waiting, self._frames = self._frames, []
            chosen = choose_evenly([f.stamp_ns for f in waiting], self.wanted, self._last_ns)
            lost = [f for i, f in enumerate(waiting) if i not in chosen]
            self.counts.add("busy", sum(map(self._images, lost)))
            self._last_ns, self._since_ns = waiting[-1].stamp_ns, None
            return [waiting[i] for i in chosen]

    def clear(self) -> None:
        """Drop all waiting frames and forget the last pass."""
        with self._lock:
            self.counts.add("cleared", sum(map(self._images, self._frames)))
            self._frames, self._last_ns, self._since_ns = [], None, None

    def _drop_old(self, now_ns: int) -> None:
        old = [f for f in self._frames if now_ns - f.stamp_ns > self.max_age_ns]
        self.counts.add("too_old", sum(map(self._images, old)))
        self._frames = [f for f in self._frames if now_ns - f.stamp_ns <= self.max_age_ns]

    def _most_crowded(self) -> int:
        """Returns the index of the frame with the closest neighbours in time; never the newest."""
        if len(self._frames) == 2:
            return 0
        stamps = [f.stamp_ns for f in self._frames]
        before = self._last_ns if self._last_ns is not None else 2 * stamps[0] - stamps[1]
        around = [before, *stamps]
        gaps = [around[i + 2] - around[i] for i in range(len(stamps) - 1)]
        return gaps.index(min(gaps))


def choose_evenly(stamps: list[int], count: int, last: int | None) -> list[int]:
    """Returns indices of ``count`` stamps, evenly spaced since ``last`` and including the newest.

    ``stamps`` are sorted. Without ``last`` the first stamp is included too.
    """
    newest = len(stamps) - 1
    if count >= len(stamps):
        return list(range(len(stamps)))
    start = last if last is not None and last < stamps[0] else stamps[0]
    steps = count if start != stamps[0] else max(1, count - 1)
    first = 1 if start != stamps[0] else 0
    chosen: list[int] = []
    for step in range(count):
        target = start + (stamps[newest] - start) * (first + step) / steps
        low = chosen[-1] + 1 if chosen else 0
        high = newest - (count - 1 - step)  # keeps enough stamps for the remaining steps
        chosen.append(min(range(low, high + 1), key=lambda i: abs(stamps[i] - target)))
    chosen[-1] = newest
    return chosen
