"""Writes files and folders atomically: they appear complete or not at all."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from da3_ros.export.selection import ExportError


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside ``path``, renamed to it at the end, removed on any error.

    Raises ExportError if the folder cannot be made or written, or ``path`` is not a regular file.
    """
    try:
        _check_regular(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(
            dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix
        )
        os.close(handle)
    except (OSError, ValueError) as error:
        raise ExportError(f"{path} cannot be written: {error}") from error
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        _check_regular(path)
        os.replace(temporary, path)
    except OSError as error:
        raise ExportError(f"{path} cannot be written: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path, is_replaceable: Callable[[Path], bool]) -> Iterator[Path]:
    """Yields a temporary folder beside ``path``, renamed to it at the end, removed on any error.

    An existing folder is replaced if it is empty or ``is_replaceable`` accepts it. Raises
    ExportError, also for any other existing folder.
    """
    try:
        if path.is_dir():
            _check_replaceable(path, is_replaceable)
        else:
            _check_regular(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}-"))
    except (OSError, ValueError) as error:
        raise ExportError(f"{path} cannot be written: {error}") from error
    try:
        yield temporary
        temporary.chmod(0o755)
        replace_folder(temporary, path)
    except OSError as error:
        raise ExportError(f"{path} cannot be written: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _check_replaceable(folder: Path, is_replaceable: Callable[[Path], bool]) -> None:
    if any(folder.iterdir()) and not is_replaceable(folder):
        raise ExportError(f"{folder} is a folder with other contents: name a new one")


def _check_regular(path: Path) -> None:
    """Raises ExportError for a device, a pipe or a socket, which a rename would replace by a file.

    A folder is accepted: the rename refuses it. Also raises OSError, ValueError.
    """
    with suppress(FileNotFoundError):
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise ExportError(f"{path} cannot be written: it is not a regular file")


def replace_folder(new: Path, path: Path) -> None:
    """Moves a folder to ``path`` and removes an old one there, which stays if that fails.

    Raises OSError.
    """
    if not path.is_dir():
        os.rename(new, path)
        return
    old = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}-old-"))
    os.replace(path, old)  # an empty folder may be replaced
    try:
        os.rename(new, path)
    except OSError:
        with suppress(OSError):
            os.rename(old, path)
        raise
    shutil.rmtree(old, ignore_errors=True)
