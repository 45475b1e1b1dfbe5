"""A coloured triangle mesh, and its files."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Mesh:
    """A coloured triangle mesh in the map frame."""

    vertices: NDArray[np.float32]  # [V, 3]
    faces: NDArray[np.int64]  # [F, 3] counterclockwise from outside
    rgb: NDArray[np.uint8]  # [V, 3]
