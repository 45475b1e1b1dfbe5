"""Gaussians of an export, collected in a file: the memory does not depend on their number."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from da3_ros.export.selection import Progress, silent
from da3_ros.splats.gaussians import Gaussians
from da3_ros.splats.relative import SH

CHUNK = 1 << 16  # Gaussians at once
ROW = np.dtype(
    [("mean", "<f4", (3,)), ("scale", "<f4", (3,)), ("rotation", "<f4", (4,)),
     ("opacity", "<f4"), ("sh", "<f4", (3, SH))]
)  # fmt: skip
STEPS = 1 << 16  # of opacity, in which the threshold is found


class SplatRows:
    """Gaussians in one frame, in the order in which they were added; the least opaque ones are
    left out where they are too many."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._total = file, 0
        self._by_opacity = np.zeros(STEPS, np.int64)
        self._threshold, self._at_threshold = 0, 0  # steps below are left out; how many on it stay

    def add(self, gaussians: Gaussians) -> None:
        """Adds Gaussians."""
        rows = np.empty(len(gaussians), ROW)
        rows["mean"], rows["scale"] = gaussians.means, gaussians.scales
        rows["rotation"], rows["opacity"] = gaussians.rotations, gaussians.opacities
        rows["sh"] = gaussians.sh
        self._file.write(rows.tobytes())
        self._total += len(rows)
        self._by_opacity += np.bincount(_steps(rows), minlength=STEPS)
        self._at_threshold = int(self._by_opacity[self._threshold])

    def limit(self, most: int) -> None:
        """Leaves out the least opaque ones beyond ``most``, of equal ones the last."""
        above = np.cumsum(self._by_opacity[::-1])[::-1]  # at this step or above
        if above[0] <= most:
            return
        self._threshold = int(np.searchsorted(-above, -most, side="right")) - 1
        beyond = int(above[self._threshold + 1]) if self._threshold + 1 < STEPS else 0
        self._at_threshold = most - beyond

    def __len__(self) -> int:
        return int(self._by_opacity[self._threshold + 1 :].sum()) + self._at_threshold

    def chunks(self, progress: Progress = silent) -> Iterator[NDArray[np.void]]:
        """Yields rows of ROW, at most ``CHUNK`` at once."""
        left = self._at_threshold
        self._file.seek(0)
        for start in range(0, self._total, CHUNK):
            progress("writing", start / self._total)
            count = min(CHUNK, self._total - start)
            rows = np.frombuffer(self._file.read(count * ROW.itemsize), ROW)
            steps = _steps(rows)
            equal = np.flatnonzero(steps == self._threshold)
            kept = steps > self._threshold
            kept[equal[:left]] = True
            left -= min(left, len(equal))
            yield rows[kept]


def _steps(rows: NDArray[np.void]) -> NDArray[np.int64]:
    return np.clip(rows["opacity"] * STEPS, 0, STEPS - 1).astype(np.int64)


@contextmanager
def splat_rows(folder: Path) -> Iterator[SplatRows]:
    """Yields an empty collection, in an unnamed file in ``folder``."""
    with tempfile.TemporaryFile(dir=folder) as file:
        yield SplatRows(file)
