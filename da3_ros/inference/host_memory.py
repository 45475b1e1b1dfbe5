"""The host's memory that this process may still take: of the machine, and within its cgroups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def host_free(proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> int:
    """Returns the bytes available to this process, within the limits of its cgroups.

    A container and a systemd unit with ``MemoryMax`` or ``MemoryHigh`` are cgroups; those of
    versions 1 and 2 count, with all that enclose them. proc, cgroups: where they are mounted.
    """
    try:
        lines = Path(proc, "meminfo").read_text().splitlines()
        free = next(int(x.split()[1]) * 1024 for x in lines if x.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")) // 2
    return max(0, min([free, *_left_in_groups(Path(proc), Path(cgroups))]))


def _left_in_groups(proc: Path, cgroups: Path) -> Iterator[int]:
    """Yields what each cgroup of this process, and each that encloses it, leaves of its limit.

    A container may see its own group as the root, under a path that it cannot see. Groups whose
    files are missing are passed over.
    """
    for first_version, path in _groups(proc):
        root = cgroups / "memory" if first_version else cgroups
        inside = PurePosixPath(path.lstrip("/"))
        for group in (inside, *inside.parents) if inside.parts else (inside,):
            left = _left(root / group, first_version)
            if left is not None:
                yield left


def _groups(proc: Path) -> Iterator[tuple[bool, str]]:
    """Yields whether a cgroup that may limit memory is one of version 1, and its path."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        lines = ["0::/"]
    for line in lines:
        _, _, group = line.partition(":")
        controllers, colon, path = group.partition(":")
        if not colon:
            continue
        if not controllers or "memory" in controllers.split(","):
            yield bool(controllers), path


def _left(group: Path, first_version: bool) -> int | None:
    """Returns the bytes that a cgroup leaves of its limit; None: it has no limit.

    Pages of files that were not used lately are freed before anything else fails.
    """
    if first_version:
        limits = [_number(group / "memory.limit_in_bytes")]
        used, idle = "memory.usage_in_bytes", "total_inactive"
    else:
        limits = [_number(group / name) for name in ("memory.max", "memory.high")]
        used, idle = "memory.current", "inactive"
    limit = min((n for n in limits if n is not None), default=None)
    taken = _number(group / used)
    if limit is None or taken is None:
        return None
    return limit - taken + _of_stat(group, f"{idle}_file")


def _number(path: Path) -> int | None:
    """Returns the number in a file; None: there is none, as in ``max``."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _of_stat(group: Path, name: str) -> int:
    try:
        lines = (group / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(x.split()[1]) for x in lines if x.startswith(f"{name} ")), 0)
