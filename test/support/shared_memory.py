"""Shared memory of Fast DDS whose process was killed: 35 MB per node, until the machine restarts.

A segment ``fastdds_<name>`` has a file ``fastdds_<name>_el``, which its process keeps locked while
it lives. Ports are left alone: they are small, and the next process of their domain reuses them.
"""

from __future__ import annotations

import contextlib
import fcntl
import re
import time
from pathlib import Path

FOLDER = Path("/dev/shm")
YOUNG_S = 10.0  # a process may be slow between making and locking its file
LOCK = re.compile(r"(fastdds_[0-9a-z]{16})_el")


def remove_abandoned(young_s: float = YOUNG_S) -> int:
    """Removes the segments that no living process holds; returns their number."""
    count = 0
    for lock in FOLDER.glob("fastdds_*_el"):
        match = LOCK.fullmatch(lock.name)
        with contextlib.suppress(OSError):  # it is held, or another process removed it
            if match and time.time() - lock.stat().st_mtime >= young_s:
                with lock.open("rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    (FOLDER / match[1]).unlink(missing_ok=True)
                    lock.unlink()
                count += 1
    return count
