"""Makes meshes and splats from the stored keyframes of a running stream, one at a time, on a
thread of its own."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from da3_ros.export.checked_files import SceneFileError
from da3_ros.export.formats import StoredExported, StoredFormat
from da3_ros.export.scene_file import SceneFile
from da3_ros.export.selection import ExportError, Progress, Selection, portion
from da3_ros.export.stored_depth import DepthFilters
from da3_ros.keyframe_store.journal import JournalError
from da3_ros.live.worker import Worker

FLUSH_S = 30.0  # longest wait for the disk
POLL_S = 0.05  # between two looks whether the job shall end


@dataclass(frozen=True, eq=False)
class StoredSoFar:
    """The stored keyframes of a scene of a running stream."""

    folder: Path  # of the journal
    flushed: Future[bool]  # whether all that was seen so far is in it
    keyframes: int  # of the scene, stored or not


class StoredExports:
    """At most one file is made at a time; any thread may cancel it and ask for its progress."""

    def __init__(self) -> None:
        self.worker = Worker(lambda: False, lambda error: None, name="da3-export")
        self._job: StoredExport | None = None

    @property
    def percent(self) -> float:
        """The completed share of the file that is being made; NaN if there is none."""
        job = self._job
        return math.nan if job is None else 100 * job.share

    @contextmanager
    def begun(self, path: Path) -> Iterator[StoredExport]:
        """Yields the export to ``path``. Raises ExportError while there is another."""
        if self._job is not None:
            raise ExportError(
                f"{self._job.path} is being made ({self.percent:.0f} %): call again when it is "
                "done, or cancel it with ~/reset"
            )
        self._job = job = StoredExport(path, self.worker)
        try:
            yield job
        finally:
            self._job = None

    def cancel(self) -> None:
        """Ends the file that is being made, soon and without it."""
        if self._job is not None:
            self._job.cancelled = True


class StoredExport:
    """The export of one file, or of one for each scene."""

    def __init__(self, path: Path, worker: Worker) -> None:
        self.path, self._worker = path, worker
        self.share = 0.0  # completed, 0 to 1
        self.cancelled = False

    def run(
        self, form: StoredFormat, scenes: Mapping[str, StoredSoFar], selection: Selection,
        filters: DepthFilters, progress: Progress,
    ) -> tuple[StoredExported, int]:  # fmt: skip
        """Writes the files of all scenes; others than the first have the camera in their names.

        Returns the first one's, and how many of its keyframes are not stored. Raises ExportError.
        """

        def step(what: str, share: float) -> None:
            self._check()
            self.share = max(self.share, share)
            progress(what, share)

        done = []
        for index, (name, scene) in enumerate(scenes.items()):
            path = form.path_for_camera(self.path, name) if index else self.path
            part = portion(step, index / len(scenes), (index + 1) / len(scenes))
            self._wait(scene)
            try:
                with SceneFile(scene.folder).keyframes() as stored:
                    file = form.write(stored, path, selection, filters, part)
            except (JournalError, SceneFileError, OSError) as error:
                raise ExportError(str(error)) from error
            done.append((file, max(0, scene.keyframes - file.keyframes)))
        return done[0]

    def _wait(self, scene: StoredSoFar) -> None:
        """Waits until all that was seen is stored. Raises ExportError if it cannot be."""
        end = time.monotonic() + FLUSH_S
        while not scene.flushed.done():
            self._check()
            if time.monotonic() > end:
                raise ExportError(f"{scene.folder}: the disk is too slow: call again later")
            time.sleep(POLL_S)
        if not scene.flushed.result():
            raise ExportError(
                f"{scene.folder}: storing keyframes is paused, the log has the reason: call again "
                "when it goes on"
            )

    def _check(self) -> None:
        if self._worker.stopping:
            raise ExportError("the node is shutting down")
        if self.cancelled:
            raise ExportError(f"{self.path}: cancelled by ~/reset; no file was written")
