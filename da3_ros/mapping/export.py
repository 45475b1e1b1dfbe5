"""Writes the scene: GLB for viewers, PLY for point tools, TUM for trajectory tools.

Every file is written under a temporary name beside its place and renamed when whole. PLY
and TUM are in the ROS map frame (x forward, y left, z up), GLB in glTF axes (y up) of the same.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from da3_ros.geometry import T_MAP_WORLD
from da3_ros.mapping.trajectory import Pose, tum_line
from da3_ros.mapping.voxel_map import PointCloud, VoxelMap
from da3_ros.types import Array

# Map axes (x forward, y left, z up) to x right, y up, z backward.
GLTF_FROM_MAP = np.array([[0.0, -1.0, 0.0], [0.0, 0.0, 1.0], [-1.0, 0.0, 0.0]])
FRUSTUM = 0.03  # camera size over the scene's diagonal
MAX_FRUSTA = 200
PLY_TYPE = np.dtype(
    [(name, "<f4") for name in ("x", "y", "z")]
    + [(name, "u1") for name in ("red", "green", "blue")]
    + [("confidence", "<f4")]
)


class ExportError(RuntimeError):
    """A scene that could not be written; one line that names the path and the cause."""


@dataclass(frozen=True, eq=False)
class Scene:
    """What is exported: points and poses in world coordinates, and where the map lies."""

    cloud: PointCloud
    poses: list[Pose]
    T_map_world: Array = field(default_factory=lambda: T_MAP_WORLD)

    def map_points(self) -> NDArray[np.float32]:
        """The cloud's points [M, 3] in the map frame."""
        R, t = self.T_map_world[:3, :3], self.T_map_world[:3, 3]
        return (self.cloud.xyz @ R.T.astype(np.float32) + t.astype(np.float32)).astype(np.float32)


@dataclass(frozen=True)
class Selection:
    """Which part of a scene is exported; the defaults take all of it."""

    voxel: float = 0.0  # edge of the voxels that points are averaged in; 0: as stored
    min_confidence: float = 0.0
    max_points: int = 0  # evenly thinned to at most this many; 0: all
    crop: tuple[float, ...] = (0.0,) * 6  # min x y z, max x y z in the map frame; zeros: none
    cameras: bool = True

    def apply(self, scene: Scene) -> Scene:
        """The selected part. Raises ExportError for a box that is inside out."""
        cloud = scene.cloud
        keep = cloud.confidence >= self.min_confidence
        if any(self.crop):
            low, high = np.array(self.crop[:3]), np.array(self.crop[3:])
            if not (low < high).all():
                raise ExportError(f"crop is {list(self.crop)}: min x y z must be below max x y z")
            points = scene.map_points()
            keep &= ((points >= low) & (points <= high)).all(axis=1)
        cloud = cloud.take(np.flatnonzero(keep))
        if self.voxel > 0:
            cloud = regrid(cloud, self.voxel)
        if self.max_points:
            cloud = cloud.take(np.arange(0, len(cloud), max(1, -(-len(cloud) // self.max_points))))
        return Scene(cloud, scene.poses if self.cameras else [], scene.T_map_world)


def regrid(cloud: PointCloud, voxel: float) -> PointCloud:
    """The cloud averaged in voxels of another edge length, weighted as the map does."""
    coarse = VoxelMap(voxel, max(1, len(cloud)))
    coarse.insert(cloud.xyz.astype(np.float64), cloud.rgb, cloud.confidence)
    return coarse.cloud()


def export_scene(scene: Scene, path: Path) -> Path:
    """Write ``scene`` in the format of the suffix: .glb, .ply or .tum. Returns the path.

    Raises ExportError for another suffix or when the file cannot be written.
    """
    write = WRITERS.get(path.suffix.lower())
    if write is None:
        raise ExportError(f"{path}: unknown format, the suffix must be {', '.join(WRITERS)}")
    with atomic_path(path) as temporary:
        write(scene, temporary)
    return path


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path``, renamed to it at the end, removed on any error.

    Raises ExportError when the folder cannot be made or written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(
            dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix
        )
        os.close(handle)
    except OSError as error:
        raise ExportError(f"{path} cannot be written: {error}") from error
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise ExportError(f"{path} cannot be written: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def frustum(pose: Pose, size: float) -> Array:
    """Line segments [8, 2, 3] of a camera in world coordinates: four rays and the image's rim."""
    width, height = pose.size
    corners = np.array([[0, 0, 1], [width, 0, 1], [width, height, 1], [0, height, 1]], dtype=float)
    rim = size * corners @ np.linalg.inv(pose.K).T
    rim = rim @ pose.T_world_camera[:3, :3].T + pose.T_world_camera[:3, 3]
    apex = np.repeat(pose.T_world_camera[None, :3, 3], 4, axis=0)
    rays = np.stack((apex, rim), axis=1)
    return np.concatenate((rays, np.stack((rim, np.roll(rim, -1, axis=0)), axis=1)))


def scene_size(scene: Scene) -> float:
    """Diagonal of the box that holds the middle 90 % of points, or of the path; at least tiny."""
    points = scene.cloud.xyz if len(scene.cloud) else path_points(scene.poses)
    if not len(points):
        return 1.0
    low, high = np.percentile(points, (5, 95), axis=0)
    return max(float(np.linalg.norm(high - low)), 1e-3)


def path_points(poses: list[Pose]) -> Array:
    """Camera centres [N, 3] in world coordinates."""
    return np.array([p.T_world_camera[:3, 3] for p in poses]).reshape(-1, 3)


def chosen_frusta(poses: list[Pose]) -> list[Pose]:
    """Keyframes, evenly thinned to what a viewer can show."""
    keyframes = [p for p in poses if p.keyframe]
    return keyframes[:: max(1, -(-len(keyframes) // MAX_FRUSTA))]


def _write_glb(scene: Scene, path: Path) -> None:
    import trimesh

    out = trimesh.Scene()
    if len(scene.cloud):
        points = scene.map_points() @ GLTF_FROM_MAP.T.astype(np.float32)
        colors = np.column_stack((scene.cloud.rgb, np.full(len(points), 255, np.uint8)))
        out.add_geometry(trimesh.PointCloud(points, colors=colors), geom_name="points")
    size = FRUSTUM * scene_size(scene)
    segments = [frustum(p, size) for p in chosen_frusta(scene.poses)]
    if segments:
        _add_lines(out, "cameras", scene, np.concatenate(segments), (255, 140, 0, 255))
    centres = path_points(scene.poses)
    if len(centres) > 1:
        steps = np.stack((centres[:-1], centres[1:]), axis=1)
        _add_lines(out, "path", scene, steps, (0, 160, 255, 255))
    if not out.geometry:
        raise ExportError("the scene is empty: nothing was processed yet")
    path.write_bytes(out.export(file_type="glb"))


def _add_lines(out: Any, name: str, scene: Scene, segments: Array, color: tuple[int, ...]) -> None:
    """Add line segments [M, 2, 3] given in world coordinates."""
    import trimesh

    in_map = segments @ scene.T_map_world[:3, :3].T + scene.T_map_world[:3, 3]
    lines = trimesh.load_path(in_map @ GLTF_FROM_MAP.T, process=False)
    lines.colors = np.tile(np.array(color, np.uint8), (len(lines.entities), 1))
    out.add_geometry(lines, geom_name=name)


def _write_ply(scene: Scene, path: Path) -> None:
    cloud = scene.cloud
    rows = np.empty(len(cloud), dtype=PLY_TYPE)
    xyz = scene.map_points()
    for column, name in enumerate(("x", "y", "z")):
        rows[name] = xyz[:, column]
    for column, name in enumerate(("red", "green", "blue")):
        rows[name] = cloud.rgb[:, column]
    rows["confidence"] = cloud.confidence
    kinds = {"f4": "float", "u1": "uchar"}
    names = [f"property {kinds[PLY_TYPE[n].str[1:]]} {n}" for n in PLY_TYPE.names or ()]
    header = ["ply", "format binary_little_endian 1.0", "comment frame map, x forward, z up"]
    header += [f"element vertex {len(cloud)}", *names, "end_header", ""]
    with path.open("wb") as file:
        file.write("\n".join(header).encode())
        rows.tofile(file)


def _write_tum(scene: Scene, path: Path) -> None:
    lines = (tum_line(p.stamp_ns, scene.T_map_world @ p.T_world_camera) for p in scene.poses)
    path.write_text("".join(lines))


WRITERS: dict[str, Callable[[Scene, Path], None]] = {
    ".glb": _write_glb,
    ".ply": _write_ply,
    ".tum": _write_tum,
}
