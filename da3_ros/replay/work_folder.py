"""The folder inside the output folder in which a replay works until it is complete.

An interrupted or killed replay leaves it: its checkpoint, so that the replay can go on, and its
keyframes, which can be exported.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from da3_ros.export.atomic_files import replace_folder
from da3_ros.export.scene_file import is_scene
from da3_ros.keyframe_store.journal import JournalError
from da3_ros.keyframe_store.store import JOURNAL, StoredScene
from da3_ros.replay.object_state import StateError

log = logging.getLogger(__name__)

CHECKPOINT = "checkpoint.da3k"
KEYFRAMES = "keyframes"  # folder of stored keyframes while a replay runs; with a camera's suffix
SPILL = "points.spill"  # in it: what memory cannot hold
UNFINISHED = "unfinished"
OPTIONAL = ("tracks.npz", "contact_sheet.png")  # files that not every replay writes


class OutputError(RuntimeError):
    """An output folder that cannot be used; one line."""


@dataclass(frozen=True)
class WorkFolder:
    """The folder of a running replay."""

    path: Path
    continued: bool  # whether it has the checkpoint of an interrupted replay

    @property
    def checkpoint(self) -> Path:
        """The file with the newest saved state, which may not exist."""
        return self.path / CHECKPOINT

    def publish(self, output: Path) -> list[str]:
        """Moves all results to ``output``; replaces older ones. Returns their names.

        Drawings of an older replay that this one did not make are removed: they would seem to be
        its.
        """
        self.checkpoint.unlink(missing_ok=True)  # nothing can go on from here
        for name in OPTIONAL:
            if (output / name).is_file() and not (self.path / name).exists():
                (output / name).unlink()
        for keyframes in self.path.glob(f"{KEYFRAMES}*"):
            scene = self.path / f"scene{keyframes.name.removeprefix(KEYFRAMES)}"
            if scene.is_dir():  # else it has no frames
                os.replace(keyframes / JOURNAL, scene / JOURNAL)
            shutil.rmtree(keyframes)
        # Hidden ones are what a killed replay has left of a file.
        files = sorted(f for f in self.path.iterdir() if not f.name.startswith("."))
        for file in files:
            if file.is_dir():
                replace_folder(file, output / file.name)
            else:
                os.replace(file, output / file.name)
        return [file.name for file in files]


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
        left = [f.parent for f in output.glob(f"{UNFINISHED}*/{CHECKPOINT}")]
        newest = max(left, key=lambda f: (f / CHECKPOINT).stat().st_mtime_ns, default=None)
        if newest is not None:
            _lock(newest, stack)
            return WorkFolder(newest, continued=True)
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
    shutil.rmtree(folder, ignore_errors=True)
    if not existed:
        with contextlib.suppress(OSError):  # not empty: it holds the results
            output.rmdir()


def _left(work: WorkFolder) -> str:
    """Returns what an interrupted replay has left, for the user; empty if that is nothing."""
    notes = []
    if work.checkpoint.exists():
        notes.append("the same command with --resume goes on")
    for kept in sorted(work.path.glob(f"{KEYFRAMES}*")):
        count = 0
        with contextlib.suppress(JournalError), StoredScene.open(kept) as stored:
            count = len(stored.images)
        if count:
            notes.append(f"{count} keyframes are kept: da3_ros export {kept} NAME.glb")
    return "; ".join(notes)
