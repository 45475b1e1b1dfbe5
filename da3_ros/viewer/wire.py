"""Messages between the viewer's process and the one that feeds it: a JSON head, then arrays.

No objects are sent: the reader makes numbers, texts and arrays only.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

LENGTH = struct.Struct("<I")
MAX_HEAD = 1 << 24  # bytes
MAX_ARRAY = 1 << 30  # bytes
KINDS = ("u1", "f2", "f4", "f8", "i4", "i8")  # of elements, little-endian


class WireError(ValueError):
    """Bytes that are no message."""


@dataclass(frozen=True, eq=False)
class ViewerMessage:
    """A message: its kind, what JSON can hold (NaN included), and arrays by name."""

    kind: str
    values: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)


def write_message(stream: BinaryIO, message: ViewerMessage) -> int:
    """Write a message and flush it; returns its bytes. Raises OSError."""
    arrays = {name: np.ascontiguousarray(array) for name, array in message.arrays.items()}
    layout = [[name, _kind(array), list(array.shape)] for name, array in arrays.items()]
    head = json.dumps([message.kind, dict(message.values), layout]).encode()
    if len(head) > MAX_HEAD:
        raise WireError(f"a message of kind {message.kind} is too large: {len(head)} bytes")
    stream.write(LENGTH.pack(len(head)) + head)
    for array in arrays.values():
        stream.write(array.data if array.size else b"")
    stream.flush()
    return len(head) + sum(array.nbytes for array in arrays.values())


def read_message(stream: BinaryIO) -> ViewerMessage | None:
    """Read the next message; None at the end of the stream. Raises WireError."""
    start = stream.read(LENGTH.size)
    if not start:
        return None
    (length,) = LENGTH.unpack(_whole(start, LENGTH.size))
    if length > MAX_HEAD:
        raise WireError(f"a head of {length} bytes")
    try:
        kind, values, layout = json.loads(_whole(stream.read(length), length))
        shapes = [(str(name), np.dtype(f"<{_known(code)}"), tuple(map(int, shape)))
                  for name, code, shape in layout]  # fmt: skip
    except (ValueError, TypeError) as error:
        raise WireError(f"no message: {error}") from error
    return ViewerMessage(str(kind), values, {n: _array(stream, d, s) for n, d, s in shapes})


def _array(stream: BinaryIO, kind: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    size = int(np.prod(shape, dtype=object)) * kind.itemsize
    if not 0 <= size <= MAX_ARRAY:
        raise WireError(f"an array of {size} bytes")
    return np.frombuffer(_whole(stream.read(size), size), kind).reshape(shape)


def _kind(array: NDArray[Any]) -> str:
    return _known(f"{array.dtype.kind}{array.dtype.itemsize}")


def _known(code: str) -> str:
    if code not in KINDS:
        raise WireError(f"arrays of {code} cannot be sent")
    return code


def _whole(data: bytes, size: int) -> bytes:
    if len(data) != size:
        raise WireError(f"a message ends after {len(data)} of {size} bytes")
    return data
