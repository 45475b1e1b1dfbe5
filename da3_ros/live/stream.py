"""The processing of the configured node: images in, messages out, on the worker's thread.

Uses the same pipeline as replay. No middleware: messages are read by duck typing, and published by
functions of the node.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from da3_ros.config import NodeConfig, PipelineConfig
from da3_ros.export.checked_files import SceneFileError
from da3_ros.inference import BudgetError, Running, Session, WindowTooLargeError
from da3_ros.live.keyframe_folders import record_keyframes
from da3_ros.live.live_view import LiveView
from da3_ros.live.metrics import (
    CounterGrowth,
    EventTimes,
    StageTimes,
    ThreadSafeCounter,
    median_and_p95,
)
from da3_ros.live.publish_thread import Publisher
from da3_ros.live.saved_scenes import scenes_at_start
from da3_ros.live.scene_stream import RawFrame, SceneStream, StreamHost
from da3_ros.live.stored_exports import StoredSoFar
from da3_ros.mapping.pose_hint import PoseHint
from da3_ros.mapping.submaps import Snapshot
from da3_ros.messages.build import MessageLibrary
from da3_ros.messages.decode import ImageError, decode
from da3_ros.messages.global_pose import open_global_poses
from da3_ros.messages.imu import open_imu
from da3_ros.messages.odometry_tf import open_corrections, open_prior
from da3_ros.messages.ranges import open_ranges
from da3_ros.parameter_schema import ConfigError
from da3_ros.pipeline.multi_camera import alone, open_pipelines
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.pipeline.scene_map import FINISH_S
from da3_ros.sensors.frame_annotator import FrameAnnotator
from da3_ros.sensors.imu_input import WAIT_S, ImuHistory
from da3_ros.sensors.rig_sync import Frameset
from da3_ros.sensors.transform_tree import TransformTree
from da3_ros.types import Frame, TrackedFrame, WindowReport

log = logging.getLogger(__name__)


__all__ = ["RawFrame", "Stream", "StreamHost"]


LATENCIES = 100  # newest frames whose latency is kept
DRAIN_S = 10.0  # longest wait of a service for frames that are being published


class Stream:
    """Processes frames: synchronise, queue, decode, prepare, annotate, push, publish.

    One pipeline, or one per camera (``window.mode: independent``); all share one network.
    """

    def __init__(
        self,
        config: NodeConfig,
        lib: MessageLibrary,
        host: StreamHost,
        transforms: TransformTree,
        session: Session | None = None,
    ) -> None:
        """Load the network, and what saved scenes are to begin with.

        Raises BudgetError if the memory budget admits no window, and as ``open_pipelines``.
        """
        self.config, self.host = config, host
        self.prior = open_prior(config, transforms)  # the robot's own poses, if they are used
        self.slam = open_corrections(config, transforms, self.prior)  # if another SLAM is followed
        self.imu = open_imu(config, transforms, ImuHistory(wait_s=WAIT_S))
        self.ranges = open_ranges(config, transforms, self.prior, host.warn)  # if there are some
        self.anchors = open_global_poses(config, transforms)  # what holds the map
        self._annotator = FrameAnnotator(
            config.pipeline, transforms, self.prior, host.warn, self.slam,
            base_frame=config.base_frame, imu=self.imu, ranges=self.ranges, anchors=self.anchors,
        )  # fmt: skip
        pipelines = _open_live(config.pipeline, session)
        saved = scenes_at_start(config, list(pipelines))  # before any file of this run is made
        record_keyframes(pipelines, config)
        self.pipelines = list(pipelines.values())  # one, or one per camera
        self.pipeline = self.pipelines[0]  # the first camera's
        self.session = self.pipeline.session  # shared by all scenes
        self.scene_streams = {
            name: SceneStream(
                name, pipeline, config, lib, host, transforms,
                prior=self.prior is not None, additional=i > 0,
            )
            for i, (name, pipeline) in enumerate(pipelines.items())
        }  # fmt: skip
        self.publish_failed = 0  # processed frames that were not published completely
        self.last_report: WindowReport | None = None
        self.process_size = (0, 0)
        self.warm_up_s = math.nan  # duration of the warm-up; NaN before its end
        self.latencies: deque[float] = deque(maxlen=LATENCIES)
        self.published, self.arrived = EventTimes(), EventTimes()
        self.stages, self.growth = StageTimes(), CounterGrowth()
        self.publisher: Publisher | None = None  # publishes on its own thread; None: on the worker
        self._first = self.scene_streams[next(iter(pipelines))]
        self.view: LiveView | None = None  # the viewer in a browser, if there is one
        self.frame_counts = FrameCounts(self.scene_streams)
        self._chooser = WindowChooser(self.scene_streams, host, self.frame_counts, self.stages)
        self.session.on_window_running = self._chooser.choose_ahead
        if saved:
            self._begin_in(saved)
        if config.viewer.port:  # last, because an error above would leave its process behind
            self.view = LiveView(config, list(pipelines), host.warn)

    def put(self, raw: RawFrame) -> None:
        """Add a new image; called from callbacks."""
        self.frame_counts.received += 1
        self.arrived.add(self.host.now_ns())
        self.scene_streams.get(raw.camera, self._first).put(raw)

    def put_rest(self) -> None:
        """Queue incomplete framesets: no more images will come."""
        for scene_stream in self.scene_streams.values():
            scene_stream.put_rest()

    def step(self) -> bool:
        """Process the waiting frames; called by the worker. False if too few frames wait.

        Raises unexpected exceptions again; images lost by one are counted as ``failed``.
        """
        try:
            chosen = self._chooser.next()
            if chosen is None:
                return False
            for frames in chosen.framesets:
                known = self._annotator.annotate(frames)
                for tracked in chosen.scene_stream.pipeline.push(*known) if known else ():
                    if self.host.stopping():
                        return True
                    self._deliver(chosen.scene_stream, tracked)
            self.session.memory.grow()
        except Exception:
            self.frame_counts.lose("failed", self.frame_counts.in_processing(self._chooser.images))
            raise
        return True

    def tick(self) -> bool:
        """Go on to measure the depth of keyframes where no window does; called by the worker from
        time to time. False if nothing waits for later ticks.
        """
        if self.host.stopping():
            return False
        waits = [scene_stream.tick() for scene_stream in self.scene_streams.values()]
        return any(waits)

    def warm_up(self, stopping: Callable[[], bool] = lambda: False) -> None:
        """Run the network once before the first frame, on the worker; new frames wait.

        Assumes images of 4:3: for another shape some tables and kernels stay cold. A compiled
        network needs several windows; the warm-up ends between two of them if ``stopping()``.
        """
        start = time.perf_counter()
        try:
            done = self.pipeline.inference.warm_up(stopping)
        except WindowTooLargeError as error:  # the cameras' images may be smaller
            self.host.warn(f"no warm-up: {error}")
            return
        if done:
            self.warm_up_s = time.perf_counter() - start
            log.info("warm after %.1f s, for images of 4:3", self.warm_up_s)

    def finish_recording(self, timeout_s: float) -> bool:
        """Measure and store the keyframes that wait, and no more; False if the disk is still
        busy."""
        for pipeline in self.pipelines:
            if pipeline.scene_map.records:
                pipeline.scene_map.finish_depth(FINISH_S / len(self.pipelines))
        done = [p.scene_map.finish_recording(timeout_s) for p in self.pipelines]
        return all(done)

    def stored_scenes(self) -> dict[str, StoredSoFar]:
        """Begin to store all that was seen so far; returns where, scene by scene as ``snapshots``.

        Returns at once. Empty if nothing is stored.
        """
        out = {}
        for name, scene_stream in self.scene_streams.items():
            pipeline = scene_stream.pipeline
            flush = pipeline.scene_map.flush_recording()
            if flush is not None and (scene_stream is self._first or len(pipeline.map)):
                keyframes = int(pipeline.map.table.path.poses().rows["keyframe"].sum())
                out[name] = StoredSoFar(flush.folder, flush.done, keyframes)
        return out

    def reset(self) -> None:
        """Forget window, odometry and map."""
        self._drain()
        self._forget_next()
        for scene_stream in self.scene_streams.values():
            scene_stream.reset()
        self._show_maps(begin=True)

    def reconfigure(self, config: PipelineConfig, *, budget: bool = True) -> None:
        """Apply parameters that may change while the node is configured.

        budget: True if the memory budget has changed; else the one in force stays. Raises
        BudgetError if a budget that fitted when it was checked no longer fits; then the old budget
        stays in force and all other parameters are applied.
        """
        before = self.config.pipeline.inference
        if not budget:
            config = dataclasses.replace(config, inference=before)
        self.config = dataclasses.replace(self.config, pipeline=config)
        for name, scene_stream in self.scene_streams.items():
            scene_stream.reconfigure(alone(config, name))
        if config.inference.memory_budget_gb == before.memory_budget_gb:
            return
        try:
            with (
                self.session.memory.undone_if_refused()
            ):  # undone for all cameras if one does not fit
                for scene_stream in self.scene_streams.values():
                    scene_stream.pipeline.set_budget(config.inference.memory_budget_gb)
        except BudgetError as error:
            kept = dataclasses.replace(config, inference=before)
            self.config = dataclasses.replace(self.config, pipeline=kept)
            for name, scene_stream in self.scene_streams.items():
                scene_stream.reconfigure(alone(kept, name))
            raise BudgetError(f"memory_budget_gb: {error}; the old plan stays") from error

    def snapshots(self) -> dict[str, Snapshot]:
        """Returns snapshots of the scenes: the first camera's, then those of further cameras.

        Cheap; another thread may write them to files while the stream continues.
        """
        return {
            name: scene_stream.pipeline.snapshot()
            for name, scene_stream in self.scene_streams.items()
            if scene_stream is self._first or len(scene_stream.pipeline.map)
        }

    def resume(self, saved: dict[str, Snapshot]) -> str:
        """Continue in saved scenes; returns a note for the user (see ``Pipeline.resume``).

        Raises SceneFileError, and then changes nothing.
        """
        self._drain()
        for name, snapshot in saved.items():
            self.scene_streams[name].pipeline.check_unit(snapshot)
        self._forget_next()
        text = self._resume(saved)
        self._show_maps(begin=True)
        return text

    def look_near(self, map_frame: str, x: float, y: float, sigma: float) -> str:
        """Look for the camera near a location in the map first, for a while; returns what was
        done.

        Lengths are in the unit of the map.
        """
        frames = {s.output.messages.map_frame: s.pipeline for s in self.scene_streams.values()}
        if map_frame not in frames:
            known = " or ".join(frames)
            return f"not used, because it is in the frame '{map_frame}': give it in {known}"
        pipeline = frames[map_frame]
        if not pipeline.scene_map.looks_for_loops:
            return (
                "not used, because locations are not recognised: loop.enabled is false, or "
                "another SLAM is followed"
            )
        if not pipeline.scene_map.table.submaps:
            return "not used, because the map is empty"
        unknown = pipeline.look_near(PoseHint.on_map(x, y, sigma))
        near = f"near ({x:.2f}, {y:.2f}), standard deviation {sigma:.2f}"
        if unknown:
            return f"the pose is looked for {near}"
        return (
            f"the map is compared {near}: the pose is known, and changes if the images say so; "
            "with mode localization it would be looked for anew"
        )

    def _begin_in(self, saved: dict[str, Snapshot]) -> None:
        """Begin in saved scenes. Raises ConfigError."""
        folder = self.config.pipeline.map.load
        try:
            for name, snapshot in saved.items():
                self.scene_streams[name].pipeline.check_unit(snapshot)
        except SceneFileError as error:
            raise ConfigError(f"map.load is {folder!r}: {error}") from error
        log.info("map.load: %s: %s", folder, self._resume(saved))

    def _resume(self, saved: dict[str, Snapshot]) -> str:
        texts = [
            scene_stream.resume(saved[name])
            for name, scene_stream in self.scene_streams.items()
            if name in saved
        ]
        return texts[0]

    def _drain(self) -> None:
        """Wait until all processed frames are published. Raises TimeoutError."""
        if self.publisher is not None:
            self.publisher.drain(DRAIN_S)

    def repeat_transforms(self) -> None:
        """Publish the last transforms again if there are no recent ones."""
        for scene_stream in self.scene_streams.values():
            scene_stream.repeat_transforms()

    def publish_map(self) -> None:
        """Publish what shows the maps to its subscribers."""
        for scene_stream in self.scene_streams.values():
            scene_stream.publish_map()
        self._show_maps()

    def refresh_map(self) -> None:
        """Publish what shows the maps, of those that have changed."""
        for scene_stream in self.scene_streams.values():
            scene_stream.refresh_map()
        self._show_maps()

    def close(self) -> None:
        """End the viewer, and tell threads that measure depth to leave out what is not begun."""
        for pipeline in self.pipelines:
            pipeline.scene_map.dense.stop()
        if self.view is not None:
            self.view.feed.close()

    def latency(self) -> tuple[float, float]:
        """Median and 95th percentile of stamp to publication, seconds; NaN before the first."""
        return median_and_p95(list(self.latencies))

    def _show_maps(self, *, begin: bool = False) -> None:
        """Show the maps in the viewer, if that is due. begin: they are others."""
        if self.view is not None:
            for name, scene_stream in self.scene_streams.items():
                self.view.show_map(name, scene_stream, begins=begin)

    def _forget_next(self) -> None:
        """Discard frames that were taken from the queues and not yet processed."""
        self._chooser.forget_ahead()
        counts = self.frame_counts
        counts.lose("cleared", counts.in_processing(0) + counts.waiting)

    def _deliver(self, scene_stream: SceneStream, frame: TrackedFrame) -> None:
        self.frame_counts.finished += 1  # the publisher counts failures from here on
        if self.publisher is None:
            self._publish(scene_stream, frame)
        else:
            self.publisher.submit(lambda: self._publish(scene_stream, frame))
        scene_stream.publish_scene(frame)
        if self.view is not None:
            self.view.show(scene_stream.name, scene_stream, frame)
        if frame.window is not self.last_report:
            self.stages.add("network", frame.window.inference_s)
            self.stages.add("refinement", frame.window.refinement_s)
            self.stages.add("window", frame.window.total_s)
        self.last_report = frame.window
        self.process_size = scene_stream.pipeline.builder.network_size

    def _publish(self, scene_stream: SceneStream, frame: TrackedFrame) -> None:
        with self.stages.of("publish"):
            scene_stream.deliver(frame)
        self.published.add(self.host.now_ns())
        self.latencies.append((self.host.now_ns() - frame.stamp_ns) / 1e9)


def _open_live(config: PipelineConfig, session: Session | None) -> dict[str, Pipeline]:
    """Open pipelines whose frames wait for nothing. Raises BudgetError if no window fits."""
    pipelines = open_pipelines(config, session, wait_for_engine=False)
    for pipeline in pipelines.values():
        pipeline.loops.wait_for_solver = False  # frames do not wait for the pose graph
        pipeline.scene_map.dense.waits = False
        pipeline.scene_map.adjustment.waits = False
        pipeline.refinement.skip_when_late()
    next(iter(pipelines.values())).inference.plan_ahead()  # they share one network
    return pipelines


# Counts of a stream's images: received, processed, waiting, or lost by cause. No middleware.


class FrameCounts:
    """Counts the images of all scenes from arrival to result or loss.

    Callbacks change ``received`` and call ``discard``; all other changes are the worker's. Any
    thread may read.
    """

    def __init__(self, scene_streams: Mapping[str, SceneStream]) -> None:
        self._scene_streams = scene_streams
        self.received = 0
        self._lost = ThreadSafeCounter()
        self.taken = self.finished = 0  # images taken from the queues; of these, delivered or lost

    @property
    def processed(self) -> int:
        """Number of processed images of all cameras."""
        return sum(pipeline.counters["processed"] for pipeline in self._pipelines())

    @property
    def waiting(self) -> int:
        """Number of images in the pipelines that wait for a full window."""
        return sum(pipeline.builder.waiting for pipeline in self._pipelines())

    def in_processing(self, chosen: int) -> int:
        """Returns the images taken from the queues that are not delivered, lost or waiting.

        chosen: images chosen for the next window that are not in a pipeline yet.
        """
        dropped = sum(sum(_drops(pipeline).values()) for pipeline in self._pipelines())
        return self.taken - self.finished - dropped - self.waiting - chosen

    def discard(self, cause: str, images: int) -> None:
        """Count images that were received and are not used."""
        self.received += images
        self._lost.add(cause, images)

    def lose(self, cause: str, images: int = 1) -> None:
        """Count taken images that are lost because of ``cause``."""
        if images > 0:
            self._lost.add(cause, images)
            self.finished += images

    def drop_counts(self) -> dict[str, int]:
        """Returns the number of lost images by cause."""
        counts = self._lost.now()
        for scene_stream in self._scene_streams.values():
            counts.update(scene_stream.queue.counts.now())
            counts["stray"] += scene_stream.sync.strays
            counts.update(_drops(scene_stream.pipeline))
        return {name: count for name, count in sorted(counts.items()) if count}

    def _pipelines(self) -> list[Pipeline]:
        return [scene_stream.pipeline for scene_stream in self._scene_streams.values()]


def _drops(pipeline: Pipeline) -> Counter[str]:
    """Returns the images that a pipeline dropped, by cause. Thread-safe."""
    counts = dict(pipeline.counters)  # a copy: the worker may add names
    prefix = "dropped_"
    dropped = {n: c for n, c in counts.items() if n.startswith(prefix)}
    return Counter({n.removeprefix(prefix): c for n, c in dropped.items()})


# Selects the frames of the next window, and decodes and prepares them.

POLL_S = 0.001  # between two checks of a running window


@dataclass(frozen=True, eq=False)
class NextWindow:
    """The frames of the next window of one scene."""

    scene_stream: SceneStream
    framesets: list[list[Frame]]


class WindowChooser:
    """Selects frames on the worker's request, or ahead, while a window runs on another device."""

    def __init__(
        self,
        scene_streams: Mapping[str, SceneStream],
        host: StreamHost,
        frame_counts: FrameCounts,
        stages: StageTimes,
    ) -> None:
        self._scene_streams, self._host = scene_streams, host
        self._frame_counts, self._stages = frame_counts, stages
        self.ahead: NextWindow | None = None  # selected while a window ran
        self._preparing_s = 0.0  # duration of the last selection ahead, seconds

    @property
    def images(self) -> int:
        """Number of usable images selected ahead."""
        return sum(map(len, self.ahead.framesets)) if self.ahead is not None else 0

    def next(self) -> NextWindow | None:
        """Returns the frames of the next window; None if too few wait."""
        chosen, self.ahead = self.ahead or self._choose(), None
        return chosen

    def forget_ahead(self) -> None:
        """Discard the frames that were selected ahead."""
        self.ahead = None

    def choose_ahead(self, window: Running) -> None:
        """Select and begin the next window's frames while a window runs on the device.

        The newest frames are wanted, so the selection is as late as their preparation permits. A
        later selection would not reduce the latency: the device would wait for it.
        """
        while self.ahead is None and not (window.done() or self._host.stopping()):
            start = time.perf_counter()
            if start >= window.ends - self._preparing_s:
                self.ahead = self._choose()
            if self.ahead is None:
                time.sleep(POLL_S)
                continue
            for frame in (f for frameset in self.ahead.framesets for f in frameset):
                self.ahead.scene_stream.pipeline.begin(frame)
            self._preparing_s = time.perf_counter() - start

    def _choose(self) -> NextWindow | None:
        """Select from the scene with the oldest waiting frame among those with enough frames."""
        for scene_stream in sorted(self._scene_streams.values(), key=lambda s: s.queue.since_ns):
            waiting = scene_stream.queue.take(self._host.now_ns())
            if waiting:
                self._frame_counts.taken += sum(map(len, waiting))
                return NextWindow(scene_stream, [self._read(scene_stream, i) for i in waiting])
        return None

    def _read(self, scene_stream: SceneStream, frameset: Frameset[RawFrame]) -> list[Frame]:
        """Returns the usable frames of one frameset, prepared for the network."""
        self._stages.add("wait", (self._host.now_ns() - frameset.stamp_ns) / 1e9)
        frames = [self._decode(raw) for raw in frameset.frames]
        with self._stages.of("prepare"):
            prepare = scene_stream.pipeline.builder.prepare
            return [prepare(frame) for frame in frames if frame is not None]

    def _decode(self, raw: RawFrame) -> Frame | None:
        try:
            with self._stages.of("decode"):
                image = decode(raw.message)
        except ImageError as error:
            self._frame_counts.lose("bad_image")
            self._host.warn(f"{raw.topic}: image dropped: {error}", every_s=5.0)
            return None
        return Frame(
            stamp_ns=raw.stamp_ns,
            image=image,
            frame_id=raw.frame_id,
            camera=raw.camera,
            calibration=raw.calibration,
            rectified=raw.rectified,
        )
