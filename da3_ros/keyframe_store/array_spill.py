"""Arrays of which memory cannot hold more: in a file, mapped into memory.

The operating system reads what is looked at, and may forget it again. What is forgotten in the
program stays in the file until it ends.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from da3_ros.keyframe_store.disk_limit import DiskLimit

SEGMENT = 1 << 30  # bytes that are mapped at once
ALIGNMENT = 64  # bytes
WAITING = 64 << 20  # bytes that wait for the disk at most
RETRY_S = 10.0  # after a failure
HANGS_S = 10.0  # without anything written while something waits: the disk hangs
PIECE = 1 << 24  # bytes that are checked at once

Arrays = list[NDArray[Any]]


class SpillBusyError(Exception):
    """Much waits for a disk that works: offer it later."""


class ArraySpill:
    """Appends arrays to a file, and returns them as arrays that lie there. Used by one thread;
    the arrays may be read by any."""

    def __init__(
        self, folder: Path, name: str = "", *, size: int = 0, crc: int = 0,
        limit: DiskLimit | None = None, background: bool = False,
    ) -> None:  # fmt: skip
        """name: of the file, which goes on after ``size`` bytes with the checksum ``crc``; empty:
        the file has no name, and ends with the process. limit: of the files of the run.
        background: ``offer`` does not wait for the disk. Raises OSError."""
        self._folder, self._background = folder, background
        self._share = (limit or DiskLimit()).share()
        self._share.set_size(size)
        self._file: IO[bytes] = (
            open(folder / name, "r+b" if size else "w+b", buffering=0)  # noqa: SIM115
            if name
            else _nameless(folder)
        )
        if os.fstat(self._file.fileno()).st_size < size:
            raise OSError(f"{folder / name} is not complete")
        if size and self._checksum(size) != crc:
            raise OSError(f"{folder / name} is damaged")
        if size:  # what follows was written after the last checkpoint
            os.ftruncate(self._file.fileno(), size)
        self._has_name = bool(name)
        self.size = size  # bytes
        self.crc = crc  # CRC-32 of a file with a name
        self._segments: dict[int, mmap.mmap] = {}
        self._lock = threading.Lock()  # for what follows, all of the background
        self._jobs: deque[Callable[[], None]] = deque()  # which raise nothing
        self._waiting = 0  # bytes
        self._progress_at = 0.0  # when something was written, or began to wait
        self._has_thread = False
        self._retry_at = 0.0  # after a failure, and until when

    @property
    def is_ready(self) -> bool:
        """False for a time after a failure in the background: ``offer`` raises OSError."""
        return time.monotonic() >= self._retry_at

    def put(self, arrays: Sequence[NDArray[Any]]) -> Arrays:
        """Writes arrays; returns equal ones, read-only, that take no memory.

        Raises OSError: no room on the disk, or above the limit.
        """
        return self.offer(arrays).result()

    def offer(self, arrays: Sequence[NDArray[Any]]) -> Future[Arrays]:
        """Writes arrays, which must not change meanwhile; the result is that of ``put``.

        In the background the future has the OSError of the disk. Raises SpillBusyError: too much
        waits for the disk; OSError: as ``put``, or the disk hangs.
        """
        future: Future[Arrays] = Future()
        if not self._background:
            future.set_result(self._put(arrays))
            return future
        nbytes = sum(array.nbytes for array in arrays)
        with self._lock:
            if not self.is_ready:
                raise OSError("the disk failed a moment ago")
            if self._waiting and time.monotonic() > self._progress_at + HANGS_S:
                raise OSError("the disk does not answer")
            if self._waiting and self._waiting + nbytes > WAITING:
                raise SpillBusyError
            if not self._waiting:
                self._progress_at = time.monotonic()
            self._do(lambda: self._put_later(arrays, nbytes, future))
            self._waiting += nbytes
        return future

    def _do(self, job: Callable[[], None]) -> None:
        """Does a job after the ones before it. A thread lives as long as there are some.

        Raises OSError if there can be no thread.
        """
        self._jobs.append(job)
        if self._has_thread:
            return
        try:
            threading.Thread(target=self._work, name="da3-spill", daemon=True).start()
        except RuntimeError as error:
            self._jobs.pop()
            raise OSError(str(error)) from error
        self._has_thread = True

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._has_thread = False
                    return
                job = self._jobs.popleft()
            job()

    def _put_later(
        self, arrays: Sequence[NDArray[Any]], nbytes: int, future: Future[Arrays]
    ) -> None:
        try:
            future.set_result(self._put(arrays))
        except BaseException as error:  # the thread goes on
            self._retry_at = time.monotonic() + RETRY_S
            future.set_exception(error)
        with self._lock:
            self._waiting -= nbytes
            self._progress_at = time.monotonic()

    def _put(self, arrays: Sequence[NDArray[Any]]) -> Arrays:
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
        self._share.require(end)
        crc, before = self.crc, self.size
        try:
            for start, array in zip(starts, data, strict=True):
                some = array.reshape(-1).view(np.uint8).data
                self._write(start, some)
                if self._has_name:
                    crc = zlib.crc32(some, _crc_of_zeros(start - before, crc))
                    before = start + array.nbytes
        except OSError:
            self._cut()
            self._share.set_size(self.size)
            raise
        self.size, self.crc = end, crc
        return [self.at(s, a.dtype, a.shape) for s, a in zip(starts, data, strict=True)]

    def _cut(self) -> None:
        """Removes what a write that failed has left, so that holes are zeros."""
        with contextlib.suppress(OSError):
            length = os.fstat(self._file.fileno()).st_size
            os.ftruncate(self._file.fileno(), self.size)
            os.ftruncate(self._file.fileno(), length)  # arrays are mapped up to there

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

    def offset_of(self, array: NDArray[Any]) -> int | None:
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
        """Begins anew: earlier arrays stay valid while they are in use."""
        if not self._background:
            self._begin_file()
            return
        with self._lock, contextlib.suppress(OSError):
            self._do(self._begin_file)

    def _begin_file(self) -> None:
        if self._has_name:  # the file may be needed after a crash
            return
        with contextlib.suppress(OSError, MemoryError):  # else it goes on in the old file
            self._file = _nameless(self._folder)
            self.size, self._segments = 0, {}
        self._share.set_size(self.size)

    def sync(self) -> None:
        """Waits until all is on the disk. Raises OSError."""
        os.fsync(self._file.fileno())

    def _write(self, start: int, data: memoryview) -> None:
        while len(data):
            written = os.pwrite(self._file.fileno(), data, start)
            start, data = start + written, data[written:]

    def _checksum(self, size: int) -> int:
        crc = 0
        for start in range(0, size, PIECE):
            crc = zlib.crc32(os.pread(self._file.fileno(), min(PIECE, size - start), start), crc)
        return crc


def _crc_of_zeros(count: int, crc: int) -> int:
    """Returns the checksum after ``count`` more bytes of a hole in the file."""
    for start in range(0, count, PIECE):
        crc = zlib.crc32(bytes(min(PIECE, count - start)), crc)
    return crc


def _nameless(folder: Path) -> IO[bytes]:
    """Returns a file that ends with the process. Raises OSError."""
    return tempfile.TemporaryFile(dir=folder, buffering=0)
