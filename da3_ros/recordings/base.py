"""What every kind of recording offers, and how frames are put in order and selected."""

from __future__ import annotations

import abc
import heapq
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from da3_ros.types import Frame

Item = TypeVar("Item")
Self = TypeVar("Self", bound="Recording")

REORDER_DEPTH = 8
TIME_JUMP_NS = 500_000_000
# Where a recording tells no time of day: zero would mean "no stamp" (and "latest") to ROS.
FIRST_STAMP_NS = 1_000_000_000


class RecordingError(RuntimeError):
    """A recording that cannot be used; one line says why and what helps."""


@dataclass(frozen=True)
class Selection:
    """Which frames are wanted: seconds after the first image, and every n-th of those."""

    start_s: float | None = None
    end_s: float | None = None
    every: int = 1

    def __post_init__(self) -> None:
        if self.every < 1:
            raise RecordingError(f"every is {self.every}: 1 or more")
        start = self.start_s or 0.0
        if not start >= 0.0:
            raise RecordingError(f"start is {start:g} s: 0 or more")
        if self.end_s is not None and not self.end_s > start:
            raise RecordingError(f"end ({self.end_s:g} s) must lie after start ({start:g} s)")

    def apply(self, items: Iterable[tuple[int, Item]]) -> Iterator[tuple[int, Item]]:
        """Those of (stamp_ns, item) pairs that are wanted; ends behind ``end_s``."""
        first: int | None = None
        taken = 0
        for stamp_ns, item in items:
            first = stamp_ns if first is None else first
            if self.end_s is not None and stamp_ns > first + round(self.end_s * 1e9):
                return
            if stamp_ns < first + round((self.start_s or 0.0) * 1e9):
                continue
            if taken % self.every == 0:
                yield stamp_ns, item
            taken += 1

    def estimate(self, count: int, duration_s: float) -> int:
        """About how many of ``count`` frames over ``duration_s`` are wanted."""
        end = duration_s if self.end_s is None else min(self.end_s, duration_s)
        share = 1.0 if duration_s <= 0 else max(0.0, end - (self.start_s or 0.0)) / duration_s
        return math.ceil(math.ceil(count * share) / self.every)


def in_stamp_order(
    items: Iterable[tuple[int, Item]], depth: int = REORDER_DEPTH
) -> Iterator[tuple[int, Item]]:
    """(stamp_ns, item) pairs by stamp, where they are at most ``depth`` places off.

    A stamp more than half a second back is no disorder but a time jump (a recording of a looping
    player): everything before it goes out first, and the jump is passed on.
    """
    waiting: list[tuple[int, int, Item]] = []
    newest = None
    for order, (stamp_ns, item) in enumerate(items):
        if newest is not None and stamp_ns < newest - TIME_JUMP_NS:
            yield from _drain(waiting, 0)
            newest = None
        newest = stamp_ns if newest is None else max(newest, stamp_ns)
        heapq.heappush(waiting, (stamp_ns, order, item))
        yield from _drain(waiting, depth)
    yield from _drain(waiting, 0)


def _drain(waiting: list[tuple[int, int, Item]], keep: int) -> Iterator[tuple[int, Item]]:
    while len(waiting) > keep:
        stamp_ns, _, item = heapq.heappop(waiting)
        yield stamp_ns, item


class Recording(abc.ABC):
    """Frames of a recording's camera, or of several; iterate as often as wanted, from the start.

    Frames are read as they are asked for and come in the order of their stamps. An image that
    cannot be decoded is skipped, warned about and counted in ``counters["bad_images"]``. Of a
    damaged recording the readable part is handed out; ``stopped_at`` says, at the latest when the
    iteration has ended, where it stopped and why (None: nothing is missing).
    """

    path: Path
    camera: str  # topic or topics, or name of the file or folder
    length: int  # about how many frames an iteration gives
    counters: dict[str, int]

    @property
    @abc.abstractmethod
    def stopped_at(self) -> str | None:
        """Where and why reading ended early, or None."""

    @abc.abstractmethod
    def describe(self) -> str:
        """What is in the recording, one line each."""

    @abc.abstractmethod
    def __iter__(self) -> Iterator[Frame]:
        """The selected frames."""

    def messages(self, topic: str) -> Iterator[tuple[int, Any]]:
        """(time of recording in ns, message) of any topic, in order of recording.

        Raises RecordingError where there is no such topic.
        """
        raise RecordingError(f"{self.path.name} has no topics, so no {topic}: it is no bag")

    def topics_of(self, kind: str) -> list[str]:
        """Names of the topics that have messages of a type; of what is no bag, none."""
        return []

    def close(self) -> None:  # noqa: B027 - not every kind holds files open
        """Release files."""

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
