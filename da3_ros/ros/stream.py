"""The configured state of the live node: frames in, messages out, on the worker's thread.

Everything it does beyond ROS is the pipeline that replay uses. Knows messages by duck typing; the
node gives it functions to publish with.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from da3_ros.config import NodeConfig, PipelineConfig
from da3_ros.inference import BudgetError
from da3_ros.mapping.export import Selection, export_scene
from da3_ros.pipeline import Network, Pipeline
from da3_ros.pose_prior import PriorError
from da3_ros.ros import tf_policy
from da3_ros.ros.decode import ImageError, decode
from da3_ros.ros.inbox import FrameInbox
from da3_ros.ros.messages import MessageLibrary
from da3_ros.ros.outputs import Outputs, Published
from da3_ros.ros.prior_input import open_prior
from da3_ros.transforms import TransformError, TransformTree
from da3_ros.types import Array, Calibration, Frame, TrackedFrame, WindowReport

PATH_PERIOD_S = 1.0
MAP_PERIOD_S = 1.0
LATENCIES = 100  # frames whose latency is kept


@dataclass(frozen=True, eq=False)
class Pending:
    """An image that waits for the worker, still as it came."""

    stamp_ns: int
    message: Any  # sensor_msgs/Image or CompressedImage
    frame_id: str
    calibration: Calibration | None
    rectified: bool
    topic: str


class Host(Protocol):
    """What the stream needs of the node."""

    def publish(self, published: Published) -> None: ...
    def wanted(self, topic: str) -> bool: ...
    def now_ns(self) -> int: ...
    def warn(self, text: str, every_s: float = 0.0) -> None: ...
    def stopping(self) -> bool: ...


class Stream:
    """One camera's frames from the inbox through the pipeline to the topics."""

    def __init__(
        self,
        config: NodeConfig,
        lib: MessageLibrary,
        host: Host,
        transforms: TransformTree,
        session: Network | None = None,
    ) -> None:
        self.config, self.host, self.transforms = config, host, transforms
        self.pipeline = Pipeline(config.pipeline, session)
        self.prior = open_prior(config, transforms)
        window = config.pipeline.window
        self.inbox: FrameInbox[Pending] = FrameInbox(window.new, config.input.max_frame_age_s)
        self.outputs = Outputs(
            lib,
            config.pipeline.depth,
            window_size=window.size,
            map_frame=config.map_frame,
            odom_frame=config.odom_frame,
            tf=self._transforms_of,
        )
        self.received = 0
        self.drops: Counter[str] = Counter()
        self.last_report: WindowReport | None = None
        self.process_size = (0, 0)
        self.latencies: deque[float] = deque(maxlen=LATENCIES)
        self.published: deque[float] = deque(maxlen=LATENCIES)
        self.arrived: deque[float] = deque(maxlen=LATENCIES)
        self.own_edges: set[tuple[str, str]] = set()  # transforms that this node publishes
        self._tf_plan: tf_policy.TfPlan | None = None
        self._path_at = self._map_at = 0.0

    def put(self, pending: Pending) -> None:
        """A new image; called from callbacks."""
        self.received += 1
        self.arrived.append(time.monotonic())
        self.inbox.put(pending)

    def step(self) -> bool:
        """Work on what waits; called by the worker. False if nothing waited."""
        waiting = self.inbox.take(self.host.now_ns())
        for pending in waiting:
            frame = self._decode(pending)
            if frame is None:
                continue
            for tracked in self.pipeline.push(frame):
                if self.host.stopping():
                    return False
                self._deliver(tracked)
        return bool(waiting)

    def reset(self) -> None:
        """Forget window, odometry and map."""
        self.inbox.clear()
        self.pipeline.reset()
        self.outputs.reset()

    def reconfigure(self, config: PipelineConfig) -> None:
        """Take over parameters that are read anew at every frame."""
        budget = self.config.pipeline.inference.memory_budget_gb
        self.config = dataclasses.replace(self.config, pipeline=config)
        self.pipeline.config = config
        self.outputs.config = config.depth
        if config.inference.memory_budget_gb != budget:
            try:
                self.pipeline.set_budget(config.inference.memory_budget_gb)
            except BudgetError as error:
                self.host.warn(f"memory_budget_gb: {error}; the old plan stays")

    def export(self, path: Path, selection: Selection) -> tuple[Path, int]:
        """Write the selected scene; returns the path and the number of points."""
        scene = selection.apply(self.pipeline.scene())
        return export_scene(scene, path), len(scene.cloud)

    def publish_map(self) -> None:
        """Publish the map's cloud for display."""
        poses = self.pipeline.trajectory.poses
        if poses:
            self.host.publish(self.outputs.map_points(self.pipeline.scene(), poses[-1].stamp_ns))

    def drop_counts(self) -> dict[str, int]:
        """Frames lost so far, by cause."""
        counts = Counter(self.drops) + self.inbox.counts
        for name, count in self.pipeline.counters.items():
            if name.startswith("dropped_"):
                counts[name.removeprefix("dropped_")] += count
        return {name: count for name, count in sorted(counts.items()) if count}

    def latency(self) -> tuple[float, float]:
        """Median and 95th percentile of stamp to publication, seconds; NaN before the first."""
        values = sorted(self.latencies)
        if not values:
            return float("nan"), float("nan")
        return statistics.median(values), values[min(len(values) - 1, int(0.95 * len(values)))]

    def _decode(self, pending: Pending) -> Frame | None:
        try:
            image = decode(pending.message)
        except ImageError as error:
            self.drops["bad_image"] += 1
            self.host.warn(f"{pending.topic}: image dropped: {error}", every_s=5.0)
            return None
        return Frame(
            stamp_ns=pending.stamp_ns,
            image=image,
            frame_id=pending.frame_id,
            calibration=pending.calibration,
            rectified=pending.rectified,
            T_prior_camera=self._prior_of(pending),
        )

    def _prior_of(self, pending: Pending) -> Array | None:
        """Where the robot says that the camera was; None, with a warning, if it does not know."""
        if self.prior is None:
            return None
        try:
            return self.prior.camera(pending.frame_id, pending.stamp_ns)
        except PriorError as error:
            self.host.warn(f"no pose from {self.prior.source}: {error}", every_s=5.0)
            return None

    def _deliver(self, frame: TrackedFrame) -> None:
        if self.outputs.fresh:
            self._level(frame)
        for published in self.outputs.frame(frame, self.host.wanted):
            self.host.publish(published)
        self.last_report = frame.window
        self.process_size = self.pipeline.network_size
        now = time.monotonic()
        self.published.append(now)
        self.latencies.append((self.host.now_ns() - frame.stamp_ns) / 1e9)
        self._publish_scene(frame, now)

    def _publish_scene(self, frame: TrackedFrame, now: float) -> None:
        if self.host.wanted("path") and now - self._path_at >= PATH_PERIOD_S:
            self._path_at = now
            self.host.publish(self.outputs.path(self.pipeline.poses(), frame.stamp_ns))
        if frame.keyframe and self.host.wanted("map/points") and (
            now - self._map_at >= MAP_PERIOD_S
        ):  # fmt: skip
            self._map_at = now
            self.publish_map()

    def _frames(self, optical: str) -> tf_policy.Frames:
        c = self.config
        return tf_policy.Frames(c.map_frame, c.odom_frame, c.base_frame, optical)

    def _level(self, frame: TrackedFrame) -> None:
        """With a known base the map begins at the base, level as the robot stands."""
        base = self.config.base_frame
        if not base:
            return
        try:
            T_base_optical = self.transforms.lookup(base, frame.frame_id, frame.stamp_ns)
        except TransformError as error:
            self.host.warn(f"the map is not levelled: {error}")
            return
        self.pipeline.T_map_world = self.outputs.T_map_world = T_base_optical

    def _transforms_of(self, frame: TrackedFrame) -> list[tf_policy.Edge]:
        """What goes to /tf for one frame, by the policy and what others publish right now."""
        frames = self._frames(frame.frame_id)
        plan = tf_policy.plan(
            self.config.tf.publish,
            frames,
            self.transforms,
            metric=frame.scale.metric,
            prior=self.prior is not None,
        )
        if plan != self._tf_plan and plan.warning:
            self.host.warn(plan.warning)
        self._tf_plan = plan
        T_map_optical = self.outputs.T_map_world @ frame.T_world_camera
        T_map_odom = self.outputs.T_map_odom(frame)
        try:
            edges = tf_policy.edges(
                plan.mode, frames, self.transforms, T_map_optical, frame.stamp_ns, T_map_odom
            )
        except TransformError as error:
            self.host.warn(f"no transform for this frame: {error}", every_s=5.0)
            return []
        self.own_edges = {(parent, child) for parent, child, _ in edges}
        return edges
