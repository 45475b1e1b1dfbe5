"""Reads damaged, truncated or unindexed MCAP files sequentially.

Everything up to the fault is read, even the first part of a truncated chunk. Intact indexed
files are read with ``rosbags``. Format: https://mcap.dev/spec.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, NamedTuple

import lz4.frame
import zstandard
from mcap.data_stream import ReadDataStream
from mcap.exceptions import McapError
from mcap.opcode import Opcode
from mcap.reader import make_reader
from mcap.records import Channel, Schema

from da3_ros.recordings.base import RecordingError
from da3_ros.recordings.writer import RawMessage

MAGIC = b"\x89MCAP0\r\n"
_PLAIN = (Opcode.SCHEMA, Opcode.CHANNEL, Opcode.MESSAGE)
_MESSAGE_HEAD = struct.Struct("<H4xQ8x")  # channel, sequence, log time, publish time
_CHUNK_HEAD = struct.Struct("<QQQII")  # start, end, size, crc, length of the compression's name


class CutOff(Exception):  # noqa: N818 - not an error of the program
    """The end of the readable part; the text follows the file's name."""


class Message(NamedTuple):
    """A raw message and the id of its channel."""

    channel: int
    log_ns: int
    data: memoryview


Record = Schema | Channel | Message


@dataclass
class McapContents:
    """Channels, schemas, message counts and times of a file; ``stopped_at`` as in Recording."""

    channels: dict[int, Channel] = field(default_factory=dict)
    schemas: dict[int, Schema] = field(default_factory=dict)
    counts: Counter[int] = field(default_factory=Counter)
    start_ns: int | None = None
    end_ns: int = 0
    stopped_at: str | None = None


def is_indexed(path: Path) -> bool:
    """Whether a file is complete and has an index of chunks."""
    try:
        with path.open("rb") as stream:
            summary = make_reader(stream).get_summary()
    except (McapError, struct.error, ValueError, OSError):
        return False
    return summary is not None and bool(summary.chunk_indexes)


def scan(path: Path) -> McapContents:
    """Read the whole file once. Raises RecordingError if it has no readable message."""
    contents = McapContents()
    try:
        for record in _records(path):
            if isinstance(record, Schema):
                contents.schemas[record.id] = record
            elif isinstance(record, Channel):
                contents.channels[record.id] = record
            else:
                _count(contents, record)
    except CutOff as fault:
        contents.stopped_at = _stop_text(path, fault, contents)
    if not contents.counts:
        why = contents.stopped_at or f"{path.name} contains no messages"
        raise RecordingError(f"the recording has no readable messages: {why}")
    return contents


def read(
    path: Path, contents: McapContents, topics: Collection[str]
) -> Iterator[tuple[Channel, int, bytes]]:
    """Yield (channel, log time in ns, data) of readable messages of ``topics``, in file order."""
    wanted = {n: channel for n, channel in contents.channels.items() if channel.topic in topics}
    try:
        for record in _records(path):
            if isinstance(record, Message) and record.channel in wanted:
                yield wanted[record.channel], record.log_ns, bytes(record.data)
    except CutOff:
        return  # ``scan`` has reported it


def raw_messages(path: Path) -> Iterator[RawMessage]:
    """Yield all messages of an incomplete file, up to where it ends."""
    channels: dict[int, Channel] = {}
    schemas: dict[int, Schema] = {}
    with contextlib.suppress(CutOff):
        for record in _records(path):
            if isinstance(record, Schema):
                schemas[record.id] = record
            elif isinstance(record, Channel):
                channels[record.id] = record
            else:
                channel = channels[record.channel]
                kind = schemas[channel.schema_id].name
                yield RawMessage(channel.topic, kind, record.log_ns, bytes(record.data))


def _count(contents: McapContents, message: Message) -> None:
    contents.counts[message.channel] += 1
    start_ns = message.log_ns if contents.start_ns is None else contents.start_ns
    contents.start_ns = min(message.log_ns, start_ns)
    contents.end_ns = max(message.log_ns, contents.end_ns)


def _stop_text(path: Path, fault: CutOff, contents: McapContents) -> str:
    text = f"{path.name} {fault}"
    if contents.start_ns is None:
        return text
    seconds = (contents.end_ns - contents.start_ns) / 1e9
    return f"{text}; read up to {seconds:.3f} s after its start (stamp {contents.end_ns})"


def _records(path: Path) -> Iterator[Record]:
    """Yield schemas, channels and messages, also of chunks. Raises CutOff if damaged."""
    with path.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        if stream.read(8) != MAGIC:
            raise CutOff("is empty" if not size else "is not an MCAP file")
        while True:
            at = stream.tell()
            head = stream.read(9)
            if len(head) < 9:
                raise CutOff(f"ends at byte {size} without a footer")
            opcode, length = struct.unpack("<BQ", head)
            if opcode == Opcode.FOOTER:
                return
            rest = size - at - 9
            yield from _record(stream, opcode, length, rest, at)
            if length > rest:
                raise CutOff(
                    f"is truncated at byte {size}, in the record that starts at byte {at}"
                )


def _record(stream: BinaryIO, opcode: int, length: int, rest: int, at: int) -> Iterator[Record]:
    """Yield the contents of a top-level record; at most ``rest`` bytes of it are in the file."""
    if opcode == Opcode.CHUNK:
        yield from _chunk(stream.read(min(length, rest)), at)
    elif opcode in _PLAIN and length <= rest:
        yield _parse(opcode, stream.read(length), at)
    else:
        stream.seek(length, os.SEEK_CUR)


def _chunk(payload: bytes, at: int) -> Iterator[Record]:
    """Yield the records of a chunk; of a truncated chunk, the complete ones."""
    if len(payload) < _CHUNK_HEAD.size:
        return
    _, _, size, crc, name_length = _CHUNK_HEAD.unpack_from(payload)
    begin = _CHUNK_HEAD.size + name_length
    data = _decompress(payload[begin + 8 :], payload[_CHUNK_HEAD.size : begin], at)
    if crc and len(data) == size and zlib.crc32(data) != crc:
        raise CutOff(f"has a damaged chunk (wrong checksum) at byte {at}")
    view, offset = memoryview(data), 0
    while offset + 9 <= len(data):
        opcode, length = struct.unpack_from("<BQ", data, offset)
        offset += 9
        if offset + length > len(data):
            return
        if opcode in _PLAIN:
            yield _parse(opcode, view[offset : offset + length], at)
        offset += length


def _parse(opcode: int, payload: bytes | memoryview, at: int) -> Record:
    try:
        if opcode == Opcode.MESSAGE:
            channel, log_ns = _MESSAGE_HEAD.unpack_from(payload)
            return Message(channel, log_ns, memoryview(payload)[_MESSAGE_HEAD.size :])
        stream = ReadDataStream(BytesIO(payload))
        return Schema.read(stream) if opcode == Opcode.SCHEMA else Channel.read(stream)
    except (struct.error, UnicodeDecodeError, McapError) as error:
        raise CutOff(f"has a damaged record at byte {at}") from error


def _decompress(data: bytes, compression: bytes, at: int) -> bytes:
    """Decompress as much as possible. Raises CutOff for invalid data."""
    try:
        if compression == b"zstd":
            return zstandard.ZstdDecompressor().decompressobj().decompress(data)
        if compression == b"lz4":
            return bytes(lz4.frame.LZ4FrameDecompressor().decompress(data))
    except (zstandard.ZstdError, RuntimeError, EOFError) as error:
        raise CutOff(f"has a damaged chunk ({error}) at byte {at}") from error
    if compression:
        raise CutOff(f"has an unknown chunk compression {compression!r} at byte {at}")
    return data
