"""Writes the surface of a scene's stored keyframes as a mesh file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from da3_ros.export.atomic_files import atomic_path, check_file_target
from da3_ros.export.formats import MESH
from da3_ros.export.mesh_file import write_mesh
from da3_ros.export.selection import ExportError, Progress, Selection, silent
from da3_ros.export.stored_depth import DepthFilters, by_component, readable_keyframes
from da3_ros.export.surface import FEWEST, fused_surface
from da3_ros.keyframe_store.store import StoredScene
from da3_ros.mapping.scene import REFERENCE


@dataclass(frozen=True)
class ExportedMesh:
    """The result of the export of a mesh."""

    path: Path
    vertices: int
    triangles: int
    bytes: int
    keyframes: int  # that are stored

    @property
    def points(self) -> int:
        """Number of vertices."""
        return self.vertices

    @property
    def text(self) -> str:
        """The result in one line."""
        return f"{self.triangles} triangles in {self.path}"


def export_mesh(
    stored: StoredScene, path: Path, selection: Selection, filters: DepthFilters,
    progress: Progress = silent,
) -> ExportedMesh:  # fmt: skip
    """Writes the surface of stored keyframes; the format is that of the suffix of ``path``.

    ``filters.voxel`` is the edge of its voxels; the selection's box and components count.
    ``progress`` may raise, which ends the work without a file. Raises ExportError.
    """
    MESH.check_name(path)
    _check_selection(selection)
    check_file_target(path)
    mesh = fused_surface(
        stored, filters, progress, crop=selection.crop, unconnected=selection.unconnected
    )
    if not len(mesh.faces):
        raise ExportError(f"no surface: {_why_empty(stored, selection, filters, progress)}")
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


def _why_empty(
    stored: StoredScene, selection: Selection, filters: DepthFilters, progress: Progress
) -> str:
    """Returns why there is no surface, and the remedy. ``progress`` may raise."""
    components = by_component(readable_keyframes(stored, filters, progress))
    chosen = [
        ones
        for component, ones in components.items()
        if selection.unconnected or component == REFERENCE
    ]
    most = max(map(len, chosen), default=0)
    if most < FEWEST:
        what = "one component of the scene" if len(components) > 1 else "the scene"
        return f"it needs {FEWEST} keyframes that see the same location, and {what} has {most}"
    depths = []
    for one in (one for ones in chosen for one in ones):
        progress("looking for the cause", 1.0)
        depth = one.depth_of(one.load())
        if np.isfinite(depth).any():
            depths.append(np.nanmedian(depth))
    if not depths:
        return "no depth passes the filters: choose a larger max_depth or a smaller min_confidence"
    typical = float(np.median(depths))
    if filters.voxel > typical / 4:
        return (
            f"voxel is {filters.voxel:g}, and typical depth is {typical:.2g}: choose a smaller one"
        )
    if any(selection.crop):
        return f"none is inside crop {list(selection.crop)}: choose another box, in the map frame"
    return (
        f"no location was seen by {FEWEST} keyframes of one component of the scene; what others "
        "look through does not count with remove_movers"
    )
