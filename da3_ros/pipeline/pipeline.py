"""Frames in, results out: the one path that the live node, bag replay and the tests share.

Builds a window, selects overlap views, infers, places the window, updates the map, and delivers
each new frame once. No ROS.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from da3_ros.config import PipelineConfig
from da3_ros.export.checked_files import SceneFileError
from da3_ros.export.export import export_scene
from da3_ros.inference import open_networks
from da3_ros.inference.interfaces import MetricModel, Session
from da3_ros.keyframe_store.array_spill import ArraySpill
from da3_ros.keyframe_store.disk_limit import DiskLimit
from da3_ros.keyframe_store.recorder import KeyframeRecorder, RecorderState
from da3_ros.mapping.pose_hint import PoseHint
from da3_ros.mapping.scene import Scene
from da3_ros.mapping.submaps import Snapshot
from da3_ros.mapping.trajectory import Poses
from da3_ros.pipeline.keyframe_recording import KeyframeRecording
from da3_ros.pipeline.saved_recognition import search_note
from da3_ros.pipeline.window_inference import WindowInference
from da3_ros.pipeline.window_steps import WindowSteps
from da3_ros.refinement.solver_limits import SolverLimits
from da3_ros.types import Frame, TrackedFrame

log = logging.getLogger(__name__)


class Pipeline:
    """Turns frames of one camera, or of a rig of several, into one scene. Not thread-safe.

    ``counters`` holds frames received and processed, and drops by cause.
    """

    def __init__(
        self,
        config: PipelineConfig,
        session: Session | None = None,
        metric_model: MetricModel | None = None,
        limits: SolverLimits | None = None,
    ) -> None:
        """limits: of the refinement, as an earlier run had it; None: chosen by the parameters."""
        if session is None:
            session, metric_model = open_networks(config)
        self.counters: Counter[str] = Counter()
        inference = WindowInference(config, session, metric_model, self.counters)
        self._steps = WindowSteps(config, inference, self.counters, limits)
        self.inference, self.builder = inference, self._steps.builder
        self.odometry, self.scene_map = self._steps.odometry, self._steps.scene_map
        self.refinement, self.pose_search = self._steps.refinement, self._steps.pose_search
        self.gyro = self._steps.gyro
        self.scale, self.loops = self.scene_map.scale, self.scene_map.loops
        self.map = self.scene_map.submaps  # with points and trajectory
        self.config, self.session = config, session
        self._steps.start_at_origin()

    # Frames --------------------------------------------------------------------------------------

    def push(self, *frames: Frame) -> Iterator[TrackedFrame]:
        """Adds one frame, or a frameset of several cameras (see ``rig_sync``).

        Yields the frames that became ready, in stamp order of each camera. A frame with a repeated
        stamp, or one up to ``max_late_s`` back, is dropped and counted; a stamp farther back is a
        time jump, which resets window and odometry and keeps the map. A frame that cannot be
        rectified is dropped with a warning. The map is level once a frame that says what is up is
        yielded. When the size of the network's images changes, shared views are resized and
        odometry continues. A calibration may change, or come late: then the newest view is
        rectified again, and odometry continues from it. The work is done while the result is
        iterated.
        """
        yield from self._levelled(self._push(frames))

    def _push(self, frames: tuple[Frame, ...]) -> Iterator[TrackedFrame]:
        self.counters["received"] += len(frames)
        timely = [frame for frame in frames if self._in_time(frame)]
        if not timely:
            return
        self.builder.plan_for(timely, self.session)
        views = self.builder.views(timely)
        yield from self._steps.adapt(views)
        added = self.builder.add(views)
        if not added:
            return
        if self.builder.is_full:
            yield from self._steps.run()
        else:
            for prepared in (p for p in added if not p.blind):
                self.session.prefetch(prepared.view.image)

    def flush(self) -> Iterator[TrackedFrame]:
        """Processes the views that wait for a full window, and measures the depth of the last
        keyframes; call at the end of a recording."""
        yield from self._levelled(self._steps.flush())
        self.scene_map.close_loop(wait=True)
        self.scene_map.hold_level(ends=True)
        self.scene_map.close_loop(wait=True)
        self.scene_map.hold_by_anchors(ends=True)
        graph = self.refinement.refiner.graph
        self.scene_map.adjust(graph.metre, ends=True)
        if self._steps.take_lenses():
            self.scene_map.adjust(graph.metre, ends=True)
        self.scene_map.finish_depth()

    def _levelled(self, frames: Iterator[TrackedFrame]) -> Iterator[TrackedFrame]:
        """Yields the frames, once the map is as level as they say it is."""
        for frame in frames:
            self.scene_map.level(frame)
            yield frame

    def prepare(self, frame: Frame) -> Frame:
        """Returns a frame as the network needs it, and starts detecting its features; only saves
        time. Any thread may call this, in the order in which frames are pushed."""
        frame = self.builder.prepare(frame)
        if frame.ready is not None:
            self._steps.begin(frame.ready)
        return frame

    def begin(self, frame: Frame) -> None:
        """Starts computing a prepared frame that will be pushed next; only saves time."""
        if frame.ready is not None and self.builder.fits(frame.ready):
            self.session.prefetch(frame.ready.image)
            self._steps.begin(frame.ready)

    # The scene -----------------------------------------------------------------------------------

    def scene(self) -> Scene:
        """Returns the points and poses so far, in metres if the scale is known."""
        return self.map.scene(self.scene_map.T_ros_map)

    def poses(self, most: int = 0) -> Poses:
        """Returns the poses of the first camera, in metres if the scale is known.

        most: an even choice of at most this many; 0: all.
        """
        return self.map.view.path(most, all_components=True)

    def look_near(self, hint: PoseHint) -> bool:
        """Looks for the camera near a location in the map first, for a while; returns whether its
        pose in the map is unknown.

        In a read-only map a known pose is forgotten before. In one that grows it stays until the
        images contradict it.
        """
        if self.map.table.read_only and self.map.pose_known:
            self.scene_map.forget_pose()
        self.pose_search.narrow(hint)
        return not self.map.pose_known

    def path(self, most: int = 0) -> Poses:
        """Returns ``poses`` of the shown component of the scene only."""
        return self.map.view.path(most)

    def export(self, path: str | Path) -> Path:
        """Writes the scene; the suffix selects the format. Returns the path written."""
        return export_scene(self.scene(), Path(path)).path

    def reset(self) -> None:
        """Forgets window, odometry and map; keeps the loaded network and the counters."""
        self.scene_map.reset()
        self.pose_search.restart()
        self._steps.start_at_origin()

    def store(
        self, folder: Path, spill: ArraySpill | None, limit: DiskLimit, *, wait: bool,
        continued: RecorderState | None = None,
    ) -> KeyframeRecorder:  # fmt: skip
        """Stores all frames in the scene's file in ``folder`` from now on; returns what stores
        them. Raises OSError, JournalError.

        spill: where points and keyframes go that memory cannot hold; None: they are dropped.
        limit, wait, continued: as in ``KeyframeRecorder``.
        """
        recorder = KeyframeRecorder(
            folder, counters=self.counters, wait=wait, limit=limit, continued=continued
        )
        self.scene_map.record(KeyframeRecording(recorder), spill)
        return recorder

    def snapshot(self) -> Snapshot:
        """Returns the whole scene as it is now, to be saved; cheap, and not changed later."""
        return self.scene_map.snapshot()

    def check_unit(self, saved: Snapshot) -> None:
        """Raises SceneFileError if the saved scene's unit cannot be related to new frames."""
        if self.scale.source.gives_metres and not saved.metric:
            raise SceneFileError(
                "the saved scene is not in metres, but scale.source is "
                f"{self.config.scale.source}: set it to none"
            )

    def resume(self, saved: Snapshot) -> str:
        """Replaces this scene by a saved one and begins a new chain; returns a note for the
        user.

        Raises SceneFileError, and changes nothing, as ``check_unit``.
        """
        self.check_unit(saved)
        self.scene_map.restore(saved)
        self.pose_search.restart()
        self._steps.start_at_origin()
        if not self.scale.source.declared_by:  # what is declared holds for the first new window
            self.map.table.set_unit(saved.unit)
        self._steps.start_chain(self.map.poses().newest())
        self.odometry.uncertainty.start_chain(known=True)  # odometry begins with new frames
        where = search_note(saved, self.config)
        if saved.metric and not self.scale.source.gives_metres:
            where += "; the scene is metric, the unit of new windows is a guess: set scale.source"
        return where

    def reconfigure(self, config: PipelineConfig) -> None:
        """Sets the parameters that may change between windows."""
        self.config = config
        self._steps.reconfigure(config)

    def set_budget(self, memory_budget_gb: float) -> None:
        """Sets a new memory budget between two windows. Raises BudgetError if nothing fits."""
        self.session.memory.set_budget(memory_budget_gb)
        self.builder.fit(self.session)

    def _in_time(self, frame: Frame) -> bool:
        if self.builder.jumps_back(frame):
            self._steps.start_at_origin()
        return self.builder.in_time(frame)
