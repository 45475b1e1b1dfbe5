"""The files that a replay writes."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from da3_ros.config import NodeConfig
from da3_ros.drawing.contact_sheet import ContactSheet
from da3_ros.drawing.scene_picture import render_scene, write_png
from da3_ros.export.atomic_files import replace_folder
from da3_ros.export.scene_file import is_scene, save_scene
from da3_ros.export.tum import tum_line, write_trajectory
from da3_ros.live.tf_output import TfOutput, level_of
from da3_ros.mapping.scene import Scene
from da3_ros.messages.library import RosbagsLibrary
from da3_ros.messages.outputs import Outputs, Published
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.recordings import Recording
from da3_ros.recordings.recorded_poses import prior_of_recording, transforms_of
from da3_ros.recordings.writer import BagWriter
from da3_ros.sensors.pose_prior import PriorError
from da3_ros.sensors.rig_geometry import RigGeometry
from da3_ros.types import Array, Frame, TrackedFrame

log = logging.getLogger(__name__)


TOPIC_PREFIX = "/da3/"


class ReplayError(RuntimeError):
    """A replay that could not be done; one line, and nothing was written."""


@dataclass(frozen=True)
class ReplayOptions:
    """What to read, what of it, and where to write."""

    input: Path
    output: Path
    camera: str | None = None
    topics: Mapping[str, str] = field(default_factory=dict)  # of several cameras, by their names
    start_s: float | None = None
    end_s: float | None = None
    every: int = 1
    rate_hz: float = 10.0
    pictures: bool = False
    odometry: str | None = None  # topic of the robot's own poses; None: the only one there is
    plan: Path | None = None  # a report.json or a plan of its own, to run exactly so again
    resume: Path | None = None  # a saved scene, or the output of an earlier replay, to go on in


@dataclass
class ReplaySummary:
    """What a replay did. ``stopped_at`` says where a damaged recording ended, else None."""

    output: Path
    files: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    measured: dict[str, float] = field(default_factory=dict)
    stopped_at: str | None = None

    def text(self) -> str:
        """A few lines for the terminal."""
        processed, wall = self.counts.get("processed", 0), self.measured["wall_s"]
        lines = [
            f"{processed} frames in {wall:.1f} s ({processed / max(wall, 1e-9):.2f} frames/s)"
        ]
        dropped = {k: v for k, v in self.counts.items() if k.startswith("dropped") and v}
        if dropped:
            lines.append("dropped: " + ", ".join(f"{k[8:]} {v}" for k, v in dropped.items()))
        if self.stopped_at:
            lines.append(f"the recording is damaged: {self.stopped_at}")
        lines += [f"  {self.output / name}" for name in self.files]
        return "\n".join(lines) + "\n"


class KnownMotion:
    """What a recording knows besides images: the robot's own poses, and where cameras sit."""

    def __init__(self, recording: Recording, settings: NodeConfig, odometry: str | None) -> None:
        config = settings.pipeline
        self.transforms = transforms_of(recording)
        self._prior = prior_of_recording(recording, settings, self.transforms, odometry)
        self._rig = RigGeometry(config, self.transforms, log.warning)
        self.without_prior = 0

    @property
    def prior(self) -> bool:
        """Whether the robot's own poses are in use."""
        return self._prior is not None

    def add(self, frame: Frame) -> Frame:
        """The frame with what is known of it."""
        T_rig = self._rig.camera(frame.camera, frame.frame_id, frame.stamp_ns)
        return dataclasses.replace(frame, T_prior_camera=self._prior_of(frame), T_rig_camera=T_rig)

    def _prior_of(self, frame: Frame) -> Array | None:
        prior = self._prior
        if prior is None:
            return None
        try:
            return prior.camera(frame.frame_id, frame.stamp_ns)
        except PriorError as error:
            if not self.without_prior:
                log.warning(
                    "frame %d has no pose from %s: %s", frame.stamp_ns, prior.source, error
                )
            self.without_prior += 1
            return None


@dataclass(frozen=True)
class ReplayScene:
    """A pipeline and its results: all cameras, or with independent windows one of them."""

    pipeline: Pipeline
    results: SceneResults

    def push(self, frames: Sequence[Frame]) -> None:
        """Process the frames of one instant."""
        for result in self.pipeline.push(*frames):
            self.take(result)

    def take(self, result: TrackedFrame) -> None:
        """Write one delivered frame; the first one says where the map lies."""
        T_map_world = self.results.level(result)
        if T_map_world is not None:
            self.pipeline.scene_map.T_map_world = T_map_world
        self.results.add(result)


class ResultBag(contextlib.AbstractContextManager["ResultBag"]):
    """The bag that all results go to."""

    def __init__(self, path: Path) -> None:
        self.library = RosbagsLibrary()
        self._writer = BagWriter(path, self.library)

    def write(self, published: Published, stamp_ns: int) -> None:
        """One message of ours."""
        topic, kind, message = published
        name = topic if topic.startswith("/") else TOPIC_PREFIX + topic
        self._writer.write(name, kind, message, stamp_ns)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._writer.close()
        else:
            self._writer.abort()


class SceneResults(contextlib.AbstractContextManager["SceneResults"]):
    """The files of one scene, written as the frames come."""

    def __init__(
        self,
        folder: Path,
        bag: ResultBag,
        pictures: bool,
        settings: NodeConfig,
        known: KnownMotion,
        camera: str,
        *,
        beside: bool,
        resumed: bool = False,
    ) -> None:
        """``camera``: of a scene of its own; the files of all but the first one have its name."""
        self.folder, self.bag, self.resumed = folder, bag, resumed
        config, self._transforms = settings.pipeline, known.transforms
        self._base, self._levelled = settings.base_frame, resumed
        self._told: set[str] = set()
        self._suffix = f"_{camera.replace('/', '_')}" if beside else ""
        self._leading = {"", *([camera] if camera else config.cameras[:1])}
        self.trajectory = self._path("trajectory.tum").open("w")
        self.sheet = (
            ContactSheet(config.depth, config.scale.source != "none") if pictures else None
        )
        own = f"{camera}/" if beside else ""
        # Two runs shall give the same bytes: times go to measured.json.
        self.outputs = Outputs(
            bag.library, config.depth, window_size=config.window.size, timings=False,
            map_frame=own + settings.map_frame, odom_frame=own + settings.odom_frame,
            tf=lambda frame: self._tf.edges(frame), scene_prefix=camera,
        )  # fmt: skip
        self._tf = TfOutput(
            settings, known.transforms, self.outputs, self._warn, prior=known.prior,
            camera=camera if beside else "",
        )  # fmt: skip
        self.windows, self.inference_s = 0, 0.0
        self._units: set[bool] = set()  # whether frames were metric

    @property
    def mixed(self) -> bool:
        """Whether some frames were metric and some were not."""
        return len(self._units) > 1

    def level(self, frame: TrackedFrame) -> Array | None:
        """Where the map lies, as its first frame says it with a known base; None: as before."""
        if self._levelled:
            return None
        self._levelled = True
        T = level_of(self._transforms, self._base, frame, self._warn)
        if T is not None:
            self.outputs.T_map_world = T
        return T

    def _warn(self, text: str, every_s: float = 0.0) -> None:
        """A warning about transforms, once for each matter."""
        kind = text.partition(":")[0]
        if kind not in self._told:
            log.warning(text)
        self._told.add(kind)

    def add(self, frame: TrackedFrame) -> None:
        """Write one delivered frame."""
        if frame.id == frame.window.view_ids[-1]:
            self.windows += 1
            self.inference_s += frame.window.inference_s
        for published in self.outputs.frame(frame):
            self.bag.write(published, frame.stamp_ns)
        if frame.camera not in self._leading:
            return
        self._units.add(frame.scale.metric)
        if frame.posed:
            T_map_camera = self.outputs.T_map_world @ frame.T_world_camera
            self.trajectory.write(tum_line(frame.stamp_ns, T_map_camera))
        if self.sheet is not None:
            self.sheet.metric = frame.scale.metric
            self.sheet.add(frame.image, frame.depth_m, frame.confidence)

    def finish(self, pipeline: Pipeline) -> None:
        """Write what needs the whole scene, if there is one, and the pictures."""
        if len(pipeline.map.trajectory):
            self._write_scene(pipeline)
        if self.sheet is not None:
            write_png(self._path("contact_sheet.png"), self.sheet.picture())
            write_png(self._path("cloud.png"), render_scene(pipeline.scene()))

    def _write_scene(self, pipeline: Pipeline) -> None:
        for name in ("scene.glb", "scene.ply"):
            pipeline.export(self._path(name))
        save_scene(pipeline.snapshot(), self._path("scene"))
        scene, stamp = pipeline.scene(), pipeline.map.trajectory.newest_stamp_ns
        if pipeline.scale.learns or self.resumed or len(scene.parts) > 1 or self.mixed:
            self._write_trajectory(scene)
        self.bag.write(self.outputs.path(pipeline.path(), stamp), stamp)
        shown = scene.of_part(pipeline.map.shown_part)
        self.bag.write(self.outputs.map_points(shown, stamp), stamp)

    def _path(self, name: str) -> Path:
        path = self.folder / name
        return path.with_name(f"{path.stem}{self._suffix}{path.suffix}")

    def _write_trajectory(self, scene: Scene) -> None:
        """The scene's poses in its one unit, part by part: the scale that is known at the end
        holds for the first too."""
        self.trajectory.seek(0)
        self.trajectory.truncate()
        write_trajectory(self.trajectory, scene)

    def __exit__(self, *_: object) -> None:
        self.trajectory.close()


@contextlib.contextmanager
def staging(output: Path) -> Iterator[Path]:
    """A hidden folder inside ``output``, gone at the end whatever happens."""
    existed = output.exists()
    if existed and not output.is_dir():
        raise ReplayError(f"--output {output} is a file: give a folder")
    output.mkdir(parents=True, exist_ok=True)
    for old in output.glob("scene*"):
        if old.is_dir() and any(old.iterdir()) and not is_scene(old):
            raise ReplayError(f"{old} is in the way and holds other things: give another folder")
    folder = Path(tempfile.mkdtemp(prefix=".replay-", dir=output))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if not existed:
            with contextlib.suppress(OSError):  # not empty: the results are there
                output.rmdir()


def publish_folder(folder: Path, output: Path) -> None:
    for file in sorted(folder.iterdir()):
        if file.is_dir():
            replace_folder(file, output / file.name)
        else:
            os.replace(file, output / file.name)
