"""The returns of range sensors in a bag, read on as frames ask for them: memory does not grow."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from da3_ros.config import NodeConfig, needs_ranges
from da3_ros.messages.decode import stamp_ns
from da3_ros.messages.ranges import RANGE_TYPES, message_bytes, read_ranges
from da3_ros.recordings import Recording, RecordingError
from da3_ros.sensors.pose_prior import PosePrior
from da3_ros.sensors.range_returns import (
    KEEP_S,
    MOST_APART_NS,
    RangeHistory,
    RangeScan,
    RangeSensors,
)
from da3_ros.sensors.transform_tree import JUMP_S, TransformTree

log = logging.getLogger(__name__)


def ranges_of_recording(
    recording: Recording, config: NodeConfig, transforms: TransformTree, prior: PosePrior | None,
    warn: Callable[..., None],
) -> RangeSensors | None:  # fmt: skip
    """Returns the range sensors of a recording that the parameters choose; None if none are.

    transforms: all its transforms. Raises RecordingError if they are not there.
    """
    kinds = {name: kind for kind in RANGE_TYPES for name in recording.topics_of(kind)}
    topics = list(config.range_topics)
    if not topics and needs_ranges(config.pipeline):
        topics = sorted(kinds)
        if not topics:
            raise RecordingError(
                f"scale.source is {config.pipeline.scale.source}: {recording.path.name} has no "
                "topic of PointCloud2, LaserScan or Range"
            )
    if not topics:
        return None
    unknown = [name for name in topics if name not in kinds]
    if unknown:
        raise RecordingError(
            f"range_topics: {recording.path.name} has no PointCloud2, LaserScan or Range on "
            f"{unknown[0]}; it has them on: {', '.join(sorted(kinds)) or 'no topic'}"
        )
    sensors = RangeSensors(topics, transforms, config.odom_frame, warn, prior)
    sensors.feed = _Feed({
        name: _RangeTopic(name, _messages(recording, name, kinds[name]), history)
        for name, history in sensors.topics.items()
    })  # fmt: skip
    log.info("range sensors: reading %s", ", ".join(topics))
    return sensors


Message = tuple[int, Callable[[], RangeScan], int]  # stamp, what reads it, bytes


def _messages(recording: Recording, topic: str, kind: str) -> Iterator[Message]:
    """Yields the messages of a topic, which are read while the frames are."""
    for message in recording.along(topic):
        read = functools.partial(read_ranges, kind, message)
        yield stamp_ns(message.header.stamp), read, message_bytes(kind, message)


@dataclass
class _RangeTopic:
    name: str
    messages: Iterator[Message]
    history: RangeHistory
    ahead: list[Message] = field(default_factory=list)  # the next ones, mostly two
    newest_ns: int = 0  # stamp of the last one that was added
    wrong: int = 0  # stamps that were
    jumps: int = 0  # back of the stamps that were passed

    def read_to(self, stamp: int, before: int | None, jumps: int) -> None:
        """Reads up to the messages that are used for a frame.

        before: from where the frames' stamps have jumped back to it; None: they have not. If those
        of the messages do not soon, too, nothing is passed over. jumps: back of the messages'
        stamps that were behind the frame before: messages from before them are passed over.
        """
        if before is not None:
            if not self.newest_ns:  # a replay that is continued
                self._read_to(before, jumps)
            if stamp < self.newest_ns - JUMP_S * 1e9 and self._will_jump_back():
                jumps = self.jumps + 1
        self._read_to(stamp, jumps)

    def _read_to(self, stamp: int, jumps: int) -> None:
        while (message := self._next(stamp)) is not None:
            back = message[0] < self.newest_ns - JUMP_S * 1e9
            if self.jumps >= jumps:
                if not back and message[0] > stamp + MOST_APART_NS:
                    return
                if back and stamp - self.newest_ns < KEEP_S * 1e9:
                    return  # the frames may jump back too; else its stamp is wrong
            self.ahead.pop(0)
            if not back or self.jumps < jumps:
                self.history.add(*message)
                self.newest_ns = message[0]
                self.jumps += back

    def _next(self, stamp: int) -> Message | None:
        """Returns the next message; passes over those with wrong stamps, as the messages before
        and after them tell. stamp: of the frame."""
        while True:
            if not self._is_wrong(0, self.newest_ns or stamp):
                return self.ahead[0] if self.ahead else None
            self.wrong += 1
            if self.wrong == 1:
                log.warning(
                    "%s: messages with wrong stamps are not used: one of %.3f s is between others "
                    "of %.3f s", self.name, self.ahead[0][0] / 1e9, self.ahead[1][0] / 1e9,
                )  # fmt: skip
            self.ahead.pop(0)

    def _is_wrong(self, index: int, before: int) -> bool:
        """Whether the stamp of a message ahead is far from the one before it, and that of the next
        message is not."""
        self.ahead += itertools.islice(self.messages, max(0, index + 2 - len(self.ahead)))
        pair = self.ahead[index : index + 2]
        return [abs(message[0] - before) > JUMP_S * 1e9 for message in pair] == [True, False]

    def _will_jump_back(self) -> bool:
        """Whether stamps jump back soon."""
        newest, most = self.newest_ns, self.newest_ns + KEEP_S * 1e9
        for index in itertools.count():
            if self._is_wrong(index, newest):
                continue
            if index >= len(self.ahead) or self.ahead[index][0] > most:
                return False
            if self.ahead[index][0] < newest - JUMP_S * 1e9:
                return True
            newest = max(newest, self.ahead[index][0])
        raise AssertionError  # not reached


class _Feed:
    """Reads all topics of a recording up to a frame."""

    def __init__(self, topics: dict[str, _RangeTopic]) -> None:
        self._topics = topics

    def __call__(
        self, stamp_ns: int, before_ns: int | None, jumps: Mapping[str, int]
    ) -> dict[str, int]:
        passed = {}
        for name, topic in self._topics.items():
            topic.read_to(stamp_ns, before_ns, jumps.get(name, 0))
            passed[name] = max(topic.jumps, jumps.get(name, 0))
        return passed
