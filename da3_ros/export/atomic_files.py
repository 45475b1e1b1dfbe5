"""Files and folders that appear whole or not at all."""

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
    """A temporary path beside ``path``, renamed to it at the end, removed on any error.

    Raises ExportError when the folder cannot be made or written, and for what is no regular file.
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
def atomic_folder(path: Path, ours: Callable[[Path], bool]) -> Iterator[Path]:
    """A temporary folder beside ``path``, renamed to it at the end, removed on any error.

    A folder that is there already is replaced if it is empty, or if ``ours`` says that it holds
    nothing but what is written here. Raises ExportError, also for any other folder.
    """
    try:
        if path.is_dir():
            _check_ours(path, ours)
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


def _check_ours(folder: Path, ours: Callable[[Path], bool]) -> None:
    if any(folder.iterdir()) and not ours(folder):
        raise ExportError(f"{folder} is a folder that holds other things: name a new one")


def _check_regular(path: Path) -> None:
    """Raise ExportError for a device, a pipe or a socket: a rename would put a file in its place.

    A folder is left to the rename, which refuses it. Raises OSError, ValueError too.
    """
    with suppress(FileNotFoundError):
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise ExportError(f"{path} cannot be written: it is no regular file")


def replace_folder(new: Path, path: Path) -> None:
    """Move a folder to where one may be; the old one stays if that fails. Raises OSError."""
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
