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
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from da3_ros import __version__
from da3_ros.config import NodeConfig, PipelineConfig, parameters
from da3_ros.contact_sheet import ContactSheet
from da3_ros.geometry import T_MAP_WORLD
from da3_ros.inference import (
    BudgetError,
    DeviceError,
    InferenceSession,
    MetricRuler,
    Plan,
    open_networks,
)
from da3_ros.mapping.export import ExportError
from da3_ros.mapping.picture import render_scene, write_png
from da3_ros.mapping.trajectory import Pose, tum_line
from da3_ros.network import MODELS, CheckpointError
from da3_ros.pipeline import Network, Pipeline
from da3_ros.pose_prior import PosePrior, PriorError
from da3_ros.recordings import Recording, RecordingError, open_recording
from da3_ros.recordings.writer import BagWriter
from da3_ros.ros.messages import RosbagsLibrary
from da3_ros.ros.outputs import Outputs, Published
from da3_ros.ros.prior_input import prior_of_recording
from da3_ros.types import Frame, Scale, TrackedFrame

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
    start_s: float | None = None
    end_s: float | None = None
    every: int = 1
    rate_hz: float = 10.0
    pictures: bool = False
    odometry: str | None = None  # topic of the robot's own poses; None: the only one there is
    plan: Path | None = None  # a report.json or a plan of its own, to run exactly so again


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
            pipeline = Pipeline(config, session, ruler)
            writer = _Results(folder, options.pictures, config)
            prior = prior_of_recording(recording, settings, options.odometry)
            with writer:
                _process(recording, prior, pipeline, writer)
                writer.finish(pipeline)
            summary = _report(options, settings, pipeline, recording, folder)
            summary.measured = _measure(summary, pipeline, writer, start)
            _write_json(folder / "measured.json", summary.measured)
            summary.files = sorted(f.name for f in folder.iterdir())
            _publish(folder, options.output)
    except (
        RecordingError, CheckpointError, DeviceError, BudgetError, ExportError, OSError
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


def _open(options: ReplayOptions, settings: NodeConfig) -> Recording:
    return open_recording(
        options.input,
        camera=options.camera,
        start_s=options.start_s,
        end_s=options.end_s,
        every=options.every,
        rate_hz=options.rate_hz,
        input_rectified=settings.input.input_rectified,
        camera_info_timeout_s=settings.input.camera_info_timeout_s,
    )


def _process(
    recording: Recording, prior: PosePrior | None, pipeline: Pipeline, writer: _Results
) -> None:
    progress = tqdm(
        total=recording.length, unit="frame", desc="replay", disable=not sys.stderr.isatty()
    )
    with logging_redirect_tqdm(), progress:
        for frame in recording:
            for result in pipeline.push(_with_prior(frame, prior, pipeline)):
                writer.add(result)
            progress.update()
        for result in pipeline.flush():
            writer.add(result)
    if not pipeline.counters["processed"]:
        raise RecordingError(f"{recording.path}: no frame could be processed, see the warnings")


def _with_prior(frame: Frame, prior: PosePrior | None, pipeline: Pipeline) -> Frame:
    """The frame with the robot's own pose, where that is wanted and known."""
    if prior is None:
        return frame
    try:
        T = prior.camera(frame.frame_id, frame.stamp_ns)
    except PriorError as error:
        if not pipeline.counters["frames_without_prior"]:
            log.warning("frame %d has no pose from %s: %s", frame.stamp_ns, prior.source, error)
        pipeline.counters["frames_without_prior"] += 1
        return frame
    return dataclasses.replace(frame, T_prior_camera=T)


class _Results(contextlib.AbstractContextManager["_Results"]):
    """The files of one replay, written as the frames come."""

    def __init__(self, folder: Path, pictures: bool, config: PipelineConfig) -> None:
        self.folder = folder
        self.library = RosbagsLibrary()
        self.bag = BagWriter(folder / "output.mcap", self.library)
        self.trajectory = (folder / "trajectory.tum").open("w")
        self.sheet = (
            ContactSheet(config.depth, config.scale.source != "none") if pictures else None
        )
        # Two runs shall give the same bytes: times go to measured.json.
        self.outputs = Outputs(
            self.library, config.depth, window_size=config.window.size, timings=False
        )
        self.windows, self.inference_s = 0, 0.0

    def add(self, frame: TrackedFrame) -> None:
        """Write one delivered frame."""
        if frame.id == frame.window.view_ids[-1]:
            self.windows += 1
            self.inference_s += frame.window.inference_s
        for published in self.outputs.frame(frame):
            self._write(published, frame.stamp_ns)
        self.trajectory.write(tum_line(frame.stamp_ns, T_MAP_WORLD @ frame.T_world_camera))
        if self.sheet is not None:
            self.sheet.metric = frame.scale.metric
            self.sheet.add(frame.image, frame.depth_m, frame.confidence)

    def finish(self, pipeline: Pipeline) -> None:
        """Write what needs the whole scene."""
        for name in ("scene.glb", "scene.ply"):
            pipeline.export(self.folder / name)
        if pipeline.metres.learns:
            self._write_trajectory(pipeline.poses())
        scene, stamp = pipeline.scene(), pipeline.trajectory.poses[-1].stamp_ns
        self._write(self.outputs.path(scene.poses, stamp), stamp)
        self._write(self.outputs.map_points(scene, stamp), stamp)
        if self.sheet is not None:
            write_png(self.folder / "contact_sheet.png", self.sheet.picture())
            write_png(self.folder / "cloud.png", render_scene(scene))

    def _write_trajectory(self, poses: list[Pose]) -> None:
        """All poses in one unit: the scale that is known at the end holds for the first too."""
        self.trajectory.seek(0)
        self.trajectory.truncate()
        for pose in poses:
            self.trajectory.write(tum_line(pose.stamp_ns, T_MAP_WORLD @ pose.T_world_camera))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.trajectory.close()
        if kind is None:
            self.bag.close()
        else:
            self.bag.abort()

    def _write(self, published: Published, stamp_ns: int) -> None:
        topic, kind, message = published
        name = topic if topic.startswith("/") else TOPIC_PREFIX + topic
        self.bag.write(name, kind, message, stamp_ns)


@contextlib.contextmanager
def _staging(output: Path) -> Iterator[Path]:
    """A hidden folder inside ``output``, gone at the end whatever happens."""
    existed = output.exists()
    if existed and not output.is_dir():
        raise ReplayError(f"--output {output} is a file: give a folder")
    output.mkdir(parents=True, exist_ok=True)
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
        os.replace(file, output / file.name)


def _report(
    options: ReplayOptions,
    settings: NodeConfig,
    pipeline: Pipeline,
    recording: Recording,
    folder: Path,
) -> ReplaySummary:
    """Write report.json: what was done, the same from run to run."""
    counts = {**pipeline.counters, **recording.counters}
    report = {
        "da3_ros": __version__,
        "input": options.input.name,
        "camera": recording.camera,
        "options": {
            f.name: getattr(options, f.name)
            for f in dataclasses.fields(options)
            if f.name not in ("input", "output", "plan")
        },
        "parameters": {
            p.name: p.value
            for group in (settings.pipeline, settings.input)
            for p in parameters(group)
        },
        "license": MODELS[pipeline.config.inference.model].license,
        "plan": _plan(pipeline),
        "counts": dict(sorted(counts.items())),
        "stopped_at": recording.stopped_at,
        "map_points": len(pipeline.map),
        "path_length": _path_length(pipeline),
        "metric": pipeline.metres.known,
        "scale": _scale(pipeline.metres.scale),
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


def _measure(
    summary: ReplaySummary, pipeline: Pipeline, writer: _Results, start: float
) -> dict[str, float]:
    """Times and memory of this run."""
    wall = time.perf_counter() - start
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "wall_s": wall,
        "frames_per_s": summary.counts["processed"] / wall,
        "inference_s_per_window": writer.inference_s / max(writer.windows, 1),
        "peak_rss_mb": peak_kb / (2**20 if sys.platform == "darwin" else 2**10),
        "map_mb": pipeline.map.nbytes / 2**20,
    }


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def _path_length(pipeline: Pipeline) -> float:
    centres = np.array([p.T_world_camera[:3, 3] for p in pipeline.poses()])
    return float(np.linalg.norm(np.diff(centres, axis=0), axis=1).sum())
