"""Reads drawings from a saved scene, a replay's output, or an exported GLB or PLY."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from da3_ros.drawing.scene_drawing import Drawing, drawing_of
from da3_ros.export.checked_files import SceneFileError
from da3_ros.export.glb import GLTF_FROM_MAP, LINEAR, VERTEX
from da3_ros.export.scene_file import SceneFile
from da3_ros.export.scene_folder import find_scene, scene_file
from da3_ros.types import Array

NO_LINES = np.zeros((0, 2, 3))
GREY = 160  # points of a file without colours


def read_drawing(path: Path) -> Drawing:
    """Read a scene folder, a folder that contains a scene, a .glb or a .ply.

    A PLY has no cameras. Raises SceneFileError.
    """
    if not path.exists():
        raise SceneFileError(f"{path} does not exist")
    if path.is_dir():
        folder = find_scene(path)
        if scene_file(folder) is not None:
            return drawing_of(SceneFile(folder).load().scene())
        exported = [path / f"scene{suffix}" for suffix in READERS]
        path = next((file for file in exported if file.is_file()), path)
    if path.is_dir():
        raise SceneFileError(
            f"{path} contains no scene: give a saved scene, a replay's output or a "
            f"{' or '.join(READERS)} file"
        )
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise SceneFileError(
            f"{path} is not a scene: give a scene folder or a {' or '.join(READERS)} file"
        )
    try:
        return reader(path)
    except SceneFileError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, struct.error) as error:
        what = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SceneFileError(f"{path} cannot be read: {what}") from error


def _read_glb(path: Path) -> Drawing:
    """Read a GLB written by ``glb.write_glb``; others have meshes and nested nodes."""
    data = path.read_bytes()
    magic, version, size = struct.unpack_from("<4sII", data)
    if (magic, version) != (b"glTF", 2) or size != len(data):
        raise SceneFileError(f"{path} is truncated or not a GLB file of glTF 2.0")
    (length,) = struct.unpack_from("<I", data, 12)
    document = json.loads(data[20 : 20 + length])
    if not str(document["asset"].get("generator")).startswith("da3_ros"):
        raise SceneFileError(f"{path} was not written by da3_ros: convert it to PLY")
    binary = data[20 + length + 8 :]
    found = _meshes(document, binary)
    vertices = found.get("surface", found.get("points", np.zeros(0, VERTEX)))
    cameras, drawn_path = (
        found[name].reshape(-1, 2, 3) @ GLTF_FROM_MAP if name in found else NO_LINES
        for name in ("cameras", "path")
    )
    points = vertices["position"] @ GLTF_FROM_MAP.astype(np.float32)
    faces = _triangles(document, binary, len(points))
    return Drawing(points, _srgb(vertices["color"]), cameras, drawn_path, faces=faces)


def _meshes(document: dict[str, Any], binary: bytes) -> dict[str, NDArray[Any]]:
    """Vertices or line ends of each mesh, by mesh name."""
    found: dict[str, NDArray[Any]] = {}
    for mesh in document["meshes"]:
        attributes = mesh["primitives"][0]["attributes"]
        accessor = document["accessors"][attributes["POSITION"]]
        view = document["bufferViews"][accessor["bufferView"]]
        some = binary[view["byteOffset"] : view["byteOffset"] + view["byteLength"]]
        colored = "COLOR_0" in attributes
        values = np.frombuffer(some, VERTEX if colored else "<f4")
        found[mesh["name"]] = values if colored else values.reshape(-1, 3)
    return found


def _triangles(document: dict[str, Any], binary: bytes, points: int) -> NDArray[np.int64]:
    """Returns the triangles [F, 3] of the mesh called surface, if there is one."""
    for mesh in document["meshes"]:
        if mesh["name"] == "surface":
            accessor = document["accessors"][mesh["primitives"][0]["indices"]]
            view = document["bufferViews"][accessor["bufferView"]]
            some = binary[view["byteOffset"] : view["byteOffset"] + view["byteLength"]]
            return _checked(np.frombuffer(some, "<u4").reshape(-1, 3), points)
    return np.zeros((0, 3), np.int64)


def _checked(faces: Array, points: int) -> NDArray[np.int64]:
    """Returns triangles [F, 3]. Raises ValueError if one has a vertex that is not there."""
    if faces.size and not 0 <= faces.min() <= faces.max() < points:
        raise ValueError("a triangle has a vertex that is not there")
    return np.asarray(faces, np.int64)


def _srgb(linear: Array) -> NDArray[np.uint8]:
    """Convert linear colours to 8-bit sRGB."""
    between = (LINEAR[1:] + LINEAR[:-1]) / 2
    return np.searchsorted(between, linear).astype(np.uint8)


def _read_ply(path: Path) -> Drawing:
    import trimesh  # slow to import

    if not path.read_bytes()[:4].startswith(b"ply"):
        raise SceneFileError(f"{path} is not a PLY file")
    cloud: Any = trimesh.load(path, process=False)
    points = np.asarray(getattr(cloud, "vertices", ()), np.float32)
    if not len(points):
        raise SceneFileError(f"{path} contains no points")
    colors = cloud.colors if hasattr(cloud, "colors") else cloud.visual.vertex_colors
    rgb = np.asarray(colors, np.uint8).reshape(-1, 4)[:, :3]
    if len(rgb) != len(points):
        rgb = np.full((len(points), 3), GREY, np.uint8)
    faces = _checked(np.asarray(getattr(cloud, "faces", np.zeros((0, 3)))), len(points))
    return Drawing(points, rgb, NO_LINES, NO_LINES, faces=faces)


READERS: dict[str, Callable[[Path], Drawing]] = {".glb": _read_glb, ".ply": _read_ply}
