"""Writes bags: one self-contained MCAP file, or a bag folder with its metadata.yaml.

Equal messages give equal bytes. A bag gets its final name only when it is complete.
"""

from __future__ import annotations

import abc
import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from mcap.writer import CompressionType
from mcap.writer import Writer as McapWriter
from rosbags.interfaces import (
    Connection,
    Qos,
    QosDurability,
    QosHistory,
    QosLiveliness,
    QosReliability,
    QosTime,
)
from rosbags.rosbag2 import StoragePlugin
from rosbags.rosbag2 import Writer as FolderWriter

from da3_ros.messages.build import RosbagsLibrary
from da3_ros.messages.outputs import output_topics
from da3_ros.recordings.base import RecordingError

Self = TypeVar("Self", bound="Writer")

LATCHED = ("/tf_static", "/status")  # besides those of ``messages/outputs``
_FOREVER = (9223372036, 854775807)
_CHUNK_BYTES = 4 * 2**20
# The newest layout that rosbag2 of Humble, Jazzy and Kilted can all read.
_METADATA_VERSION: Final = 8


class RawMessage(NamedTuple):
    """A serialised message."""

    topic: str
    kind: str  # pkg/msg/Name
    stamp_ns: int  # time of recording
    data: bytes


class Writer(abc.ABC):
    """Writes messages; ``close`` completes the bag, ``abort`` deletes it.

    As a context manager it closes at the end, or aborts on any exception.
    """

    def __init__(self, lib: RosbagsLibrary) -> None:
        self._lib = lib

    @abc.abstractmethod
    def write(self, topic: str, kind: str, message: Any, stamp_ns: int) -> None:
        """Write ``message`` of type ``kind`` (``pkg/msg/Name``), recorded at ``stamp_ns``."""

    @abc.abstractmethod
    def close(self) -> None:
        """Finish the bag and give it its final name."""

    @abc.abstractmethod
    def abort(self) -> None:
        """Delete the incomplete bag; does nothing after ``close``."""

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


class BagWriter(Writer):
    """Writes one .mcap file with schemas, index and zstd chunks; ``close`` replaces an old one."""

    def __init__(self, path: Path | str, lib: RosbagsLibrary) -> None:
        super().__init__(lib)
        self.path = Path(path)
        self._part = self.part_of(self.path)
        self._stream = self._part.open("wb")
        self._writer = McapWriter(
            self._stream, chunk_size=_CHUNK_BYTES, compression=CompressionType.ZSTD
        )
        self._writer.start(profile="ros2", library="da3_ros")
        self._schemas: dict[str, int] = {}
        self._channels: dict[tuple[str, str], int] = {}
        self.on_disk = 0  # number of messages in complete chunks
        self.waiting: list[RawMessage] = []  # those after them

    @staticmethod
    def part_of(path: Path) -> Path:
        """Returns the incomplete file of the bag ``path``."""
        return path.with_name(f".{path.name}.part")

    def write(self, topic: str, kind: str, message: Any, stamp_ns: int) -> None:
        """Write ``message`` of type ``kind`` (``pkg/msg/Name``), recorded at ``stamp_ns``."""
        data = bytes(self._lib.serialize(message, kind))
        self.write_raw(RawMessage(topic, kind, stamp_ns, data))

    def write_raw(self, message: RawMessage) -> None:
        """Write a serialised message."""
        before = self._stream.tell()
        self._writer.add_message(
            channel_id=self._channel(message.topic, message.kind),
            log_time=message.stamp_ns,
            publish_time=message.stamp_ns,
            data=message.data,
        )
        self.waiting.append(message)
        if self._stream.tell() > before:  # the chunk is complete
            self.on_disk += len(self.waiting)
            self.waiting = []

    def sync(self) -> None:
        """Wait until all complete chunks are on the disk. Raises OSError."""
        self._stream.flush()
        os.fsync(self._stream.fileno())

    def leave(self) -> None:
        """Leave the bag incomplete, to be continued."""
        with contextlib.suppress(OSError, ValueError):  # a full disk; it is closed already
            self._stream.close()

    def close(self) -> None:
        """Finish the file and give it its final name."""
        try:
            self._writer.finish()
            self._stream.close()
            os.replace(self._part, self.path)
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Delete the incomplete bag; does nothing after ``close``."""
        self._stream.close()
        self._part.unlink(missing_ok=True)

    def _channel(self, topic: str, kind: str) -> int:
        channel = self._channels.get((topic, kind))
        if channel is None:
            channel = self._writer.register_channel(
                topic=topic,
                message_encoding="cdr",
                schema_id=self._schema(kind),
                metadata={
                    "offered_qos_profiles": _qos_text(topic),
                    "topic_type_hash": self._lib.store.hash_rihs01(kind),
                },
            )
            self._channels[topic, kind] = channel
        return channel

    def _schema(self, kind: str) -> int:
        if kind not in self._schemas:
            text = self._lib.definition(kind).encode()
            self._schemas[kind] = self._writer.register_schema(kind, "ros2msg", text)
        return self._schemas[kind]


class BagFolderWriter(Writer):
    """Writes a bag folder in the layout of ``ros2 bag record``; ``storage``: mcap or sqlite3.

    Raises RecordingError if the folder exists.
    """

    def __init__(self, path: Path | str, lib: RosbagsLibrary, storage: str = "mcap") -> None:
        super().__init__(lib)
        self.path = Path(path)
        if self.path.exists():
            raise RecordingError(f"{self.path} exists: choose another name or remove it")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # rosbags names the files after the folder: write it under its final name elsewhere.
        self._part = Path(tempfile.mkdtemp(prefix=f".{self.path.name}-", dir=self.path.parent))
        plugin = {"mcap": StoragePlugin.MCAP, "sqlite3": StoragePlugin.SQLITE3}[storage]
        self._writer = FolderWriter(
            self._part / self.path.name, version=_METADATA_VERSION, storage_plugin=plugin
        )
        self._writer.open()
        self._connections: dict[tuple[str, str], Connection] = {}

    def write(self, topic: str, kind: str, message: Any, stamp_ns: int) -> None:
        """Write ``message`` of type ``kind`` (``pkg/msg/Name``), recorded at ``stamp_ns``."""
        connection = self._connections.get((topic, kind))
        if connection is None:
            connection = self._writer.add_connection(
                topic, kind, typestore=self._lib.store, offered_qos_profiles=[_qos(topic)]
            )
            self._connections[topic, kind] = connection
        self._writer.write(connection, stamp_ns, self._lib.serialize(message, kind))

    def close(self) -> None:
        """Finish the bag and give it its final name."""
        try:
            self._writer.close()
            os.replace(self._part / self.path.name, self.path)
            self._part.rmdir()
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Delete the incomplete bag; does nothing after ``close``."""
        self._writer.abort()
        shutil.rmtree(self._part, ignore_errors=True)


def _is_latched(topic: str) -> bool:
    """True if late subscribers shall get the last message, as from the node."""
    latched = (f"/{name}" for name, row in output_topics().items() if row.latched)
    return topic.endswith((*LATCHED, *latched))


def _qos(topic: str) -> Qos:
    forever = QosTime(*_FOREVER)
    durability = QosDurability.TRANSIENT_LOCAL if _is_latched(topic) else QosDurability.VOLATILE
    return Qos(
        history=QosHistory.KEEP_LAST,
        depth=1 if _is_latched(topic) else 10,
        reliability=QosReliability.RELIABLE,
        durability=durability,
        deadline=forever,
        lifespan=forever,
        liveliness=QosLiveliness.AUTOMATIC,
        liveliness_lease_duration=forever,
        avoid_ros_namespace_conventions=False,
    )


def _qos_text(topic: str) -> str:
    """QoS profiles as YAML, with enum numbers that all versions of rosbag2 can read."""
    q = _qos(topic)
    forever = "\n    sec: {}\n    nsec: {}".format(*_FOREVER)
    return (
        f"- history: {q.history.value}\n  depth: {q.depth}\n"
        f"  reliability: {q.reliability.value}\n  durability: {q.durability.value}\n"
        f"  deadline:{forever}\n  lifespan:{forever}\n  liveliness: {q.liveliness.value}\n"
        f"  liveliness_lease_duration:{forever}\n  avoid_ros_namespace_conventions: false"
    )
