"""The configured state of the live node: frames in, messages out, on the worker's thread.

Everything it does beyond ROS is the pipeline that replay uses. Knows messages by duck typing; the
node gives it functions to publish with.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from da3_ros.config import NodeConfig, PipelineConfig
from da3_ros.inference import BudgetError, Running, Session, WindowTooLargeError
from da3_ros.live.counters import ThreadSafeCounter
from da3_ros.live.health import Events, Growth, Stages, median_and_p95
from da3_ros.live.publish_thread import Publisher
from da3_ros.live.scene_stream import Host, RawFrame, SceneStream
from da3_ros.mapping.submaps import Snapshot
from da3_ros.messages.decode import ImageError, decode
from da3_ros.messages.library import MessageLibrary
from da3_ros.messages.odometry_tf import open_prior
from da3_ros.pipeline.multi_camera import alone, open_pipelines
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.sensors.pose_prior import PriorError
from da3_ros.sensors.rig_geometry import RigGeometry
from da3_ros.sensors.rig_sync import Instant
from da3_ros.sensors.transform_tree import TransformTree
from da3_ros.types import Array, Frame, TrackedFrame, WindowReport

__all__ = ["Host", "RawFrame", "Stream"]

log = logging.getLogger(__name__)

LATENCIES = 100  # frames whose latency is kept
POLL_S = 0.001  # how often a running window is looked at
DRAIN_S = 10.0  # for frames on their way out, before a service that waits for them gives up


@dataclass(frozen=True, eq=False)
class NextWindow:
    """What goes into the next window."""

    lane: SceneStream
    instants: list[list[Frame]]


class Stream:
    """Frames from the inboxes through the pipelines to the topics.

    One pipeline, or one per camera (``window.mode: independent``), all on one network.
    """

    def __init__(
        self,
        config: NodeConfig,
        lib: MessageLibrary,
        host: Host,
        transforms: TransformTree,
        session: Session | None = None,
    ) -> None:
        self.config, self.host = config, host
        self.prior = open_prior(config, transforms)
        self.rig = RigGeometry(config.pipeline, transforms, host.warn)
        pipelines = open_pipelines(config.pipeline, session)
        for pipeline in pipelines.values():
            pipeline.loops.patient = False  # frames do not wait for the graph
        self.lanes = {
            name: SceneStream(
                name, pipeline, config, lib, host, transforms,
                prior=self.prior is not None, beside=i > 0,
            )
            for i, (name, pipeline) in enumerate(pipelines.items())
        }  # fmt: skip
        self.received = 0
        self.drops = ThreadSafeCounter()
        self.publish_failed = 0  # frames that were processed and did not all go out
        self._taken = self._settled = 0  # images out of the inboxes; of these, accounted for
        self.last_report: WindowReport | None = None
        self.process_size = (0, 0)
        self.warm_up_s = math.nan  # how long it took, once it is over
        self.latencies: deque[float] = deque(maxlen=LATENCIES)
        self.published, self.arrived = Events(), Events()
        self.stages, self.growth = Stages(), Growth()
        self.publisher: Publisher | None = None  # frames go out on its thread, if there is one
        self._next: NextWindow | None = None  # what was taken while a window ran
        self._preparing_s = 0.0  # how long that took lately
        self._session = self._first.pipeline.session  # of all lanes
        self._session.on_window_running = self._begin_next

    def put(self, pending: RawFrame) -> None:
        """A new image; called from callbacks."""
        self.received += 1
        self.arrived.add(self.host.now_ns())
        self.lanes.get(pending.camera, self._first).put(pending)

    def put_rest(self) -> None:
        """No more images come."""
        for lane in self.lanes.values():
            lane.put_rest()

    def step(self) -> bool:
        """Work on what waits; called by the worker. False if nothing waited.

        An unexpected exception is raised on; the images it costs are counted as ``failed``.
        """
        try:
            chosen, self._next = self._next or self._take(), None
            if chosen is None:
                return False
            self._run(chosen)
        except Exception:
            self._settle("failed", self._in_hand())
            raise
        return True

    @property
    def pipeline(self) -> Pipeline:
        """The first camera's."""
        return self._first.pipeline

    @property
    def processed(self) -> int:
        """Frames of all cameras that went through."""
        return sum(lane.pipeline.counters["processed"] for lane in self.lanes.values())

    def warm_up(self, leaving: Callable[[], bool] = lambda: False) -> None:
        """Run a window before the first frame, on the worker: frames that come meanwhile wait.

        The images' shape is a guess, 4:3: of another one some tables and kernels stay cold. A
        compiled network takes several windows; between two it ends if it is ``leaving``.
        """
        start = time.perf_counter()
        try:
            done = self._first.pipeline.inference.warm_up(leaving)
        except (BudgetError, WindowTooLargeError) as error:  # the cameras' images may be smaller
            self.host.warn(f"no warm-up: {error}")
            return
        if done:
            self.warm_up_s = time.perf_counter() - start
            log.info("warm after %.1f s, for images of 4:3", self.warm_up_s)

    def check_budget(self, memory_budget_gb: float) -> None:
        """Raise BudgetError if nothing fits; needs no worker, and waits for no window."""
        self._session.check_budget(memory_budget_gb)

    def reset(self) -> None:
        """Forget window, odometry and map."""
        self._drain()
        self._forget_next()
        for lane in self.lanes.values():
            lane.reset()

    def reconfigure(self, config: PipelineConfig, *, budget: bool = True) -> None:
        """Take over parameters that are read anew at every frame.

        ``budget``: the memory budget is one of those that changed; else the one in force stays.
        Raises BudgetError, with the old budget in force and all else taken over, where one does
        not fit that did when it was checked.
        """
        before = self.config.pipeline.inference
        if not budget:
            config = dataclasses.replace(config, inference=before)
        self.config = dataclasses.replace(self.config, pipeline=config)
        for lane in self.lanes.values():
            lane.reconfigure(alone(config))
        if config.inference.memory_budget_gb == before.memory_budget_gb:
            return
        try:
            with (
                self._session.undone_if_refused()
            ):  # for the first cameras too, where the last one does
                for lane in self.lanes.values():
                    lane.pipeline.set_budget(config.inference.memory_budget_gb)
        except BudgetError as error:
            kept = dataclasses.replace(config, inference=before)
            self.config = dataclasses.replace(self.config, pipeline=kept)
            for lane in self.lanes.values():
                lane.reconfigure(alone(kept))
            raise BudgetError(f"memory_budget_gb: {error}; the old plan stays") from error

    def snapshots(self) -> dict[str, Snapshot]:
        """The scenes as they are now: the first camera's, then those of cameras with their own.

        Cheap; another thread may write them while the stream goes on.
        """
        lanes = {n: x for n, x in self.lanes.items() if x is self._first or len(x.pipeline.map)}
        return {name: lane.pipeline.snapshot() for name, lane in lanes.items()}

    def resume(self, saved: dict[str, Snapshot]) -> str:
        """Go on in saved scenes; says where. Raises SceneFileError, and changes nothing."""
        self._drain()
        for name, snapshot in saved.items():
            self.lanes[name].pipeline.check_unit(snapshot)
        self._forget_next()
        said = [lane.resume(saved[name]) for name, lane in self.lanes.items() if name in saved]
        return said[0]

    def _drain(self) -> None:
        """Wait until what was processed has gone out. Raises TimeoutError."""
        if self.publisher is not None:
            self.publisher.drain(DRAIN_S)

    def repeat_transforms(self) -> None:
        """Publish the last transforms again where no frame has brought newer ones of late."""
        for lane in self.lanes.values():
            lane.repeat_transforms()

    def publish_map(self) -> None:
        """Publish the maps' clouds for display."""
        for lane in self.lanes.values():
            lane.publish_map()

    def refresh_map(self) -> None:
        """Publish the maps' clouds where they have changed and have a subscriber."""
        for lane in self.lanes.values():
            lane.refresh_map()

    def drop_counts(self) -> dict[str, int]:
        """Frames lost so far, by cause."""
        counts = self.drops.now()
        for lane in self.lanes.values():
            counts.update(lane.inbox.counts.now())
            counts["stray"] += lane.sync.strays
            counts.update(_drops(lane.pipeline))
        return {name: count for name, count in sorted(counts.items()) if count}

    def latency(self) -> tuple[float, float]:
        """Median and 95th percentile of stamp to publication, seconds; NaN before the first."""
        return median_and_p95(list(self.latencies))

    @property
    def _first(self) -> SceneStream:
        return next(iter(self.lanes.values()))

    def _take(self) -> NextWindow | None:
        """The frames of the next window, decoded, rectified and resized, if enough wait."""
        for lane in sorted(self.lanes.values(), key=lambda lane: lane.inbox.since_ns):
            waiting = lane.inbox.take(self.host.now_ns())
            if waiting:
                self._taken += sum(map(len, waiting))
                return NextWindow(lane, [self._read(lane, instant) for instant in waiting])
        return None

    def _begin_next(self, window: Running) -> None:
        """While a window runs beside us: choose the next one's frames, and begin with them.

        The newest frame counts, so they are chosen as late as they can be ready in time. That
        costs no latency: if they were chosen later, the device would wait for them.
        """
        while self._next is None and not (window.done() or self.host.stopping()):
            start = time.perf_counter()
            if start >= window.ends - self._preparing_s:
                self._next = self._take()
            if self._next is None:
                time.sleep(POLL_S)
                continue
            for frame in (f for instant in self._next.instants for f in instant):
                self._next.lane.pipeline.begin(frame)
            self._preparing_s = time.perf_counter() - start

    def _forget_next(self) -> None:
        """Give up what was taken and has not been through a window."""
        self._next = None
        self._settle("cleared", self._in_hand() + self._waiting())

    def _run(self, chosen: NextWindow) -> None:
        for frames in chosen.instants:
            known = [self._known(frame) for frame in frames]
            for tracked in chosen.lane.pipeline.push(*known) if known else ():
                if self.host.stopping():
                    return
                self._deliver(chosen.lane, tracked)

    def _read(self, lane: SceneStream, instant: Instant[RawFrame]) -> list[Frame]:
        """The usable frames of one instant, ready for the network."""
        self.stages.add("wait", (self.host.now_ns() - instant.stamp_ns) / 1e9)
        frames = [self._decode(pending) for pending in instant.frames]
        with self.stages.of("prepare"):
            return [lane.pipeline.prepare(frame) for frame in frames if frame is not None]

    def _decode(self, pending: RawFrame) -> Frame | None:
        try:
            with self.stages.of("decode"):
                image = decode(pending.message)
        except ImageError as error:
            self._settle("bad_image")
            self.host.warn(f"{pending.topic}: image dropped: {error}", every_s=5.0)
            return None
        return Frame(
            stamp_ns=pending.stamp_ns,
            image=image,
            frame_id=pending.frame_id,
            camera=pending.camera,
            calibration=pending.calibration,
            rectified=pending.rectified,
        )

    def _known(self, frame: Frame) -> Frame:
        """The frame with what the robot knows of it."""
        return dataclasses.replace(
            frame,
            T_prior_camera=self._prior_of(frame),
            T_rig_camera=self.rig.camera(frame.camera, frame.frame_id, frame.stamp_ns),
        )

    def _prior_of(self, frame: Frame) -> Array | None:
        """Where the robot says that the camera was; None, with a warning, if it does not know."""
        if self.prior is None:
            return None
        try:
            return self.prior.camera(frame.frame_id, frame.stamp_ns)
        except PriorError as error:
            self.host.warn(f"no pose from {self.prior.source}: {error}", every_s=5.0)
            return None

    def _deliver(self, lane: SceneStream, frame: TrackedFrame) -> None:
        lane.place(frame)
        self._settled += 1  # what goes wrong from here on is the publisher's to count
        if self.publisher is None:
            self._publish(lane, frame)
        else:
            self.publisher.submit(lambda: self._publish(lane, frame))
        lane.publish_scene(frame)
        if frame.window is not self.last_report:
            self.stages.add("network", frame.window.inference_s)
            self.stages.add("window", frame.window.total_s)
        self.last_report = frame.window
        self.process_size = lane.pipeline.builder.network_size

    def _settle(self, cause: str, images: int = 1) -> None:
        """Images that were taken from an inbox and come to nothing."""
        if images > 0:
            self.drops.add(cause, images)
            self._settled += images

    def _waiting(self) -> int:
        """Images in the pipelines that wait for a full window."""
        return sum(lane.pipeline.builder.waiting for lane in self.lanes.values())

    def _in_hand(self) -> int:
        """Images that were taken and neither wait for a window, went out nor are counted."""
        dropped = sum(sum(_drops(lane.pipeline).values()) for lane in self.lanes.values())
        chosen = sum(map(len, self._next.instants)) if self._next is not None else 0
        return self._taken - self._settled - dropped - self._waiting() - chosen

    def _publish(self, lane: SceneStream, frame: TrackedFrame) -> None:
        with self.stages.of("publish"):
            lane.deliver(frame)
        self.published.add(self.host.now_ns())
        self.latencies.append((self.host.now_ns() - frame.stamp_ns) / 1e9)


def _drops(pipeline: Pipeline) -> Counter[str]:
    """What a pipeline dropped, by cause; any thread may ask."""
    counts = dict(pipeline.counters)  # a whole copy: the worker adds names meanwhile
    lead = "dropped_"
    return Counter({n.removeprefix(lead): c for n, c in counts.items() if n.startswith(lead)})
