"""Files that a replay writes."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from da3_ros.config import NodeConfig
from da3_ros.drawing.contact_sheet import ContactSheet
from da3_ros.drawing.scene_picture import render_scene, write_png
from da3_ros.drawing.tracks_file import NAME as TRACKS_NAME
from da3_ros.drawing.tracks_file import TrackSampler
from da3_ros.export.scene_file import save_scene, write_scene
from da3_ros.export.tum import read_stamps, tum_line, write_trajectory
from da3_ros.keyframe_store.array_spill import ArraySpill
from da3_ros.keyframe_store.disk_limit import DiskLimit
from da3_ros.keyframe_store.recorder import KeyframeRecorder, RecorderState
from da3_ros.live.scene_output import SceneOutput
from da3_ros.mapping.scene import Scene
from da3_ros.messages.outputs import SCENE_TOPICS, SceneViews, is_recorded
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.pipeline.scene_map import SceneMap
from da3_ros.replay.replay_video import NAME as VIDEO_NAME
from da3_ros.replay.replay_video import ReplayVideo
from da3_ros.replay.result_bag import ResultBag
from da3_ros.replay.work_folder import PICTURES, SCENE, SPILL
from da3_ros.reporting.timeline import NAME as TIMELINE_NAME
from da3_ros.reporting.timeline import Timeline
from da3_ros.sensors.frame_annotator import FrameAnnotator
from da3_ros.types import Frame, TrackedFrame

log = logging.getLogger(__name__)


class ReplayError(RuntimeError):
    """A failed replay; the text is one line, and no file was written."""


class UnfinishedError(ReplayError):
    """An interrupted replay that cannot go on: its state is damaged, or of another run."""


MOST_NAMED = 5  # bad images in a line; report.json names all


@dataclass(frozen=True)
class ReplayOptions:
    """Input, selected part and output of a replay."""

    input: Path
    output: Path
    camera: str | None = None
    topics: Mapping[str, str] = field(
        default_factory=dict
    )  # image topics of several cameras, by camera name
    start_s: float | None = None
    end_s: float | None = None
    every: int = 1
    rate_hz: float = 10.0
    pictures: bool = False
    report: bool = False  # write report.html
    video: bool = False
    odometry: str | None = None  # topic of the robot's own poses; None: the recording's only one
    imu: str | None = None  # topic of the IMU; None: the recording's only one
    slam_path: str | None = None  # topic of another SLAM's paths; None: the recording's only one
    global_pose: str | None = None  # topic of global poses; None: the only one if needed
    plan: Path | None = None  # a report.json or a plan file whose plan is used exactly
    resume: Path | None = None  # a saved scene, or the output of an earlier replay, to continue
    go_on: bool = False  # continue the interrupted replay in ``output``, if there is one

    @property
    def name(self) -> str:
        """The name of the recording, also of ``.`` and ``..``."""
        given = self.input.name
        return given if given not in ("", "..") else self.input.resolve().name

    def of_results(self) -> dict[str, Any]:
        """Returns by name what the results depend on, beside input and scene to resume."""
        others = ("input", "output", "plan", "resume", "go_on", "report")
        return {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in others
        }


@dataclass
class ReplaySummary:
    """Result of a replay. stopped_at: where reading a damaged recording ended early, else None.
    bad_images: those that were skipped, with the reasons."""

    output: Path
    files: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    measured: dict[str, float] = field(default_factory=dict)
    stopped_at: str | None = None
    bad_images: list[str] = field(default_factory=list)

    @property
    def damage(self) -> str | None:
        """What of the recording could not be read, in a line; None: it is intact."""
        bad = self.bad_images
        more = f" and {len(bad) - MOST_NAMED} more" if len(bad) > MOST_NAMED else ""
        images = f"{len(bad)} images cannot be read: {'; '.join(bad[:MOST_NAMED])}{more}"
        parts = [self.stopped_at, images if bad else None]
        return "; ".join(part for part in parts if part) or None

    def about(self) -> dict[str, Any]:
        """Returns what ``ReplaySummary`` is made of, but output and files."""
        return {
            "counts": self.counts, "measured": self.measured, "stopped_at": self.stopped_at,
            "bad_images": self.bad_images,
        }  # fmt: skip

    def text(self) -> str:
        """Returns a few lines for the terminal."""
        processed, wall = self.counts.get("processed", 0), self.measured["wall_s"]
        lines = [
            f"{processed} frames in {wall:.1f} s ({processed / max(wall, 1e-9):.2f} frames/s)"
        ]
        dropped = {k: v for k, v in self.counts.items() if k.startswith("dropped") and v}
        blind = {k[6:]: v for k, v in self.counts.items() if k.startswith("blind_") and v}
        if blind:
            lines.append(
                "without depth, pose held: " + ", ".join(f"{k} {v}" for k, v in blind.items())
            )
        if dropped:
            lines.append("dropped: " + ", ".join(f"{k[8:]} {v}" for k, v in dropped.items()))
        if self.damage:
            lines.append(f"the recording is damaged: {self.damage}")
        lines += [f"  {self.output / name}" for name in self.files]
        return "\n".join(lines) + "\n"


class WarnOnce:
    """Logs each kind of warning once; the kind is the text before the first colon."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def __call__(self, text: str, every_s: float = 0.0) -> None:
        """Log ``text``. every_s: ignored; used by the live node only."""
        kind = text.partition(":")[0]
        if kind not in self._logged:
            log.warning(text)
        self._logged.add(kind)


@dataclass(frozen=True)
class ReplayScene:
    """A pipeline and its results: for all cameras, or with independent windows for one."""

    pipeline: Pipeline
    results: SceneResults

    def push(self, frames: Sequence[Frame]) -> None:
        """Process the frames of one frameset."""
        for result in self.pipeline.push(*frames):
            self.take(result)

    def take(self, result: TrackedFrame) -> None:
        """Write one delivered frame."""
        self.results.add_frame(result)
        if self.results.video is not None and self.results.leads(result):
            self.results.video.add_frame(result, self.pipeline)


@dataclass(frozen=True, eq=False)
class WrittenScene:
    """How much of the files of a scene was written."""

    trajectory: int = 0  # bytes
    video: int = 0  # bytes of its pictures
    keyframes: RecorderState | None = None
    spilled: int = 0  # bytes of points and keyframes that memory could not hold
    spilled_crc: int = 0  # CRC-32 of these


class SceneResults(contextlib.AbstractContextManager["SceneResults"]):
    """The files of one scene, written while frames are processed."""

    def __init__(
        self,
        folder: Path,
        bag: ResultBag,
        options: ReplayOptions,
        settings: NodeConfig,
        annotator: FrameAnnotator,
        scene_map: SceneMap,
        track_sampler: TrackSampler,
        camera: str,
        *,
        additional: bool,
        written: WrittenScene,
    ) -> None:
        """camera: name of the scene's only camera, part of the file names if ``additional``.

        written: what an interrupted replay has left. Raises OSError.
        """
        self.folder, self.bag, self.track_sampler = folder, bag, track_sampler
        self.resumed = options.resume is not None
        config = settings.pipeline
        self.suffix = f"_{camera.replace('/', '_')}" if additional else ""  # of file names
        self._leading = {"", *([camera] if camera else config.cameras[:1])}
        self.trajectory = self._path("trajectory.tum").open("a")
        self.trajectory.truncate(written.trajectory)
        self.sheet = (
            ContactSheet(config.depth, scene_map.scale.source.gives_metres)
            if options.pictures
            else None
        )
        self.video = (
            ReplayVideo(self._path(PICTURES), config.depth, written.video)
            if options.video
            else None
        )
        # Times are left out (see measured.json), so that two runs write the same bytes.
        self.output = SceneOutput(
            scene_map, bag.library, settings, annotator.transforms, WarnOnce(),
            camera=camera, additional=additional, prior=annotator.prior is not None, timings=False,
        )  # fmt: skip
        self.timeline = Timeline()
        self.windows, self.inference_s = 0, 0.0
        self.refined, self.tracks, self.reprojection_px = 0, 0, 0.0  # windows, and sums over them
        self._units: set[bool] = set()  # True, False: whether frames were metric
        self.recorder: KeyframeRecorder | None = None
        self.spill: ArraySpill | None = None

    def store(self, pipeline: Pipeline, written: WrittenScene) -> None:
        """Stores the keyframes of a scene from now on, after what an interrupted replay has
        ``written``. Raises OSError, JournalError."""
        if not pipeline.config.map.enabled:
            return
        limit, name = round(1e9 * pipeline.config.map.disk_gb), self._path(SPILL).name
        size, crc = written.spilled, written.spilled_crc
        # Not one limit for both: which of two threads reaches it first would depend on time.
        self.spill = ArraySpill(self.folder, name, size=size, crc=crc, limit=DiskLimit(limit))
        self.recorder = pipeline.store(
            self._path(SCENE), self.spill, DiskLimit(limit), wait=True,
            continued=written.keyframes,
        )  # fmt: skip

    def written(self) -> WrittenScene:
        """Returns how much was written, and waits until it is on the disk. Raises OSError."""
        self.trajectory.flush()
        os.fsync(self.trajectory.fileno())
        size = os.fstat(self.trajectory.fileno()).st_size
        video = 0 if self.video is None else self.video.spill.written()
        if self.recorder is None or self.spill is None:
            return WrittenScene(size, video)
        self.spill.sync()
        return WrittenScene(size, video, self.recorder.state(), self.spill.size, self.spill.crc)

    @property
    def mixed(self) -> bool:
        """True if some frames were metric and others were not."""
        return len(self._units) > 1

    def add_frame(self, frame: TrackedFrame) -> None:
        """Write one delivered frame."""
        if frame.ends_window:
            self.windows += 1
            self.inference_s += frame.window.inference_s
            if frame.window.refined:
                self.refined += 1
                self.tracks += frame.window.tracks
                self.reprojection_px += frame.window.reprojection_px
        for published in self.output.messages.frame(frame, is_recorded):
            self.bag.write(published, frame.stamp_ns)
        if others := self.output.tf.of_others(frame):
            message = self.output.messages.transforms(others, frame.stamp_ns)
            self.bag.write(message, frame.stamp_ns)
        leads, R_ros_map = self.leads(frame), self.output.messages.T_ros_map[:3, :3]
        self.timeline.add_frame(frame, R_ros_map, leading=leads)
        if not leads:
            return
        self._units.add(frame.scale.metric)
        self.track_sampler.add_frame(frame)
        if frame.posed and not frame.blind:
            T_ros_camera = self.output.messages.T_ros_map @ frame.T_map_camera
            self.trajectory.write(tum_line(frame.stamp_ns, T_ros_camera))
        if self.sheet is not None:
            self.sheet.metric = frame.scale.metric
            self.sheet.add(frame.image, frame.depth_m, frame.confidence)

    def leads(self, frame: TrackedFrame) -> bool:
        """Whether a frame is of the camera that trajectory, pictures and video show."""
        return frame.camera in self._leading

    def finish(self, pipeline: Pipeline) -> None:
        """Write the files that need the whole scene, if there is one, and the pictures."""
        pipeline.scene_map.finish_recording()
        source = pipeline.config.level.source
        if source in ("ground", "imu") and not pipeline.scene_map.is_level:
            log.warning(
                "level.source is %s, but no image showed a floor in metres: there are no "
                "obstacles, no scan and no occupancy grid%s", source,
                "" if source == "ground" or pipeline.scene_map.turned or self.resumed
                else ", and the map is not level, since gravity was not known well enough",
            )  # fmt: skip
        if len(pipeline.map.table.path):
            self._write_scene(pipeline)
        self.track_sampler.write(self._path(TRACKS_NAME))
        self.timeline.write(self.timeline_path)
        if self.sheet is not None:
            write_png(self._path("contact_sheet.png"), self.sheet.picture())
            write_png(self._path("cloud.png"), render_scene(pipeline.scene()))
        if self.video is not None:
            self.video.spill.encode(self._path(VIDEO_NAME))

    def _write_scene(self, pipeline: Pipeline) -> None:
        for name in ("scene.glb", "scene.ply"):
            pipeline.export(self._path(name))
        if self.recorder is None:
            save_scene(pipeline.snapshot(), self._path(SCENE))
        else:  # behind its keyframes
            write_scene(pipeline.snapshot(), self._path(SCENE))
        scene, stamp = pipeline.scene(), pipeline.map.newest_stamp_ns
        scene_map = pipeline.scene_map
        moved = scene_map.following.enabled or scene_map.anchoring.placed or scene_map.turned
        changed = pipeline.scale.source.learns or moved
        if changed or self.resumed or len(scene.components) > 1 or self.mixed:
            self._write_trajectory(pipeline.map.view.path_scene(scene.T_ros_map))
        component = pipeline.map.view.component
        views = SceneViews(
            path=pipeline.path, scene=lambda: scene.of_component(component),
            grid=lambda: pipeline.scene_map.occupancy(finished=True),
        )  # fmt: skip
        for topic in filter(is_recorded, SCENE_TOPICS):
            message = self.output.messages.scene(topic, views, stamp)
            if message is not None:
                self.bag.write(message, stamp)

    @property
    def timeline_path(self) -> Path:
        """The file of the timeline."""
        return self._path(TIMELINE_NAME)

    def _path(self, name: str) -> Path:
        path = self.folder / name
        return path.with_name(f"{path.stem}{self.suffix}{path.suffix}")

    def _write_trajectory(self, scene: Scene) -> None:
        """Write the poses of all frames again, component by component, with the final scale of the
        scene."""
        self.trajectory.flush()
        written = read_stamps(Path(self.trajectory.name))
        scene = dataclasses.replace(scene, poses=scene.poses.leading().with_frames(written))
        self.trajectory.seek(0)
        self.trajectory.truncate()
        write_trajectory(self.trajectory, scene)

    def __exit__(self, *_: object) -> None:
        self.trajectory.close()
        if self.video is not None:
            self.video.spill.file.close()
