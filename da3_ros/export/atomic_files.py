"""Writes files and folders atomically: they appear complete or not at all.

Until then they are hidden beside their place, and locked. What a killed process has left of them
is removed when the same file or folder is written again.
"""

from __future__ import annotations

import fcntl
import glob
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from da3_ros.export.selection import ExportError

MARK = "da3_ros"  # in hidden names, so that nothing else is removed
RANDOM = r"[a-z0-9_]{8}"  # what `tempfile` adds
LOCKED_AFTER_S = 60.0  # what was just made may not be locked yet

Foreign = Callable[[Path], Path | None]  # returns a file of a folder that is not ours to delete


def check_file_target(path: Path) -> None:
    """Raises ExportError if no file can be written to ``path``; makes nothing.

    For what takes minutes to compute: before that, not after it.
    """
    try:
        _check_regular(path)
        _check_writable(path.parent)
    except (OSError, ValueError) as error:
        raise ExportError(f"{path} cannot be written: {error}") from error


def check_folder_target(path: Path, foreign: Foreign) -> None:
    """Raises ExportError if no folder can be written to ``path``, as ``atomic_folder`` would;
    makes nothing."""
    try:
        _check_folder(path, foreign)
        _check_writable(path.parent)
    except (OSError, ValueError) as error:
        raise ExportError(f"{path} cannot be written: {error}") from error


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside ``path``, renamed to it at the end, removed on any error.

    Raises ExportError if the folder cannot be made or written, or ``path`` is not a regular file.
    """
    try:
        _check_regular(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_left(path, path.stem, path.suffix)
        handle, name = tempfile.mkstemp(
            dir=path.parent, prefix=hidden_prefix(path.stem), suffix=path.suffix
        )
    except (OSError, ValueError) as error:
        raise ExportError(f"{path} cannot be written: {error}") from error
    temporary = Path(name)
    try:
        _lock(handle)
        yield temporary
        temporary.chmod(0o644)
        _check_regular(path)
        os.replace(temporary, path)
    except OSError as error:
        raise ExportError(f"{path} cannot be written: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)
        os.close(handle)


@contextmanager
def atomic_folder(path: Path, foreign: Foreign) -> Iterator[Path]:
    """Yields a temporary folder beside ``path``, renamed to it at the end, removed on any error.

    An existing folder is replaced if ``foreign`` finds no file in it that is not ours. Raises
    ExportError, also for any other existing folder.
    """
    try:
        _check_folder(path, foreign)
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_left(path, path.name)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=hidden_prefix(path.name)))
        handle = os.open(temporary, os.O_RDONLY)
    except (OSError, ValueError) as error:
        raise ExportError(f"{path} cannot be written: {error}") from error
    try:
        _lock(handle)
        yield temporary
        temporary.chmod(0o755)
        replace_folder(temporary, path)
    except OSError as error:
        raise ExportError(f"{path} cannot be written: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        os.close(handle)


def hidden_prefix(name: str) -> str:
    """Returns what the name of a file or folder begins with that is to be ``name``."""
    return f".{name}-{MARK}-"


def _remove_left(path: Path, name: str, suffix: str = "") -> None:
    """Removes what killed processes have left beside ``path``; an old folder that they were
    replacing returns to its place."""
    prefix = hidden_prefix(name)
    ours = re.compile(re.escape(prefix) + f"(old-)?{RANDOM}" + re.escape(suffix))
    for left in path.parent.glob(f"{glob.escape(prefix)}*"):
        if ours.fullmatch(left.name) and not left.is_symlink():
            with suppress(OSError):  # another process works in it, or has removed it
                _remove_unlocked(left, path)


def _remove_unlocked(left: Path, path: Path) -> None:
    """Raises OSError if a process works in ``left``."""
    if time.time() - left.stat().st_ctime < LOCKED_AFTER_S:
        return
    handle = os.open(left, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not left.is_dir():
            left.unlink()
        elif left.name.startswith(f"{hidden_prefix(path.name)}old-") and not path.exists():
            os.rename(left, path)
        else:
            shutil.rmtree(left)
    finally:
        os.close(handle)


def _lock(handle: int) -> None:
    """Locks until ``handle`` is closed or this process has ended; not every disk can."""
    with suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def files_in(folder: Path) -> list[Path]:
    """Returns what lies in a folder at any depth, links too; not folders, which hold no data."""
    return sorted(p for p in folder.rglob("*") if p.is_symlink() or not p.is_dir())


def size_of(path: Path) -> int:
    """Returns the bytes of a file, or of all files in a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(f.stat().st_size for f in files if f.is_file())


def _check_folder(path: Path, foreign: Foreign) -> None:
    """Raises ExportError for what must not become a folder of ours; OSError, ValueError."""
    if not path.is_dir():
        _check_regular(path)
        if path.exists():
            raise ExportError(f"{path} cannot be written: it is a file, and this is a folder")
    elif any(path.iterdir()) and (file := foreign(path)) is not None:
        raise ExportError(
            f"{path} is a folder with other contents ({file.relative_to(path)}): name a new one"
        )


def _check_regular(path: Path) -> None:
    """Raises ExportError for a folder, and for a device, a pipe or a socket, which a rename would
    replace by a file. Also raises OSError, ValueError.
    """
    with suppress(FileNotFoundError):
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise ExportError(f"{path} cannot be written: it is a folder")
        if not stat.S_ISREG(mode):
            raise ExportError(f"{path} cannot be written: it is not a regular file")


def _check_writable(folder: Path) -> None:
    """Raises OSError, ValueError if nothing can be made in a folder, or it cannot be made."""
    while not folder.exists():
        folder = folder.parent
    with tempfile.TemporaryFile(dir=folder):
        pass


def replace_folder(new: Path, path: Path) -> None:
    """Moves a folder to ``path`` and removes an old one there, which stays if that fails or is
    interrupted.

    Raises OSError.
    """
    if not path.is_dir():
        os.rename(new, path)
        return
    old = Path(tempfile.mkdtemp(dir=path.parent, prefix=f"{hidden_prefix(path.name)}old-"))
    try:
        os.replace(path, old)  # an empty folder may be replaced
        os.rename(new, path)
    finally:
        if os.path.lexists(path):
            shutil.rmtree(old, ignore_errors=True)
        else:
            with suppress(OSError):
                os.rename(old, path)
