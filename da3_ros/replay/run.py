"""Processes a recording from end to end: every frame, in stamp order, repeatably.

Results are written to a folder inside the output folder and moved at the end, so that an
interrupted run leaves no half-written result; it can go on from its last checkpoint.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from da3_ros.config import NodeConfig, PipelineConfig
from da3_ros.drawing.video_writer import check_encoder
from da3_ros.export.began_in import BEGAN_IN, MEASURED
from da3_ros.export.checked_files import SceneFileError
from da3_ros.export.export import ExportError
from da3_ros.export.paths import path_for_camera
from da3_ros.export.scene_file import load_scene
from da3_ros.export.scene_folder import find_scene
from da3_ros.inference import (
    BudgetError,
    DeviceError,
    MetricModel,
    Plan,
    Running,
    Session,
    open_networks,
)
from da3_ros.keyframe_store.journal import JournalError
from da3_ros.network import CheckpointError
from da3_ros.parameter_schema import ConfigError
from da3_ros.pipeline.multi_camera import open_pipelines
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.recordings import Recording, RecordingError, open_recording
from da3_ros.recordings.read_ahead import ReadAhead
from da3_ros.recordings.recorded_poses import (
    anchors_of_recording,
    corrections_of_recording,
    imu_of_recording,
    prior_of_recording,
    transforms_of,
)
from da3_ros.recordings.recorded_ranges import ranges_of_recording
from da3_ros.refinement.solver_limits import SolverLimits
from da3_ros.replay.checkpoint import (
    Beginning,
    Checkpoints,
    check_run,
    describe_run,
    load_beginning,
)
from da3_ros.replay.log_lines import logs_above_bars
from da3_ros.replay.object_state import StateError
from da3_ros.replay.replay_state import ReplayState
from da3_ros.replay.report import (
    measure_run,
    measured_timelines,
    write_measured,
    write_report,
)
from da3_ros.replay.results import (
    ReplayError,
    ReplayOptions,
    ReplaySummary,
    UnfinishedError,
    WarnOnce,
)
from da3_ros.replay.work_folder import OutputError, open_work_folder
from da3_ros.reporting.page import NAME, write_page
from da3_ros.reporting.run_files import TIMELINES
from da3_ros.sensors.frame_annotator import FrameAnnotator
from da3_ros.types import Frame

log = logging.getLogger(__name__)

READ_AHEAD = 2  # new frames that are read and prepared ahead, in windows


def replay(
    options: ReplayOptions,
    settings: NodeConfig,
    session: Session | None = None,
    metric_model: MetricModel | None = None,
    on_frame: Callable[[int, int], None] = lambda done, total: None,
) -> ReplaySummary:
    """Process ``options.input`` into ``options.output``.

    session, metric_model: replace the networks that ``settings`` name. on_frame: called after
    each frame with the number of frames read, and of all. Raises ReplayError, and UnfinishedError
    if the replay in the output folder cannot go on; on any error or interruption the output folder
    stays unchanged.
    """
    start = time.perf_counter()
    try:
        if options.video:
            check_encoder()
        with (
            _open(options, settings) as recording,
            open_work_folder(options.output, go_on=options.go_on) as work,
        ):
            run = describe_run(recording, settings, options)
            if (finished := work.finished) is not None:  # moving its results was interrupted
                check_run(work.path, finished.pop("run"), run)
                work.publish(options.output)
                return ReplaySummary(options.output, **finished)
            done = load_beginning(work.checkpoint, run) if work.continued else None
            if done is not None and done.run["--resume"] is not None:
                options = dataclasses.replace(options, resume=Path(done.run["--resume"]))
                run = describe_run(recording, settings, options)
                load_beginning(work.checkpoint, run)  # the scene must be what it was
            start -= 0.0 if done is None else done.wall_s
            if session is None:
                session, metric_model = open_networks(settings.pipeline)
            pipelines = _open_pipelines(options, settings.pipeline, session, metric_model, done)
            annotator = _annotator(recording, settings, options)
            with contextlib.ExitStack() as stack:
                state = ReplayState.open(
                    stack, work.path, options, settings, annotator, pipelines,
                    None if done is None else done.written,
                )  # fmt: skip
                services = {"recording": recording, "session": session, **state.services()}

                def saved() -> tuple[Beginning, ReplayState, dict[str, Any]]:
                    wall_s = time.perf_counter() - start
                    beginning = Beginning(run, *_plan(pipelines), state.written(), wall_s)
                    return beginning, state, services

                if done is not None:
                    state.load(work.checkpoint, services)
                _process(recording, state, Checkpoints(work.checkpoint, saved), on_frame)
                for scene in state.scenes.values():
                    if scene.pipeline.counters["processed"]:
                        scene.results.finish(scene.pipeline)
            missing, scenes = annotator.missing, state.scenes
            summary = write_report(options, settings, scenes, missing, recording, work.path)
            summary.measured = measure_run(summary, scenes, start)
            more = {BEGAN_IN: run["--resume"], TIMELINES: measured_timelines(scenes)}
            write_measured(work.path / MEASURED, summary.measured | more)
            if options.report:
                _write_page(work.path)
            summary.files = work.finish({**summary.about(), "run": run})
            work.publish(options.output)
    except StateError as error:
        raise UnfinishedError(str(error)) from error
    except (
        RecordingError, CheckpointError, ConfigError, DeviceError, BudgetError, ExportError,
        SceneFileError, JournalError, OutputError, OSError,
    ) as error:  # fmt: skip
        raise ReplayError(str(error)) from error
    return summary


def _write_page(folder: Path) -> None:
    """Writes report.html; a failure costs that page only, whatever it is: hours of results wait to
    be published."""
    try:
        write_page(folder, folder / NAME)
    except Exception as error:  # also of matplotlib, which depends on the machine
        why = " ".join(f"{type(error).__name__}: {error}".split())
        log.warning("%s could not be written, all else was: %s", NAME, why)


def _open_pipelines(
    options: ReplayOptions,
    config: PipelineConfig,
    session: Session,
    metric_model: MetricModel | None,
    done: Beginning | None,
) -> dict[str, Pipeline]:
    """Returns the pipelines by camera, with the plan of the interrupted replay ``done``."""
    limits = None
    if done is not None:
        limits = done.limits
        if done.plan is not None:
            session.memory.use_plan(done.plan)
    elif options.plan is not None:
        limits = _use_plan(session, options.plan, config.refinement.max_ms > 0)
    pipelines = open_pipelines(config, session, metric_model, limits=limits)
    if options.resume is not None:
        _resume(pipelines, find_scene(options.resume))
    return pipelines


def _plan(pipelines: dict[str, Pipeline]) -> tuple[Plan | None, SolverLimits]:
    """Returns the plans of memory and of the refinement."""
    first = next(iter(pipelines.values()))
    return first.session.memory.plan, first.refinement.limits


def _annotator(
    recording: Recording, settings: NodeConfig, options: ReplayOptions
) -> FrameAnnotator:
    """Returns the annotator with the recording's transforms, the robot's own poses, another
    SLAM's corrections, and range sensors."""
    transforms = transforms_of(recording)
    prior = prior_of_recording(recording, settings, transforms, options.odometry)
    slam = corrections_of_recording(recording, settings, transforms, prior, options.slam_path)
    imu, warn = imu_of_recording(recording, settings, transforms, options.imu), WarnOnce()
    ranges = ranges_of_recording(recording, settings, transforms, prior, warn)
    anchors = anchors_of_recording(recording, settings, transforms, options.global_pose)
    return FrameAnnotator(
        settings.pipeline, transforms, prior, warn, slam, recording.mounts(),
        settings.base_frame, imu, ranges, anchors,
    )  # fmt: skip


def _use_plan(session: Session, path: Path, limited: bool) -> SolverLimits | None:
    """Use the plan in ``path``: report.json of an earlier replay, or a plan file.

    Returns its limits of the refinement, if it has one. limited: whether the parameters limit it.
    """
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ReplayError(f"--plan {path}: {error}") from error
    plan = values.get("plan", values) if isinstance(values, dict) else values
    try:
        limits = plan.pop("refinement", None) if isinstance(plan, dict) else None
        if limits is None and limited:
            log.warning("--plan %s: no limits of the refinement, which is measured anew", path)
        session.memory.use_plan(Plan.from_json(json.dumps(plan)))
        return None if limits is None else SolverLimits.from_values(limits)
    except (ValueError, TypeError) as error:
        raise ReplayError(f"--plan {path}: {error}") from error


def _resume(pipelines: dict[str, Pipeline], folder: Path) -> None:
    """Continue in a saved scene, or in one per camera with independent windows."""
    for i, (name, pipeline) in enumerate(pipelines.items()):
        path = path_for_camera(folder, name) if i else folder
        log.info("%s: %s", path, pipeline.resume(load_scene(path)))


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
        every=1 if names else options.every,  # several cameras: every n-th frameset (_process)
        rate_hz=options.rate_hz,
        input_rectified=settings.input.input_rectified,
        camera_info_timeout_s=settings.input.camera_info_timeout_s,
    )


def _process(
    recording: Recording,
    state: ReplayState,
    checkpoints: Checkpoints,
    on_frame: Callable[[int, int], None],
) -> None:
    """Process all frames of a recording: decode, prepare, synchronise, annotate, push.

    The reader's thread does the first two steps ahead. They change neither stamp nor camera, so
    that the synchronisation equals that of the live node, which precedes them.
    """
    first = state.first.pipeline
    config = first.config
    ahead = config.window.new * max(1, len(config.cameras), len(state.scenes))

    def prepare(frame: Frame) -> Frame:
        pipeline = state.pipeline_of(frame)
        # Else some are skipped, whose features nobody needs.
        return (pipeline.prepare if state.every == 1 else pipeline.builder.prepare)(frame)

    reader = ReadAhead(
        recording,
        prepare,
        READ_AHEAD * ahead,
        skip=state.read,
    )

    def begin(window: Running) -> None:
        """Start the next frames on the device, behind the running window."""
        for frame in reader.waiting(ahead if state.every == 1 else 0):  # else some are skipped
            state.pipeline_of(frame).begin(frame)

    progress = tqdm(
        total=recording.length, initial=state.read, unit="frame", desc="replay",
        disable=not sys.stderr.isatty(),
    )  # fmt: skip
    with logs_above_bars(), progress, reader, _while_running(first.session, begin):
        for frame in reader:
            state.push(frame)
            checkpoints.save_if_due()
            progress.update()
            on_frame(state.read, recording.length)
        state.flush()
    counts = Counter[str]()
    for scene in state.scenes.values():
        counts.update(scene.pipeline.counters)
    blind = {k[6:]: n for k, n in counts.items() if k.startswith("blind_")}
    if counts["processed"] == sum(blind.values()):
        causes = ", ".join(f"{name} {n}" for name, n in sorted(blind.items()))
        why = f"no image shows anything ({causes})" if blind else "see the warnings"
        raise RecordingError(f"{recording.path}: no frame could be processed: {why}")


@contextlib.contextmanager
def _while_running(session: Session, begin: Callable[[Running], None]) -> Iterator[None]:
    """Call ``begin`` whenever a window runs on a device that works asynchronously."""
    session.on_window_running = begin
    try:
        yield
    finally:
        session.on_window_running = None
