"""An append-only file of records with checksums, which a crash at any byte leaves readable.

A record is a header, a description (JSON) and data (bytes). A record that is not complete, or
whose header or description is damaged, is left out. Damaged data is found when it is read.
``docs/scene_file.md`` has the format.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import stat
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

# magic; lengths of description and data; their CRC-32; CRC-32 of all before it in the header
HEADER = struct.Struct("<4sIQIII")
MAGIC = b"DA3K"
CHUNK, SHORT = 1 << 20, 512  # bytes that are read at once; of most descriptions
MAX_DESCRIPTION, MAX_DATA = 1 << 20, 1 << 30  # bytes


log = logging.getLogger(__name__)


class JournalError(RuntimeError):
    """A journal that cannot be read; one line that names it and the cause."""


@dataclass(frozen=True)
class Record:
    """A record, without its data."""

    description: dict[str, Any]
    start: int  # offset of the data, bytes
    size: int  # of the data, bytes
    crc: int  # CRC-32 of the data


class JournalReader:
    """Reads the records of a journal; safe while another process appends to it. Any thread may
    read a record; one goes through them in their order."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self.path = path
        self._file: IO[bytes] = open(  # noqa: SIM115
            path, "rb", buffering=0, opener=_open_nonblocking
        )
        if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            self._file.close()
            raise OSError(errno.EINVAL, "not a regular file")
        self.end = 0  # offset behind the last complete record
        self._piece = 0, b"", 0  # offset, bytes that were searched, and size of the file then

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()

    @property
    def is_begun(self) -> bool:
        """True if the file is empty, or ends within its first record."""
        return not self.end and MAGIC.startswith(self._read(0, len(MAGIC)))

    @property
    def is_written(self) -> bool:
        """Whether a ``JournalWriter`` has the file open."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno == errno.EWOULDBLOCK  # not every disk can lock
        fcntl.flock(self._file, fcntl.LOCK_UN)
        return False

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def records(self) -> Iterator[Record]:
        """Yields the complete records that were not read yet."""
        while (found := self._next()) is not None:
            yield found

    def record(self, start: int) -> Record:
        """Returns the record that begins at a byte. Raises JournalError if there is none, or not
        all of it; OSError."""
        found = self._at(start) if start >= 0 else None
        if found is None:
            raise JournalError(f"{self.path}: the record at byte {start} is damaged")
        return found

    def last(self) -> Record | None:
        """Returns the record that ends the file, if it is a short one without data; else None.

        Raises OSError.
        """
        size = os.fstat(self._file.fileno()).st_size
        start = max(0, size - SHORT)
        at = self._read(start, SHORT).rfind(MAGIC)
        found = None if at < 0 else self._at(start + at)
        return found if found is not None and found.start == size else None

    def data(self, record: Record) -> bytes:
        """Returns the data of a record. Raises JournalError if it is damaged, or OSError."""
        data = self._read(record.start, record.size)
        if len(data) != record.size or zlib.crc32(data) != record.crc:
            raise JournalError(f"{self.path}: the record at byte {record.start} is damaged")
        return data

    def _next(self) -> Record | None:
        """Returns the next complete record, also behind a damaged one."""
        at = self.end
        while at >= 0:
            found = self._at(at)
            if found is not None:
                if at > self.end and self.end:
                    log.warning("%s: %d damaged bytes are left out", self.path, at - self.end)
                self.end = found.start + found.size
                return found
            at = self._find(at + 1)
        return None

    def _find(self, start: int) -> int:
        """Returns where the next header may begin; -1: nowhere."""
        size = os.fstat(self._file.fileno()).st_size
        while True:
            first, data, known = self._piece
            if known != size or not first <= start <= first + len(data):
                first, data = start, self._read(start, CHUNK)
                self._piece = first, data, size
            found = data.find(MAGIC, start - first)
            if found >= 0:
                return first + found
            if len(data) < CHUNK:
                return -1
            start = max(start, first + CHUNK - len(MAGIC) + 1)
            self._piece = 0, b"", 0

    def _at(self, at: int) -> Record | None:
        """Returns the record that begins at an offset; None: there is none, or not all of it."""
        data = self._read(at, HEADER.size + SHORT)  # with most descriptions
        if len(data) < HEADER.size:
            return None
        header, text = data[: HEADER.size], data[HEADER.size :]
        magic, length, size, description_crc, crc, header_crc = HEADER.unpack(header)
        good = magic == MAGIC and zlib.crc32(header[:-4]) == header_crc
        if not good or length > MAX_DESCRIPTION or size > MAX_DATA:
            return None
        start = at + HEADER.size + length
        text = text[:length] if length <= SHORT else self._read(at + HEADER.size, length)
        if len(text) < length or zlib.crc32(text) != description_crc:
            return None
        if os.fstat(self._file.fileno()).st_size < start + size:
            return None
        try:
            description = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if not isinstance(description, dict):
            return None
        return Record(description, start, size, crc)

    def _read(self, start: int, size: int) -> bytes:
        """Returns the bytes from an offset, fewer at the end of the file."""
        pieces = []
        while size and (piece := os.pread(self._file.fileno(), size, start)):
            pieces.append(piece)
            start, size = start + len(piece), size - len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _open_nonblocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)  # a pipe would block


class JournalWriter:
    """Appends records to a journal."""

    def __init__(self, path: Path, end: int = 0) -> None:
        """end: offset behind the last complete record; what follows is removed. Raises OSError."""
        self._file = open(path, "r+b" if path.exists() else "xb", buffering=0)  # noqa: SIM115
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise OSError(error.errno, f"{path} is written by another process") from error
        self._file.truncate(end)
        self._file.seek(end)
        self.size = end  # bytes
        self._is_whole = True  # False: a part of a record may follow

    def append(self, description: dict[str, Any], data: bytes | Sequence[memoryview] = b"") -> int:
        """Appends a record, whose data may be in pieces; returns the offset of its first byte.

        Raises OSError, and leaves the journal as it was.
        """
        start = self.size
        self.append_all([(description, data)])
        return start

    def append_all(
        self, records: Iterable[tuple[dict[str, Any], bytes | Sequence[memoryview]]]
    ) -> None:
        """Appends records, each a description and its data: all of them or none. Raises as
        ``append``."""
        some = memoryview(b"".join(part for record in records for part in _parts(*record)))
        if not self._is_whole:
            self._cut()
        self._is_whole = False
        try:
            written = 0
            while written < len(some):
                written += self._file.write(some[written:])
        except OSError:
            with contextlib.suppress(OSError):  # else before the next record
                self._cut()
            raise
        self.size, self._is_whole = self.size + len(some), True

    def _cut(self) -> None:
        """Removes what follows the last complete record: a later one must follow it. Raises
        OSError."""
        self._file.truncate(self.size)
        self._file.seek(self.size)
        self._is_whole = True

    def sync(self) -> None:
        """Waits until all records are on the disk. Raises OSError."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _parts(
    description: dict[str, Any], data: bytes | Sequence[memoryview]
) -> tuple[bytes | memoryview, ...]:
    """Returns the bytes of a record, in pieces. Raises OSError for too many of them."""
    text = json.dumps(description, separators=(",", ":")).encode()
    pieces = (data,) if isinstance(data, bytes) else tuple(data)
    size, crc = sum(memoryview(piece).nbytes for piece in pieces), 0
    if len(text) > MAX_DESCRIPTION or size > MAX_DATA:
        raise OSError(errno.EFBIG, "a record is too large")
    for piece in pieces:
        crc = zlib.crc32(piece, crc)
    head = struct.pack("<4sIQII", MAGIC, len(text), size, zlib.crc32(text), crc)
    return head, struct.pack("<I", zlib.crc32(head)), text, *pieces
