"""Processes a recording from end to end: every frame, in stamp order, repeatably.

Results are written to a hidden folder inside the output folder and moved at the end, so that an
interrupted run leaves no half-written file.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from da3_ros.config import NodeConfig
from da3_ros.drawing.tracks_file import TrackFilm
from da3_ros.export.export import ExportError
from da3_ros.export.paths import path_for_camera
from da3_ros.export.scene_file import SceneFileError, find_scene, load_scene
from da3_ros.inference import (
    BudgetError,
    DeviceError,
    MetricModel,
    Plan,
    Running,
    Session,
    open_networks,
)
from da3_ros.network import CheckpointError
from da3_ros.parameter_schema import ConfigError
from da3_ros.pipeline.multi_camera import open_pipelines
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.recordings import Recording, RecordingError, open_recording
from da3_ros.recordings.read_ahead import ReadAhead
from da3_ros.recordings.recorded_poses import prior_of_recording, transforms_of
from da3_ros.refinement.effort import Effort
from da3_ros.replay.report import measure_run, write_json, write_report
from da3_ros.replay.results import (
    ReplayError,
    ReplayOptions,
    ReplayScene,
    ReplaySummary,
    ResultBag,
    SceneResults,
    WarnOnce,
    publish_folder,
    staging,
)
from da3_ros.sensors.frame_annotator import FrameAnnotator
from da3_ros.sensors.rig_sync import Instant, RigSync
from da3_ros.types import Frame

log = logging.getLogger(__name__)

READ_AHEAD = 2  # new frames that are read and prepared ahead, in windows


def replay(
    options: ReplayOptions, settings: NodeConfig, session: Session | None = None
) -> ReplaySummary:
    """Process ``options.input`` into ``options.output``.

    session: replaces the network that ``settings`` name. Raises ReplayError; on any error or
    interruption the output folder stays unchanged.
    """
    start = time.perf_counter()
    config = settings.pipeline
    try:
        with _open(options, settings) as recording, staging(options.output) as folder:
            metric_model: MetricModel | None = None
            if session is None:
                session, metric_model = open_networks(config)
            limited = config.refinement.max_ms > 0
            effort = None if options.plan is None else _use_plan(session, options.plan, limited)
            annotator = _annotator(recording, settings, options.odometry)
            pipelines = open_pipelines(config, session, metric_model, effort=effort)
            if options.resume is not None:
                _resume(pipelines, find_scene(options.resume))
            with ResultBag(folder / "output.mcap") as bag, contextlib.ExitStack() as stack:
                scenes = {
                    name: ReplayScene(pipeline, stack.enter_context(
                        SceneResults(
                            folder, bag, options.pictures, settings, annotator,
                            pipeline.scene_map, TrackFilm(pipeline.refinement.trails), name,
                            additional=i > 0, resumed=options.resume is not None,
                        )
                    ))
                    for i, (name, pipeline) in enumerate(pipelines.items())
                }  # fmt: skip
                for scene in scenes.values():
                    stack.callback(scene.pipeline.scene_map.finish_recording)
                    scene.results.store(scene.pipeline)
                _process(recording, annotator, scenes, options.every if config.cameras else 1)
                for scene in scenes.values():
                    if scene.pipeline.counters["processed"]:
                        scene.results.finish(scene.pipeline)
            without_prior = annotator.without_prior
            summary = write_report(options, settings, scenes, without_prior, recording, folder)
            summary.measured = measure_run(summary, scenes, start)
            write_json(folder / "measured.json", summary.measured)
            summary.files = publish_folder(folder, options.output)
    except (
        RecordingError, CheckpointError, ConfigError, DeviceError, BudgetError, ExportError,
        SceneFileError, OSError,
    ) as error:  # fmt: skip
        raise ReplayError(str(error)) from error
    return summary


def _annotator(recording: Recording, settings: NodeConfig, odometry: str | None) -> FrameAnnotator:
    """Returns the annotator with the recording's transforms and the robot's own poses."""
    transforms = transforms_of(recording)
    prior = prior_of_recording(recording, settings, transforms, odometry)
    return FrameAnnotator(settings.pipeline, transforms, prior, WarnOnce())


def _use_plan(session: Session, path: Path, limited: bool) -> Effort | None:
    """Use the plan in ``path``: report.json of an earlier replay, or a plan file.

    Returns its effort of the refinement, if it has one. limited: whether the parameters limit it.
    """
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ReplayError(f"--plan {path}: {error}") from error
    plan = values.get("plan", values) if isinstance(values, dict) else values
    try:
        effort = plan.pop("refinement", None) if isinstance(plan, dict) else None
        if effort is None and limited:
            log.warning("--plan %s: no effort of the refinement, which is measured anew", path)
        session.use_plan(Plan.from_json(json.dumps(plan)))
        return None if effort is None else Effort.from_values(effort)
    except (ValueError, TypeError) as error:
        raise ReplayError(f"--plan {path}: {error}") from error


def _resume(pipelines: dict[str, Pipeline], folder: Path) -> None:
    """Continue in a saved scene, or in one per camera with independent windows."""
    for i, (name, pipeline) in enumerate(pipelines.items()):
        place = path_for_camera(folder, name) if i else folder
        log.info("%s: %s", place, pipeline.resume(load_scene(place)))


def _open(options: ReplayOptions, settings: NodeConfig) -> Recording:
    names = settings.pipeline.cameras
    unknown = sorted(set(options.topics) - set(names))
    if unknown or (names and options.camera):
        what = f"{unknown[0]}:=TOPIC" if unknown else str(options.camera)
        listed = ", ".join(names) or "none"
        raise ReplayError(
            f"--camera {what}: give NAME:=TOPIC with a name in parameter `cameras` ({listed})"
        )
    return open_recording(
        options.input,
        camera=options.camera,
        cameras={name: options.topics.get(name, name) for name in names},
        start_s=options.start_s,
        end_s=options.end_s,
        every=1 if names else options.every,  # several cameras: every n-th instant (_process)
        rate_hz=options.rate_hz,
        input_rectified=settings.input.input_rectified,
        camera_info_timeout_s=settings.input.camera_info_timeout_s,
    )


def _process(
    recording: Recording, annotator: FrameAnnotator, scenes: dict[str, ReplayScene], every: int
) -> None:
    """Process all frames of a recording: decode, prepare, synchronise, annotate, push.

    The reader's thread does the first two steps ahead. They change neither stamp nor camera, so
    that the synchronisation equals that of the live node, which precedes them.
    """
    first = next(iter(scenes.values()))
    sync: RigSync[Frame] = RigSync.of(first.pipeline.config)
    taken: Counter[str] = Counter()  # number of instants of each scene

    def push(instants: Sequence[Instant[Frame]]) -> None:
        for instant in instants:
            name = instant.frames[0].camera if len(scenes) > 1 else ""
            if taken[name] % every == 0:
                scenes.get(name, first).push(annotator.annotate(instant.frames))
            taken[name] += 1

    def pipeline_of(frame: Frame) -> Pipeline:
        return scenes.get(frame.camera, first).pipeline

    config = first.pipeline.config
    ahead = config.window.new * max(1, len(config.cameras), len(scenes))
    reader = ReadAhead(recording, lambda f: pipeline_of(f).prepare(f), READ_AHEAD * ahead)

    def begin(window: Running) -> None:
        """Start the next frames on the device, behind the running window."""
        for frame in reader.waiting(ahead if every == 1 else 0):  # some may be skipped otherwise
            pipeline_of(frame).begin(frame)

    progress = tqdm(
        total=recording.length, unit="frame", desc="replay", disable=not sys.stderr.isatty()
    )
    with logging_redirect_tqdm(), progress, reader, _while_running(first.pipeline.session, begin):
        for frame in reader:
            push(sync.add(frame))
            progress.update()
        push(sync.flush())
        for scene in scenes.values():
            for result in scene.pipeline.flush():
                scene.take(result)
    if not sum(scene.pipeline.counters["processed"] for scene in scenes.values()):
        raise RecordingError(f"{recording.path}: no frame could be processed, see the warnings")


@contextlib.contextmanager
def _while_running(session: Session, begin: Callable[[Running], None]) -> Iterator[None]:
    """Call ``begin`` whenever a window runs on a device that works asynchronously."""
    session.on_window_running = begin
    try:
        yield
    finally:
        session.on_window_running = None
