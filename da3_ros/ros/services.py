"""The node's services.

The worker owns the scene and returns a snapshot of it between two windows. A separate thread reads
and writes files, so that the stream continues. A response reports what was actually done.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

import rclpy
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.qos import QoSProfile, ReliabilityPolicy
from std_srvs.srv import SetBool, Trigger

from da3_ros.export.atomic_files import size_of
from da3_ros.export.checked_files import SceneFileError
from da3_ros.export.export import Exported, ExportError, Selection, export_scene
from da3_ros.export.formats import GLB, Format, StoredFormat, find_format
from da3_ros.export.paths import PathError, path_for_camera, resolve_inside
from da3_ros.export.scene_file import save_scene
from da3_ros.export.scene_folder import check_outside_scenes
from da3_ros.export.stored_depth import DepthFilters
from da3_ros.live.saved_scenes import load_scenes
from da3_ros.live.stored_exports import StoredExports
from da3_ros.live.stream import Stream
from da3_ros.live.worker import Worker, WorkerStoppedError
from da3_ros.mapping.submaps import Snapshot
from da3_ros.ros.stream_runner import StreamRunner
from da3_ros.srv import ExportScene, SceneFile

# Requests of one service that may wait for the executor; beyond it the oldest are lost without a
# response. A script may send more at once than ROS's default of 10.
QUEUE = 100
PROGRESS_S = 5.0  # between two log lines about a long job
EXPECTED = (ExportError, SceneFileError, PathError, WorkerStoppedError)


class ServiceHost(Protocol):
    """The part of the node that the services use."""

    runner: StreamRunner | None
    enabled: bool
    executor: Any

    def create_service(self, *args: Any, **options: Any) -> Any: ...
    def get_logger(self) -> Any: ...
    def forget_input(self) -> None:
        """Start a new stream: forget data collected from the inputs."""


class Services:
    """All services of a node, and the thread that reads and writes their files."""

    def __init__(self, node: ServiceHost) -> None:
        self._node = node
        self.waiting = 0  # requests without a response yet
        self._files = Worker(lambda: False, lambda error: None, name="da3-files")
        self.stored_exports = StoredExports()
        # Not the default group: a callback that awaits the worker would block all other callbacks.
        group = ReentrantCallbackGroup()
        qos = QoSProfile(depth=QUEUE, reliability=ReliabilityPolicy.RELIABLE)
        for kind, name, callback in (
            (ExportScene, "~/export_scene", self._on_export),
            (SceneFile, "~/save_scene", self._on_save),
            (SceneFile, "~/load_scene", self._on_load),
            (Trigger, "~/reset", self._on_reset),
            (SetBool, "~/enable", self._on_enable),
        ):
            node.create_service(kind, name, callback, qos_profile=qos, callback_group=group)

    def close(self, timeout_s: float) -> bool:
        """End the threads and remove half-written files. False if one is still busy."""
        end = time.monotonic() + timeout_s
        self.stored_exports.worker.stop(0.0)  # both stop as soon as they can
        done = self._files.stop(timeout_s)
        return self.stored_exports.worker.stop(max(0.0, end - time.monotonic())) and done

    async def _on_export(self, request: Any, response: Any) -> Any:
        return await self._answer(self._export, request, response)

    async def _on_save(self, request: Any, response: Any) -> Any:
        return await self._answer(self._save, request, response)

    async def _on_load(self, request: Any, response: Any) -> Any:
        return await self._answer(self._load, request, response)

    async def _on_reset(self, request: Any, response: Any) -> Any:
        return await self._answer(self._reset, request, response)

    def _on_enable(self, request: Any, response: Any) -> Any:
        self._node.enabled = bool(request.data)
        response.success = True
        response.message = "inference is enabled" if request.data else "inference is paused"
        return response

    async def _answer(self, work: Callable[..., Any], request: Any, response: Any) -> Any:
        """Run ``work`` and return the response, with the reason in one line if it failed.

        Catches every exception: one that passed would leave the caller without a response.
        """
        runner = self._node.runner
        if runner is None:
            ending = self._files.stopping
            response.message = (
                "the node is shutting down"
                if ending
                else "the node is not configured: there is no scene"
            )
            return response
        self.waiting += 1
        try:
            await work(runner.stream, request, response)
            response.success, response.message = True, one_line(response.message)
        except EXPECTED as error:
            response.success, response.message = False, one_line(str(error))
        except Exception as error:  # unexpected
            what = work.__name__.strip("_")
            text = one_line(f"{what} failed: {type(error).__name__}: {error}")
            response.success, response.message = False, text
            self._node.get_logger().error(text)
            self._node.get_logger().debug("".join(traceback.format_exception(error)))
        finally:
            self.waiting -= 1
        return sendable(response)

    async def _export(self, stream: Stream, request: Any, response: Any) -> None:
        # Without a path the error must be about the path, not about its missing suffix.
        form = find_format(Path(request.path), request.format, live=True) if request.path else GLB
        path = form.resolve(stream.config.export_dir, request.path)
        if isinstance(form, StoredFormat):
            await self._export_stored(form, path, stream, request, response)
            return
        selection = _selection(stream, request)
        scenes = await self._run_on(self._worker_of(stream), stream.snapshots)
        done = await self._run_on(self._files, lambda: self._write(scenes, path, selection, form))
        response.path, response.points, response.bytes = str(done.path), done.points, done.bytes
        response.message = done.text

    async def _export_stored(
        self, form: StoredFormat, path: Path, stream: Stream, request: Any, response: Any
    ) -> None:
        check_outside_scenes(path)
        selection = _selection(stream, request)
        filters = DepthFilters(
            voxel=request.voxel_m or DepthFilters.voxel, min_confidence=request.min_confidence
        )
        with self.stored_exports.begun(path) as job:
            scenes = await self._run_on(self._worker_of(stream), stream.stored_scenes)
            if not scenes:
                raise ExportError(
                    f"a {form.name} file needs stored keyframes: set the parameter map.store to a "
                    "folder below export_dir, and configure the node again"
                )
            progress = self._progress(f"export of {path}")
            done, missing = await self._run_on(
                self.stored_exports.worker,
                lambda: job.run(form, scenes, selection, filters, progress),
            )
        response.path, response.points, response.bytes = str(path), done.points, done.bytes
        response.message = done.text
        if missing:
            response.message += f"; {missing} keyframes of the scene are not stored"

    def _write(
        self, scenes: dict[str, Snapshot], path: Path, selection: Selection, form: Format
    ) -> Exported:
        check_outside_scenes(path)
        (_, first), *others = scenes.items()
        for name, saved in others:
            file = form.path_for_camera(path, name)
            progress = self._progress(f"export of {file}")
            export_scene(saved.scene(), file, selection, form.name, progress)
        progress = self._progress(f"export of {path}")
        return export_scene(first.scene(), path, selection, form.name, progress)

    async def _save(self, stream: Stream, request: Any, response: Any) -> None:
        path = resolve_inside(stream.config.export_dir, request.path, folder=True)
        scenes = await self._run_on(self._worker_of(stream), stream.snapshots)

        def save() -> None:
            check_outside_scenes(path)
            for i, (name, saved) in enumerate(scenes.items()):
                folder = path_for_camera(path, name) if i else path
                save_scene(saved, folder, self._progress(f"saving {folder}"))

        await self._run_on(self._files, save)
        first = next(iter(scenes.values()))
        points = sum(len(s.cloud) for s in first.submaps)
        megabytes = size_of(path) / 1e6
        response.message = (
            f"{points} points and {len(first.poses)} poses in {path} ({megabytes:.1f} MB)"
        )

    async def _load(self, stream: Stream, request: Any, response: Any) -> None:
        path = resolve_inside(stream.config.export_dir, request.path, folder=True)

        names = list(stream.scene_streams)
        scenes = await self._run_on(self._files, lambda: load_scenes(path, names))
        where = await self._run_on(self._worker_of(stream), lambda: stream.resume(scenes))
        self._node.forget_input()
        first = next(iter(scenes.values()))
        points = sum(len(s.cloud) for s in first.submaps)
        response.message = f"{points} points and {len(first.poses)} poses from {path}; {where}"

    async def _reset(self, stream: Stream, request: Any, response: Any) -> None:
        self.stored_exports.cancel()
        await self._run_on(self._worker_of(stream), stream.reset)
        self._node.forget_input()
        response.message = "window, odometry and map are reset"

    def _progress(self, what: str) -> Callable[[str, float], None]:
        """Returns a callback that logs the progress of a long job and stops it at shutdown.

        The callback raises ExportError if the node is shutting down.
        """
        logged_s = time.monotonic()

        def progress(step: str, share: float) -> None:
            nonlocal logged_s
            if self._files.stopping:
                raise ExportError("the node is shutting down")
            if time.monotonic() - logged_s > PROGRESS_S:
                logged_s = time.monotonic()
                self._node.get_logger().info(f"{what}: {step}, {100 * share:.0f} %")

        return progress

    def _worker_of(self, stream: Stream) -> Worker:
        """Returns the worker of ``stream``. Raises WorkerStoppedError if a cleanup ended it."""
        runner = self._node.runner
        if runner is None or runner.stream is not stream:
            raise WorkerStoppedError("the node was cleaned up during this request")
        return runner.worker

    def _run_on(self, worker: Worker, job: Callable[[], Any]) -> Any:
        """Run a job on another thread; returns a future that wakes the executor when done."""
        executor = self._node.executor
        future: Any = rclpy.task.Future(executor=executor)

        def done(result: Future[Any]) -> None:
            error = result.exception()
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result.result())
            if executor is not None:
                executor.wake()

        worker.submit(job).add_done_callback(done)
        return future


def _selection(stream: Stream, request: Any) -> Selection:
    """Returns what an export's request asks for."""
    return Selection(
        voxel=request.voxel_m,
        min_confidence=request.min_confidence,
        max_points=request.max_points,
        crop=tuple(float(v) for v in request.crop),
        cameras=request.include_cameras,
        unconnected=stream.config.pipeline.map.export_guessed,
    )


def sendable(response: Any) -> Any:
    """Returns ``response`` with ? for invalid characters, which would prevent its sending."""
    for name in response.get_fields_and_field_types():
        value = getattr(response, name)
        if isinstance(value, str):
            setattr(response, name, value.encode(errors="replace").decode())
    return response


def one_line(text: str) -> str:
    """Returns ``text`` in one line, with a space for each unprintable character."""
    return "".join(c if c.isprintable() else " " for c in text).strip()
