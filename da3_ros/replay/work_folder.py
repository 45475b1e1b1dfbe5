"""The folder inside the output folder in which a replay works until it is complete.

An interrupted or killed replay leaves it: its checkpoint, so that the replay can go on, and its
keyframes, which can be exported.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from da3_ros.export.atomic_files import replace_folder
from da3_ros.export.checked_files import SceneFileError
from da3_ros.export.scene_file import SceneFile
from da3_ros.export.scene_folder import is_scene
from da3_ros.keyframe_store.journal import JournalError
from da3_ros.replay.object_state import StateError

log = logging.getLogger(__name__)

CHECKPOINT = "checkpoint.da3k"
FINISHED = "finished.json"  # all results are written, and remain to be moved
SCENE = (
    "scene"  # folder with the stored keyframes, in the end a saved scene; with a camera's suffix
)
SPILL = "points.spill"  # what memory cannot hold, likewise
PICTURES = "pictures.spill"  # of the video until it is encoded, likewise
UNFINISHED = "unfinished"
# Of results.
SUFFIXES = (".mcap", ".glb", ".ply", ".tum", ".json", ".npz", ".png", ".html", ".mp4")
# Files that not every replay writes.
OPTIONAL = ("tracks.npz", "contact_sheet.png", "cloud.png", "report.html", "video.mp4")


def _drawings(output: Path) -> list[str]:
    """Returns the names of files that not every replay writes: of one scene, and of the cameras
    that the older replay in ``output`` names."""
    try:
        cameras = json.loads((output / "report.json").read_text())["parameters"]["cameras"]
        suffixes = ["", *(f"_{str(camera).replace('/', '_')}" for camera in cameras)]
    except (OSError, ValueError, LookupError, TypeError):  # no replay of ours
        suffixes = [""]
    return [
        f"{Path(name).stem}{suffix}{Path(name).suffix}" for name in OPTIONAL for suffix in suffixes
    ]


class OutputError(RuntimeError):
    """An output folder that cannot be used; one line."""


@dataclass(frozen=True)
class WorkFolder:
    """The folder of a running replay."""

    path: Path
    continued: bool  # whether it is of an interrupted replay

    @property
    def checkpoint(self) -> Path:
        """The file with the newest saved state, which may not exist."""
        return self.path / CHECKPOINT

    @property
    def finished(self) -> dict[str, Any] | None:
        """What ``finish`` was told, and ``files``, if moving the results was interrupted; None:
        the replay goes on before it.

        Raises OutputError.
        """
        path = self.path / FINISHED
        if not path.exists():
            return None
        try:
            about = json.loads(path.read_text())
            return {**about, "run": dict(about["run"]), "files": list(about["files"])}
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise OutputError(f"{path} is damaged: {error}") from error

    def finish(self, about: Mapping[str, Any]) -> list[str]:
        """Notes that all results are written; returns their names.

        about: what ``finished`` returns, but the names; with ``run``, which describes the replay.
        Raises OSError.
        """
        files = sorted(f.name for f in self.path.iterdir() if self._is_result(f))
        part = self.path / f".{FINISHED}"
        part.write_text(json.dumps({**about, "files": files}))
        os.replace(part, self.path / FINISHED)
        return files

    def publish(self, output: Path) -> None:
        """Moves all results to ``output``; replaces older ones. An interrupted one is repeated.

        Drawings of an older replay that this one did not make are removed: they would seem to be
        its. Raises OSError.
        """
        finished = self.finished
        assert finished is not None
        for name in _drawings(output):
            if (output / name).is_file() and name not in finished["files"]:
                (output / name).unlink()
        for file in sorted(f for f in self.path.iterdir() if self._is_result(f)):
            if file.is_dir():
                replace_folder(file, output / file.name)
            else:
                os.replace(file, output / file.name)

    @staticmethod
    def _is_result(file: Path) -> bool:
        """False for what is needed to go on, hidden files, which a killed replay has left, and a
        scene without frames."""
        if file.name in (CHECKPOINT, FINISHED) or file.name.startswith("."):
            return False
        return is_scene(file) if file.is_dir() else file.suffix != Path(SPILL).suffix


@contextlib.contextmanager
def open_work_folder(output: Path, *, go_on: bool) -> Iterator[WorkFolder]:
    """Yields a new folder, or with ``go_on`` that of the newest replay that left a checkpoint.

    It is removed at the end; after an error, only if it has nothing of use. An interruption tells
    what it has. Raises OutputError, OSError.
    """
    existed = output.exists()
    if existed and not output.is_dir():
        raise OutputError(f"--output {output} is a file: give a folder")
    output.mkdir(parents=True, exist_ok=True)
    for old in output.glob("scene*"):
        if old.is_dir() and any(old.iterdir()) and not is_scene(old):
            raise OutputError(f"{old} exists and is not a saved scene: give another folder")
    for old in output.iterdir():
        if old.is_dir() and old.suffix in SUFFIXES:  # no file could take its name
            raise OutputError(f"{old} is a folder: give another folder for the results")
    with contextlib.ExitStack() as stack:
        work = _opened(output, stack, go_on)
        try:
            yield work
        except BaseException as error:
            note = _left(work)
            if not note:
                _remove(work.path, output, existed)
            elif not isinstance(error, Exception):  # an interruption
                error.args = (note,)
            elif not isinstance(error, StateError):  # which says it
                log.warning(note)
            raise
        _remove(work.path, output, existed)


def _opened(output: Path, stack: contextlib.ExitStack, go_on: bool) -> WorkFolder:
    if go_on:
        left = [f for name in (CHECKPOINT, FINISHED) for f in output.glob(f"{UNFINISHED}*/{name}")]
        newest = max(left, key=lambda f: f.stat().st_mtime_ns, default=None)
        if newest is not None:
            _lock(newest.parent, stack)
            return WorkFolder(newest.parent, continued=True)
        log.info("%s has no unfinished replay: it begins at the first frame", output)
    number = 1
    while True:
        path = output / (UNFINISHED if number == 1 else f"{UNFINISHED}-{number}")
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            _lock(path, stack)
            return WorkFolder(path, continued=False)
        number += 1


def _lock(folder: Path, stack: contextlib.ExitStack) -> None:
    """Keeps other processes out of a folder. Raises OutputError if one is in it."""
    handle = os.open(folder, os.O_RDONLY)
    stack.callback(os.close, handle)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise OutputError(f"another process works in {folder}") from error


def _remove(folder: Path, output: Path, existed: bool) -> None:
    """Removes a folder; interrupted anywhere, what is left of it is complete or finished."""
    with contextlib.suppress(OSError):
        (folder / CHECKPOINT).unlink(missing_ok=True)
        for file in folder.iterdir():
            if file.is_dir() and not file.is_symlink():
                shutil.rmtree(file, ignore_errors=True)
            elif file.name != FINISHED:
                file.unlink()
    shutil.rmtree(folder, ignore_errors=True)
    if not existed:
        with contextlib.suppress(OSError):  # not empty: it holds the results
            output.rmdir()


def _left(work: WorkFolder) -> str:
    """Returns what an interrupted replay has left, for the user; empty if that is nothing."""
    notes = []
    if (work.path / FINISHED).exists():
        return f"it is complete; the same command with --resume moves the results in {work.path}"
    if work.checkpoint.exists():
        notes.append("the same command with --resume goes on")
    for kept in sorted(p for p in work.path.glob(f"{SCENE}*") if p.is_dir()):
        count = 0
        with (
            contextlib.suppress(JournalError, SceneFileError),
            SceneFile(kept).keyframes() as stored,
        ):
            count = len(stored.images)
        if count:
            notes.append(f"{count} keyframes are kept: da3_ros export {kept} NAME.glb")
    return "; ".join(notes)
