"""Saves a whole scene to a file and loads it again, so that mapping can continue later.

The file is the journal of the scene's folder, which also has the stored keyframes of a run.
``docs/scene_file.md`` describes it. It is written atomically; loading validates all of it before
anything is changed, and reads arrays and numbers only, never objects.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from da3_ros.export.atomic_files import atomic_folder
from da3_ros.export.checked_files import SceneFileError
from da3_ros.export.old_scenes import OldScene
from da3_ros.export.saved_records import COLUMNS, SavedRecords, append_saved
from da3_ros.export.scene_folder import foreign_to_scene, scene_file, scene_name
from da3_ros.export.selection import ExportError, Progress, silent
from da3_ros.geometry.poses import T_ROS_MAP
from da3_ros.geometry.similarity import Similarity
from da3_ros.keyframe_store.checks import MAX_INTEGER, check
from da3_ros.keyframe_store.journal import JournalError
from da3_ros.keyframe_store.store import CAMERA, JOURNAL, StoredScene, open_journal
from da3_ros.mapping.anchors import HeldAnchor
from da3_ros.mapping.floor_view import FloorViews
from da3_ros.mapping.recognition import Recognition
from da3_ros.mapping.scene import Shot
from da3_ros.mapping.submap_spill import Submap
from da3_ros.mapping.submaps import Snapshot
from da3_ros.mapping.trajectory import ROW, SAVED, Poses
from da3_ros.mapping.voxel_map import PointCloud
from da3_ros.types import Array

log = logging.getLogger(__name__)

MAX_NAME = 255  # characters of an origin
MAX_SCALE, MAX_COORDINATE = 1e6, 1e9  # of a scale (or its inverse), of a coordinate
SKEW = 1e-4  # largest deviation of R R' from identity, by accumulated rounding


def save_scene(saved: Snapshot, path: Path, progress: Progress = silent) -> None:
    """Writes a scene to the folder ``path``; replaces an older scene there.

    ``progress`` may raise, which aborts saving and removes its files. Raises ExportError.
    """
    check_not_empty(saved)
    with atomic_folder(path, foreign_to_scene) as folder:
        write_scene(saved, folder, progress)


def check_not_empty(saved: Snapshot) -> None:
    """Raises ExportError if there is nothing to save."""
    if not len(saved.poses):
        raise ExportError("the scene is empty: nothing was processed yet")


def write_scene(
    saved: Snapshot, folder: Path, progress: Progress = silent,
    filled: Callable[[Submap], Submap] = lambda submap: submap,
) -> None:  # fmt: skip
    """Writes a scene into a folder, behind the keyframes that are stored there.

    filled: returns a submap with its points and images, so that those of one submap are in memory
    at a time. ``progress`` may raise. Raises OSError, JournalError.
    """
    with closing(open_journal(folder)) as journal:
        append_saved(journal, saved, progress, filled)
        journal.sync()


def load_scene(path: Path) -> Snapshot:
    """Reads a saved scene from its folder. Raises SceneFileError.

    Submaps without an origin get the scene's name: what is added later is of another session.
    """
    return SceneFile(path).load()


class _Pieces(Protocol):
    """A saved scene as it is in its files; numbers are not checked."""

    @property
    def is_saved(self) -> bool: ...
    @property
    def has_keyframes(self) -> bool: ...
    @property
    def about(self) -> Mapping[str, Any]: ...

    def keyframes(self) -> StoredScene: ...
    def submaps(self) -> list[dict[str, Any]]: ...
    def path(self) -> tuple[list[str], list[str], NDArray[np.void]]: ...
    def cloud(self, entry: Mapping[str, Any]) -> PointCloud | None: ...
    def shots(self, entry: Mapping[str, Any]) -> list[tuple[str, int, int]]: ...
    def images(self, entry: Mapping[str, Any]) -> Iterator[tuple[Shot, bytes]]: ...
    def recognition(self, poses: Mapping[int, Similarity]) -> Recognition | None: ...
    def floor(self, submaps: Collection[int]) -> FloorViews: ...
    def anchors(self, submaps: Collection[int]) -> tuple[HeldAnchor, ...]: ...


class SceneFile:
    """Reads all that a scene's folder has: the saved scene, in pieces, so that the points of one
    submap are in memory at a time; and the stored keyframes. Of older versions too."""

    def __init__(self, path: Path) -> None:
        """Raises SceneFileError."""
        self.path = path
        file = scene_file(path)
        if file is None:
            raise SceneFileError(f"{path} holds no scene: {JOURNAL} is missing")
        with _as_scene_error(path):
            self._pieces: _Pieces = SavedRecords(path) if file.name == JOURNAL else OldScene(path)
            # False: there are keyframes alone, as while a run writes, and after a crash.
            self.is_saved = self._pieces.is_saved

    @cached_property
    def has_keyframes(self) -> bool:
        """Whether keyframes are stored."""
        return self._pieces.has_keyframes

    def keyframes(self) -> StoredScene:
        """Opens the stored keyframes. Raises JournalError."""
        return self._pieces.keyframes()

    @cached_property
    def saved(self) -> Snapshot:
        """The scene without points and images. Raises SceneFileError."""
        with self._reading():
            return self._snapshot(tuple(map(_submap, self._described.values())))

    def load(self) -> Snapshot:
        """Returns the whole scene. Raises SceneFileError."""
        with self._reading():
            submaps = tuple(map(self._filled, self._described.values()))
            for submap in submaps:
                submap.origin = submap.origin or scene_name(self.path)
            return self._snapshot(submaps)

    def poses(self) -> Poses:
        """Returns the poses alone, in the frames of their submaps. Raises SceneFileError."""
        with self._reading():
            return _poses(*self._pieces.path(), list(self._described))

    def shots(self, id: int) -> list[Shot]:
        """Returns camera and stamp of a submap's images. Raises SceneFileError."""
        with self._reading():
            return [
                (str(c), int(stamp)) for c, stamp, _ in self._pieces.shots(self._described[id])
            ]

    def filled(self, id: int) -> Submap:
        """Returns a submap with its points and images. Raises SceneFileError."""
        with self._reading():
            return self._filled(self._described[id])

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Raises SceneFileError for all errors, and if there is no saved scene."""
        if not self.is_saved:
            raise SceneFileError(
                f"{self.path} holds no saved scene, but keyframes of a run that did not end: "
                f"da3_ros export {self.path} NAME.glb"
            )
        with _as_scene_error(self.path):
            yield

    @cached_property
    def _described(self) -> Mapping[int, dict[str, Any]]:
        """The entries of submaps by their ids."""
        entries = self._pieces.submaps()
        ids = [_integer(entry, "id") for entry in entries]
        check(len(set(ids)) == len(ids), "submap ids")
        return dict(zip(ids, entries, strict=True))

    def _snapshot(self, submaps: tuple[Submap, ...]) -> Snapshot:
        about = self._pieces.about
        T = np.array(about["T_ros_map"], np.float64)
        check(T.shape == (4, 4) and _are_poses(T[None, :3]), "T_ros_map")
        check(bool((T[3] == (0, 0, 0, 1)).all()), "the last row of T_ros_map")
        unit, metric = float(about["unit"]), about["metric"]
        check(_is_scale(unit) and isinstance(metric, bool), "unit")
        poses = _poses(*self._pieces.path(), [s.id for s in submaps])
        chain = _integer(about, "chain")
        recognition = self._recognition({s.id: s.T_map_submap for s in submaps})
        ids = [s.id for s in submaps]
        floor, anchors = self._floor(ids), self._anchors(ids)
        # Older scenes do not say; what was made level differs from the default.
        is_level = bool(about.get("is_level", metric and not np.array_equal(T, T_ROS_MAP)))
        return Snapshot(
            submaps, poses, chain, metric, T, unit, recognition, floor, is_level, anchors
        )

    def _recognition(self, poses: Mapping[int, Similarity]) -> Recognition | None:
        """Returns what recognises the scene; None, with a warning, if that is damaged."""
        try:
            return self._pieces.recognition(poses)
        except (OSError, ValueError) as error:
            log.warning(
                "the locations of the scene in %s cannot be recognised: %s", self.path, error
            )
            return None

    def _floor(self, submaps: Collection[int]) -> FloorViews:
        """Returns what keyframes saw of the floor; nothing, with a warning, if that is damaged."""
        try:
            return self._pieces.floor(submaps)
        except (OSError, LookupError, TypeError, ValueError, JournalError) as error:
            log.warning("the scene in %s has no occupancy grid any more: %s", self.path, error)
            return FloorViews()

    def _anchors(self, submaps: Collection[int]) -> tuple[HeldAnchor, ...]:
        """Returns what holds the scene; nothing, with a warning, if that is damaged."""
        try:
            return self._pieces.anchors(submaps)
        except (OSError, LookupError, TypeError, ValueError, JournalError) as error:
            log.warning("no global poses hold the scene in %s any more: %s", self.path, error)
            return ()

    def _filled(self, entry: Mapping[str, Any]) -> Submap:
        submap = _submap(entry)
        for (camera, stamp_ns), data in self._pieces.images(entry):
            check(CAMERA.fullmatch(camera) is not None, "a camera's name")
            submap.images[camera, int(stamp_ns)] = data
        cloud = self._pieces.cloud(entry)
        if cloud is not None:
            for name, (kind, width) in COLUMNS.items():
                column, shape = getattr(cloud, name), (len(cloud), width)
                check(column.shape == (shape if width > 1 else shape[:1]), name)
                check(column.dtype == kind, name)
            check(_is_near(cloud.xyz), f"the points of submap {submap.id}")
            submap.cloud = cloud
        return submap


@contextmanager
def _as_scene_error(path: Path) -> Iterator[None]:
    """Raises SceneFileError for all errors."""
    try:
        yield
    except SceneFileError:
        raise
    except JournalError as error:  # which names the file
        raise SceneFileError(str(error)) from error
    except Exception as error:  # JSON, zip, zlib and NumPy raise various ones
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        raise SceneFileError(f"the scene in {path} is damaged ({what})") from error


def _submap(entry: Mapping[str, Any]) -> Submap:
    """Returns a submap without points and images."""
    pose = Similarity(
        float(entry["scale"]), np.array(entry["R"], np.float64), np.array(entry["t"], np.float64)
    )
    good = _is_scale(pose.scale) and pose.R.shape == (3, 3) and pose.t.shape == (3,)
    good = good and _are_poses(np.column_stack((pose.R, pose.t))[None])
    check(good, "a submap's pose")
    submap = Submap(_integer(entry, "id"), _integer(entry, "chain"), pose)
    submap.keyframes, submap.component = _integer(entry, "keyframes"), _integer(entry, "component")
    origin = entry["origin"]
    check(isinstance(origin, str) and len(origin) <= MAX_NAME and origin.isprintable(), "origin")
    submap.origin = origin
    return submap


def _poses(
    cameras: list[str], leaders: list[str], saved: NDArray[np.void], ids: list[int]
) -> Poses:
    """Returns the checked table of poses of a scene with these submaps."""
    check(all(CAMERA.fullmatch(name) for name in cameras), "a camera's name")
    check(isinstance(leaders, list) and set(leaders) <= set(cameras), "leaders")
    rows = np.zeros(len(saved), ROW)
    for name in SAVED.names or ():
        rows[name] = saved[name]
    check(bool(np.isin(rows["submap"], ids).all()), "poses: submap")
    known = (rows["camera"] >= 0) & (rows["camera"] < len(cameras))
    K, good = rows["K"], bool(known.all() and (rows["size"] > 0).all())
    check(good and _is_near(K) and bool((K[:, :2] > 0).all()), "poses: numbers")
    check(_are_poses(rows["T"]), "poses: T")
    return Poses(rows, tuple(cameras), tuple(cameras.index(name) for name in leaders))


def _integer(entry: Mapping[str, Any], name: str) -> int:
    value = entry[name]
    check(type(value) is int and 0 <= value <= MAX_INTEGER, name)
    return int(value)


def _is_scale(value: float) -> bool:
    return 1 / MAX_SCALE <= value <= MAX_SCALE  # False for NaN


def _is_near(numbers: NDArray[np.floating]) -> bool:
    return bool((np.abs(numbers) <= MAX_COORDINATE).all())  # False for NaN


def _are_poses(T: Array) -> bool:
    """True if all [N, 3, 4] are proper rotations with translations in range."""
    if not _is_near(T):
        return False
    R = T[:, :, :3]
    right = np.allclose(R @ R.swapaxes(1, 2), np.eye(3), atol=SKEW)
    return right and bool((np.linalg.det(R) > 0).all())
