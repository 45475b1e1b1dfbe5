"""Processes a recording from end to end: every frame, in stamp order, repeatably.

The results are collected in a hidden folder beside their place and moved there at the end, so that
an interrupted run leaves nothing half-written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from da3_ros import __version__
from da3_ros.cameras import open_pipelines
from da3_ros.config import ConfigError, NodeConfig, parameters
from da3_ros.contact_sheet import ContactSheet
from da3_ros.inference import (
    BudgetError,
    DeviceError,
    InferenceSession,
    MetricRuler,
    Plan,
    Running,
    open_networks,
)
from da3_ros.mapping.atomic import replace_folder
from da3_ros.mapping.export import ExportError, write_trajectory
from da3_ros.mapping.picture import render_scene, write_png
from da3_ros.mapping.scene import Scene
from da3_ros.mapping.scene_file import (
    SceneFileError,
    find_scene,
    is_scene,
    load_scene,
    save_scene,
)
from da3_ros.mapping.trajectory import tum_line
from da3_ros.network import MODELS, CheckpointError
from da3_ros.pipeline import Network, Pipeline
from da3_ros.pose_prior import PriorError
from da3_ros.recordings import Recording, RecordingError, open_recording
from da3_ros.recordings.ahead import ReadAhead
from da3_ros.recordings.writer import BagWriter
from da3_ros.rig_geometry import RigGeometry
from da3_ros.rig_sync import Instant, RigSync
from da3_ros.ros.export_path import beside
from da3_ros.ros.messages import RosbagsLibrary
from da3_ros.ros.outputs import Outputs, Published
from da3_ros.ros.prior_input import prior_of_recording, transforms_of
from da3_ros.ros.tf_output import TfOutput, level_of
from da3_ros.types import Array, Frame, Scale, TrackedFrame

log = logging.getLogger(__name__)

TOPIC_PREFIX = "/da3/"
READ_AHEAD = 2  # windows' worth of new frames that wait, read and prepared


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


def replay(
    options: ReplayOptions, settings: NodeConfig, session: Network | None = None
) -> ReplaySummary:
    """Process ``options.input`` into ``options.output``.

    ``session`` stands in for the network that ``config`` names. Raises ReplayError; on any error
    or interruption the output folder is left as it was.
    """
    start = time.perf_counter()
    config = settings.pipeline
    try:
        with _open(options, settings) as recording, _staging(options.output) as folder:
            ruler: MetricRuler | None = None
            if session is None:
                session, ruler = open_networks(config)
            if options.plan is not None:
                _use_plan(session, options.plan)
            known = _Known(recording, settings, options.odometry)
            pipelines = open_pipelines(config, session, ruler)
            if options.resume is not None:
                _resume(pipelines, find_scene(options.resume))
            with _Bag(folder / "output.mcap") as bag, contextlib.ExitStack() as stack:
                lanes = {
                    name: _Lane(pipeline, stack.enter_context(
                        _Results(
                            folder, bag, options.pictures, settings, known, name, beside=i > 0,
                            resumed=options.resume is not None,
                        )
                    ))
                    for i, (name, pipeline) in enumerate(pipelines.items())
                }  # fmt: skip
                for lane in lanes.values():
                    # What comes lies in the map where the saved scene has it.
                    lane.results.outputs.T_map_world = lane.pipeline.T_map_world
                _process(recording, known, lanes, options.every if config.cameras else 1)
                for lane in lanes.values():
                    if lane.pipeline.counters["processed"]:
                        lane.results.finish(lane.pipeline)
            summary = _report(options, settings, lanes, known, recording, folder)
            summary.measured = _measure(summary, lanes, start)
            _write_json(folder / "measured.json", summary.measured)
            summary.files = sorted(f.name for f in folder.iterdir())
            _publish(folder, options.output)
    except (
        RecordingError, CheckpointError, ConfigError, DeviceError, BudgetError, ExportError,
        SceneFileError, OSError,
    ) as error:  # fmt: skip
        raise ReplayError(str(error)) from error
    return summary


def _use_plan(session: Network, path: Path) -> None:
    """Run as the plan in ``path`` says: a report.json of an earlier replay, or a plan alone."""
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ReplayError(f"--plan {path}: {error}") from error
    plan = values.get("plan", values) if isinstance(values, dict) else values
    if not isinstance(session, InferenceSession):
        raise ReplayError("--plan needs a network")
    try:
        session.use_plan(Plan.from_json(json.dumps(plan)))
    except ValueError as error:
        raise ReplayError(f"--plan {path}: {error}") from error


def _resume(pipelines: dict[str, Pipeline], folder: Path) -> None:
    """Go on in a saved scene, or in several where cameras have their own."""
    for i, (name, pipeline) in enumerate(pipelines.items()):
        place = beside(folder, name) if i else folder
        log.info("%s: %s", place, pipeline.resume(load_scene(place)))


def _open(options: ReplayOptions, settings: NodeConfig) -> Recording:
    names = settings.pipeline.cameras
    unknown = sorted(set(options.topics) - set(names))
    if unknown or (names and options.camera):
        what = f"{unknown[0]}:=TOPIC" if unknown else str(options.camera)
        listed = ", ".join(names) or "none"
        raise ReplayError(
            f"--camera {what}: with parameter `cameras` ({listed}) name each of them"
        )
    return open_recording(
        options.input,
        camera=options.camera,
        cameras={name: options.topics.get(name, name) for name in names},
        start_s=options.start_s,
        end_s=options.end_s,
        every=1 if names else options.every,  # of several cameras every n-th instant
        rate_hz=options.rate_hz,
        input_rectified=settings.input.input_rectified,
        camera_info_timeout_s=settings.input.camera_info_timeout_s,
    )


class _Known:
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
class _Lane:
    """A pipeline and its results: all cameras, or with independent windows one of them."""

    pipeline: Pipeline
    results: _Results

    def push(self, frames: Sequence[Frame]) -> None:
        """Process the frames of one instant."""
        for result in self.pipeline.push(*frames):
            self.take(result)

    def take(self, result: TrackedFrame) -> None:
        """Write one delivered frame; the first one says where the map lies."""
        T_map_world = self.results.level(result)
        if T_map_world is not None:
            self.pipeline.T_map_world = T_map_world
        self.results.add(result)


def _process(recording: Recording, known: _Known, lanes: dict[str, _Lane], every: int) -> None:
    first = next(iter(lanes.values()))
    sync: RigSync[Frame] = RigSync.of(first.pipeline.config)
    taken: Counter[str] = Counter()  # instants of each lane

    def push(instants: Sequence[Instant[Frame]]) -> None:
        for instant in instants:
            lane = instant.frames[0].camera if len(lanes) > 1 else ""
            if taken[lane] % every == 0:
                lanes.get(lane, first).push(instant.frames)
            taken[lane] += 1

    def pipeline_of(frame: Frame) -> Pipeline:
        return lanes.get(frame.camera, first).pipeline

    config = first.pipeline.config
    ahead = config.window.new * max(1, len(config.cameras), len(lanes))
    reader = ReadAhead(recording, lambda f: pipeline_of(f).prepare(f), READ_AHEAD * ahead)

    def begin(window: Running) -> None:
        """While a window runs on a device: what comes next goes there too, behind it."""
        for frame in reader.waiting(ahead if every == 1 else 0):  # others may be skipped
            pipeline_of(frame).begin(frame)

    progress = tqdm(
        total=recording.length, unit="frame", desc="replay", disable=not sys.stderr.isatty()
    )
    with logging_redirect_tqdm(), progress, reader, _meanwhile(first.pipeline.session, begin):
        for frame in reader:
            push(sync.add(known.add(frame)))
            progress.update()
        push(sync.flush())
        for lane in lanes.values():
            for result in lane.pipeline.flush():
                lane.take(result)
    if not sum(lane.pipeline.counters["processed"] for lane in lanes.values()):
        raise RecordingError(f"{recording.path}: no frame could be processed, see the warnings")


@contextlib.contextmanager
def _meanwhile(session: Network, begin: Callable[[Running], None]) -> Iterator[None]:
    """Have ``begin`` called whenever a window runs, on devices that work beside us."""
    if not isinstance(session, InferenceSession):
        yield
        return
    session.meanwhile = begin
    try:
        yield
    finally:
        session.meanwhile = None


class _Bag(contextlib.AbstractContextManager["_Bag"]):
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


class _Results(contextlib.AbstractContextManager["_Results"]):
    """The files of one scene, written as the frames come."""

    def __init__(
        self,
        folder: Path,
        bag: _Bag,
        pictures: bool,
        settings: NodeConfig,
        known: _Known,
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
        if pipeline.metres.learns or self.resumed or len(scene.parts) > 1 or self.mixed:
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
def _staging(output: Path) -> Iterator[Path]:
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


def _publish(folder: Path, output: Path) -> None:
    for file in sorted(folder.iterdir()):
        if file.is_dir():
            replace_folder(file, output / file.name)
        else:
            os.replace(file, output / file.name)


def _report(
    options: ReplayOptions,
    settings: NodeConfig,
    lanes: dict[str, _Lane],
    known: _Known,
    recording: Recording,
    folder: Path,
) -> ReplaySummary:
    """Write report.json: what was done, the same from run to run."""
    pipeline = next(iter(lanes.values())).pipeline
    counts: dict[str, int] = {}
    for part in (*(lane.pipeline.counters for lane in lanes.values()), recording.counters):
        counts.update({name: counts.get(name, 0) + count for name, count in part.items()})
    if known.without_prior:
        counts["frames_without_prior"] = known.without_prior
    scene = pipeline.scene()
    report = {
        "da3_ros": __version__,
        "input": options.input.name,
        "camera": recording.camera,
        "options": {
            f.name: getattr(options, f.name)
            for f in dataclasses.fields(options)
            if f.name not in ("input", "output", "plan", "resume")
        },
        "resumed": None if options.resume is None else options.resume.name,
        "parameters": {
            p.name: p.value
            for p in parameters(settings)
            if p.name not in ("export_dir", "autostart")  # of the live node alone
        },
        "license": MODELS[pipeline.config.inference.model].license,
        "plan": _plan(pipeline),
        "counts": dict(sorted(counts.items())),
        "stopped_at": recording.stopped_at,
        "map_points": len(pipeline.map),
        "path_length": _path_length(pipeline),
        "metric": pipeline.metres.known or pipeline.metres.scale.metric,
        "scale": _scale(pipeline.metres.scale),
        "parts": len(scene.parts),
        "parts_guessed": scene.guessed,
    }
    _write_json(folder / "report.json", report)
    return ReplaySummary(options.output, counts=counts, stopped_at=recording.stopped_at)


def _scale(scale: Scale) -> dict[str, Any]:
    """The last window's scale, with null for what is not known."""
    numbers = {"metres_per_unit": scale.value, "sigma": scale.sigma}
    return {"source": scale.source} | {
        name: value if np.isfinite(value) else None for name, value in numbers.items()
    }


def _plan(pipeline: Pipeline) -> dict[str, Any] | None:
    """What ran. Without the budget and what was measured: those differ from run to run."""
    plan = getattr(pipeline.session, "plan", None)
    return None if plan is None else plan.repeatable()


def _measure(summary: ReplaySummary, lanes: dict[str, _Lane], start: float) -> dict[str, float]:
    """Times and memory of this run."""
    windows = sum(lane.results.windows for lane in lanes.values())
    inference_s = sum(lane.results.inference_s for lane in lanes.values())
    wall = time.perf_counter() - start
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "wall_s": wall,
        "frames_per_s": summary.counts["processed"] / wall,
        "inference_s_per_window": inference_s / max(windows, 1),
        "peak_rss_mb": peak_kb / (2**20 if sys.platform == "darwin" else 2**10),
        "map_mb": sum(lane.pipeline.map.nbytes for lane in lanes.values()) / 2**20,
    }


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def _path_length(pipeline: Pipeline) -> float:
    scene = pipeline.scene()
    ways = (scene.of_part(part).poses.leading().rows["T"][:, :, 3] for part in scene.parts)
    return sum(float(np.linalg.norm(np.diff(way, axis=0), axis=1).sum()) for way in ways)
