"""Saves a whole scene to a folder and loads it again, so that a recording can be done in parts.

``docs/map.md`` describes the folder. It appears whole or not at all; loading checks all of it
before anything is changed, and reads arrays and numbers only, never objects.
"""

from __future__ import annotations

import json
import math
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from da3_ros import __version__
from da3_ros.mapping.alignment import Similarity
from da3_ros.mapping.atomic import atomic_folder
from da3_ros.mapping.colmap import image_name
from da3_ros.mapping.scene import Shot
from da3_ros.mapping.selection import ExportError, Progress, silent
from da3_ros.mapping.submaps import HELD, Snapshot, Submap
from da3_ros.mapping.trajectory import ROW, Poses
from da3_ros.mapping.voxel_map import PointCloud
from da3_ros.types import Array

FORMAT, VERSION = "da3_ros scene", 1
NAMES = {"scene.json", "poses.npz", "submaps", "images"}
CAMERA = re.compile(r"[A-Za-z0-9_]*")  # also a folder's name
CLOUD = {"xyz": "<f4", "rgb": "|u1", "confidence": "<f2", "count": "<u2"}
OVERHEAD = 4096  # most bytes of a submap's file beside its points


class SceneFileError(RuntimeError):
    """A folder that holds no scene which can be loaded; one line that names it and the cause."""


def save_scene(saved: Snapshot, path: Path, progress: Progress = silent) -> None:
    """Write a scene to the folder ``path``, in place of an older scene if there is one.

    ``progress`` may raise, which leaves nothing behind. Raises ExportError.
    """
    if not len(saved.poses):
        raise ExportError("the scene is empty: nothing was processed yet")
    with atomic_folder(path, is_scene) as folder:
        (folder / "submaps").mkdir()
        for index, submap in enumerate(saved.submaps):
            progress("saving", index / len(saved.submaps))
            if len(submap.cloud):
                columns: dict[str, Any] = {name: getattr(submap.cloud, name) for name in CLOUD}
                np.savez(folder / _cloud_name(submap.id), **columns)
            for shot, data in submap.images.items():
                file = folder / _image_name(shot)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(data)
        columns = {name: saved.poses.rows[name] for name in ROW.names or ()}
        np.savez(folder / "poses.npz", **columns)
        (folder / "scene.json").write_text(json.dumps(_described(saved), indent=1) + "\n")


def load_scene(path: Path) -> Snapshot:
    """Read a scene that ``save_scene`` wrote. Raises SceneFileError."""
    try:
        return _load(path)
    except SceneFileError:
        raise
    except (
        OSError, ValueError, KeyError, TypeError, EOFError, MemoryError, AttributeError,
        zipfile.BadZipFile,
    ) as error:  # fmt: skip
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        raise SceneFileError(f"the scene in {path} is damaged ({what})") from error


def find_scene(path: Path) -> Path:
    """The scene's folder: ``path``, or ``scene`` in it, as in a replay's output."""
    inner = path / "scene"
    return inner if not (path / "scene.json").exists() and inner.is_dir() else path


def is_scene(folder: Path) -> bool:
    """Whether a folder holds a scene, of any version, and nothing else."""
    if not {p.name for p in folder.iterdir()} <= NAMES:
        return False
    try:
        return bool(json.loads((folder / "scene.json").read_text())["format"] == FORMAT)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _described(saved: Snapshot) -> dict[str, Any]:
    """The JSON part."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "written_by": __version__,
        "metric": saved.metric,
        "unit": saved.unit,
        "segment": saved.segment,
        "T_map_world": saved.T_map_world.tolist(),
        "cameras": list(saved.poses.cameras),
        "poses": len(saved.poses),
        "submaps": [
            {
                "id": s.id,
                "segment": s.segment,
                "part": s.part,
                "keyframes": s.keyframes,
                "points": len(s.cloud),
                "scale": float(s.T_scene_submap.scale),
                "R": s.T_scene_submap.R.tolist(),
                "t": s.T_scene_submap.t.tolist(),
                "images": [[*shot, len(data)] for shot, data in s.images.items()],
            }
            for s in saved.submaps
        ],
    }


def _load(path: Path) -> Snapshot:
    if not (path / "scene.json").is_file():
        raise SceneFileError(f"{path} holds no scene: scene.json is missing")
    described = json.loads((path / "scene.json").read_text())
    if not isinstance(described, dict) or described.get("format") != FORMAT:
        raise SceneFileError(f"{path} holds no scene: scene.json is not of da3_ros")
    if described.get("version") != VERSION:
        raise SceneFileError(
            f"the scene in {path} has version {described.get('version')}, this da3_ros reads "
            f"version {VERSION}: export it with the da3_ros that wrote it "
            f"({described.get('written_by')})"
        )
    submaps = tuple(_submap(path, entry) for entry in described["submaps"])
    ids = [s.id for s in submaps]
    _check(len(set(ids)) == len(ids) and min(ids, default=0) >= 0, "submap ids")
    _check(all(s.part >= 0 for s in submaps), "a submap's part")
    T = np.array(described["T_map_world"], np.float64)
    good = T.shape == (4, 4) and _is_rotation(T[:3, :3]) and bool(np.isfinite(T).all())
    _check(good, "T_map_world")
    unit, metric = float(described["unit"]), described["metric"]
    _check(math.isfinite(unit) and unit > 0 and isinstance(metric, bool), "unit")
    poses = _poses(path, described, ids)
    return Snapshot(submaps, poses, int(described["segment"]), metric, T, unit)


def _submap(path: Path, entry: dict[str, Any]) -> Submap:
    place = Similarity(
        float(entry["scale"]), np.array(entry["R"], np.float64), np.array(entry["t"], np.float64)
    )
    good = math.isfinite(place.scale) and place.scale > 0 and _is_rotation(place.R)
    good = good and place.t.shape == (3,) and bool(np.isfinite(place.t).all())
    _check(good, "a submap's place")
    submap = Submap(int(entry["id"]), int(entry["segment"]), place)
    submap.keyframes = int(entry["keyframes"])
    # Before parts were kept, each segment lay where odometry guessed.
    submap.part = int(entry.get("part", submap.segment))
    submap.images.update(_images(path, entry))
    if entry["points"]:
        submap.cloud = _cloud(path / _cloud_name(submap.id), int(entry["points"]))
    return submap


def _images(path: Path, entry: dict[str, Any]) -> Iterator[tuple[Shot, bytes]]:
    for camera, stamp_ns, size in entry["images"]:
        _check(CAMERA.fullmatch(camera) is not None, "a camera's name")
        shot = (camera, int(stamp_ns))
        data = (path / _image_name(shot)).read_bytes()
        _check(len(data) == size, f"the size of {_image_name(shot)}")
        yield shot, data


def _cloud(file: Path, points: int) -> PointCloud:
    # Before NumPy believes a header that asks for all memory.
    size = file.stat().st_size
    _check(HELD * points <= size <= HELD * points + OVERHEAD, f"the size of {file.name}")
    columns = {}
    with np.load(file, allow_pickle=False) as data:
        for name, kind in CLOUD.items():
            shape = (points, 3) if name in ("xyz", "rgb") else (points,)
            columns[name] = data[name]
            _check(columns[name].shape == shape and columns[name].dtype == kind, f"{name}")
    _check(bool(np.isfinite(columns["xyz"]).all()), f"the points of {file.name}")
    return PointCloud(**columns)


def _poses(path: Path, described: dict[str, Any], ids: list[int]) -> Poses:
    cameras, count = tuple(described["cameras"]), int(described["poses"])
    _check(all(CAMERA.fullmatch(name) for name in cameras), "a camera's name")
    _check((path / "poses.npz").stat().st_size >= count * ROW.itemsize, "the size of poses.npz")
    rows = np.zeros(count, ROW)
    with np.load(path / "poses.npz", allow_pickle=False) as data:
        for name in ROW.names or ():
            same = data[name].shape == rows[name].shape and data[name].dtype == rows[name].dtype
            _check(same, f"poses: {name}")
            rows[name] = data[name]
    _check(bool(np.isin(rows["submap"], ids).all()), "poses: submap")
    known = (rows["camera"] >= 0) & (rows["camera"] < len(cameras))
    numbers = np.isfinite(rows["T"]).all() and np.isfinite(rows["K"]).all()
    _check(bool(known.all() and numbers and (rows["size"] > 0).all()), "poses: numbers")
    return Poses(rows, cameras)


def _check(good: bool, what: str) -> None:
    if not good:
        raise ValueError(f"{what} cannot be right")


def _is_rotation(R: Array) -> bool:
    return R.shape == (3, 3) and bool(np.allclose(R @ R.T, np.eye(3), atol=1e-6))


def _cloud_name(id: int) -> str:
    return f"submaps/{id:06d}.npz"


def _image_name(shot: Shot) -> str:
    camera, stamp_ns = shot
    return f"images/{image_name(camera, stamp_ns, 'jpg')}"
