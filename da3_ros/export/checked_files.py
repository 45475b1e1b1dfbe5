"""Files of a folder from anywhere: opened if regular, inside it, and not too large."""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from da3_ros.keyframe_store.checks import check

OVERHEAD = 4096  # largest overhead of a file of arrays, bytes


@contextmanager
def checked_arrays(folder: Path, name: str, size: int) -> Iterator[Any]:
    """Yields the arrays of a file, after checking that it holds ``size`` bytes of them.

    So that no header makes NumPy allocate all memory, and zlib inflates no zip bomb.
    """
    with opened_inside(folder, name, size + OVERHEAD) as file:
        check(os.fstat(file.fileno()).st_size >= size, f"the size of {name}")
        with zipfile.ZipFile(file) as members:
            inflated = sum(member.file_size for member in members.infolist())
        check(inflated <= size + OVERHEAD, f"the size of {name}")
        file.seek(0)
        with np.load(file, allow_pickle=False) as data:
            yield data


@contextmanager
def opened_inside(folder: Path, name: str, most: int) -> Iterator[IO[bytes]]:
    """Opens a regular file inside ``folder`` of at most ``most`` bytes; used for all reading.

    A pipe would block forever, opening a device may have effects, and a link could point to any
    file of this machine. Raises OSError, ValueError, RuntimeError (cycle of links).
    """
    path = (folder / name).resolve(strict=True)
    if folder.resolve() not in path.parents:
        raise ValueError(f"{name} points out of the folder: only export_dir is read")
    # Before opening, because opening a device may have effects; and after it, because the file may
    # have been replaced meanwhile.
    _check_regular(path.lstat(), name)
    with open(path, "rb", opener=_open_nonblocking) as file:
        status = os.fstat(file.fileno())
        _check_regular(status, name)
        check(status.st_size <= most, f"the size of {name}")
        yield file


def _open_nonblocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


def _check_regular(status: os.stat_result, name: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{name} is not a regular file")
