"""The room on the disk that the files of one run may take together."""

from __future__ import annotations

import threading


class LimitError(OSError):
    """The limit is reached."""


class DiskLimit:
    """Most bytes of some files; each has a ``DiskShare``."""

    def __init__(self, most: int = -1) -> None:
        """most: bytes; -1: no limit."""
        self._most = most
        self._lock = threading.Lock()
        self._sizes: list[int] = []

    def share(self) -> DiskShare:
        """Returns the share of another file."""
        with self._lock:
            self._sizes.append(0)
            return DiskShare(self, len(self._sizes) - 1)

    def set_size(self, file: int, size: int) -> None:
        """Notes the size of a file, bytes."""
        with self._lock:
            self._sizes[file] = size

    def allows(self, file: int, size: int) -> bool:
        """Whether a file may have a size, bytes, beside what the others have; notes it if so."""
        with self._lock:
            allowed = self._most < 0 or sum(self._sizes) - self._sizes[file] + size <= self._most
            if allowed:
                self._sizes[file] = size
            return allowed

    def __str__(self) -> str:
        return f"the run's files have reached {self._most / 1e9:.1f} GB: see map.disk_gb"


class DiskShare:
    """What one file takes of a ``DiskLimit``; may be used by any thread."""

    def __init__(self, limit: DiskLimit, file: int) -> None:
        self._limit, self._file = limit, file

    def set_size(self, size: int) -> None:
        """Notes the file's size, bytes."""
        self._limit.set_size(self._file, size)

    def require(self, size: int) -> None:
        """Notes the file's size, bytes. Raises LimitError if that is too much."""
        if not self._limit.allows(self._file, size):
            raise LimitError(str(self._limit))
