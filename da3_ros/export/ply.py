"""Writes point clouds as PLY files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from da3_ros.export.selection import (
    POINT,
    Points,
    Progress,
)
from da3_ros.mapping.scene import Scene

PLY_FIELDS = "float x,float y,float z,uchar red,uchar green,uchar blue,float confidence"
PLY_ROW = np.dtype([(name, POINT[name]) for name in ("xyz", "rgb", "confidence")])


def write_ply(scene: Scene, points: Points, path: Path, progress: Progress) -> None:
    """Writes the points in the map frame, binary little endian."""
    header = ["ply", "format binary_little_endian 1.0", "comment frame map, x forward, z up"]
    if scene.unconnected:
        header += [
            f"comment components {len(scene.components)}, of which {scene.unconnected} unconnected"
        ]
    header += [f"element vertex {len(points)}"]
    header += [f"property {name}" for name in PLY_FIELDS.split(",")]
    with path.open("wb") as file:
        file.write("\n".join([*header, "end_header", ""]).encode())
        for chunk in points.chunks(progress):
            rows = np.empty(len(chunk), PLY_ROW)
            for name in PLY_ROW.names or ():
                rows[name] = chunk[name]
            file.write(rows.tobytes())
