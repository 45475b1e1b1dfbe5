"""Waits for a process as long as it makes progress, however loaded the machine is.

Progress is processor time of the process and its children, or output: on a loaded machine both
come slowly, in a process that waits for ever not at all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

STALLED_S = 300.0  # without any progress
MOST_CPU_S = 1800.0  # then it runs in circles
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def wait_while_it_works(
    join: Callable[[float], object],
    ended: Callable[[], bool],
    progress: Callable[[], tuple[float, ...]],
    stalled_s: float = STALLED_S,
    most_cpu_s: float = MOST_CPU_S,
) -> bool:
    """Wait until ``ended()``; False if there was no progress for ``stalled_s`` seconds.

    join: waits at most so many seconds for the end. progress: CPU seconds, then anything that
    changes while the process works. False, too, if it took more than ``most_cpu_s``.
    """
    seen, since_s = progress(), time.monotonic()
    while True:
        join(min(1.0, stalled_s / 4))
        if ended():
            return True
        now = progress()
        if now != seen:
            seen, since_s = now, time.monotonic()
        elif time.monotonic() - since_s > stalled_s:
            return False
        if seen[0] > most_cpu_s:
            return False


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and of its children, also of ended ones; 0 without /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [n for task in tasks for n in (task / "children").read_text().split()]
    except OSError:  # it has ended meanwhile, or this is not Linux
        return 0.0
    own = sum(map(int, fields[11:15])) / TICKS_PER_S  # user, system, and those of ended children
    return own + sum(cpu_s(int(child)) for child in children)
