"""Arrays of which memory cannot hold more: in a file, mapped into memory.

The operating system reads what is looked at, and may forget it again. What is forgotten in the
program stays in the file until it ends.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

SEGMENT = 1 << 30  # bytes that are mapped at once
ALIGNMENT = 64  # bytes


class ArraySpill:
    """Appends arrays to a file, and returns them as arrays that lie there. Not thread-safe, but
    the arrays may be read by any thread."""

    def __init__(
        self, folder: Path, name: str = "", *, size: int = 0, limit_bytes: int = -1
    ) -> None:
        """name: of the file, which goes on after ``size`` bytes; empty: the file has no name, and
        ends with the process. limit_bytes: of the file; -1: none. Raises OSError."""
        self._folder, self._limit = folder, limit_bytes
        self._file: IO[bytes] = (
            open(folder / name, "r+b" if size else "w+b", buffering=0)  # noqa: SIM115
            if name
            else _nameless(folder)
        )
        if os.fstat(self._file.fileno()).st_size < size:
            raise OSError(f"{folder / name} is not complete")
        self._has_name = bool(name)
        self._begin, self.size = 0, size  # bytes of the file before the first array; of the file
        self._segments: dict[int, mmap.mmap] = {}

    def put(self, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Writes arrays; returns equal ones, read-only, that take no memory.

        Raises OSError: no room on the disk, or above the limit.
        """
        data = [np.ascontiguousarray(array) for array in arrays]
        starts, end = [], self.size
        for array in data:
            end = -(-end // ALIGNMENT) * ALIGNMENT
            if end // SEGMENT != (end + array.nbytes) // SEGMENT:
                end = -(-end // SEGMENT) * SEGMENT
            if array.nbytes >= SEGMENT:
                raise OSError(f"an array has {array.nbytes / 1e9:.1f} GB")
            starts.append(end)
            end += array.nbytes
        if 0 <= self._limit < end - self._begin:
            raise OSError(f"{self._limit / 1e9:.1f} GB are reached: see map.disk_gb")
        for start, array in zip(starts, data, strict=True):
            self._write(start, array.reshape(-1).view(np.uint8).data)
        self.size = end
        return [self.at(s, a.dtype, a.shape) for s, a in zip(starts, data, strict=True)]

    def at(self, start: int, dtype: np.dtype[Any], shape: Sequence[int]) -> NDArray[Any]:
        """Returns the array that lies at a byte of the file. Raises OSError, ValueError."""
        count = int(np.prod(shape, dtype=np.int64))
        if not 0 <= start <= start + count * dtype.itemsize <= self.size:
            raise ValueError("an array lies outside the file")
        if not count:
            return np.zeros(shape, dtype)
        number, offset = divmod(start, SEGMENT)
        if number not in self._segments:
            if os.fstat(self._file.fileno()).st_size < (number + 1) * SEGMENT:
                os.ftruncate(self._file.fileno(), (number + 1) * SEGMENT)  # has holes
            self._segments[number] = mmap.mmap(
                self._file.fileno(), SEGMENT, prot=mmap.PROT_READ, offset=number * SEGMENT
            )
        return np.ndarray(shape, dtype, self._segments[number], offset)

    def place_of(self, array: NDArray[Any]) -> int | None:
        """Returns the byte of the file where an array lies; None: it does not lie there, or not
        in one piece."""
        owner: Any = array
        while isinstance(owner, np.ndarray):
            owner = owner.base
        for number, segment in self._segments.items():
            if (owner is segment or getattr(owner, "obj", None) is segment) and (
                array.flags.c_contiguous
            ):
                first = np.frombuffer(segment, np.uint8, 1).ctypes.data
                return number * SEGMENT + array.ctypes.data - first
        return None

    def begin(self) -> None:
        """Begins anew: earlier arrays stay valid as long as somebody holds them."""
        self._begin = self.size
        if self._has_name:  # the file may be needed after a crash
            return
        with contextlib.suppress(OSError):  # else it goes on in the old file
            self._file = _nameless(self._folder)
            self._begin = self.size = 0
            self._segments = {}

    def sync(self) -> None:
        """Waits until all is on the disk. Raises OSError."""
        os.fsync(self._file.fileno())

    def _write(self, start: int, data: memoryview) -> None:
        while len(data):
            written = os.pwrite(self._file.fileno(), data, start)
            start, data = start + written, data[written:]


def _nameless(folder: Path) -> IO[bytes]:
    """Returns a file that ends with the process. Raises OSError."""
    return tempfile.TemporaryFile(dir=folder, buffering=0)
