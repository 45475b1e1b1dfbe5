"""Finds processes of this machine, and how long they wait for a processor."""

from pathlib import Path

PATIENCE_S = 120.0  # longest wait for another process


def processes_with(argument):
    """The command lines of all processes with this argument."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = file.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if str(argument) in arguments:
            found.append(arguments)
    return found


def queued_s(pid):
    """Seconds that each thread of a process has waited for a processor; {} where unknown."""
    found = {}
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            found[file.parent.name] = int(file.read_text().split()[1]) / 1e9
        except (OSError, IndexError):  # it has ended
            continue
    return found


def delay_s(before, now):
    """The longest that one thread has waited since ``before``."""
    return max((now[thread] - before.get(thread, 0.0) for thread in now), default=0.0)
