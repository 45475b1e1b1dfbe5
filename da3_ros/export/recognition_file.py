"""The records of a saved scene that recognise its locations: graph of submaps, and keyframes.

``docs/scene_file.md`` describes them. A damaged record of a keyframe costs that keyframe.
Keyframes are described in memory; their images and samples are read when they are needed.
"""

from __future__ import annotations

import itertools
import logging
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from da3_ros.export.selection import Progress, silent
from da3_ros.geometry.similarity import Similarity
from da3_ros.keyframe_store.array_spill import Arrays
from da3_ros.keyframe_store.checks import MAX_INTEGER, MAX_NUMBER, check, is_near, is_rotation
from da3_ros.keyframe_store.encoding import decode_image, encode_image
from da3_ros.keyframe_store.journal import JournalError, JournalReader, JournalWriter, Record
from da3_ros.keyframe_store.store import CAMERA
from da3_ros.mapping.graph_solution import Node
from da3_ros.mapping.map_table import FEW_SAMPLES, ViewRow
from da3_ros.mapping.pose_graph import Edge
from da3_ros.mapping.recognition import Recognition
from da3_ros.types import Array, View

log = logging.getLogger(__name__)

POSE = [("scale", "<f8"), ("R", "<f8", (3, 3)), ("t", "<f8", (3,))]
NODE = np.dtype([("first", "<i4"), ("last", "<i4"), ("guessed", "?"), *POSE])
EDGE = np.dtype(
    [("first", "<i4"), ("second", "<i4"), ("loop", "?"), ("sigma", "<f8", (3,)), *POSE]
)
KEYFRAME = np.dtype(
    [("stamp_ns", "<i8"), ("submap", "<i4"), ("size", "<i4", (2,)), ("K", "<f8", (3, 3)),
     ("T", "<f8", (3, 4)), ("variance", "<f8", (3,)), ("depth", "<f8"), *POSE]
)  # fmt: skip
SAMPLE = np.dtype([("pixel", "<i4"), ("depth", "<f4"), ("confidence", "<f4")])
MAX_SIDE = 1 << 13
MAX_DESCRIPTOR = 1 << 13
MAX_KEYFRAMES = 1 << 20


@dataclass(frozen=True)
class SavedGraph:
    """The graph of submaps as it is in a file, and the model of the descriptors."""

    model: str
    nodes: bytes  # rows of NODE
    edges: bytes  # rows of EDGE


class RecognitionFile:
    """Keyframes in an open journal; any thread may read their arrays."""

    def __init__(self, journal: JournalReader) -> None:
        self._journal = journal  # stays open while a keyframe needs it
        self._records: list[Record] = []
        self._sizes: list[tuple[int, int]] = []
        self._poses: dict[bytes, Similarity] = {}  # of keyframes; most have one with others

    def recognition(
        self, graph: SavedGraph, keyframes: Iterable[Record], submaps: Mapping[int, Similarity]
    ) -> Recognition:
        """Returns graph and keyframes of a map with these poses of ``submaps``.

        Raises OSError, LookupError, TypeError, ValueError.
        """
        rows = np.frombuffer(graph.nodes, NODE)
        nodes, saved = [_node(row) for row in rows], [_pose(row) for row in rows]
        firsts = [n.first for n in nodes]
        check(firsts == sorted(set(firsts)), "the order of nodes")
        check(all(a.last < b.first for a, b in itertools.pairwise(nodes)), "nodes")
        edges = tuple(_edge(row, set(firsts)) for row in np.frombuffer(graph.edges, EDGE))
        described = [k for record in keyframes if (k := self._keyframe(record))]
        last_of = {n.first: n.last for n in nodes}
        known = [k for k in described if _lies_in(k.submap, firsts, last_of)]
        check(len({k.descriptor.shape for k in known}) <= 1, "descriptors")
        # Submaps without points and poses have none but these.
        of_node = dict(zip(firsts, saved, strict=True))
        poses = {id: submaps.get(id, T) for id, T in of_node.items()}
        for k in known:
            node = firsts[bisect_right(firsts, k.submap) - 1]
            poses.setdefault(k.submap, submaps.get(k.submap, of_node[node]))
        to_own = {id: poses[id].inverse() @ T for id, T in of_node.items()}
        return Recognition(
            tuple(nodes), tuple(_moved(e, to_own) for e in edges),
            tuple(_in_submap(k, poses[k.submap]) for k in known), poses, graph.model,
        )  # fmt: skip

    def arrays(self, index: int) -> tuple[Arrays, NDArray[np.bool_] | None]:
        """Returns the arrays of a keyframe, and the valid pixels of its image, if not all are.

        Raises OSError.
        """
        size = self._sizes[index]
        try:
            data = self.data(index)
            mask = self.count(index, "samples") * SAMPLE.itemsize
            picture = mask + self.count(index, "mask")
            samples = np.frombuffer(data[:mask], SAMPLE)
            image = decode_image(data[picture:])
            valid = _mask(data[mask:picture], size)
            check(image.shape[1::-1] == size, "the size of an image")
            pixels = samples["pixel"].astype(np.int64)
            check(bool(((pixels >= 0) & (pixels < size[0] * size[1])).all()), "a pixel")
            depth, confidence = (samples[n].astype(np.float64) for n in ("depth", "confidence"))
            check(is_near(depth, confidence) and bool((depth > 0).all()), "a depth")
        except (JournalError, LookupError, TypeError, ValueError, zlib.error) as error:
            raise OSError(f"{self._journal.path} is damaged: {error}") from error
        return [image, pixels, depth, confidence], valid

    def count(self, index: int, name: str) -> int:
        """Returns a number by which a keyframe is described."""
        return int(self._records[index].description[name])

    def data(self, index: int) -> bytes:
        """Returns samples and image of a keyframe as they are in the file. Raises OSError,
        JournalError."""
        record = self._records[index]
        return self._journal.data(record)[int(record.description["head"]) :]

    def _pose(self, row: NDArray[np.void]) -> Similarity:
        key = b"".join(row[name].tobytes() for name in ("scale", "R", "t"))
        if key not in self._poses:
            self._poses[key] = _pose(row)
        return self._poses[key]

    def _keyframe(self, record: Record) -> ViewRow | None:
        """Returns a keyframe without its arrays, placed in the map as if that were its submap;
        None for a damaged record."""
        description = record.description
        size = int(description["head"])
        try:
            head = self._journal.data(record)[:size]
        except JournalError:
            log.warning("%s: a damaged keyframe is left out", self._journal.path)
            return None
        row = np.frombuffer(head, KEYFRAME, 1)[0]
        descriptor = np.frombuffer(head[KEYFRAME.itemsize :], "<f4")
        check(0 < len(descriptor) <= MAX_DESCRIPTOR and is_near(descriptor), "a descriptor")
        width, height = (int(n) for n in row["size"])
        check(0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE, "a size")
        check(0 < int(description["samples"]) <= FEW_SAMPLES, "samples")
        camera = description["camera"]
        check(isinstance(camera, str) and CAMERA.fullmatch(camera) is not None, "a camera")
        T = np.eye(4)
        T[:3] = row["T"]
        check(
            is_near(T, row["K"], row["variance"], row["depth"]) and is_rotation(T[:3, :3]),
            "a pose",
        )
        check(bool(row["depth"] > 0 and (row["variance"] >= 0).all()), "depth or variance")
        index = len(self._records)
        self._records.append(record)
        self._sizes.append((width, height))
        # Not an image in memory, but the shape of one. Ids of new views are not negative.
        image = np.broadcast_to(np.uint8(0), (height, width, 3))
        view = View(-1 - index, int(row["stamp_ns"]), image, row["K"], camera=camera)
        none = np.zeros(0)
        return ViewRow(
            view, row["K"], T, none.astype(np.int64), none, none, int(row["submap"]),
            descriptor=descriptor, variance_in_submap=row["variance"],
            typical_depth=float(row["depth"]), T_submap_saved=self._pose(row), file=self,
            index=index,
        )  # fmt: skip


def append_recognition(
    saved: Recognition, journal: JournalWriter, progress: Progress = silent
) -> int:
    """Appends what recognises a scene; returns the offset of the record with its graph, the last
    one. Raises OSError."""
    poses, starts = saved.T_map_submap, []
    for number, keyframe in enumerate(saved.keyframes):
        progress("saving", number / len(saved.keyframes))
        head = _head(keyframe, poses[keyframe.submap])
        try:
            samples, mask, data = _data(keyframe)
        except (OSError, JournalError) as error:  # of the file that it was loaded from
            log.warning("a keyframe of the loaded scene is not saved again: %s", error)
            continue
        described = {
            "kind": "loop keyframe", "camera": keyframe.view.camera,
            "head": len(head), "samples": samples, "mask": mask,
        }  # fmt: skip
        starts.append(journal.append(described, head + data))
    nodes = [(n.first, n.last, n.guessed, *_row(poses[n.first])) for n in saved.nodes]
    edges = [(e.first, e.second, e.loop, e.sigma, *_row(e.measured)) for e in saved.edges]
    rows = [np.array(nodes, NODE), np.array(edges, EDGE), np.array(starts, "<i8")]
    sizes = {"nodes": len(nodes), "edges": len(edges), "keyframes": len(starts)}
    described = {"kind": "recognition", "model": saved.model, **sizes}
    return journal.append(described, b"".join(row.tobytes() for row in rows))


def load_recognition(
    journal: JournalReader, start: int, submaps: Mapping[int, Similarity]
) -> Recognition:
    """Reads what ``append_recognition`` wrote and where, of a map with these poses of ``submaps``.

    Raises OSError; ValueError for damage that leaves nothing to recognise.
    """
    with damage_as_value_error(journal):
        record = journal.record(start)
        about, data = record.description, journal.data(record)
        check(about["kind"] == "recognition", "the kind of its record")
        nodes = int(about["nodes"]) * NODE.itemsize
        edges = nodes + int(about["edges"]) * EDGE.itemsize
        check(0 <= nodes <= edges <= len(data), "the size of its record")
        starts = np.frombuffer(data[edges:], "<i8")
        check(len(starts) == about["keyframes"] <= MAX_KEYFRAMES, "the number of keyframes")
        check(bool((np.diff(starts) > 0).all()), "the order of keyframes")
        graph = SavedGraph(str(about["model"]), data[:nodes], data[nodes:edges])
        keyframes = _keyframe_records(journal, starts.tolist())
        return RecognitionFile(journal).recognition(graph, keyframes, submaps)


@contextmanager
def damage_as_value_error(journal: JournalReader) -> Iterator[None]:
    """Raises ValueError for all errors but OSError."""
    try:
        yield
    except (JournalError, LookupError, TypeError, OverflowError) as error:
        name = journal.path.name
        raise ValueError(f"{name} is damaged ({type(error).__name__}: {error})") from error


def _keyframe_records(journal: JournalReader, starts: Iterable[int]) -> Iterator[Record]:
    """Yields the records of keyframes, but for damaged ones."""
    for start in starts:
        try:
            record = journal.record(start)
        except JournalError as error:
            log.warning("%s: a keyframe is left out", error)
            continue
        check(record.description["kind"] == "loop keyframe", "the kind of a record")
        yield record


def _head(keyframe: ViewRow, T_map_submap: Similarity) -> bytes:
    """Returns the description of a keyframe: its pose and where that is given, its variance in
    the map."""
    a, own = keyframe, keyframe.variance_in_submap * [1, 1, T_map_submap.scale**2]
    height, width = a.view.image.shape[:2]
    T = keyframe.T_submap_saved
    row = (
        a.view.stamp_ns, keyframe.submap, (width, height), a.K, a.T_submap_camera[:3], own,
        keyframe.depth_factor * keyframe.typical_depth,
        *_row(T_map_submap if T is None else T_map_submap @ T),
    )  # fmt: skip
    return np.array([row], KEYFRAME).tobytes() + keyframe.descriptor.astype("<f4").tobytes()


def _data(keyframe: ViewRow) -> tuple[int, int, bytes]:
    """Returns the number of samples, the bytes of the mask, and samples, mask and image. Raises
    OSError, JournalError."""
    if isinstance(keyframe.file, RecognitionFile):
        file, index = keyframe.file, keyframe.index
        return file.count(index, "samples"), file.count(index, "mask"), file.data(index)
    a = keyframe
    samples = np.zeros(len(a.pixels), SAMPLE)
    samples["pixel"], samples["depth"], samples["confidence"] = a.pixels, a.depth, a.confidence
    samples["depth"] *= a.depth_factor
    valid = a.view.valid
    mask = b"" if valid is None else zlib.compress(np.packbits(valid).tobytes(), 1)
    return len(samples), len(mask), samples.tobytes() + mask + encode_image(a.view.image)


def _mask(data: bytes, size: tuple[int, int]) -> NDArray[np.bool_] | None:
    """Returns the valid pixels [h, w]; None: all. Raises ValueError, zlib.error."""
    width, height = size
    if not data:
        return None
    inflate = zlib.decompressobj()
    bits = np.frombuffer(inflate.decompress(data, -(-width * height // 8)), np.uint8)
    return np.unpackbits(bits, count=width * height).astype(bool).reshape(height, width)


def _lies_in(submap: int, firsts: Sequence[int], last_of: Mapping[int, int]) -> bool:
    at = bisect_right(firsts, submap) - 1
    return at >= 0 and submap <= last_of[firsts[at]]


def _moved(edge: Edge, to_own: Mapping[int, Similarity]) -> Edge:
    """Returns an edge between saved poses of nodes as one between those that the submaps have."""
    first, second = to_own[edge.first], to_own[edge.second]
    sigma = edge.sigma * [1, 1, first.scale]
    return replace(edge, measured=first @ edge.measured @ second.inverse(), sigma=sigma)


def _in_submap(saved: ViewRow, T_map_submap: Similarity) -> ViewRow:
    """Returns a keyframe that is placed in the map, in the frame of its submap."""
    assert saved.T_submap_saved is not None
    return replace(
        saved,
        T_submap_saved=T_map_submap.inverse() @ saved.T_submap_saved,
        variance_in_submap=saved.variance_in_submap / [1, 1, T_map_submap.scale**2],
    )


def _row(pose: Similarity) -> tuple[float, Array, Array]:
    return pose.scale, pose.R, pose.t


def _pose(row: NDArray[np.void]) -> Similarity:
    pose = Similarity(float(row["scale"]), row["R"], row["t"])
    good = 1 / MAX_NUMBER < pose.scale < MAX_NUMBER and is_near(pose.R, pose.t)
    check(good and is_rotation(pose.R), "a pose")
    return pose


def _node(row: NDArray[np.void]) -> Node:
    check(bool(0 <= row["first"] <= row["last"] <= MAX_INTEGER), "a node")
    return Node(int(row["first"]), int(row["last"]), bool(row["guessed"]))


def _edge(row: NDArray[np.void], firsts: set[int]) -> Edge:
    first, second = int(row["first"]), int(row["second"])
    check(first != second and {first, second} <= firsts, "an edge")
    check(is_near(row["sigma"]) and bool((row["sigma"] > 0).all()), "an edge's sigma")
    return Edge(first, second, _pose(row), row["sigma"], bool(row["loop"]))
