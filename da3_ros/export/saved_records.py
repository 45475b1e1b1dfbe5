"""The records of a saved scene in its journal: written as they are read.

Points, images, the path and what recognises locations come first, then the ``contents``: numbers
of the scene, its submaps, and where their records begin. A scene is saved when its contents are.
The last record says where they begin, so that what is stored of a run need not be read. Numbers
are checked by ``scene_file``. ``docs/scene_file.md`` has the format.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from da3_ros import __version__
from da3_ros.export.anchor_file import append_anchors, load_anchors
from da3_ros.export.checked_files import path_inside
from da3_ros.export.floor_file import append_floor, load_floor
from da3_ros.export.recognition_file import append_recognition, load_recognition
from da3_ros.export.selection import Progress, silent
from da3_ros.geometry.similarity import Similarity
from da3_ros.keyframe_store.checks import check
from da3_ros.keyframe_store.journal import JournalError, JournalReader, JournalWriter, Record
from da3_ros.keyframe_store.store import FORMAT, JOURNAL, VERSION, StoredScene, check_head
from da3_ros.mapping.anchors import HeldAnchor
from da3_ros.mapping.floor_view import FloorViews
from da3_ros.mapping.recognition import Recognition
from da3_ros.mapping.scene import Shot, jpeg_bytes
from da3_ros.mapping.submap_points import POINT_BYTES
from da3_ros.mapping.submap_spill import Submap
from da3_ros.mapping.submaps import Snapshot
from da3_ros.mapping.trajectory import SAVED
from da3_ros.mapping.voxel_map import PointCloud

SUBMAP = np.dtype(  # rows of the contents
    [("id", "<i4"), ("chain", "<i4"), ("component", "<i4"), ("origin", "<i4"),
     ("keyframes", "<i4"),
     ("scale", "<f8"), ("R", "<f8", (3, 3)), ("t", "<f8", (3,)), ("points", "<i8"),
     ("images", "<i8")]
)  # fmt: skip
NONE = -1  # in place of an offset or an index
COLUMNS = {"xyz": ("<f4", 3), "rgb": ("|u1", 3), "confidence": ("<f2", 1), "count": ("<u2", 1)}


# Writing ----------------------------------------------------------------------------------------


def append_saved(
    journal: JournalWriter, saved: Snapshot, progress: Progress = silent,
    filled: Callable[[Submap], Submap] = lambda submap: submap,
) -> None:  # fmt: skip
    """Appends a saved scene.

    filled: returns a submap with its points and images, so that those of one submap are in memory
    at a time. ``progress`` may raise. Raises OSError.
    """
    origins = sorted({s.origin for s in saved.submaps if s.origin})
    rows = np.zeros(len(saved.submaps), SUBMAP)
    for index, submap in enumerate(map(filled, saved.submaps)):
        progress("saving", index / len(saved.submaps))
        pose = submap.T_map_submap
        origin = origins.index(submap.origin) if submap.origin else NONE
        rows[index] = (
            submap.id, submap.chain, submap.component, origin, submap.keyframes, pose.scale,
            pose.R, pose.t, _append_points(journal, submap), _append_images(journal, submap),
        )  # fmt: skip
    path, recognition = _append_path(journal, saved), NONE
    if saved.recognition is not None and saved.recognition.keyframes:
        recognition = append_recognition(saved.recognition, journal, progress)
    floor = append_floor(journal, saved.floor) if saved.floor.views else NONE
    anchors = append_anchors(journal, saved.anchors) if saved.anchors else NONE
    contents = {
        "kind": "contents", "written_by": __version__, "metric": saved.metric, "unit": saved.unit,
        "chain": saved.chain, "T_ros_map": saved.T_ros_map.ravel().tolist(),
        "is_level": saved.is_level, "origins": origins, "path": path,
        "recognition": recognition, "floor": floor, "anchors": anchors,
    }  # fmt: skip
    journal.sync()  # else a power failure could leave contents without what they name
    start = journal.append(contents, rows.tobytes())
    journal.append({"kind": "end", "contents": start})


def _append_points(journal: JournalWriter, submap: Submap) -> int:
    """Appends the points of a submap; returns their offset, or NONE without any."""
    cloud = submap.cloud
    if not len(cloud):
        return NONE
    columns = [
        np.ascontiguousarray(getattr(cloud, name), kind).reshape(-1).view(np.uint8).data
        for name, (kind, _) in COLUMNS.items()
    ]
    return journal.append({"kind": "points", "submap": submap.id, "count": len(cloud)}, columns)


def _append_images(journal: JournalWriter, submap: Submap) -> int:
    """Appends the images of a submap; returns their offset, or NONE without any."""
    images = submap.images
    if not images:
        return NONE
    listed = [[*shot, len(data)] for shot, data in images.items()]
    about = {"kind": "images", "submap": submap.id, "images": listed}
    return journal.append(about, b"".join(map(jpeg_bytes, images.values())))


def _append_path(journal: JournalWriter, saved: Snapshot) -> int:
    """Appends the poses of all frames; returns their offset."""
    poses = saved.poses
    rows = np.zeros(len(poses), SAVED)
    for name in SAVED.names or ():
        rows[name] = poses.rows[name]
    leaders = [poses.cameras[i] for i in poses.leaders]
    about = {"kind": "path", "cameras": list(poses.cameras), "leaders": leaders}
    return journal.append(about, rows.tobytes())


# Reading ----------------------------------------------------------------------------------------


def holds_saved(folder: Path) -> bool:
    """Whether a folder has a journal with a saved scene, which no writer has open. A journal of
    another version counts as a saved scene. Raises OSError, ValueError, RuntimeError if the
    folder has no journal of a scene."""
    journal = JournalReader(path_inside(folder, JOURNAL))
    first = next(journal.records(), None)
    about = {} if first is None else first.description
    other = about.get("format") == FORMAT and about.get("version") != VERSION
    return other or (_contents(journal) is not None and not journal.is_written)


class SavedRecords:
    """The records of a scene's journal; numbers are not checked."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError, ValueError, RuntimeError; JournalError for another journal."""
        self.folder = folder
        path = path_inside(folder, JOURNAL)
        self._journal = JournalReader(path)
        check_head(path, next(self._journal.records(), None))
        self._found = _contents(self._journal)

    @property
    def is_saved(self) -> bool:
        """Whether there is a saved scene, not keyframes alone."""
        return self._found is not None

    @property
    def has_keyframes(self) -> bool:
        """Whether frames of a run are stored."""
        records = JournalReader(self._journal.path).records()
        return any(record.description.get("kind") == "frames" for record in records)

    def keyframes(self) -> StoredScene:
        """Opens the stored keyframes. Raises JournalError."""
        return StoredScene(self._journal.path)

    @property
    def about(self) -> Mapping[str, Any]:
        """Numbers of the scene: ``metric``, ``unit``, ``chain``, ``T_ros_map``."""
        about = self._contents.description
        return {**about, "T_ros_map": np.reshape(about["T_ros_map"], (4, 4))}

    def submaps(self) -> list[dict[str, Any]]:
        """Returns the entries of submaps: numbers, and where their records are."""
        origins = self._contents.description["origins"]
        out = []
        for row in np.frombuffer(self._journal.data(self._contents), SUBMAP):
            entry = {name: row[name].tolist() for name in SUBMAP.names or ()}
            index = entry["origin"]
            check(NONE <= index < len(origins), "origin")
            out.append({**entry, "origin": "" if index == NONE else origins[index]})
        return out

    def path(self) -> tuple[list[str], list[str], NDArray[np.void]]:
        """Returns the names of cameras, of the leading ones, and rows [N] of poses."""
        record = self._record("path", self._contents.description["path"])
        rows = np.frombuffer(self._journal.data(record), SAVED)
        return record.description["cameras"], record.description["leaders"], rows

    def cloud(self, entry: Mapping[str, Any]) -> PointCloud | None:
        """Returns the points of a submap; None: it has none."""
        if entry["points"] == NONE:
            return None
        record = self._record("points", entry["points"], entry["id"])
        count = record.description["count"]
        check(type(count) is int and count * POINT_BYTES == record.size, "the number of points")
        data, at, columns = self._journal.data(record), 0, {}
        for name, (kind, width) in COLUMNS.items():
            column = np.frombuffer(data, kind, count * width, at)
            at += column.nbytes
            columns[name] = column.reshape(count, width) if width > 1 else column
        return PointCloud(**columns)

    def shots(self, entry: Mapping[str, Any]) -> list[tuple[str, int, int]]:
        """Returns camera, stamp and bytes of a submap's images."""
        if entry["images"] == NONE:
            return []
        record = self._record("images", entry["images"], entry["id"])
        return [(camera, stamp, size) for camera, stamp, size in record.description["images"]]

    def images(self, entry: Mapping[str, Any]) -> Iterator[tuple[Shot, bytes]]:
        """Yields the images of a submap, JPEG."""
        shots, at = self.shots(entry), 0
        if not shots:
            return
        data = self._journal.data(self._record("images", entry["images"], entry["id"]))
        check(sum(size for *_, size in shots) == len(data), "the size of images")
        for camera, stamp, size in shots:
            check(size >= 0, "the size of an image")
            yield (camera, stamp), data[at : at + size]
            at += size

    def recognition(self, poses: Mapping[int, Similarity]) -> Recognition | None:
        """Returns what recognises the scene, with submaps at these poses; None: nothing does.

        Raises OSError, ValueError for damage.
        """
        start = self._contents.description["recognition"]
        return None if start == NONE else load_recognition(self._journal, start, poses)

    def floor(self, submaps: Collection[int]) -> FloorViews:
        """Returns what keyframes saw of the floor, in a scene with these submaps.

        Raises OSError, ValueError for damage.
        """
        start = self._contents.description.get("floor", NONE)  # others wrote none
        return FloorViews() if start == NONE else load_floor(self._journal, start, submaps)

    def anchors(self, submaps: Collection[int]) -> tuple[HeldAnchor, ...]:
        """Returns the global poses that hold the scene, which has these submaps.

        Raises OSError, ValueError for damage.
        """
        start = self._contents.description.get("anchors", NONE)  # others wrote none
        return () if start == NONE else load_anchors(self._journal, start, submaps)

    @property
    def _contents(self) -> Record:
        assert self._found is not None
        return self._found

    def _record(self, kind: str, start: int, submap: int | None = None) -> Record:
        record = self._journal.record(start)
        about = record.description
        check((about["kind"], about.get("submap")) == (kind, submap), f"the record of {kind}")
        return record


def _contents(journal: JournalReader) -> Record | None:
    """Returns the contents of the newest saved scene; None: there is none. Raises OSError."""
    last = journal.last()
    if last is not None and last.description.get("kind") == "end":
        try:
            found = journal.record(int(last.description["contents"]))
            if found.description.get("kind") == "contents":
                return found
        except (JournalError, LookupError, TypeError, ValueError):
            pass  # they are looked for
    contents = None
    for record in JournalReader(journal.path).records():
        kind = record.description.get("kind")
        if kind in ("contents", "begin"):
            contents = record if kind == "contents" else None
    return contents
