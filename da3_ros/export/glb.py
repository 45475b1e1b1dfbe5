"""Writes binary glTF 2.0: points with colours, camera frusta and path as lines.

Not written by a library, so that points are processed in chunks. Colours are linear light, as glTF
requires, in floats: 8 bits would show bands in dark areas, and common readers misread 16 bits as
8. Materials are unlit, because points and lines have no normals.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from da3_ros import __version__
from da3_ros.export.camera_frusta import frusta, path_lines
from da3_ros.export.mesh import Mesh
from da3_ros.export.selection import ExportError, Points, Progress
from da3_ros.mapping.scene import Scene
from da3_ros.types import Array

# Map axes (x forward, y left, z up) to x right, y up, z backward.
GLTF_FROM_MAP = np.array([[0.0, -1.0, 0.0], [0.0, 0.0, 1.0], [-1.0, 0.0, 0.0]])
VERTEX = np.dtype([("position", "<f4", (3,)), ("color", "<f4", (3,))])
POINTS, LINES, TRIANGLES = 0, 1, 4
FLOAT, UINT32 = 5126, 5125
ARRAY_BUFFER, ELEMENT_ARRAY_BUFFER = 34962, 34963
CAMERA_RGB, PATH_RGB = (255, 140, 0), (0, 160, 255)
MAX_BYTES = 2**32 - 1  # the format's own limit


def write_glb(scene: Scene, points: Points, path: Path, progress: Progress) -> None:
    """Writes the points, and the scene's poses if there are any. Raises ExportError."""
    model = Model()
    if len(points):
        model.points(points)
    model.lines("cameras", frusta(scene), CAMERA_RGB)
    model.lines("path", path_lines(scene), PATH_RGB)
    if scene.unconnected:
        counts = {"parts": len(scene.components), "parts_guessed": scene.unconnected}
        model.extras = {"extras": counts}
    if not model.meshes:
        raise ExportError("the selection of the scene is empty")
    if model.size > MAX_BYTES:
        raise ExportError("GLB cannot hold so many points: set max_points or voxel, or write PLY")
    with path.open("wb") as file:
        file.write(model.header())
        for chunk in points.chunks(progress):
            file.write(_vertices(chunk["xyz"], chunk["rgb"]).tobytes())
        for positions in model.line_positions:
            file.write(positions.tobytes())


def write_mesh_glb(mesh: Mesh, path: Path) -> None:
    """Writes a triangle mesh, seen from both sides. Raises ExportError."""
    model = Model()
    model.triangles(mesh)
    if model.size > MAX_BYTES:
        raise ExportError("GLB cannot hold so many triangles: set voxel, or write PLY")
    with path.open("wb") as file:
        file.write(model.header())
        file.write(_vertices(mesh.vertices, mesh.rgb).tobytes())
        file.write(mesh.faces.astype("<u4").tobytes())


class Model:
    """The JSON part of a file, built mesh by mesh in the order of the binary part."""

    def __init__(self) -> None:
        self.meshes: list[dict[str, Any]] = []
        self.line_positions: list[Array] = []
        self.extras: dict[str, Any] = {}  # of the glTF scene
        self._extensions = ["KHR_materials_unlit"]
        self._accessors: list[dict[str, Any]] = []
        self._views: list[dict[str, Any]] = []
        self._materials: list[dict[str, Any]] = []
        self._bytes = 0

    def points(self, points: Points) -> None:
        """Adds the mesh of the points, interleaved with their colours."""
        count = len(points)
        ends = [corner @ GLTF_FROM_MAP.T.astype(np.float32) for corner in points.box()]
        attributes = self._coloured(count, _box(np.stack(ends)))
        self._mesh("points", POINTS, (255, 255, 255), attributes)

    def splats(
        self, count: int, row: np.dtype[np.void], ends: tuple[Array, Array], extension: str,
        about: dict[str, Any],
    ) -> None:  # fmt: skip
        """Adds the mesh of Gaussians. row: its fields, floats, are the attributes. ends: lowest
        and highest position [3] in glTF's axes. about: the extension's own values."""
        self._view(count * row.itemsize, row.itemsize)
        attributes = {}
        for name, (kind, offset, *_) in (row.fields or {}).items():
            box = _box(np.stack(ends)) if name == "POSITION" else {}
            type_ = {1: "SCALAR", 3: "VEC3", 4: "VEC4"}[kind.itemsize // 4]
            attributes[name] = self._accessor(count, offset, {"type": type_, **box})
        self._mesh("splats", POINTS, (255, 255, 255), attributes)
        self.meshes[-1]["primitives"][0]["extensions"] = {extension: about}
        self._extensions.append(extension)

    def triangles(self, mesh: Mesh) -> None:
        """Adds a mesh: interleaved vertices and colours, then indices."""
        count = len(mesh.vertices)
        attributes = self._coloured(count, _box(mesh.vertices @ GLTF_FROM_MAP.T))
        self._view(4 * mesh.faces.size, None, ELEMENT_ARRAY_BUFFER)
        index = self._accessor(mesh.faces.size, 0, {"componentType": UINT32, "type": "SCALAR"})
        self._mesh("surface", TRIANGLES, (255, 255, 255), attributes)
        self.meshes[-1]["primitives"][0]["indices"] = index
        self._materials[-1]["doubleSided"] = True

    def lines(self, name: str, segments: Array, rgb: tuple[int, int, int]) -> None:
        """Adds line segments [N, 2, 3] in the map frame; nothing if there are none."""
        if not len(segments):
            return
        data = (segments.reshape(-1, 3) @ GLTF_FROM_MAP.T).astype("<f4")
        self.line_positions.append(data)
        self._view(data.nbytes, None)
        accessor = self._accessor(len(data), 0, _box(data))
        self._mesh(name, LINES, rgb, {"POSITION": accessor})

    @property
    def size(self) -> int:
        """Size of the whole file, bytes."""
        return 12 + 8 + len(self._json()) + 8 + self._bytes

    def header(self) -> bytes:
        """Returns everything before the binary part."""
        text = self._json()
        head = struct.pack("<4sII", b"glTF", 2, self.size)
        head += struct.pack("<I4s", len(text), b"JSON") + text
        return head + struct.pack("<I4s", self._bytes, b"BIN\0")

    def _json(self) -> bytes:
        nodes = [{"name": m["name"], "mesh": i} for i, m in enumerate(self.meshes)]
        document = {
            "asset": {"version": "2.0", "generator": f"da3_ros {__version__}"},
            "extensionsUsed": self._extensions,
            "scene": 0,
            "scenes": [{"nodes": list(range(len(nodes)))} | self.extras],
            "nodes": nodes,
            "meshes": self.meshes,
            "materials": self._materials,
            "accessors": self._accessors,
            "bufferViews": self._views,
            "buffers": [{"byteLength": self._bytes}],
        }
        text = json.dumps(document, separators=(",", ":")).encode()
        return text + b" " * (-len(text) % 4)

    def _coloured(self, count: int, box: dict[str, list[float]]) -> dict[str, int]:
        """Adds a view of rows of VERTEX; returns its attributes."""
        self._view(count * VERTEX.itemsize, VERTEX.itemsize)
        position = self._accessor(count, 0, box)
        color = self._accessor(count, VERTEX.fields["color"][1], {})  # type: ignore[index]
        return {"POSITION": position, "COLOR_0": color}

    def _mesh(
        self, name: str, mode: int, rgb: tuple[int, int, int], attributes: dict[str, int]
    ) -> None:
        linear = [round(float(v), 6) for v in LINEAR[np.array(rgb)]]
        unlit: dict[str, Any] = {"KHR_materials_unlit": {}}
        material = {"baseColorFactor": [*linear, 1.0], "metallicFactor": 0.0}
        self._materials.append(
            {"name": name, "pbrMetallicRoughness": material, "extensions": unlit}
        )
        primitive = {"attributes": attributes, "mode": mode, "material": len(self.meshes)}
        self.meshes.append({"name": name, "primitives": [primitive]})

    def _view(self, length: int, stride: int | None, target: int = ARRAY_BUFFER) -> None:
        view = {"buffer": 0, "byteOffset": self._bytes, "byteLength": length, "target": target}
        self._views.append(view if stride is None else {**view, "byteStride": stride})
        self._bytes += length

    def _accessor(self, count: int, offset: int, more: Any) -> int:
        accessor = {"bufferView": len(self._views) - 1, "byteOffset": offset, "count": count}
        self._accessors.append({**accessor, "componentType": FLOAT, "type": "VEC3", **more})
        return len(self._accessors) - 1


def _vertices(xyz: Array, rgb: Array) -> Array:
    """Returns points and colours as rows of VERTEX."""
    rows = np.empty(len(xyz), VERTEX)
    rows["position"] = xyz @ GLTF_FROM_MAP.T.astype(np.float32)
    rows["color"] = LINEAR[rgb]
    return rows


def _box(positions: Array) -> dict[str, list[float]]:
    """Returns the exact bounds in float32, which readers verify."""
    ends = positions.astype(np.float32)
    return {
        name: [float(v) for v in side]
        for name, side in (("min", ends.min(axis=0)), ("max", ends.max(axis=0)))
    }


def linear_of_srgb(srgb: Array) -> Array:
    """Returns linear light float32 of colours 0..1, by IEC 61966-2-1."""
    low, high = srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4
    return np.where(srgb <= 0.04045, low, high).astype(np.float32)


LINEAR = linear_of_srgb(np.arange(256) / 255)
