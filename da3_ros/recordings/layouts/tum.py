"""TUM RGB-D, whose layout ETH3D SLAM has too."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from da3_ros.recordings.base import RecordingError
from da3_ros.recordings.layouts.layout import ImageList, Layout, ListedImage
from da3_ros.recordings.layouts.listing import (
    file_below,
    image_size,
    in_order,
    own_calibration,
    pinhole,
)
from da3_ros.recordings.layouts.text_rows import cells, numbers, rows, seconds_to_ns, tum_poses
from da3_ros.types import Array, Calibration

# The benchmark's calibrations of its colour cameras: fx, fy, cx, cy and k1, k2, p1, p2, k3.
FREIBURG = {
    "freiburg1": ((517.3, 516.5, 318.6, 255.3), (0.2624, -0.9531, -0.0054, 0.0026, 1.1633)),
    "freiburg2": ((520.9, 521.0, 325.1, 249.7), (0.2312, -0.7849, -0.0033, -0.0001, 0.9172)),
    "freiburg3": ((535.4, 539.2, 320.1, 247.6), ()),
}
FREIBURG_SIZE = (640, 480)
DEPTH_WITHIN_NS = 50_000_000  # of the image


class TumRgbd(Layout):
    """rgb.txt and depth.txt have lines of ``stamp file``, groundtruth.txt poses in the TUM format.

    The calibration is that of camera_info.yaml, else of ETH3D's calibration.txt (fx fy cx cy),
    else of TUM's camera whose ``freiburgN`` is in the folder's name, else unknown.
    """

    title = "TUM RGB-D"
    depth_step_m = 1 / 5000

    def matches(self, folder: Path) -> bool:
        return (folder / "rgb.txt").is_file()

    def cameras(self, folder: Path) -> Sequence[str]:
        return ("rgb",)

    def images(self, folder: Path, camera: str, rate_hz: float) -> ImageList:
        listed, bad = _listed(folder / "rgb.txt")
        depths = _listed(folder / "depth.txt")[0] if (folder / "depth.txt").exists() else []
        calibration, origin = _calibration(folder, [file for _, file in listed])
        stamps = np.array([stamp for stamp, _ in depths], np.int64)
        images = [ListedImage(t, f, calibration, _nearest(t, stamps, depths)) for t, f in listed]
        images, bad = in_order(images, bad, folder / "rgb.txt")
        return ImageList(images, origin, bad=bad)

    def poses(self, folder: Path, camera: str, rate_hz: float) -> Iterator[tuple[int, Array]]:
        return tum_poses(folder / "groundtruth.txt")


def _listed(path: Path) -> tuple[list[tuple[int, Path]], list[str]]:
    """Returns stamps in ns and files of a list in the order of stamps, and its bad lines."""
    found: list[tuple[int, Path]] = []
    bad = []
    for number, text in rows(path):
        try:
            stamp, name = re.split(r"[,\s]+", text, maxsplit=1)
            found.append((seconds_to_ns(stamp), file_below(path.parent, name)))
        except ValueError as error:
            bad.append(f"{path.name}, line {number}: {error}")
    return sorted(found), bad


def _nearest(stamp_ns: int, stamps: Array, depths: Sequence[tuple[int, Path]]) -> Path | None:
    """Returns the depth image nearest in time; None: none is near."""
    after = int(np.searchsorted(stamps, stamp_ns))
    near = [depths[i] for i in (after - 1, after) if 0 <= i < len(depths)]
    best = min(near, key=lambda one: abs(one[0] - stamp_ns), default=None)
    return best[1] if best and abs(best[0] - stamp_ns) < DEPTH_WITHIN_NS else None


def _calibration(folder: Path, files: Sequence[Path]) -> tuple[Calibration | None, str]:
    """Returns the calibration and where it is from. Raises RecordingError."""
    if (own := own_calibration(folder)) is not None:
        return own, "camera_info.yaml"
    size, file = image_size(files), folder / "calibration.txt"
    if size is None:
        return None, "no image can be read"
    if file.exists():
        return pinhole(_eth3d(file), size, file.name), file.name
    named = re.search("|".join(FREIBURG), os.path.basename(os.path.abspath(folder)))
    if named is None:
        return None, "no calibration"
    if size != FREIBURG_SIZE:
        return None, f"no calibration (that of {named[0]} is for 640x480 pixels)"
    K, D = FREIBURG[named[0]]
    return pinhole(K, size, folder.name, D), f"TUM's calibration of {named[0]}"


def _eth3d(file: Path) -> Sequence[float]:
    """Returns fx, fy, cx, cy. Raises RecordingError."""
    try:
        return numbers(cells(next(rows(file))[1]), 4)
    except (StopIteration, ValueError) as error:
        raise RecordingError(f"{file} must have fx fy cx cy: {error}") from error
