"""The interface of all recordings, and the sorting and selection of their frames."""

from __future__ import annotations

import abc
import heapq
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from da3_ros.sensors.imu_input import ImuSample
from da3_ros.types import Array, Frame

Item = TypeVar("Item")
Self = TypeVar("Self", bound="Recording")

REORDER_DEPTH = 8
TIME_JUMP_NS = 500_000_000
# First stamp of a recording without times: zero would mean "no stamp" (and "latest") in ROS.
FIRST_STAMP_NS = 1_000_000_000
LATEST_S = 2**31 - 2  # what the stamps of ROS hold, less the second that times from 0 on get


class RecordingError(RuntimeError):
    """A recording cannot be used; the text is one line with the reason and a remedy."""


def check_rate(rate_hz: float) -> None:
    """Raises RecordingError for a frame rate that cannot be."""
    if not 0 < rate_hz <= 10_000:
        raise RecordingError(f"rate is {rate_hz:g} Hz: must be above 0 and at most 10000")


def stamp_of(index: int, rate_hz: float) -> int:
    """Returns the stamp in ns of an image without a time, by its number from 0 on.

    Raises RecordingError if ROS has no such stamp.
    """
    after_s = index / rate_hz
    if after_s >= LATEST_S:
        raise RecordingError(f"rate is {rate_hz:g} Hz: image {index} would be after the year 2038")
    return FIRST_STAMP_NS + round(index * 1e9 / rate_hz)


@dataclass(frozen=True)
class FrameSelection:
    """Selects frames by time in seconds after the first image, and every n-th of those."""

    start_s: float | None = None
    end_s: float | None = None
    every: int = 1

    def __post_init__(self) -> None:
        if self.every < 1:
            raise RecordingError(f"every is {self.every}: must be at least 1")
        start = self.start_s or 0.0
        if not start >= 0.0:
            raise RecordingError(f"start is {start:g} s: must be at least 0")
        if self.end_s is not None and not self.end_s > start:
            raise RecordingError(f"end ({self.end_s:g} s) must be after start ({start:g} s)")

    def apply(self, items: Iterable[tuple[int, Item]]) -> Iterator[tuple[int, Item]]:
        """Yield the selected (stamp_ns, item) pairs; stops after ``end_s``."""
        first: int | None = None
        taken = 0
        for stamp_ns, item in items:
            first = stamp_ns if first is None else first
            if self.end_s is not None and stamp_ns > first + round(self.end_s * 1e9):
                return
            # Without a start, an image whose stamp lies before the first one's is selected too.
            if self.start_s and stamp_ns < first + round(self.start_s * 1e9):
                continue
            if taken % self.every == 0:
                yield stamp_ns, item
            taken += 1

    def estimate(self, count: int, duration_s: float) -> int:
        """Approximate number of selected frames out of ``count`` over ``duration_s``."""
        end = duration_s if self.end_s is None else min(self.end_s, duration_s)
        share = 1.0 if duration_s <= 0 else max(0.0, end - (self.start_s or 0.0)) / duration_s
        return math.ceil(math.ceil(count * share) / self.every)


def in_stamp_order(
    items: Iterable[tuple[int, Item]], depth: int = REORDER_DEPTH
) -> Iterator[tuple[int, Item]]:
    """Sort (stamp_ns, item) pairs that are at most ``depth`` places out of order.

    A stamp more than half a second back is a time jump (a recording of a looping player): all
    earlier items are yielded first, and the jump stays in the output.
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


@dataclass(frozen=True, eq=False)
class ImuRecording:
    """An IMU whose mount is known."""

    samples: Iterator[ImuSample]  # may be read while the frames are
    T_camera_imu: Mapping[str, Array]  # [4, 4] by the frame_id of frames


class Recording(abc.ABC):
    """Frames of one or several cameras of a recording. Each iteration starts at the first frame.

    Frames are read on demand and yielded in the order of their stamps. An image that cannot be
    decoded is skipped, logged, counted in ``counters["bad_images"]`` and named in
    ``bad_images``, with the reason; both begin anew with each iteration. The readable part of
    a damaged recording is yielded; after the iteration ``stopped_at`` tells where and why it
    stopped (None: nothing is missing).
    """

    path: Path
    camera: str  # topic or topics, or name of the file or folder
    length: int  # approximate number of frames per iteration
    counters: dict[str, int]
    bad_images: list[str]

    @property
    @abc.abstractmethod
    def stopped_at(self) -> str | None:
        """Where and why reading ended early, or None."""

    @abc.abstractmethod
    def describe(self) -> str:
        """Contents of the recording, one per line."""

    @abc.abstractmethod
    def __iter__(self) -> Iterator[Frame]:
        """The selected frames."""

    def mounts(self) -> dict[str, Array]:
        """Returns ``T_rig_camera`` [4, 4], metres, by the names of cameras, if the recording
        itself says it of all."""
        return {}

    def messages(self, topic: str) -> Iterator[tuple[int, Any]]:
        """Yield (time of recording in ns, message) of any topic, in order of recording.

        Raises RecordingError if there is no such topic.
        """
        raise RecordingError(f"{self.path.name} is not a bag: it has no topic {topic}")

    def imu(self) -> ImuRecording | None:
        """Returns the IMU that is part of a data set; None: it has none, or is a bag, whose
        topics are read by ``along``."""
        return None

    def along(self, topic: str) -> Iterator[Any]:
        """Yields the messages of a topic as ``messages``, with files of its own: it may be read
        while the frames are."""
        return (message for _, message in self.messages(topic))

    def topics_of(self, kind: str) -> list[str]:
        """Names of the topics with messages of type ``kind``; empty if it is not a bag."""
        return []

    def close(self) -> None:  # noqa: B027 - not every kind holds files open
        """Release files."""

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
