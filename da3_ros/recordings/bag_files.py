"""Reads all files of a ROS 2 bag as one stream of raw messages; handles splits and compression.

Intact files are read with ``rosbags``, damaged MCAP files with ``mcap_stream``. Messages stay
bytes until ``Types`` deserialises them.
"""

from __future__ import annotations

import heapq
import logging
import shutil
import sqlite3
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol
from urllib.parse import quote

import yaml
import zstandard
from rosbags.rosbag2 import Reader
from rosbags.serde import SerdeError
from rosbags.typesys import (
    Stores,
    TypesysError,
    get_types_from_idl,
    get_types_from_msg,
    get_typestore,
)

from da3_ros.recordings import mcap_stream
from da3_ros.recordings.base import RecordingError

log = logging.getLogger(__name__)

STORAGES = (".mcap", ".db3")
COMPRESSED = (".zstd", ".zst")
# A check of every page of a larger database takes minutes; its damage is found while reading.
_CHECK_WHOLE_BELOW = 4 * 2**30
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"  # CDR begins with a zero byte


class MessageError(ValueError):
    """A message cannot be deserialised; the text is one line."""


@dataclass(frozen=True)
class BagTopic:
    """A topic as declared by one file of the bag."""

    name: str
    type: str  # pkg/msg/Name
    count: int
    definition: str = ""
    language: str = ""  # of the definition: msg, idl or empty
    serialization: str = "cdr"


Raw = tuple[int, str, str, bytes]  # time of recording in ns, topic, type, serialised message


class BagFile(Protocol):
    """One file of a bag."""

    topics: list[BagTopic]
    start_ns: int
    end_ns: int
    stopped_at: str | None

    def messages(self, names: Collection[str]) -> Iterator[Raw]:
        """Messages of the named topics."""

    def close(self) -> None:
        """Release the file."""


def is_bag(path: Path) -> bool:
    """Whether a path looks like a bag folder or a bag file."""
    if path.is_dir():
        return (path / "metadata.yaml").exists() or bool(_storage_files(path))
    return is_storage(path)


class Bag:
    """All files of a bag as one stream. Raises RecordingError if it cannot be opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._unpacked: TemporaryDirectory[str] | None = None
        self._unreadable: list[str] = []
        self._files: list[BagFile] = []
        try:
            self._files = self._open_all(_bag_files(path))
        except BaseException:
            self.close()
            raise
        self.types = Types(self.topics)

    @property
    def topics(self) -> list[BagTopic]:
        """All topics of all files; a name may occur several times."""
        return [topic for file in self._files for topic in file.topics]

    @property
    def stopped_at(self) -> str | None:
        """Description of the unreadable parts; None: there are none."""
        parts = [*self._unreadable, *(f.stopped_at for f in self._files if f.stopped_at)]
        return "; ".join(parts) or None

    @property
    def duration_s(self) -> float:
        """Time of recording between the first and the last message."""
        start = min(file.start_ns for file in self._files)
        return max(0, max(file.end_ns for file in self._files) - start) / 1e9

    def messages(self, names: Collection[str]) -> Iterator[Raw]:
        """Yield messages of the named topics by time of recording.

        A file is opened only when its first message is due, so memory is needed only for splits
        that overlap in time.
        """
        queue: list[tuple[int, int, Raw | None]] = [
            (file.start_ns, i, None) for i, file in enumerate(self._files)
        ]
        streams: dict[int, Iterator[Raw]] = {}
        heapq.heapify(queue)
        while queue:
            _, i, raw = heapq.heappop(queue)
            if raw is None:
                streams[i] = self._files[i].messages(names)
            else:
                yield raw
            following = next(streams[i], None)
            if following is not None:
                heapq.heappush(queue, (following[0], i, following))

    def close(self) -> None:
        """Release all files and delete decompressed copies."""
        for file in self._files:
            file.close()
        self._files = []
        if self._unpacked is not None:
            self._unpacked.cleanup()
            self._unpacked = None

    def _open_all(self, paths: Sequence[Path]) -> list[BagFile]:
        files: list[BagFile] = []
        fault: RecordingError | None = None
        for path in paths:
            try:
                files.append(_open_file(self._unpack(path)))
            except RecordingError as error:
                # A power cut leaves an unreadable last split: the others can still be read.
                if len(paths) == 1 or ".db3" in path.suffixes:
                    raise
                self._unreadable.append(str(error))
                fault = error
        if not files:
            raise fault or RecordingError(f"{self.path} has no bag files: .mcap or .db3")
        return files

    def _unpack(self, path: Path) -> Path:
        """The file itself, or a decompressed temporary copy of a zstd file."""
        if path.suffix not in COMPRESSED:
            return path
        if self._unpacked is None:
            self._unpacked = TemporaryDirectory(prefix="da3_ros-")
        out = Path(self._unpacked.name, path.stem)
        try:
            unpacker = zstandard.ZstdDecompressor()
            with (
                path.open("rb") as source,
                unpacker.stream_reader(source, read_across_frames=True) as plain,
                out.open("wb") as target,
            ):
                shutil.copyfileobj(plain, target)
        except zstandard.ZstdError as error:
            # The decompressed part is read like any other truncated file.
            log.warning("%s: zstd data are damaged (%s)", path.name, error)
        if not out.stat().st_size:
            raise RecordingError(f"{path.name} cannot be decompressed: it is truncated or damaged")
        return out


def is_storage(path: Path) -> bool:
    suffixes = path.suffixes[-2:]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes = suffixes[:-1]
    return bool(suffixes) and suffixes[-1] in STORAGES


def _storage_files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_file() and is_storage(p))


def _bag_files(path: Path) -> list[Path]:
    """The bag's files: those listed in metadata.yaml, or all in the folder if it lists none."""
    if not path.is_dir():
        return [path]
    names = _listed_files(path / "metadata.yaml")
    if not names:
        return _storage_files(path)
    # Bags with file-wise compression list the files with or without the suffix.
    found = [
        next((p for p in (path / n, path / f"{n}.zstd") if p.exists()), path / n) for n in names
    ]
    if missing := [p.name for p in found if not p.exists()]:
        raise RecordingError(
            f"{path.name}: metadata.yaml lists {missing[0]}, which does not exist: restore it, "
            "or remove metadata.yaml to read the existing files"
        )
    return found


def _listed_files(metadata: Path) -> list[str]:
    try:
        content = yaml.safe_load(metadata.read_text(encoding="utf-8"))
        names = content["rosbag2_bagfile_information"]["relative_file_paths"]
        return [Path(name).name for name in names]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        log.warning("%s cannot be read: using all bag files in its folder", metadata)
        return []


def _open_file(path: Path) -> BagFile:
    if path.suffix == ".db3":
        _check_sqlite(path)
        return IndexedFile(path)
    if mcap_stream.is_indexed(path):
        try:
            return IndexedFile(path)
        except RecordingError:
            log.info("%s: the index is unusable, so the file is read sequentially", path.name)
    return StreamedFile(path)


class IndexedFile:
    """An intact file, read with ``rosbags``."""

    def __init__(self, path: Path) -> None:
        self.stopped_at: str | None = None
        self._name = path.name
        self._reader = Reader(path)
        # rosbags documents ReaderError, but inconsistent files cause other exceptions too. All of
        # them mean that the file cannot be read.
        try:
            self._reader.open()
        except Exception as error:
            raise RecordingError(f"{path.name} cannot be read: {_line(error)}") from error
        self.topics = [
            _topic(c.topic, c.msgtype, c.msgcount, c.msgdef, c.ext)
            for c in self._reader.connections
        ]
        self.start_ns, self.end_ns = self._reader.start_time, self._reader.end_time

    def messages(self, names: Collection[str]) -> Iterator[Raw]:
        """Yield messages by time of recording; stops and sets ``stopped_at`` at damaged data."""
        chosen = [c for c in self._reader.connections if c.topic in names]
        if not chosen:
            return
        stream, last_ns = self._reader.messages(connections=chosen), self.start_ns
        while True:
            try:
                item = next(stream, None)
            except Exception as error:  # damaged data cause any exception in third-party decoders
                seconds = (last_ns - self.start_ns) / 1e9
                self.stopped_at = (
                    f"{self._name} is damaged ({_line(error)}); read up to {seconds:.3f} s after "
                    f"its start (stamp {last_ns})"
                )
                return
            if item is None:
                return
            connection, last_ns, data = item
            yield last_ns, connection.topic, normal_type(connection.msgtype), bytes(data)

    def close(self) -> None:
        """Release the file."""
        if self._reader.is_open:
            self._reader.close()


class StreamedFile:
    """An MCAP file without a usable index: damaged, truncated, or written without one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found = found = mcap_stream.scan(path)
        self.stopped_at = found.stopped_at
        self.start_ns, self.end_ns = found.start_ns or 0, found.end_ns
        self.topics = []
        for number, channel in found.channels.items():
            schema = found.schemas.get(channel.schema_id)
            self.topics.append(
                BagTopic(
                    channel.topic,
                    normal_type(schema.name if schema else ""),
                    found.counts[number],
                    schema.data.decode("utf-8", "replace") if schema else "",
                    _LANGUAGES.get(schema.encoding, "") if schema else "",
                    channel.message_encoding,
                )
            )

    def messages(self, names: Collection[str]) -> Iterator[Raw]:
        """Yield messages in file order."""
        kinds = {topic.name: topic.type for topic in self.topics}
        for channel, log_ns, data in mcap_stream.read(self._path, self._found, names):
            yield log_ns, channel.topic, kinds[channel.topic], data

    def close(self) -> None:
        """Does nothing: no file is kept open."""


_LANGUAGES = {"ros2msg": "msg", "ros2idl": "idl", "omgidl": "idl"}


def _topic(name: str, kind: str, count: int, definition: Any, extra: Any) -> BagTopic:
    language = definition.format.name.lower()
    return BagTopic(
        name,
        normal_type(kind),
        count,
        definition.data,
        "" if language == "none" else language,
        extra.serialization_format,
    )


def normal_type(name: str) -> str:
    """Convert ``pkg/Name``, written by ROS 1 and some recorders, to ``pkg/msg/Name``."""
    package, slash, rest = name.partition("/")
    return f"{package}/msg/{rest}" if slash and "/" not in rest else name


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


# SQLite -----------------------------------------------------------------------------------------


def _check_sqlite(path: Path) -> None:
    """Raise RecordingError if the database is damaged; rosbags would fail only while reading."""
    remedy = f'recover the readable part with: sqlite3 {path.name} ".recover" | sqlite3 new.db3'
    size = path.stat().st_size
    if not size:
        raise RecordingError(f"{path.name} is empty (0 bytes): the recorder wrote nothing")
    with path.open("rb") as stream:
        head = stream.read(100)
    if not head.startswith(b"SQLite format 3\0") or len(head) < 100:
        raise RecordingError(f"{path.name} is not an SQLite database, or its header is damaged")
    page, changes, pages, counted_at = struct.unpack(">16xH6xII60xI4x", head)
    expected = (65536 if page == 1 else page) * pages
    if size < expected and changes == counted_at:  # otherwise the page count is outdated
        raise RecordingError(f"{path.name} is truncated: {size} of {expected} bytes; {remedy}")
    if size < _CHECK_WHOLE_BELOW and (fault := _sqlite_fault(path)):
        raise RecordingError(f"{path.name} is damaged ({fault}); {remedy}")
    journal = path.with_name(f"{path.name}-wal")
    if journal.exists() and journal.stat().st_size:
        log.warning(
            "%s contains messages that are not yet in %s and will be missing: "
            'merge them with: sqlite3 %s "PRAGMA wal_checkpoint"',
            journal.name, path.name, path.name,
        )  # fmt: skip


def _sqlite_fault(path: Path) -> str:
    """The fault that SQLite's integrity check finds; empty: none."""
    uri = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
    try:
        connection = sqlite3.connect(uri, uri=True)
        try:
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        finally:
            connection.close()
    except sqlite3.Error as error:
        return _line(error)
    return "" if verdict == "ok" else " ".join(str(verdict).split())


# Types ------------------------------------------------------------------------------------------


class Types:
    """Deserialises messages with the bag's own definitions, or the standard ones without them."""

    def __init__(self, topics: Sequence[BagTopic]) -> None:
        self._topics = {topic.type: topic for topic in reversed(topics)}
        self._standard = get_typestore(Stores.ROS2_JAZZY)
        self._stores: dict[str, Any] = {}

    def deserialize(self, kind: str, data: bytes) -> Any:
        """Return the message as an object with the fields of its type. Raises MessageError."""
        if kind not in self._stores:
            self._stores[kind] = self._store(kind)
        try:
            if data.startswith(_ZSTD_MAGIC):  # message-wise compression
                data = zstandard.ZstdDecompressor().decompressobj().decompress(data)
            return self._stores[kind].deserialize_cdr(data, kind)
        except (SerdeError, zstandard.ZstdError, IndexError, AssertionError) as error:
            raise MessageError(f"message cannot be deserialised: {_line(error)}") from error

    def _store(self, kind: str) -> Any:
        """A type store that contains ``kind``. Raises RecordingError."""
        topic = self._topics.get(kind)
        if topic is not None and topic.serialization != "cdr":
            raise RecordingError(
                f"{topic.name} is serialised as {topic.serialization}: only cdr is supported"
            )
        if topic is not None and topic.definition:
            try:
                store = get_typestore(Stores.EMPTY)
                store.register(_parsers[topic.language](topic.definition, kind))
                store.get_msgdef(kind)
                return store
            except (TypesysError, KeyError) as error:
                log.debug("definition of %s in the bag is unusable: %s", kind, _line(error))
        if kind not in self._standard.types:
            raise RecordingError(f"type {kind} is unknown and the bag does not define it")
        return self._standard


def _parse_idl(text: str, kind: str) -> Any:
    separator = "=" * 80 + "\n"
    types: dict[str, Any] = {}
    for part in text.split(separator) if separator in text else [text]:
        body = part.partition("\n")[2] if part.startswith("IDL: ") else part
        if body.strip():
            types.update(get_types_from_idl(body))
    return types


_parsers: dict[str, Callable[[str, str], Any]] = {"msg": get_types_from_msg, "idl": _parse_idl}
