"""Writes the surface of a scene's stored keyframes as a mesh file."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from da3_ros.export.atomic_files import atomic_path
from da3_ros.export.mesh_file import check_mesh_name, write_mesh
from da3_ros.export.selection import ExportError, Progress, Selection, silent
from da3_ros.export.stored_depth import DepthFilters
from da3_ros.export.surface import fused_surface
from da3_ros.keyframe_store.store import StoredScene


@dataclass(frozen=True)
class ExportedMesh:
    """The result of the export of a mesh."""

    path: Path
    vertices: int
    triangles: int
    bytes: int
    keyframes: int  # that are stored

    @property
    def text(self) -> str:
        """The result in one line."""
        return f"{self.triangles} triangles in {self.path}"


def export_mesh(
    stored: StoredScene, path: Path, selection: Selection, filters: DepthFilters,
    progress: Progress = silent,
) -> ExportedMesh:  # fmt: skip
    """Writes the surface of stored keyframes; the format is that of the suffix of ``path``.

    ``filters.voxel`` is the edge of its voxels; the selection's box and parts count. ``progress``
    may raise, which ends the work without a file. Raises ExportError.
    """
    check_mesh_name(path)
    _check_selection(selection)
    _check_writable(path)
    mesh = fused_surface(stored, filters, progress, crop=selection.crop, guessed=selection.guessed)
    with atomic_path(path) as temporary:
        progress("writing", 1.0)
        write_mesh(mesh, temporary, path.suffix.lower())
        progress("writing", 1.0)  # the last moment to end the work
    size = path.stat().st_size
    return ExportedMesh(path, len(mesh.vertices), len(mesh.faces), size, len(stored.images))


def _check_selection(selection: Selection) -> None:
    selection.check()
    if selection.max_points or selection.min_observations > 1:
        raise ExportError(
            "a mesh is not made of points: leave out max_points and min_observations, and choose "
            "a larger voxel for fewer triangles"
        )


def _check_writable(path: Path) -> None:
    """Raises ExportError if no file can be made beside ``path``: fusing may take minutes."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except (OSError, ValueError) as error:
        raise ExportError(f"{path} cannot be written: {error}") from error
