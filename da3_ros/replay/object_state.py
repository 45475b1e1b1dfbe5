"""Writes the state of a program's objects to a file, and brings it back into a new program.

Plain data is written: numbers, texts, containers, arrays, and the attributes of this package's own
objects. What cannot be written (functions, locks, network, files) is kept: the new program must
have it at the same path. Reading runs no code of the file: it makes objects of classes that the
program has loaded, and sets their attributes.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import threading
import types
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from da3_ros.keyframe_store.array_spill import ArraySpill
from da3_ros.keyframe_store.journal import JournalError, JournalReader, JournalWriter, Record
from da3_ros.refinement.features import FeaturesAhead

FORMAT, VERSION = "da3_ros state", 42
PACKAGE = "da3_ros."
SPREAD = 64  # bytes of memory per byte of an array, at most
PIECE = 1 << 26  # bytes of the largest record
SEQUENCES: dict[str, type] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
MAPPINGS: dict[str, type] = {"dict": dict, "Counter": Counter, "OrderedDict": OrderedDict}
# Kept: code, and objects of the machine, which have no state of their own.
KEPT = (
    types.FunctionType, types.MethodType, types.BuiltinFunctionType, type, Path,
    ThreadPoolExecutor, type(threading.Lock()), type(threading.RLock()), FeaturesAhead,
)  # fmt: skip
_NOTHING: Any = object()


class StateError(RuntimeError):
    """State that cannot be written or read; one line."""


def save_state(path: Path, roots: Mapping[str, Any], services: Mapping[str, Any]) -> None:
    """Writes the state of objects, by name, to a new file, and waits until it is on the disk.

    services: objects that are kept, by name. Raises StateError for an object of an unknown kind,
    OSError.
    """
    journal = JournalWriter(path)
    with contextlib.closing(journal):
        journal.append({"kind": "state", "format": FORMAT, "version": VERSION})
        writer = _NodeWriter(journal, services)
        values = {name: writer.value(root, name) for name, root in roots.items()}
        tree = {"roots": values, "nodes": writer.nodes}
        writer.data("tree", json.dumps(tree, separators=(",", ":")).encode())
        journal.append({"kind": "end"})
        journal.sync()


def load_state(path: Path, name: str, there: Any, services: Mapping[str, Any]) -> Any:
    """Reads the state of the object with a name into the object ``there``, and returns it.

    Objects in ``there`` that are not frozen are changed in place where the state has one of their
    class, so that references to them stay valid. there: None: all objects are new. services: as in
    ``save_state``. Raises StateError, after which ``there`` is of no use.
    """
    try:
        with contextlib.closing(JournalReader(path)) as journal:
            reader = _Reader(journal, services)
            return reader.value(reader.tree["roots"][name], there)
    except (OSError, JournalError) as error:
        raise StateError(str(error)) from error
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise StateError(f"{path} is damaged: {type(error).__name__}: {error}") from error


class _NodeWriter:
    """Turns objects into nodes: JSON values, and records of the journal for bytes and arrays.

    Arrays that lie in a spill stay there.
    """

    def __init__(self, journal: JournalWriter, services: Mapping[str, Any]) -> None:
        self._journal = journal
        self._names = {id(service): name for name, service in services.items()}
        self._spills = {n: s for n, s in services.items() if isinstance(s, ArraySpill)}
        self._index: dict[int, int] = {}  # of the node of an object, by its id
        self._alive: list[Any] = []  # else an id could be used again
        self._records = 0
        self.nodes: list[Any] = []

    def value(self, value: Any, where: str) -> Any:
        """Returns the JSON of a value: itself if it is plain, else a reference to its node.

        where: the path of the value, for messages.
        """
        if value is None or type(value) in (bool, int, float, str):
            return value
        if id(value) in self._names:
            return {"service": self._names[id(value)]}
        if id(value) not in self._index:
            self._index[id(value)] = len(self.nodes)
            self._alive.append(value)
            self.nodes.append(None)
            self.nodes[self._index[id(value)]] = self._node(value, where)
        return {"node": self._index[id(value)]}

    def data(self, kind: str, data: Any) -> int:
        """Appends bytes as records; returns the number of the first."""
        first, view = self._records, memoryview(data).cast("B")
        for start in range(0, max(len(view), 1), PIECE):
            self._journal.append({"kind": kind}, view[start : start + PIECE].tobytes())
            self._records += 1
        return first

    def _node(self, value: Any, where: str) -> Any:
        kind = type(value)
        name = kind.__name__
        if isinstance(value, (np.ndarray, np.generic)):
            return self._array(value, where)
        if kind is bytes:
            return {"kind": "bytes", "record": self.data("bytes", value), "size": len(value)}
        if SEQUENCES.get(name) is kind or kind is deque:
            values = sorted(value) if kind in (set, frozenset) else value
            node = {"kind": name, "values": [self.value(v, f"{where}[]") for v in values]}
            return node | {"most": value.maxlen} if kind is deque else node
        if MAPPINGS.get(name) is kind:
            return {"kind": name, "items": self._items(value, where)}
        if isinstance(value, Future):
            return {"kind": "future", "result": self.value(value.result(), f"{where}.result")}
        if isinstance(value, KEPT) or kind.__module__ == "cv2":
            return {"kind": "kept", "type": f"{kind.__module__}.{kind.__qualname__}"}
        if kind.__module__.startswith(PACKAGE) and isinstance(value, tuple):
            return {"kind": "named tuple", "module": kind.__module__, "class": name,
                    "values": [self.value(v, f"{where}[]") for v in value]}  # fmt: skip
        if kind.__module__.startswith(PACKAGE) and hasattr(value, "__dict__"):
            attributes = {k: self.value(v, f"{where}.{k}") for k, v in vars(value).items()}
            return {"kind": "object", "module": kind.__module__, "class": kind.__qualname__,
                    "attributes": attributes}  # fmt: skip
        raise StateError(f"{where}: objects of {kind.__module__}.{name} cannot be written")

    def _items(self, value: Mapping[Any, Any], where: str) -> list[Any]:
        return [
            [self.value(k, f"{where}.key"), self.value(v, f"{where}[{k!s:.40}]")]
            for k, v in value.items()
        ]

    def _array(self, value: NDArray[Any] | np.generic, where: str) -> dict[str, Any]:
        """Strides are kept: the rounding of sums and products depends on them."""
        array = np.asarray(value)
        if array.dtype.hasobject:
            raise StateError(f"{where}: arrays of objects cannot be written")
        about = {"type": np.lib.format.dtype_to_descr(array.dtype), "shape": array.shape}
        for name, spill in self._spills.items():
            offset = spill.offset_of(array)
            if offset is not None:
                return {"kind": "spilled", **about, "service": name, "offset": offset}
        constant = array.size > 1 and not any(array.strides)  # one value in memory
        data = np.ascontiguousarray(array.flat[:1] if constant else array)
        return {
            "kind": "array",
            **about,
            "strides": array.strides,
            "scalar": isinstance(value, np.generic),
            "constant": constant,
            "writeable": bool(array.flags.writeable),
            "record": self.data("array", data.reshape(-1).view(np.uint8)),
        }


class _Reader:
    """Makes objects of nodes."""

    def __init__(self, journal: JournalReader, services: Mapping[str, Any]) -> None:
        self._journal, self._services = journal, services
        records = list(journal.records())
        about = records[0].description if records else {}
        if about.get("format") != FORMAT or about.get("version") != VERSION:
            raise StateError(
                f"{journal.path} is no state of this version of da3_ros: process the recording "
                "again without --resume; `da3_ros export` reads what was stored"
            )
        if records[-1].description.get("kind") != "end":
            raise StateError(f"{journal.path} is not complete")
        self._records = records[1:-1]
        trees = [record for record in self._records if record.description["kind"] == "tree"]
        self.tree = json.loads(b"".join(map(journal.data, trees)))
        self._made: dict[int, Any] = {}  # by number of their nodes
        self._taken: set[int] = set()  # ids of the objects that are changed in place

    def value(self, value: Any, there: Any = _NOTHING) -> Any:
        """Returns the object of a JSON value. there: the object in its place in the program."""
        if not isinstance(value, dict):
            return value
        if "service" in value:
            return self._services[value["service"]]
        index = value["node"]
        if index not in self._made:
            self._make(index, self.tree["nodes"][index], there)
        return self._made[index]

    def _make(self, index: int, node: dict[str, Any], there: Any) -> None:
        kind = node["kind"]
        if kind == "object":
            self._make_object(index, node, there)
        elif kind in MAPPINGS:
            self._make_mapping(index, node, there)
        elif kind in ("list", "deque"):
            made: Any = [] if kind == "list" else deque(maxlen=node["most"])
            self._made[index] = made
            values = node["values"]
            # Of listeners, each one is changed in place.
            same = isinstance(there, list) and len(there) == len(values)
            made.extend(map(self.value, values, there if same else [_NOTHING] * len(values)))
        elif kind in SEQUENCES:
            self._made[index] = SEQUENCES[kind](map(self.value, node["values"]))
        elif kind == "named tuple":
            made_by = _class(node["module"], node["class"])
            if not issubclass(made_by, tuple):
                raise StateError(f"{made_by} is no tuple")
            self._made[index] = made_by(*map(self.value, node["values"]))
        elif kind == "array":
            self._made[index] = self._array(node)
        elif kind == "spilled":
            spill, dtype = self._services[node["service"]], _dtype(node)
            self._made[index] = spill.at(node["offset"], dtype, node["shape"])
        elif kind == "bytes":
            self._made[index] = self._bytes(node["record"], node["size"])
        elif kind == "future":
            future: Future[Any] = Future()
            future.set_result(self.value(node["result"]))
            self._made[index] = future
        else:
            name = f"{type(there).__module__}.{type(there).__qualname__}"
            if kind != "kept" or there is _NOTHING or name not in (node["type"], _none_name):
                raise StateError(f"the state has {node.get('type', kind)}, this program does not")
            self._made[index] = there

    def _make_object(self, index: int, node: dict[str, Any], there: Any) -> None:
        made_by = _class(node["module"], node["class"])
        old: dict[str, Any] = {}
        if type(there) is made_by:
            old = vars(there).copy()
        if old and not _is_frozen(made_by) and id(there) not in self._taken:
            made = there
            self._taken.add(id(there))
        else:
            made = object.__new__(made_by)
        self._made[index] = made
        attributes = {k: self.value(v, old.get(k, _NOTHING))
                      for k, v in node["attributes"].items()}  # fmt: skip
        vars(made).clear()
        vars(made).update(attributes)

    def _make_mapping(self, index: int, node: dict[str, Any], there: Any) -> None:
        made, old = MAPPINGS[node["kind"]](), {}
        if type(there) is type(made):
            old = dict(there)
            if isinstance(there, Counter):  # counters are shared with other threads
                made = there
                made.clear()
        self._made[index] = made
        for key, value in node["items"]:
            name = self.value(key)
            made[name] = self.value(value, old.get(name, _NOTHING))

    def _array(self, node: dict[str, Any]) -> Any:
        dtype = _dtype(node)
        shape, strides = (tuple(int(n) for n in node[k]) for k in ("shape", "strides"))
        count = 1 if node.get("constant") else math.prod(shape)
        data = np.frombuffer(self._bytes(node["record"], count * dtype.itemsize), dtype, count)
        if node.get("constant"):
            return np.broadcast_to(data[0], shape)
        if node["scalar"]:
            return data.reshape(shape)[()]
        out = _empty(shape, strides, dtype)
        out[...] = data.reshape(shape)
        out.flags.writeable = bool(node["writeable"])
        return out

    def _bytes(self, first: int, size: int) -> bytes:
        pieces: list[bytes] = []
        left = size
        while left > 0 or not pieces:
            record: Record = self._records[first + len(pieces)]
            pieces.append(self._journal.data(record))
            left -= record.size
            if left and not record.size:
                break
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if len(data) != size:
            raise StateError(f"{self._journal.path}: a record has another length")
        return data


_none_name = f"{type(None).__module__}.{type(None).__qualname__}"


def _class(module: str, name: str) -> type:
    """Returns a class of this package that the program has loaded."""
    found = getattr(sys.modules.get(module), name, None) if module.startswith(PACKAGE) else None
    if not isinstance(found, type) or found.__module__ != module:
        raise StateError(f"the program has no class {module}.{name}")
    return found


def _is_frozen(kind: type) -> bool:
    """True for values, which others may share: they are never changed."""
    about = getattr(kind, "__dataclass_params__", None)
    return about is not None and bool(about.frozen)


def _empty(shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Returns an array with these strides (bytes). Raises ValueError if they are unlikely."""
    steps = [(n - 1) * stride for n, stride in zip(shape, strides, strict=True)]
    if 0 in shape or any(n > 1 and stride == 0 for n, stride in zip(shape, strides, strict=True)):
        return np.empty(shape, dtype)  # broadcast: its values would share memory
    before, behind = -sum(s for s in steps if s < 0), sum(s for s in steps if s > 0)
    size, most = before + behind + dtype.itemsize, math.prod(shape) * dtype.itemsize
    if size > SPREAD * most:
        return np.empty(shape, dtype)  # few values of a large array
    return np.ndarray(shape, dtype, np.empty(size, np.uint8), before, strides)


def _dtype(node: dict[str, Any]) -> np.dtype[Any]:
    dtype = np.lib.format.descr_to_dtype(_tuples(node["type"]))
    if dtype.hasobject:
        raise StateError("an array of objects")
    return dtype


def _tuples(descr: Any) -> Any:
    """Returns the description of a dtype as NumPy wants it: JSON has no tuples."""
    if isinstance(descr, str):
        return descr
    return [
        (field[0], _tuples(field[1]), *(tuple(shape) for shape in field[2:])) for field in descr
    ]
