"""Writes the scene: GLB for viewers, PLY for point tools, COLMAP for splatting, TUM for paths.

Everything is written under a temporary name in the same folder and renamed when complete. All but
GLB are in the ROS map frame (x forward, y left, z up); GLB is in glTF axes (y up). Points are
processed in chunks: the memory of an export does not depend on the size of the scene.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from da3_ros.export.atomic_files import atomic_folder, atomic_path
from da3_ros.export.colmap import foreign_to_model, write_colmap
from da3_ros.export.colmap_frames import write_keyframes
from da3_ros.export.glb import write_glb
from da3_ros.export.ply import write_ply
from da3_ros.export.selection import (
    ExportError,
    Points,
    Progress,
    Selection,
    selected,
    silent,
)
from da3_ros.export.stored_depth import Readable
from da3_ros.export.tum import write_tum
from da3_ros.mapping.scene import REFERENCE, Scene

Writer = Callable[[Scene, Points, Path, Progress], None]
ALL = Selection()


@dataclass(frozen=True)
class Exported:
    """The result of an export."""

    path: Path
    points: int
    bytes: int  # of the file, or of all files in the folder
    parts: int = 1  # number of parts of the scene
    guessed: int = 0  # number of parts with a guessed place in the map

    @property
    def text(self) -> str:
        """The result in one line."""
        return f"{self.points} points in {self.path}{parts_note(self.parts, self.guessed)}"


def export_scene(
    scene: Scene,
    path: Path,
    selection: Selection = ALL,
    form: str = "",
    progress: Progress = silent,
    keyframes: Sequence[Readable] = (),
) -> Exported:
    """Writes the ``selection`` of ``scene``.

    ``form`` is one of FORMATS; by default it follows from the path's suffix. ``colmap`` is a
    folder; ``keyframes`` are what is stored of its images. ``progress`` may raise, which aborts
    the export and removes its files. Raises ExportError, or JournalError for a damaged keyframe.
    """
    form = format_of(path, form)
    if _is_empty(scene):
        raise ExportError("the scene is empty: nothing was processed yet")
    scene = scene if selection.guessed else scene.of_part(REFERENCE)
    if _is_empty(scene):
        raise ExportError(
            "all parts of the scene are at guessed places: export those too (without "
            "--known-only, or with map.export_guessed: true)"
        )
    place = atomic_folder(path, foreign_to_model) if form == "colmap" else atomic_path(path)
    with place as temporary, selected(scene, selection, temporary.parent, progress) as points:
        if form == "glb" and not selection.cameras:
            scene = replace(scene, poses=scene.poses.take(slice(0)))
        count = len(points)
        shown = [one for one in keyframes if one.part in scene.parts]
        if form == "colmap" and shown:
            count = write_keyframes(shown, selection, scene, points, temporary, progress)
        else:
            FORMATS[form](scene, points, temporary, progress)
    return Exported(path, count, size_of(path), len(scene.parts), scene.guessed)


def _is_empty(scene: Scene) -> bool:
    return not len(scene) and not len(scene.poses)


def format_of(path: Path, form: str = "") -> str:
    """Returns the requested format, or that of the suffix. Raises ExportError."""
    asked = form.lower().lstrip(".")
    if asked and asked not in FORMATS:
        raise ExportError(f"unknown format {form!r}: one of {', '.join(FORMATS)}, or empty")
    form = asked or path.suffix.lower().lstrip(".")
    if form not in FORMATS:
        known = ", ".join(f".{name}" for name in FORMATS)
        raise ExportError(f"{path}: unknown format, the suffix must be {known}")
    return form


def parts_note(parts: int, guessed: int) -> str:
    """Returns a note on guessed parts of a scene; empty if there are none."""
    if not guessed:
        return ""
    return f"; {parts} part{'s' * (parts > 1)}, {guessed} at a guessed place"


def size_of(path: Path) -> int:
    """Returns the bytes of a file, or of all files in a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(f.stat().st_size for f in files if f.is_file())


FORMATS: dict[str, Writer] = {
    "glb": write_glb,
    "ply": write_ply,
    "colmap": write_colmap,
    "tum": write_tum,
}
