"""Writes the scene: GLB for viewers, PLY for point tools, COLMAP for splatting, TUM for paths.

Everything is written under a temporary name beside its place and renamed when whole. All but GLB
are in the ROS map frame (x forward, y left, z up); GLB is in glTF axes (y up) of the same. Points
pass in chunks: an export takes the same memory however large the scene is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

import numpy as np

from da3_ros.mapping.atomic import atomic_folder, atomic_path
from da3_ros.mapping.colmap import is_model, write_colmap
from da3_ros.mapping.glb import write_glb
from da3_ros.mapping.scene import REFERENCE, Scene
from da3_ros.mapping.selection import POINT, ExportError, Points, Progress, Selection, selected
from da3_ros.mapping.selection import silent as silent
from da3_ros.mapping.trajectory import tum_line

Writer = Callable[[Scene, Points, Path, Progress], None]
PLY_FIELDS = "float x,float y,float z,uchar red,uchar green,uchar blue,float confidence"
PLY_ROW = np.dtype([(name, POINT[name]) for name in ("xyz", "rgb", "confidence")])
ALL = Selection()


@dataclass(frozen=True)
class Exported:
    """What an export wrote."""

    path: Path
    points: int
    bytes: int  # of the file, or of all in the folder
    parts: int = 1  # of the scene, whose places to each other are not measured
    guessed: int = 0  # of them have a guessed place in the map

    @property
    def text(self) -> str:
        """What was written, in one line."""
        return f"{self.points} points in {self.path}{said_of_parts(self.parts, self.guessed)}"


def export_scene(
    scene: Scene,
    path: Path,
    selection: Selection = ALL,
    form: str = "",
    progress: Progress = silent,
) -> Exported:
    """Write what ``selection`` takes of ``scene``.

    ``form`` is one of FORMATS; by default the path's suffix says it. ``colmap`` is a folder.
    ``progress`` may raise, which ends the export and leaves nothing behind. Raises ExportError.
    """
    form = format_of(path, form)
    scene = scene if selection.guessed else scene.of_part(REFERENCE)
    if not len(scene) and not len(scene.poses):
        raise ExportError("the scene is empty: nothing was processed yet")
    place = atomic_folder(path, is_model) if form == "colmap" else atomic_path(path)
    with place as temporary, selected(scene, selection, temporary.parent, progress) as points:
        if form == "glb" and not selection.cameras:
            scene = replace(scene, poses=scene.poses.take(slice(0)))
        FORMATS[form](scene, points, temporary, progress)
        count = len(points)
    return Exported(path, count, size_of(path), len(scene.parts), scene.guessed)


def format_of(path: Path, form: str = "") -> str:
    """The format that is asked for, or that the suffix says. Raises ExportError."""
    asked = form.lower().lstrip(".")
    if asked and asked not in FORMATS:
        raise ExportError(f"unknown format {form!r}: one of {', '.join(FORMATS)}, or empty")
    form = asked or path.suffix.lower().lstrip(".")
    if form not in FORMATS:
        known = ", ".join(f".{name}" for name in FORMATS)
        raise ExportError(f"{path}: unknown format, the suffix must be {known}")
    return form


def said_of_parts(parts: int, guessed: int) -> str:
    """What to add about the parts of a scene; nothing where there is but one, at its place."""
    if not guessed:
        return ""
    return f"; {parts} part{'s' * (parts > 1)}, {guessed} at a guessed place"


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(f.stat().st_size for f in files if f.is_file())


def write_trajectory(file: TextIO, scene: Scene) -> None:
    """Write the leading camera's poses in the TUM format; a comment begins each further part."""
    leading = replace(scene, poses=scene.poses.leading())
    last = 0
    for part, pose in zip(leading.part_of_poses(), leading.poses, strict=True):
        if part != last:
            place = "guessed" if part else "known"
            file.write(f"# part {part} of the scene, place {place}\n")
        last = part
        file.write(tum_line(pose.stamp_ns, scene.T_map_world @ pose.T_world_camera))


def _write_ply(scene: Scene, points: Points, path: Path, progress: Progress) -> None:
    header = ["ply", "format binary_little_endian 1.0", "comment frame map, x forward, z up"]
    if scene.guessed:
        header += [f"comment parts {len(scene.parts)}, of which {scene.guessed} at guessed places"]
    header += [f"element vertex {len(points)}"]
    header += [f"property {name}" for name in PLY_FIELDS.split(",")]
    with path.open("wb") as file:
        file.write("\n".join([*header, "end_header", ""]).encode())
        for chunk in points.chunks(progress):
            rows = np.empty(len(chunk), PLY_ROW)
            for name in PLY_ROW.names or ():
                rows[name] = chunk[name]
            file.write(rows.tobytes())


def _write_tum(scene: Scene, points: Points, path: Path, progress: Progress) -> None:
    with path.open("w") as file:
        write_trajectory(file, scene)


FORMATS: dict[str, Writer] = {
    "glb": write_glb,
    "ply": _write_ply,
    "colmap": write_colmap,
    "tum": _write_tum,
}
