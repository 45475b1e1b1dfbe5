"""Writes Gaussians as binary glTF 2.0 with the extension KHR_gaussian_splatting.

Programs that do not know the extension show them as points with colours (``COLOR_0``).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from da3_ros.export.glb import GLTF_FROM_MAP, MAX_BYTES, Model, linear_of_srgb
from da3_ros.export.selection import ExportError, Progress
from da3_ros.export.splat_rows import SplatRows
from da3_ros.geometry.similarity import Similarity
from da3_ros.splats.gaussians import Gaussians
from da3_ros.splats.harmonics import DEGREES, base_colour
from da3_ros.types import Array

EXTENSION = "KHR_gaussian_splatting"
ABOUT = {"kernel": "ellipse", "colorSpace": "srgb_rec709_display"}
TURN = Similarity(1.0, GLTF_FROM_MAP, np.zeros(3))


def write_splat_glb(rows: SplatRows, path: Path, degree: int, progress: Progress) -> None:
    """Writes them with y up: linear scales, opacity 0 to 1, rotation x y z w.

    degree: of the harmonics, 0 or 2. Raises ExportError.
    """
    row = _row(degree)
    ends = [c["mean"] @ GLTF_FROM_MAP.T.astype(np.float32) for c in rows.chunks() if len(c)]
    low = np.min([points.min(axis=0) for points in ends], axis=0)
    high = np.max([points.max(axis=0) for points in ends], axis=0)
    model = Model()
    model.splats(len(rows), row, (low, high), EXTENSION, ABOUT)
    if model.size > MAX_BYTES:
        raise ExportError("GLB cannot hold so many Gaussians: set max_points, or write PLY")
    with path.open("wb") as file:
        file.write(model.header())
        for chunk in rows.chunks(progress):
            file.write(_turned(chunk, row, degree).tobytes())


def _row(degree: int) -> np.dtype[np.void]:
    """Returns the layout of a Gaussian in the file; names are those of glTF's attributes."""
    own = [("ROTATION", 4), ("SCALE", 3), ("OPACITY", 1)]
    own += [(f"SH_DEGREE_{d}_COEF_{i}", 3) for d in range(degree + 1) for i in range(2 * d + 1)]
    fields = [("POSITION", 3), ("COLOR_0", 4), *((f"{EXTENSION}:{n}", size) for n, size in own)]
    return np.dtype([(name, "<f4", (size,)) for name, size in fields])


def _turned(chunk: NDArray[np.void], row: np.dtype[np.void], degree: int) -> NDArray[np.void]:
    """Returns rows in glTF's axes."""
    given = Gaussians(
        chunk["mean"].astype(float), chunk["scale"], chunk["rotation"].astype(float),
        chunk["opacity"], chunk["sh"],
    )  # fmt: skip
    found, out = given.moved(TURN), np.empty(len(chunk), row)
    out["POSITION"] = chunk["mean"] @ GLTF_FROM_MAP.T.astype(np.float32)  # as its bounds
    out["COLOR_0"][:, :3] = linear_of_srgb(base_colour(found.sh))
    out["COLOR_0"][:, 3] = found.opacities
    out[f"{EXTENSION}:ROTATION"] = _exact_units(found.rotations[:, [1, 2, 3, 0]])
    out[f"{EXTENSION}:SCALE"] = found.scales
    out[f"{EXTENSION}:OPACITY"][:, 0] = found.opacities
    for d in range(degree + 1):
        for i in range(2 * d + 1):
            out[f"{EXTENSION}:SH_DEGREE_{d}_COEF_{i}"] = found.sh[:, :, DEGREES[d].start + i]
    return out


def _exact_units(rotations: Array) -> Array:
    return np.asarray(rotations / np.linalg.norm(rotations, axis=1, keepdims=True))
