"""Writes a mesh as GLB, PLY or OBJ."""

from __future__ import annotations

from pathlib import Path

from da3_ros.export.glb import write_mesh_glb
from da3_ros.export.mesh import Mesh
from da3_ros.export.selection import ExportError

MESH = "mesh"  # between a name and its suffix: room.mesh.glb
SUFFIXES = (".glb", ".ply", ".obj")


def is_mesh_name(path: Path) -> bool:
    """True for names such as room.mesh.glb."""
    return path.stem.lower().endswith(f".{MESH}")


def check_mesh_name(path: Path) -> None:
    """Raises ExportError for a name whose suffix is no mesh format."""
    if path.suffix.lower() not in SUFFIXES:
        known = ", ".join(f"NAME.{MESH}{s}" for s in SUFFIXES)
        raise ExportError(f"{path}: unknown mesh format, name it {known}")


def write_mesh(mesh: Mesh, path: Path, suffix: str) -> None:
    """Writes a mesh in the format of ``suffix``. Raises ExportError if it is empty."""
    if not len(mesh.faces):
        raise ExportError(
            "no surface: no place was seen by two keyframes at this voxel; use a larger one"
        )
    if suffix == ".glb":
        write_mesh_glb(mesh, path)
        return
    import trimesh  # half a second

    whole = trimesh.Trimesh(mesh.vertices, mesh.faces, vertex_colors=mesh.rgb, process=False)
    whole.export(path, file_type=suffix[1:])
