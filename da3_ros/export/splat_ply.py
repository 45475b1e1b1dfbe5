"""Writes Gaussians as PLY, in the layout of 3D Gaussian splatting (arXiv 2308.04079)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from da3_ros.export.selection import Progress
from da3_ros.export.splat_rows import SplatRows
from da3_ros.splats.harmonics import DEGREES

CLOSEST = 1e-6  # of an opacity to 0 and 1, whose logit is infinite


def write_splat_ply(rows: SplatRows, path: Path, degree: int, progress: Progress) -> None:
    """Writes them in the map frame: scales as logarithms, opacity as logit, rotation w x y z.

    degree: of the harmonics, 0 or 2. Their coefficients above 0 lie colour by colour.
    """
    more = DEGREES[degree].stop - 1
    names = ["x", "y", "z", "nx", "ny", "nz", *(f"f_dc_{i}" for i in range(3)),
             *(f"f_rest_{i}" for i in range(3 * more)), "opacity",
             *(f"scale_{i}" for i in range(3)), *(f"rot_{i}" for i in range(4))]  # fmt: skip
    header = ["ply", "format binary_little_endian 1.0", "comment frame map, x forward, z up",
              f"element vertex {len(rows)}", *(f"property float {n}" for n in names)]  # fmt: skip
    with path.open("wb") as file:
        file.write("\n".join([*header, "end_header", ""]).encode())
        for chunk in rows.chunks(progress):
            opacity = np.clip(chunk["opacity"].astype(float), CLOSEST, 1 - CLOSEST)
            columns = (
                chunk["mean"], np.zeros_like(chunk["mean"]), chunk["sh"][:, :, 0],
                chunk["sh"][:, :, 1 : 1 + more].reshape(len(chunk), -1),
                np.log(opacity / (1 - opacity))[:, None], np.log(chunk["scale"]),
                chunk["rotation"],
            )  # fmt: skip
            file.write(np.concatenate(columns, axis=1, dtype="<f4").tobytes())
