"""Scenes as folders of earlier versions, read as ``saved_records`` reads those of today.

Nothing writes them any more: ``scene.json`` with numbers and submaps, ``poses.npz``,
``submaps/ID.npz``, ``images/``, later also ``keyframes.da3k`` (stored keyframes, which alone made
the folder of a run) and ``recognition.da3k``.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from da3_ros.export.checked_files import SceneFileError, opened_inside, path_inside
from da3_ros.export.colmap import image_name
from da3_ros.export.recognition_file import RecognitionFile, SavedGraph, damage_as_value_error
from da3_ros.geometry.similarity import Similarity
from da3_ros.keyframe_store.checks import check
from da3_ros.keyframe_store.journal import JournalReader
from da3_ros.keyframe_store.store import CAMERA, StoredScene
from da3_ros.mapping.anchors import HeldAnchor
from da3_ros.mapping.floor_view import FloorViews
from da3_ros.mapping.recognition import Recognition
from da3_ros.mapping.scene import Shot
from da3_ros.mapping.submap_points import POINT_BYTES
from da3_ros.mapping.trajectory import SAVED
from da3_ros.mapping.voxel_map import PointCloud

SCENE, KEYFRAMES, RECOGNITION = "scene.json", "keyframes.da3k", "recognition.da3k"
NAMES = (  # of all files in the folder
    r"scene\.json|poses\.npz|keyframes\.da3k|recognition\.da3k|submaps/\d+\.npz|"
    r"images/(\w+/)*-?\d+\.jpg"
)
FORMAT, VERSION = "da3_ros scene", 1
KEYFRAMES_HEAD = ("da3_ros keyframes", 1)
RECOGNITION_HEAD = ("da3_ros recognition", 1)
COLUMNS = ("xyz", "rgb", "confidence", "count")
MAX_JSON, MAX_IMAGE = 1 << 25, 1 << 26  # bytes
MAX_POINTS, MAX_POSES = 10**8, 1 << 30  # of a submap, of a scene
OVERHEAD = 4096  # largest overhead of a file of arrays, bytes


def is_old_scene(folder: Path) -> bool:
    """Whether a folder has a scene.json of any version."""
    try:
        return bool(_json(folder)["format"] == FORMAT)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError):
        return False


class OldScene:
    """The files of a scene; numbers are not checked. Members are those of ``SavedRecords``."""

    def __init__(self, folder: Path) -> None:
        """Raises SceneFileError; OSError, ValueError, RuntimeError for damage."""
        self.folder = folder
        self.is_saved = os.path.lexists(folder / SCENE)
        self.has_keyframes = os.path.lexists(folder / KEYFRAMES)
        self.about: dict[str, Any] = _described(folder) if self.is_saved else {}

    def keyframes(self) -> StoredScene:
        """Opens the stored keyframes. Raises JournalError."""
        return StoredScene(self.folder / KEYFRAMES, head=KEYFRAMES_HEAD)

    def submaps(self) -> list[dict[str, Any]]:
        """Returns the entries of submaps: numbers, and which images and points they have."""
        # Scenes from before parts were saved: each segment is one that nothing connects.
        return [
            {**entry, "chain": entry["segment"],
             "component": entry.get("part", entry["segment"]), "origin": entry.get("origin", "")}
            for entry in self.about["submaps"]
        ]  # fmt: skip

    def path(self) -> tuple[list[str], list[str], NDArray[np.void]]:
        """Returns the names of cameras, of the leading ones, and rows [N] of poses."""
        cameras, count = self.about["cameras"], self.about["poses"]
        check(type(count) is int and 0 <= count <= MAX_POSES, "poses")
        with _checked_arrays(self.folder, "poses.npz", count * SAVED.itemsize) as data:
            rows = np.zeros(count, SAVED)
            for name in SAVED.names or ():
                same = data[name].shape == rows[name].shape
                check(same and data[name].dtype == rows[name].dtype, f"poses: {name}")
                rows[name] = data[name]
        return cameras, self.about.get("leaders", cameras[:1]), rows  # older scenes: one leads

    def cloud(self, entry: Mapping[str, Any]) -> PointCloud | None:
        """Returns the points of a submap; None: it has none."""
        count, name = entry["points"], f"submaps/{int(entry['id']):06d}.npz"
        check(type(count) is int and 0 <= count <= MAX_POINTS, "points")
        if not count:
            return None
        with _checked_arrays(self.folder, name, POINT_BYTES * count) as data:
            cloud = PointCloud(*(data[column] for column in COLUMNS))
        check(len(cloud) == count, "points")
        return cloud

    def shots(self, entry: Mapping[str, Any]) -> list[tuple[str, int, int]]:
        """Returns camera, stamp and bytes of a submap's images."""
        return [(str(camera), int(stamp), size) for camera, stamp, size in entry["images"]]

    def images(self, entry: Mapping[str, Any]) -> Iterator[tuple[Shot, bytes]]:
        """Yields the images of a submap, JPEG."""
        for camera, stamp_ns, size in self.shots(entry):
            check(CAMERA.fullmatch(camera) is not None, "a camera's name")
            name = f"images/{image_name(camera, stamp_ns)}.jpg"
            with opened_inside(self.folder, name, MAX_IMAGE) as file:
                data = file.read(MAX_IMAGE)
            check(len(data) == size, f"the size of {name}")
            yield (camera, stamp_ns), data

    def floor(self, submaps: Collection[int]) -> FloorViews:
        """Returns no views: older versions wrote none."""
        return FloorViews()

    def anchors(self, submaps: Collection[int]) -> tuple[HeldAnchor, ...]:
        """Returns none: older versions wrote none."""
        return ()

    def recognition(self, poses: Mapping[int, Similarity]) -> Recognition | None:
        """Returns what recognises the scene, with submaps at these poses; None: nothing does.

        Raises OSError, ValueError for damage.
        """
        if not os.path.lexists(self.folder / RECOGNITION):
            return None
        journal = JournalReader(path_inside(self.folder, RECOGNITION))
        with damage_as_value_error(journal):
            head, *records = journal.records()
            about = head.description
            check((about["format"], about["version"]) == RECOGNITION_HEAD, "format")
            kinds = [str(record.description["kind"]) for record in records]
            nodes, edges = (journal.data(records[kinds.index(k)]) for k in ("nodes", "edges"))
            keyframes = [r for r, kind in zip(records, kinds, strict=True) if kind == "keyframe"]
            graph = SavedGraph(str(about["model"]), nodes, edges)
            return RecognitionFile(journal).recognition(graph, keyframes, poses)


def _described(folder: Path) -> dict[str, Any]:
    """Returns the contents of scene.json. Raises SceneFileError, ValueError, OSError."""
    described = _json(folder)
    if not isinstance(described, dict) or described.get("format") != FORMAT:
        raise SceneFileError(f"{folder} holds no scene: scene.json is not from da3_ros")
    if described.get("version") != VERSION:
        raise SceneFileError(
            f"the scene in {folder} has version {described.get('version')}, this da3_ros reads "
            f"version {VERSION}: export it with the da3_ros version that wrote it "
            f"({described.get('written_by')})"
        )
    return {**described, "chain": described["segment"], "T_ros_map": described["T_map_world"]}


def _json(folder: Path) -> Any:
    with opened_inside(folder, SCENE, MAX_JSON) as file:
        return json.loads(file.read(MAX_JSON))


@contextmanager
def _checked_arrays(folder: Path, name: str, size: int) -> Iterator[Any]:
    """Yields the arrays of a file, after checking that it holds ``size`` bytes of them.

    So that no header makes NumPy allocate all memory, and zlib inflates no zip bomb.
    """
    with opened_inside(folder, name, size + OVERHEAD) as file:
        check(os.fstat(file.fileno()).st_size >= size, f"the size of {name}")
        with zipfile.ZipFile(file) as members:
            inflated = sum(member.file_size for member in members.infolist())
        check(inflated <= size + OVERHEAD, f"the size of {name}")
        file.seek(0)
        with np.load(file, allow_pickle=False) as data:
            yield data
