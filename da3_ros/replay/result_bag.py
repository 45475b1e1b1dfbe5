"""The bag of all result messages of a replay."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from da3_ros.messages.build import RosbagsLibrary
from da3_ros.messages.outputs import Published
from da3_ros.recordings.mcap_stream import raw_messages
from da3_ros.recordings.writer import BagWriter, RawMessage

NAME = "output.mcap"
TOPIC_PREFIX = "/da3/"


@dataclass(frozen=True, eq=False)
class BagState:
    """The messages of a bag that is being written."""

    on_disk: int  # number of messages in complete chunks
    waiting: tuple[RawMessage, ...]  # those after them


class ResultBag(contextlib.AbstractContextManager["ResultBag"]):
    """Writes the bag; after an error it stays incomplete, so that it can be continued."""

    def __init__(self, folder: Path, continued: BagState | None = None) -> None:
        """continued: state of the incomplete bag in ``folder``, which is continued. Raises
        OSError."""
        self.library = RosbagsLibrary()
        path = folder / NAME
        old = folder / f".{NAME}.old"
        if continued is not None and not old.exists():
            part = BagWriter.part_of(path)
            os.replace(part if part.exists() else path, old)
        self._writer = BagWriter(path, self.library)
        if continued is not None:
            self._copy(old, continued)
            old.unlink()

    def write(self, published: Published, stamp_ns: int) -> None:
        """Write one message."""
        topic, kind, message = published
        name = topic if topic.startswith("/") else TOPIC_PREFIX + topic
        self._writer.write(name, kind, message, stamp_ns)

    def state(self) -> BagState:
        """Returns what was written so far, and waits until it is on the disk. Raises OSError."""
        self._writer.sync()
        return BagState(self._writer.on_disk, tuple(self._writer.waiting))

    def _copy(self, old: Path, state: BagState) -> None:
        """Writes the messages of the incomplete bag again: the same messages give the same
        bytes."""
        copied = 0
        for message in raw_messages(old):
            if copied == state.on_disk:
                break
            self._writer.write_raw(message)
            copied += 1
        if copied < state.on_disk:
            raise OSError(f"{old} has {copied} of {state.on_disk} messages")
        for message in state.waiting:
            self._writer.write_raw(message)
        self._writer.sync()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._writer.close()
        else:
            self._writer.leave()
