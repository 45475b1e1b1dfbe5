"""Writes a mesh as GLB, PLY or OBJ."""

from __future__ import annotations

from pathlib import Path

from da3_ros.export.glb import write_mesh_glb
from da3_ros.export.mesh import Mesh
from da3_ros.export.paths import path_for_camera
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


def mesh_path(path: str) -> str:
    """Returns a requested name, with a suffix if it has none."""
    name = Path(path).name
    if Path(path).suffix or name in ("", ".."):
        return path
    return str(Path(path).with_name(f"{name}.{MESH}{SUFFIXES[0]}"))


def mesh_path_for_camera(path: Path, camera: str) -> Path:
    """Returns the path for a camera with a scene of its own: with the camera's name in it."""
    if not is_mesh_name(path):
        return path_for_camera(path, camera)
    stem = path.with_name(path.stem[: -len(MESH) - 1] + path.suffix)
    named = path_for_camera(stem, camera)
    return named.with_name(f"{named.stem}.{MESH}{path.suffix}")


def write_mesh(mesh: Mesh, path: Path, suffix: str) -> None:
    """Writes a mesh, which must not be empty, in the format of ``suffix``."""
    if suffix == ".glb":
        write_mesh_glb(mesh, path)
        return
    import trimesh  # half a second

    whole = trimesh.Trimesh(mesh.vertices, mesh.faces, vertex_colors=mesh.rgb, process=False)
    whole.export(path, file_type=suffix[1:])
