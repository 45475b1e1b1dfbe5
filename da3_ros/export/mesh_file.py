"""Writes a mesh as GLB, PLY or OBJ."""

from __future__ import annotations

from pathlib import Path

from da3_ros.export.glb import write_mesh_glb
from da3_ros.export.mesh import Mesh


def write_mesh(mesh: Mesh, path: Path, suffix: str) -> None:
    """Writes a mesh, which must not be empty, in the format of ``suffix``."""
    if suffix == ".glb":
        write_mesh_glb(mesh, path)
        return
    import trimesh  # half a second

    whole = trimesh.Trimesh(mesh.vertices, mesh.faces, vertex_colors=mesh.rgb, process=False)
    whole.export(path, file_type=suffix[1:])
