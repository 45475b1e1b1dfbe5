"""Files of a folder from anywhere: opened if regular, inside it, and not too large."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from da3_ros.keyframe_store.checks import check


class SceneFileError(RuntimeError):
    """A folder without a loadable scene; one line that names it and the cause."""


def path_inside(folder: Path, name: str) -> Path:
    """Returns the real path of a regular file inside ``folder``.

    A pipe would block forever, opening a device may have effects, and a link could point to any
    file of this machine. Raises OSError, ValueError, RuntimeError (cycle of links).
    """
    path = (folder / name).resolve(strict=True)
    if folder.resolve() not in path.parents:
        raise ValueError(f"{name} points out of the folder: only export_dir is read")
    _check_regular(path.lstat(), name)
    return path


@contextmanager
def opened_inside(folder: Path, name: str, most: int) -> Iterator[IO[bytes]]:
    """Opens a file as ``path_inside`` returns it, of at most ``most`` bytes. Raises as that."""
    # The file may have been replaced since it was looked at.
    with open(path_inside(folder, name), "rb", opener=_open_nonblocking) as file:
        status = os.fstat(file.fileno())
        _check_regular(status, name)
        check(status.st_size <= most, f"the size of {name}")
        yield file


def _open_nonblocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


def _check_regular(status: os.stat_result, name: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{name} is not a regular file")
