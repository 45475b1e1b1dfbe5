"""The node's services. Thin on purpose; the node creates them and knows nothing else of them.

The worker, which owns the data, hands over the scene as it is at that moment; a thread of its own
writes and reads files, so that the stream goes on. Callers are answered with what really happened.
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

from da3_ros.export.export import (
    Exported,
    ExportError,
    Selection,
    export_scene,
    format_of,
    size_of,
)
from da3_ros.export.paths import PathError, path_for_camera, resolve_inside
from da3_ros.export.scene_file import SceneFileError, check_outside_scenes, load_scene, save_scene
from da3_ros.live.stream import Stream
from da3_ros.live.worker import Worker, WorkerStoppedError
from da3_ros.mapping.submaps import Snapshot
from da3_ros.ros.stream_runner import StreamRunner
from da3_ros.srv import ExportScene, SceneFile

# Requests of one service that wait for the executor; with more, the oldest are lost unanswered.
# ROS's default of 10 is less than what a script may send at once.
QUEUE = 100
PROGRESS_S = 5.0  # between two lines about long work
EXPECTED = (ExportError, SceneFileError, PathError, WorkerStoppedError)


class Host(Protocol):
    """What the services need of the node."""

    runner: StreamRunner | None
    enabled: bool
    executor: Any

    def create_service(self, *args: Any, **options: Any) -> Any: ...
    def get_logger(self) -> Any: ...
    def forget_input(self) -> None:
        """The stream starts anew: forget what was gathered of the inputs."""


class Services:
    """All services of one node, and the thread that reads and writes their files."""

    def __init__(self, node: Host) -> None:
        self._node = node
        self.waiting = 0  # callers that are not answered yet
        self._files = Worker(lambda: False, lambda error: None, name="da3-files")
        # A group of their own: in the default one, awaiting the worker would freeze the executor.
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
        """End the thread; what it is writing is removed. False if it is still at it."""
        return self._files.stop(timeout_s)

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
        response.message = "inference goes on" if request.data else "inference is paused"
        return response

    async def _answer(self, work: Callable[..., Any], request: Any, response: Any) -> Any:
        """What the work says, or in one line why it could not be done.

        The one place that answers: an exception that passed here would leave the caller waiting
        for ever, so none does.
        """
        runner = self._node.runner
        if runner is None:
            response.message = "the node is not configured: there is no scene"
            return response
        self.waiting += 1
        try:
            await work(runner.stream, request, response)
            response.success, response.message = True, one_line(response.message)
        except EXPECTED as error:
            response.success, response.message = False, one_line(str(error))
        except Exception as error:  # nobody foresaw it
            what = work.__name__.strip("_")
            text = one_line(f"{what} failed: {type(error).__name__}: {error}")
            response.success, response.message = False, text
            self._node.get_logger().error(text)
            self._node.get_logger().debug("".join(traceback.format_exception(error)))
        finally:
            self.waiting -= 1
        return sendable(response)

    async def _export(self, stream: Stream, request: Any, response: Any) -> None:
        # Without a path the suffix says nothing: the path is what must be complained of.
        form = format_of(Path(request.path), request.format) if request.path else "glb"
        path = resolve_inside(
            stream.config.export_dir,
            request.path,
            suffix="" if form == "colmap" else f".{form}",
            folder=form == "colmap",
        )
        selection = Selection(
            voxel=request.voxel_m,
            min_confidence=request.min_confidence,
            max_points=request.max_points,
            crop=tuple(float(v) for v in request.crop),
            cameras=request.include_cameras,
            guessed=stream.config.pipeline.map.export_guessed,
        )
        scenes = await self._on(self._worker_of(stream), stream.snapshots)
        done = await self._on(self._files, lambda: self._write(scenes, path, selection, form))
        response.path, response.points, response.bytes = str(done.path), done.points, done.bytes
        response.message = done.text

    def _write(
        self, scenes: dict[str, Snapshot], path: Path, selection: Selection, form: str
    ) -> Exported:
        check_outside_scenes(path)
        (_, first), *others = scenes.items()
        for name, saved in others:
            progress = self._progress(f"export of {path_for_camera(path, name)}")
            export_scene(saved.scene(), path_for_camera(path, name), selection, form, progress)
        progress = self._progress(f"export of {path}")
        return export_scene(first.scene(), path, selection, form, progress)

    async def _save(self, stream: Stream, request: Any, response: Any) -> None:
        path = resolve_inside(stream.config.export_dir, request.path, folder=True)
        scenes = await self._on(self._worker_of(stream), stream.snapshots)

        def save() -> None:
            check_outside_scenes(path)
            for i, (name, saved) in enumerate(scenes.items()):
                place = path_for_camera(path, name) if i else path
                save_scene(saved, place, self._progress(f"saving {place}"))

        await self._on(self._files, save)
        first = next(iter(scenes.values()))
        points = sum(len(s.cloud) for s in first.submaps)
        megabytes = size_of(path) / 1e6
        response.message = (
            f"{points} points and {len(first.poses)} poses in {path} ({megabytes:.1f} MB)"
        )

    async def _load(self, stream: Stream, request: Any, response: Any) -> None:
        path = resolve_inside(stream.config.export_dir, request.path, folder=True)

        def load() -> dict[str, Snapshot]:
            first, *others = stream.scene_streams
            there = {
                name: path_for_camera(path, name)
                for name in others
                if path_for_camera(path, name).is_dir()
            }
            return {name: load_scene(place) for name, place in {first: path, **there}.items()}

        scenes = await self._on(self._files, load)
        where = await self._on(self._worker_of(stream), lambda: stream.resume(scenes))
        self._node.forget_input()
        first = next(iter(scenes.values()))
        points = sum(len(s.cloud) for s in first.submaps)
        response.message = f"{points} points and {len(first.poses)} poses from {path}; {where}"

    async def _reset(self, stream: Stream, request: Any, response: Any) -> None:
        await self._on(self._worker_of(stream), stream.reset)
        self._node.forget_input()
        response.message = "window, odometry and map start anew"

    def _progress(self, what: str) -> Callable[[str, float], None]:
        """Says now and then how far long work is; ends it when the node ends."""
        told = time.monotonic()

        def progress(step: str, share: float) -> None:
            nonlocal told
            if self._files.stopping:
                raise ExportError("the node is shutting down")
            if time.monotonic() - told > PROGRESS_S:
                told = time.monotonic()
                self._node.get_logger().info(f"{what}: {step}, {100 * share:.0f} %")

        return progress

    def _worker_of(self, stream: Stream) -> Worker:
        """The worker that owns ``stream``; while a file was read, the node may have lost both."""
        runner = self._node.runner
        if runner is None or runner.stream is not stream:
            raise WorkerStoppedError("the node was cleaned up meanwhile")
        return runner.worker

    def _on(self, worker: Worker, job: Callable[[], Any]) -> Any:
        """An awaitable for a job on another thread; its end wakes the executor."""
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


def sendable(response: Any) -> Any:
    """``response`` with ? for what is no character: it would break off the sending, unanswered."""
    for name in response.get_fields_and_field_types():
        value = getattr(response, name)
        if isinstance(value, str):
            setattr(response, name, value.encode(errors="replace").decode())
    return response


def one_line(text: str) -> str:
    """``text`` as it can be sent and read: in one line, without half characters."""
    return "".join(c if c.isprintable() else " " for c in text).strip()
