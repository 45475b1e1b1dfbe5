"""An append-only file of records with checksums, which a crash at any byte leaves readable.

A record is a header, a description (JSON) and data (bytes). A record that is not complete, or
whose header or description is damaged, is left out. Damaged data is found when it is read.
``docs/keyframes.md`` has the format.
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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

# magic; lengths of description and data; their CRC-32; CRC-32 of all before it in the header
HEADER = struct.Struct("<4sIQIII")
MAGIC = b"DA3K"
CHUNK = 1 << 20
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
    """Reads the records of a journal; safe while another process appends to it."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self.path = path
        self._file: IO[bytes] = open(path, "rb", opener=_open_nonblocking)  # noqa: SIM115
        if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            self._file.close()
            raise OSError(errno.EINVAL, "not a regular file")
        self.end = 0  # offset behind the last complete record

    @property
    def is_begun(self) -> bool:
        """True if the file is empty, or ends within its first record."""
        self._file.seek(0)
        start = self._file.read(len(MAGIC))
        return not self.end and MAGIC.startswith(start)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def records(self) -> Iterator[Record]:
        """Yields the complete records that were not read yet."""
        while (found := self._next()) is not None:
            yield found

    def data(self, record: Record) -> bytes:
        """Returns the data of a record. Raises JournalError if it is damaged, or OSError."""
        self._file.seek(record.start)
        data = self._file.read(record.size)
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
        while True:
            self._file.seek(start)
            data = self._file.read(CHUNK)
            found = data.find(MAGIC)
            if found >= 0:
                return start + found
            if len(data) < CHUNK:
                return -1
            start += CHUNK - len(MAGIC)

    def _at(self, at: int) -> Record | None:
        """Returns the record that begins at an offset; None: there is none, or not all of it."""
        self._file.seek(at)
        header = self._file.read(HEADER.size)
        if len(header) < HEADER.size:
            return None
        magic, length, size, description_crc, crc, header_crc = HEADER.unpack(header)
        good = magic == MAGIC and zlib.crc32(header[:-4]) == header_crc
        if not good or length > MAX_DESCRIPTION or size > MAX_DATA:
            return None
        text = self._file.read(length)
        if len(text) < length or zlib.crc32(text) != description_crc:
            return None
        start = at + HEADER.size + length
        if os.fstat(self._file.fileno()).st_size < start + size:
            return None
        try:
            description = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if not isinstance(description, dict):
            return None
        return Record(description, start, size, crc)


def _open_nonblocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe would block


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

    def append(self, description: dict[str, Any], data: bytes = b"") -> None:
        """Appends a record. Raises OSError, and leaves the journal as it was."""
        self.append_all([(description, data)])

    def append_all(self, records: Iterable[tuple[dict[str, Any], bytes]]) -> None:
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


def _parts(description: dict[str, Any], data: bytes) -> tuple[bytes, ...]:
    """Returns the bytes of a record, in pieces."""
    text = json.dumps(description, separators=(",", ":")).encode()
    head = struct.pack("<4sIQII", MAGIC, len(text), len(data), zlib.crc32(text), zlib.crc32(data))
    return head, struct.pack("<I", zlib.crc32(head)), text, data
