"""Rows of the text files of data sets: stamps, poses, and what is wrong with a row."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np

from da3_ros.geometry.poses import matrix_from_quaternion, nearest_rotation
from da3_ros.recordings.base import LATEST_S, RecordingError, stamp_of
from da3_ros.types import Array

log = logging.getLogger(__name__)

ROUNDING = 0.02  # of a rotation that was written with few digits, per element of R R^T

AT_ONCE = 4096  # lines whose poses are computed together

Pose = TypeVar("Pose")
Row = tuple[int, str]  # number of the line, and its text


def rows(path: Path, *, blank: bool = False) -> Iterator[Row]:
    """Yields the lines of a text file without comments (#), and without empty ones unless
    ``blank``. Raises RecordingError."""
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            for number, line in enumerate(file, 1):
                text = line.strip()
                if not text.startswith("#") and (text or blank):
                    yield number, text
    except OSError as error:
        raise RecordingError(f"{path} cannot be read: {error.strerror or error}") from error


def cells(text: str) -> list[str]:
    """Returns the cells of a row, which commas or white space divide."""
    return text.replace(",", " ").split()


def seconds_to_ns(text: str) -> int:
    """Returns a decimal number of seconds in nanoseconds, exact. Raises ValueError."""
    try:
        seconds = Decimal(text)
    except InvalidOperation as error:
        raise ValueError(f"{text!r} is not a number") from error
    if not seconds.is_finite() or not 0 <= seconds < LATEST_S:
        raise ValueError(f"{text} s is not a time")
    return int((seconds * 1_000_000_000).to_integral_value())


def to_ns(text: str) -> int:
    """Returns an integer number of nanoseconds. Raises ValueError."""
    if not re.fullmatch(r"\d{1,19}", text) or int(text) >= LATEST_S * 10**9:
        raise ValueError(f"{text!r} is not a time in ns")
    return int(text)


def numbered_stamp(text: str, rate_hz: float) -> int:
    """Returns the stamp in ns of an image by its number. Raises ValueError."""
    if not re.fullmatch(r"\d{1,9}", text):
        raise ValueError(f"{text!r} is not the number of an image")
    return stamp_of(int(text), rate_hz)


def numbers(texts: Sequence[str | float], count: int) -> list[float]:
    """Returns the first ``count`` cells as finite numbers. Raises ValueError."""
    values = [float(text) for text in texts[:count]]
    if len(values) < count:
        raise ValueError(f"{len(values)} numbers, {count} are needed")
    if not all(map(math.isfinite, values)):
        raise ValueError("a number is not finite")
    return values


def pose_of(position: Sequence[float], quaternion: Sequence[float]) -> Array:
    """Returns the pose [4, 4] of a position (x, y, z) and a quaternion (x, y, z, w) of any length
    but zero. Raises ValueError."""
    if not any(quaternion):
        raise ValueError("the quaternion is zero")
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = matrix_from_quaternion(np.array(quaternion)), position
    return T


def pose_of_matrix(values: Sequence[float]) -> Array:
    """Returns the pose [4, 4] whose rows are in ``values`` (12 or 16), the rotation made exact.

    Raises ValueError for what is not a rigid transform.
    """
    T = np.eye(4)
    T[:3] = np.reshape(values[:12], (3, 4))
    R = T[:3, :3]
    if np.abs(R @ R.T - np.eye(3)).max() > ROUNDING or np.linalg.det(R) < 0:
        raise ValueError("its rotation is none")
    T[:3, :3] = nearest_rotation(R)
    return T


def read_poses(
    path: Path, lines: Iterable[Row], read: Callable[[Row], tuple[int, Pose]], *,
    images: bool = False, what: str = "a pose",
) -> Iterator[tuple[int, Pose]]:  # fmt: skip
    """Yields what ``read`` makes of lines of ``path``: stamp in ns and pose, or what is named.

    Lines for which it raises ValueError are left out with one warning. images: whether a line is
    the name of an image.
    """
    kind = "image" if images else "line"
    bad: list[str] = []
    for line in lines:
        try:
            yield read(line)
        except ValueError as error:
            bad.append(f"{kind} {line[1] if images else line[0]}: {error}")
    if bad:
        log.warning(
            "%s: %d %ss without %s are left out (%s)", path.name, len(bad), kind, what, bad[0]
        )


def tum_poses(path: Path) -> Iterator[tuple[int, Array]]:
    """Yields the poses [4, 4] of a file with lines of ``stamp tx ty tz qx qy qz qw`` (s, m), as
    the TUM RGB-D benchmark has them. Raises RecordingError."""

    def read(line: Row) -> tuple[int, Sequence[float]]:
        stamp, *rest = cells(line[1])
        values = numbers(rest, 7)
        if not 0 < sum(q * q for q in values[3:]) < math.inf:
            raise ValueError("the quaternion is zero")
        return seconds_to_ns(stamp), values

    found = read_poses(path, rows(path), read)
    while some := list(islice(found, AT_ONCE)):  # a matrix alone takes most of the time
        values = np.array([seven for _, seven in some])
        T = np.tile(np.eye(4), (len(some), 1, 1))
        T[:, :3, :3], T[:, :3, 3] = matrix_from_quaternion(values[:, 3:]), values[:, :3]
        yield from zip((stamp_ns for stamp_ns, _ in some), T, strict=True)
