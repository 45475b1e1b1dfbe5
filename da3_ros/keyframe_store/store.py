"""The keyframes of a scene on disk: appends them, and reads them back.

A scene is a folder with a journal, which also has what a saved scene has (``export``). Keyframes
have poses in their submaps; later records move submaps and correct poses, so that nothing that
was written is changed. ``docs/scene_file.md`` has the format.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from da3_ros import __version__
from da3_ros.geometry.poses import T_ROS_MAP
from da3_ros.geometry.similarity import Similarity
from da3_ros.keyframe_store.checks import check, is_near, is_rotation
from da3_ros.keyframe_store.encoding import (
    decode_confidence,
    decode_depth,
    decode_image,
    decode_sigma,
    decode_splats,
    encode_confidence,
    encode_depth,
    encode_image,
    encode_sigma,
    encode_splats,
    encoded_size,
)
from da3_ros.keyframe_store.journal import JournalError, JournalReader, JournalWriter, Record
from da3_ros.keyframe_store.keyframe import FramePose, Keyframe, MeasuredKeyframe, Tracks
from da3_ros.splats.relative import RelativeSplats
from da3_ros.types import Array, DenseDepth

log = logging.getLogger(__name__)

JOURNAL = "scene.da3k"
CAMERA = re.compile(r"([A-Za-z0-9_]+(/[A-Za-z0-9_]+)*)?")  # also a folder's name
MAX_SIDE = 1 << 15
MAX_IMAGE, MAX_DEPTH = 1 << 26, 1 << 23  # pixels: a damaged or crafted file names any size
FORMAT, VERSION = "da3_ros scene", 2
MAP_OF_OLD = "T_map_world"  # ``T_ros_map`` in version 1
# Of records after the first: what a run stores, and what belongs to the saved scene.
KINDS = ("begin", "keyframe", "measured depth", "frames", "submaps", "poses", "map")
SAVED_KINDS = (
    "points", "images", "path", "loop keyframe", "recognition", "floor", "contents", "end",
)  # fmt: skip
SUBMAP = np.dtype(
    [("id", "<i4"), ("chain", "<i4"), ("component", "<i4"), ("scale", "<f8"), ("R", "<f8", (3, 3)),
     ("t", "<f8", (3,))]
)  # fmt: skip
POSE = np.dtype([("stamp_ns", "<i8"), ("camera", "<i4"), ("T", "<f8", (3, 4))])
FRAME = np.dtype(
    [("stamp_ns", "<i8"), ("camera", "<i4"), ("submap", "<i4"), ("T", "<f8", (3, 4)),
     ("K", "<f8", (4,)), ("size", "<i4", (2,)), ("keyframe", "?")]
)  # fmt: skip
TRACK = np.dtype([("id", "<i8"), ("pixel", "<f4", (2,))])


@dataclass(frozen=True, eq=False)
class StoredSubmap:
    """A submap: what it belongs to, and its pose in the map."""

    id: int
    chain: int
    component: int
    T_map_submap: Similarity


@dataclass(frozen=True, eq=False)
class MapState:
    """What relates a scene to the map and to metres."""

    metric: bool = False
    scene_scale: float = 1.0  # metres per map unit; 1 if unknown
    unit: float = 1.0  # lengths of the scene, in metres if metric, per network unit
    T_ros_map: Array = field(default_factory=lambda: T_ROS_MAP)
    leaders: tuple[str, ...] = ()  # cameras whose poses are the path; none: the first one


@dataclass(frozen=True, eq=False)
class StoredImages:
    """Where the images of a keyframe are."""

    image_size: tuple[int, int]  # (width, height) of the image
    record: Record


def open_journal(folder: Path, end: int | None = None) -> JournalWriter:
    """Goes on with the journal in ``folder``, or begins one. Raises OSError, JournalError.

    end: bytes of the journal after which what it has is cut off; None: none of its records.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, last = folder / JOURNAL, 0
    if path.exists():
        with StoredScene.open(folder, begun=True) as there:
            last = there.reader.end
    if end is not None and end > last:
        raise JournalError(f"{path} ends at byte {last} of {end}")
    end = last if end is None else end
    journal = JournalWriter(path, end)
    if not end:
        journal.append({"kind": "scene", "format": FORMAT, "version": VERSION,
                        "written_by": __version__})  # fmt: skip
    return journal


class StoreWriter:
    """Appends to the keyframes of a scene. Not thread-safe."""

    def __init__(self, folder: Path, end: int | None = None) -> None:
        """As ``open_journal``."""
        self.journal = open_journal(folder, end)

    def add_keyframe(self, keyframe: Keyframe) -> None:
        """Appends a keyframe: its frame and its images, or neither. Raises OSError."""
        depth, low, high = encode_depth(keyframe.depth)
        descriptor = b"" if keyframe.descriptor is None else keyframe.descriptor.astype("<f2")
        tracks = np.zeros(len(keyframe.tracks.ids), TRACK)
        tracks["id"], tracks["pixel"] = keyframe.tracks.ids, keyframe.tracks.pixels
        parts = {
            "image": encode_image(keyframe.image),
            "depth": depth,
            "confidence": encode_confidence(keyframe.confidence),
            "descriptor": bytes(descriptor),
            **({} if keyframe.splats is None else {"splats": encode_splats(keyframe.splats)}),
            "tracks": tracks.tobytes(),
        }
        about = {
            "kind": "keyframe",
            "stamp_ns": keyframe.pose.stamp_ns,
            "camera": keyframe.pose.camera,
            "image_size": [keyframe.image.shape[1], keyframe.image.shape[0]],
            "inverse_depth": [low, high],
            "bytes": {name: len(data) for name, data in parts.items()},
        }
        # Together: a full disk often has room for the frame alone, which is stored again later.
        self.journal.append_all([_frames_record([keyframe.pose]),
                                  (about, b"".join(parts.values()))])  # fmt: skip

    def measure(self, measured: MeasuredKeyframe) -> None:
        """Appends the measured depth of a stored keyframe. Raises OSError."""
        depth, low, high = encode_depth(measured.dense.depth)
        sigma = encode_sigma(measured.dense.sigma, measured.dense.measured)
        about = {
            "kind": "measured depth",
            "stamp_ns": measured.stamp_ns,
            "camera": measured.camera,
            "submap": measured.submap,
            "inverse_depth": [low, high],
            "bytes": {"depth": len(depth), "sigma": len(sigma)},
            **({} if measured.found is None else {"found": measured.found}),
        }
        self.journal.append(about, depth + sigma)

    def copy(self, scene: StoredScene, key: int, pose: FramePose, first_track: int) -> int:
        """Appends a keyframe of another scene as it is stored there, with another pose;
        ``first_track`` is added to the ids of its tracks.

        Returns the first id that is above all of these. A damaged keyframe becomes a frame, with
        a warning. Raises OSError.
        """
        try:
            about, data = scene.record(key)
            size = int(about["bytes"]["tracks"])
            tracks = np.frombuffer(data[len(data) - size :], TRACK).copy()
        except (JournalError, LookupError, ValueError, TypeError) as error:
            log.warning("a keyframe is left out: %s", error)
            self.add_frames([replace(pose, keyframe=False)])
            return first_track
        tracks["id"] += first_track
        about = {**about, "camera": pose.camera}
        data = data[: len(data) - size] + tracks.tobytes()
        self.journal.append_all([_frames_record([pose]), (about, data)])
        if key in scene.measured:
            try:
                measured = scene.measured[key]
                about = {**measured.description, "camera": pose.camera, "submap": pose.submap}
                self.journal.append(about, scene.reader.data(measured))
            except JournalError as error:
                log.warning("measured depth is left out: %s", error)
        return int(tracks["id"].max(initial=first_track - 1)) + 1

    def add_frames(self, poses: Sequence[FramePose]) -> None:
        """Appends the poses of frames. Raises OSError."""
        self.journal.append(*_frames_record(poses))

    def place(self, submaps: Iterable[StoredSubmap]) -> None:
        """Appends new poses of submaps. Raises OSError."""
        rows = np.array(
            [(p.id, p.chain, p.component, p.T_map_submap.scale, p.T_map_submap.R,
              p.T_map_submap.t) for p in submaps], SUBMAP,
        )  # fmt: skip
        self.journal.append({"kind": "submaps"}, rows.tobytes())

    def correct(self, poses: Mapping[tuple[str, int], Array]) -> None:
        """Appends new poses ``T_submap_camera`` [4, 4] of frames, by camera and stamp.

        Raises OSError.
        """
        cameras = sorted({camera for camera, _ in poses})
        rows = np.array(
            [(stamp, cameras.index(camera), T[:3]) for (camera, stamp), T in poses.items()], POSE
        )
        self.journal.append({"kind": "poses", "cameras": cameras}, rows.tobytes())

    def set_map(self, state: MapState) -> None:
        """Appends the map's state. Raises OSError."""
        self.journal.append({
            "kind": "map", "metric": state.metric, "scene_scale": state.scene_scale,
            "unit": state.unit, "T_ros_map": state.T_ros_map.ravel().tolist(),
            **({"leaders": list(state.leaders)} if state.leaders else {}),
        })  # fmt: skip

    def begin(self) -> None:
        """Begins the scene anew: what was stored before is no part of it. Raises OSError."""
        self.journal.append({"kind": "begin"})


class StoredScene:
    """The stored keyframes of a scene; a context manager."""

    def __init__(
        self, path: Path, *, begun: bool = False, head: tuple[str, int] = (FORMAT, VERSION)
    ) -> None:
        """Reads all but images of a journal. Raises JournalError.

        begun: accepts one whose first record was cut off. head: its format and version.
        """
        self.frames: list[FramePose] = []  # in the order of storing
        self.images: dict[int, StoredImages] = {}  # of keyframes, by index in ``frames``
        self.measured: dict[int, Record] = {}  # their measured depth
        # Index of the newest frame by camera and stamp; a recording that is played again repeats
        # stamps.
        self.newest: dict[tuple[str, int], int] = {}
        self.submaps: dict[int, StoredSubmap] = {}
        self.map = MapState()
        try:
            self.reader = JournalReader(path)
        except OSError as error:
            raise JournalError(f"{path.parent} holds no keyframes: {error.strerror}") from error
        try:
            self._read(begun, head)
        except BaseException:
            self.reader.close()
            raise

    @staticmethod
    def open(folder: Path, *, begun: bool = False) -> StoredScene:
        """Reads all but images of the scene in ``folder``. Raises JournalError.

        begun: accepts a journal whose first record was cut off.
        """
        return StoredScene(folder / JOURNAL, begun=begun)

    def __enter__(self) -> StoredScene:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.close()

    @property
    def placed_frames(self) -> dict[int, FramePose]:
        """The frames of known submaps, by index."""
        return {k: f for k, f in enumerate(self.frames) if f.submap in self.submaps}

    def check(self, key: int) -> None:
        """Raises JournalError if the images of a keyframe are damaged."""
        self.reader.data(self.images[key].record)

    def record(self, key: int) -> tuple[dict[str, Any], bytes]:
        """Returns description and data of a keyframe's record. Raises JournalError if it is
        damaged."""
        record = self.images[key].record
        return record.description, self.reader.data(record)

    def image_data(self, key: int) -> bytes:
        """Returns the JPEG of a keyframe's image. Raises as ``load``."""
        record = self.images[key].record
        return self.reader.data(record)[: record.description["bytes"]["image"]]

    def inverse_depths(self, key: int) -> tuple[float, float]:
        """Returns the smallest and largest inverse depth of a keyframe, in units of its submap.

        Without depth both are 1. Raises JournalError.
        """
        return self._inverse_depths(key, self.images[key].record)

    def found_pixels(self, key: int) -> int | None:
        """Returns in how many pixels of a keyframe a search found depth, which neighbours may have
        confirmed; None: unknown."""
        record = self.measured.get(key)
        found = None if record is None else record.description.get("found")
        return found if type(found) is int and found >= 0 else None

    def measured_inverse_depths(self, key: int) -> tuple[float, float] | None:
        """Returns ``inverse_depths`` of the measured depth of a keyframe; None: it has none."""
        record = self.measured.get(key)
        return None if record is None else self._inverse_depths(key, record)

    def _inverse_depths(self, key: int, record: Record) -> tuple[float, float]:
        try:
            low, high = record.description["inverse_depth"]
            return float(low), float(high)
        except (LookupError, ValueError, TypeError) as error:
            raise self._damaged(key, error) from error

    def has_splats(self, key: int) -> bool:
        """Whether Gaussians of a keyframe are stored."""
        return "splats" in self.images[key].record.description["bytes"]

    def load_splats(self, key: int) -> RelativeSplats:
        """Returns the Gaussians of a keyframe. Raises as ``load``, and JournalError without."""
        try:
            return decode_splats(self._parts(key)["splats"], self.frames[key].size)
        except (LookupError, ValueError, TypeError) as error:
            raise self._damaged(key, error) from error

    def _parts(self, key: int) -> dict[str, bytes]:
        """Returns the parts of a keyframe's record by name."""
        about, data = self.record(key)
        parts, at = {}, 0
        for name, size in about["bytes"].items():
            parts[name], at = data[at : at + size], at + size
        return parts

    def load(self, key: int) -> Keyframe:
        """Returns a keyframe with its images but without Gaussians, by its index in ``frames``.

        Raises JournalError if they are damaged, KeyError for an unknown one.
        """
        try:
            parts = self._parts(key)
            low, high = self.inverse_depths(key)
            tracks = np.frombuffer(parts["tracks"], TRACK)
            pose, found = self.frames[key], self.images[key]
            for part, size in (("image", found.image_size), ("depth", pose.size),
                               ("confidence", pose.size)):  # fmt: skip
                check(encoded_size(parts[part]) == size, f"the size of the {part}")
            descriptor = np.frombuffer(parts["descriptor"], "<f2").astype(np.float32)
            return Keyframe(
                pose, decode_depth(parts["depth"], low, high),
                decode_confidence(parts["confidence"]), decode_image(parts["image"]),
                descriptor if len(descriptor) else None, Tracks(tracks["id"], tracks["pixel"]),
            )  # fmt: skip
        except (LookupError, ValueError, TypeError, ArithmeticError) as error:
            raise self._damaged(key, error) from error

    def load_measured(self, key: int) -> DenseDepth | None:
        """Returns the measured depth of a keyframe, unit of its submap; None if it has none.

        Raises JournalError if it is damaged.
        """
        record = self.measured.get(key)
        if record is None:
            return None
        try:
            about, data, size = record.description, self.reader.data(record), self.frames[key].size
            low, high = map(float, about["inverse_depth"])
            end = int(about["bytes"]["depth"])
            parts = data[:end], data[end : end + int(about["bytes"]["sigma"])]
            for part in parts:
                check(encoded_size(part) == size, "the size of measured depth")
            return DenseDepth(decode_depth(parts[0], low, high), *decode_sigma(parts[1]))
        except (LookupError, ValueError, TypeError, ArithmeticError) as error:
            raise self._damaged(key, error) from error

    def _damaged(self, key: int, error: Exception) -> JournalError:
        return JournalError(f"{self.reader.path}: keyframe {key} is damaged: {error}")

    def _read(self, begun: bool, head: tuple[str, int]) -> None:
        records = self.reader.records()
        first = next(records, None)
        if begun and self.reader.is_begun:
            return
        if not check_head(self.reader.path, first, head):
            assert first is not None
            records = itertools.chain([first], records)
        try:
            for record in records:
                try:
                    self._take(record)
                except JournalError as error:  # its data; what it was about is lost
                    log.warning("%s: it is left out", error)
        except (LookupError, ValueError, TypeError, ArithmeticError) as error:
            raise JournalError(
                f"{self.reader.path} is damaged: {type(error).__name__}: {error}"
            ) from error
        # A crash may come between a keyframe and its submap.
        placed = self.placed_frames
        self.images = {k: i for k, i in self.images.items() if k in placed}
        self.measured = {k: r for k, r in self.measured.items() if k in self.images}

    def _take(self, record: Record) -> None:
        about = record.description
        if about["kind"] == "begin":
            self.frames, self.images, self.submaps, self.newest = [], {}, {}, {}
            self.measured = {}
        elif about["kind"] == "keyframe":
            width, height = about["image_size"]
            key = str(about["camera"]), int(about["stamp_ns"])
            sides = int(width), int(height)
            check(all(0 < side <= MAX_SIDE for side in sides), "a size")
            check(width * height <= MAX_IMAGE, "a size")
            if key in self.newest:  # else its frame was lost
                self.images[self.newest[key]] = StoredImages(sides, record)
        elif about["kind"] == "measured depth":
            index = self.newest.get((str(about["camera"]), int(about["stamp_ns"])))
            # A recording that is played again repeats stamps, in another submap and unit.
            if index is not None and self.frames[index].submap == int(about["submap"]):
                self.measured[index] = record
        elif about["kind"] == "frames":
            for row in self._rows(record, FRAME):
                one = _frame(row, about["cameras"])
                self.newest[one.key] = len(self.frames)
                self.frames.append(one)
        elif about["kind"] == "submaps":
            for row in self._rows(record, SUBMAP):
                S = Similarity(float(row["scale"]), row["R"].copy(), row["t"].copy())
                check(is_near(S.t) and is_rotation(S.R) and 1e-9 < S.scale < 1e9, "a pose")
                id = int(row["id"])
                self.submaps[id] = StoredSubmap(id, int(row["chain"]), int(row["component"]), S)
        elif about["kind"] == "poses":
            for row in self._rows(record, POSE):
                key = _name(about["cameras"], row), int(row["stamp_ns"])
                if key in self.newest:
                    index, T = self.newest[key], _pose(row["T"])
                    self.frames[index] = replace(self.frames[index], T_submap_camera=T)
        elif about["kind"] == "map":
            self.map = MapState(
                bool(about["metric"]), float(about["scene_scale"]), float(about["unit"]),
                np.array(about[_map_key(about)], float).reshape(4, 4),
                tuple(map(str, about.get("leaders", ()))),
            )  # fmt: skip
            T = self.map.T_ros_map
            check(is_near(T, self.map.scene_scale) and is_rotation(T[:3, :3]), "the map's state")
            check(self.map.scene_scale > 0, "the scale")

    def _rows(self, record: Record, kind: np.dtype[Any]) -> NDArray[np.void]:
        return np.frombuffer(self.reader.data(record), kind)


def _map_key(about: Mapping[str, Any]) -> str:
    """Returns the name of ``T_ros_map`` in a record, which was another one in version 1."""
    return MAP_OF_OLD if MAP_OF_OLD in about else "T_ros_map"


def check_head(
    path: Path, first: Record | None, head: tuple[str, int] = (FORMAT, VERSION)
) -> bool:
    """Returns whether the first record of a journal is that of a format and version; False, with a
    warning, if that record is damaged and ``first`` is one behind it.

    Raises JournalError for another journal.
    """
    about = {} if first is None else first.description
    if "format" not in about and about.get("kind") in (*KINDS, *SAVED_KINDS):
        log.warning("%s: its first record is damaged; the others are read", path)
        return False
    if about.get("format") != head[0]:
        raise JournalError(f"{path} is no journal of a scene")
    if about.get("version") != head[1]:
        raise JournalError(
            f"{path} has version {about.get('version')}, this da3_ros reads version {head[1]}: "
            f"use the da3_ros that wrote it ({about.get('written_by')})"
        )
    return True


def _frames_record(poses: Sequence[FramePose]) -> tuple[dict[str, Any], bytes]:
    """Returns description and data of the record of frames."""
    cameras = sorted({p.camera for p in poses})
    rows = np.array(
        [(p.stamp_ns, cameras.index(p.camera), p.submap, p.T_submap_camera[:3],
          (p.K[0, 0], p.K[1, 1], p.K[0, 2], p.K[1, 2]), p.size, p.keyframe) for p in poses],
        FRAME,
    )  # fmt: skip
    return {"kind": "frames", "cameras": cameras}, rows.tobytes()


def _frame(row: NDArray[np.void], cameras: Sequence[str]) -> FramePose:
    K, (width, height) = np.eye(3), row["size"].tolist()
    K[0, 0], K[1, 1], K[0, 2], K[1, 2] = row["K"]
    name = _name(cameras, row)
    check(K[0, 0] > 0 and K[1, 1] > 0 and is_near(K), "K")
    check(0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE, "a size")
    check(width * height <= MAX_DEPTH, "a size")
    return FramePose(
        int(row["stamp_ns"]), name, int(row["submap"]), _pose(row["T"]), K,
        (width, height), bool(row["keyframe"]),
    )  # fmt: skip


def _name(cameras: Sequence[str], row: NDArray[np.void]) -> str:
    index = int(row["camera"])
    check(0 <= index < len(cameras) and isinstance(cameras[index], str), "a camera's name")
    check(CAMERA.fullmatch(cameras[index]) is not None, "a camera's name")
    return cameras[index]


def _pose(T: Array) -> Array:
    check(is_near(T) and is_rotation(T[:, :3]), "a pose")
    out = np.eye(4)
    out[:3] = T
    return out
