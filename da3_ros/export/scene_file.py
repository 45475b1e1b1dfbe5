"""Saves a whole scene to a folder and loads it again, so that mapping can continue later.

``docs/map.md`` describes the folder. It is written atomically; loading validates all of it before
anything is changed, and reads arrays and numbers only, never objects.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from da3_ros import __version__
from da3_ros.export.atomic_files import atomic_folder, check_folder_target, files_in
from da3_ros.export.checked_files import checked_arrays, opened_inside
from da3_ros.export.colmap import image_name
from da3_ros.export.recognition_file import RECOGNITION, load_recognition, save_recognition
from da3_ros.export.selection import ExportError, Progress, silent
from da3_ros.geometry.similarity import Similarity
from da3_ros.keyframe_store.checks import check
from da3_ros.keyframe_store.store import CAMERA, JOURNAL
from da3_ros.mapping.recognition import Recognition
from da3_ros.mapping.scene import Shot, jpeg_bytes
from da3_ros.mapping.submap_points import POINT_BYTES
from da3_ros.mapping.submap_spill import Submap
from da3_ros.mapping.submaps import Snapshot
from da3_ros.mapping.trajectory import ROW, SAVED, Poses
from da3_ros.mapping.voxel_map import PointCloud
from da3_ros.types import Array

log = logging.getLogger(__name__)

FORMAT, VERSION = "da3_ros scene", 1
NAMES = re.compile(  # of files in the folder
    rf"scene\.json|poses\.npz|{re.escape(JOURNAL)}|{re.escape(RECOGNITION)}|submaps/\d+\.npz|"
    r"images/(\w+/)*-?\d+\.jpg"
)
CLOUD = {"xyz": "<f4", "rgb": "|u1", "confidence": "<f2", "count": "<u2"}
MAX_JSON, MAX_IMAGE, MAX_RECOGNITION = 1 << 25, 1 << 26, 1 << 36  # bytes
MAX_POINTS = 10**8  # of a submap
MAX_INTEGER = 1 << 30  # of other integers: half of int32, so that ids can still be added
MAX_NAME = 255  # characters of an origin
MAX_ORIGIN = 100  # of one that is made from a folder's name
MAX_SCALE, MAX_COORDINATE = 1e6, 1e9  # of a scale (or its inverse), of a coordinate
SKEW = 1e-4  # largest deviation of R R' from identity, by accumulated rounding


class SceneFileError(RuntimeError):
    """A folder without a loadable scene; one line that names it and the cause."""


def save_scene(saved: Snapshot, path: Path, progress: Progress = silent) -> None:
    """Writes a scene to the folder ``path``; replaces an older scene there.

    ``progress`` may raise, which aborts saving and removes its files. Raises ExportError.
    """
    if not len(saved.poses):
        raise ExportError("the scene is empty: nothing was processed yet")
    with atomic_folder(path, foreign_to_scene) as folder:
        write_scene(saved, folder, progress)


def check_scene_target(path: Path) -> None:
    """Raises ExportError if no scene can be written to ``path``, as ``save_scene`` would; makes
    nothing."""
    check_outside_scenes(path)
    check_folder_target(path, foreign_to_scene)


def write_scene(
    saved: Snapshot, folder: Path, progress: Progress = silent,
    filled: Callable[[Submap], Submap] = lambda submap: submap,
) -> None:  # fmt: skip
    """Writes a scene into an empty folder.

    filled: returns a submap with its points and images, so that those of one submap are in memory
    at a time. ``progress`` may raise. Raises OSError.
    """
    (folder / "submaps").mkdir()
    described = []
    for index, submap in enumerate(map(filled, saved.submaps)):
        progress("saving", index / len(saved.submaps))
        if len(submap.cloud):
            columns: dict[str, Any] = {name: getattr(submap.cloud, name) for name in CLOUD}
            np.savez(folder / _cloud_name(submap.id), **columns)
        for shot, data in submap.images.items():
            file = folder / _image_name(shot)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(jpeg_bytes(data))
        described.append(_described_submap(submap))
    columns = {name: saved.poses.rows[name] for name in SAVED.names or ()}
    np.savez(folder / "poses.npz", **columns)
    if saved.recognition is not None and saved.recognition.keyframes:
        save_recognition(saved.recognition, folder / RECOGNITION, progress)
    description = {**_description(saved), "submaps": described}
    (folder / "scene.json").write_text(json.dumps(description, indent=1) + "\n")


def load_scene(path: Path) -> Snapshot:
    """Reads a scene that ``save_scene`` wrote. Raises SceneFileError.

    Submaps without an origin get the scene's name: what is added later is of another session.
    """
    with _as_scene_error(path):
        described = _described(path)
        submaps = tuple(_filled(path, entry) for entry in described["submaps"])
        for submap in submaps:
            submap.origin = submap.origin or scene_name(path)
        return _load(path, described, submaps)


class SceneReader:
    """Reads a saved scene in pieces, so that the points of one submap are in memory at a time."""

    def __init__(self, path: Path) -> None:
        """Raises SceneFileError."""
        self.path = path
        with _as_scene_error(path):
            described = _described(path)
            self._entries = {_integer(entry, "id"): entry for entry in described["submaps"]}
            submaps = tuple(_submap(entry) for entry in described["submaps"])
            self.saved = _load(path, described, submaps)  # its submaps have no points and images

    def shots(self, id: int) -> list[Shot]:
        """Returns camera and stamp of a submap's images. Raises SceneFileError."""
        with _as_scene_error(self.path):
            return [(str(c), int(stamp)) for c, stamp, _ in self._entries[id]["images"]]

    def filled(self, id: int) -> Submap:
        """Returns a submap with its points and images. Raises SceneFileError."""
        with _as_scene_error(self.path):
            return _filled(self.path, self._entries[id])


def load_poses(path: Path) -> Poses:
    """Reads the poses of a saved scene alone, in the frames of their submaps. Raises
    SceneFileError."""
    with _as_scene_error(path):
        described = _described(path)
        return _poses(path, described, [_integer(entry, "id") for entry in described["submaps"]])


@contextmanager
def _as_scene_error(path: Path) -> Iterator[None]:
    """Raises SceneFileError for all errors."""
    try:
        yield
    except SceneFileError:
        raise
    except Exception as error:  # JSON, zip, zlib and NumPy raise various ones
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        raise SceneFileError(f"the scene in {path} is damaged ({what})") from error


def find_scene(path: Path) -> Path:
    """Returns the scene's folder: ``path``, or ``scene`` in it, as in a replay's output."""
    inner = path / "scene"  # os.path returns False for impossible names and does not raise
    here = any(os.path.exists(path / name) for name in ("scene.json", JOURNAL))
    return inner if not here and os.path.isdir(inner) else path


def scene_name(path: Path) -> str:
    """Returns the name of a scene: that of its folder, or of the replay's output that it is in."""
    real = Path(os.path.realpath(path))
    name = real.parent.name if real.name == "scene" else real.name
    return "".join(c if c.isprintable() else "_" for c in name)[:MAX_ORIGIN] or "scene"


def is_scene(folder: Path) -> bool:
    """True if a folder holds a scene, of any version, and nothing else."""
    return _is_described(folder) and foreign_to_scene(folder) is None


def foreign_to_scene(folder: Path) -> Path | None:
    """Returns a file of a folder that is no part of a saved scene; None: there is none."""
    described, files = _is_described(folder), files_in(folder)
    other = (f for f in files if not NAMES.fullmatch(f.relative_to(folder).as_posix()))
    return next(other, None if described or not files else files[0])


def check_outside_scenes(path: Path) -> None:
    """Raises ExportError if ``path`` is inside a saved scene.

    A scene with other files in its folder could not be replaced later; replacing a scene would
    delete them.
    """
    for folder in Path(os.path.realpath(path)).parents:  # does not raise for a cycle of links
        if _is_described(folder):
            raise ExportError(
                f"{path} is inside the saved scene {folder}, where no other files may be: name a "
                f"path outside, such as {folder.with_name(f'{folder.name}_{path.name}')}"
            )


def _is_described(folder: Path) -> bool:
    """True if a folder has a scene.json of this format."""
    try:
        return bool(_json(folder)["format"] == FORMAT)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError):
        return False


def _description(saved: Snapshot) -> dict[str, Any]:
    """Returns the contents of scene.json, without submaps."""
    poses = saved.poses
    return {
        "format": FORMAT,
        "version": VERSION,
        "written_by": __version__,
        "metric": saved.metric,
        "unit": saved.unit,
        "segment": saved.segment,
        "T_map_world": saved.T_map_world.tolist(),
        "cameras": list(poses.cameras),
        "leaders": [poses.cameras[i] for i in poses.leaders],
        "poses": len(poses),
    }


def _described_submap(submap: Submap) -> dict[str, Any]:
    """Returns the entry of a submap in scene.json."""
    return {
        "id": submap.id,
        "segment": submap.segment,
        "part": submap.part,
        **({"origin": submap.origin} if submap.origin else {}),
        "keyframes": submap.keyframes,
        "points": len(submap.cloud),
        "scale": float(submap.T_map_submap.scale),
        "R": submap.T_map_submap.R.tolist(),
        "t": submap.T_map_submap.t.tolist(),
        "images": [[*shot, len(data)] for shot, data in submap.images.items()],
    }


def _described(path: Path) -> dict[str, Any]:
    """Returns the contents of scene.json. Raises SceneFileError, ValueError, OSError."""
    if not os.path.lexists(path / "scene.json"):
        raise SceneFileError(f"{path} holds no scene: scene.json is missing")
    described = _json(path)
    if not isinstance(described, dict) or described.get("format") != FORMAT:
        raise SceneFileError(f"{path} holds no scene: scene.json is not from da3_ros")
    if described.get("version") != VERSION:
        raise SceneFileError(
            f"the scene in {path} has version {described.get('version')}, this da3_ros reads "
            f"version {VERSION}: export it with the da3_ros version that wrote it "
            f"({described.get('written_by')})"
        )
    return described


def _load(path: Path, described: dict[str, Any], submaps: tuple[Submap, ...]) -> Snapshot:
    ids = [s.id for s in submaps]
    check(len(set(ids)) == len(ids), "submap ids")
    T = np.array(described["T_map_world"], np.float64)
    check(T.shape == (4, 4) and _are_poses(T[None, :3]), "T_map_world")
    check(bool((T[3] == (0, 0, 0, 1)).all()), "the last row of T_map_world")
    unit, metric = float(described["unit"]), described["metric"]
    check(_is_scale(unit) and isinstance(metric, bool), "unit")
    poses = _poses(path, described, ids)
    segment = _integer(described, "segment")
    recognition = _recognition(path, {s.id: s.T_map_submap for s in submaps})
    return Snapshot(submaps, poses, segment, metric, T, unit, recognition)


def _recognition(path: Path, T_map_submap: Mapping[int, Similarity]) -> Recognition | None:
    """Returns what recognises the scene; None, with a warning, if that is damaged."""
    if not os.path.lexists(path / RECOGNITION):
        return None
    try:
        with opened_inside(path, RECOGNITION, MAX_RECOGNITION) as file:
            return load_recognition(Path(file.name), T_map_submap)
    except (OSError, ValueError) as error:
        log.warning("the places of the scene in %s cannot be recognised: %s", path, error)
        return None


def _submap(entry: dict[str, Any]) -> Submap:
    """Returns a submap without points and images."""
    place = Similarity(
        float(entry["scale"]), np.array(entry["R"], np.float64), np.array(entry["t"], np.float64)
    )
    good = _is_scale(place.scale) and place.R.shape == (3, 3) and place.t.shape == (3,)
    good = good and _are_poses(np.column_stack((place.R, place.t))[None])
    check(good, "a submap's place")
    submap = Submap(_integer(entry, "id"), _integer(entry, "segment"), place)
    submap.keyframes = _integer(entry, "keyframes")
    # Scenes from before parts were saved: each segment has a guessed place.
    submap.part = _integer(entry, "part") if "part" in entry else submap.segment
    origin = entry.get("origin", "")
    check(isinstance(origin, str) and len(origin) <= MAX_NAME and origin.isprintable(), "origin")
    submap.origin = origin
    return submap


def _filled(path: Path, entry: dict[str, Any]) -> Submap:
    submap = _submap(entry)
    submap.images.update(_images(path, entry))
    points = _integer(entry, "points", MAX_POINTS)
    if points:
        submap.cloud = _cloud(path, _cloud_name(submap.id), points)
    return submap


def _images(path: Path, entry: dict[str, Any]) -> Iterator[tuple[Shot, bytes]]:
    for camera, stamp_ns, size in entry["images"]:
        check(CAMERA.fullmatch(camera) is not None, "a camera's name")
        shot = (camera, int(stamp_ns))
        with opened_inside(path, _image_name(shot), MAX_IMAGE) as file:
            data = file.read(MAX_IMAGE)
        check(len(data) == size, f"the size of {_image_name(shot)}")
        yield shot, data


def _cloud(path: Path, name: str, points: int) -> PointCloud:
    columns = {}
    with checked_arrays(path, name, POINT_BYTES * points) as data:
        for column, kind in CLOUD.items():
            shape = (points, 3) if column in ("xyz", "rgb") else (points,)
            columns[column] = data[column]
            check(columns[column].shape == shape and columns[column].dtype == kind, column)
    check(_is_near(columns["xyz"]), f"the points of {name}")
    return PointCloud(**columns)


def _poses(path: Path, described: dict[str, Any], ids: list[int]) -> Poses:
    cameras, count = tuple(described["cameras"]), _integer(described, "poses")
    check(all(CAMERA.fullmatch(name) for name in cameras), "a camera's name")
    leaders = described.get("leaders", cameras[:1])  # older scenes: one
    check(isinstance(leaders, list | tuple) and set(leaders) <= set(cameras), "leaders")
    with checked_arrays(path, "poses.npz", count * SAVED.itemsize) as data:
        rows = np.zeros(count, ROW)
        for name in SAVED.names or ():
            same = data[name].shape == rows[name].shape and data[name].dtype == rows[name].dtype
            check(same, f"poses: {name}")
            rows[name] = data[name]
    check(bool(np.isin(rows["submap"], ids).all()), "poses: submap")
    known = (rows["camera"] >= 0) & (rows["camera"] < len(cameras))
    K, good = rows["K"], bool(known.all() and (rows["size"] > 0).all())
    check(good and _is_near(K) and bool((K[:, :2] > 0).all()), "poses: numbers")
    check(_are_poses(rows["T"]), "poses: T")
    return Poses(rows, cameras, tuple(cameras.index(name) for name in leaders))


def _json(folder: Path) -> Any:
    with opened_inside(folder, "scene.json", MAX_JSON) as file:
        return json.loads(file.read(MAX_JSON))


def _integer(entry: dict[str, Any], name: str, most: int = MAX_INTEGER) -> int:
    value = entry[name]
    check(type(value) is int and 0 <= value <= most, name)
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


def _cloud_name(id: int) -> str:
    return f"submaps/{id:06d}.npz"


def _image_name(shot: Shot) -> str:
    camera, stamp_ns = shot
    return f"images/{image_name(camera, stamp_ns)}.jpg"
