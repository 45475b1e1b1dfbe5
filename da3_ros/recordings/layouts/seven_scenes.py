"""A sequence of Microsoft's 7-Scenes: files of each frame by number.

BundleFusion and ScanNet's first tools have the same layout, with K in info.txt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from da3_ros.recordings.base import RecordingError
from da3_ros.recordings.layouts.layout import ImageList, Layout, ListedImage
from da3_ros.recordings.layouts.listing import (
    focal_and_centre,
    image_size,
    in_order,
    matrices_beside,
    own_calibration,
    pinhole,
)
from da3_ros.recordings.layouts.text_rows import numbered_stamp, numbers, rows
from da3_ros.types import Array, Calibration

COLOUR = re.compile(r"frame-(\d+)\.color\.\w+")
# The data set has no calibration of its colour camera (its 585 px are those of the depth camera):
# the Kinect's default.
KINECT_K, KINECT_SIZE = (525.0, 525.0, 320.0, 240.0), (640, 480)
INFO, INFO_K = ("info.txt", "_info.txt"), "m_calibrationColorIntrinsic"


class SevenScenes(Layout):
    """``frame-N.color.png``, ``frame-N.depth.png`` in mm, ``frame-N.pose.txt`` (camera to map).

    Stamps follow N and the rate. K is that of camera_info.yaml or info.txt, else the Kinect's
    default.
    """

    title = "7-Scenes"
    pose_per_image = True

    def matches(self, folder: Path) -> bool:
        return any(folder.glob("frame-*.color.*"))

    def cameras(self, folder: Path) -> Sequence[str]:
        return ("color",)

    def images(self, folder: Path, camera: str, rate_hz: float) -> ImageList:
        files = sorted(f for f in folder.iterdir() if COLOUR.fullmatch(f.name))
        calibration, origin = _calibration(folder, files)
        images, bad = [], []
        for file in files:
            try:
                stamp_ns = numbered_stamp(file.name.split(".")[0][len("frame-") :], rate_hz)
            except ValueError as error:
                bad.append(f"{file.name}: {error}")
                continue
            depth = folder / f"{file.name.split('.')[0]}.depth.png"
            images.append(ListedImage(stamp_ns, file, calibration, depth))
        images, bad = in_order(images, bad, folder)
        return ImageList(images, origin, bad=bad)

    def poses(self, folder: Path, camera: str, rate_hz: float) -> Iterator[tuple[int, Array]]:
        images = self.images(folder, camera, rate_hz).images
        return matrices_beside(
            folder,
            ((one.stamp_ns, folder / f"{one.file.name.split('.')[0]}.pose.txt") for one in images),
        )


def _calibration(folder: Path, files: Sequence[Path]) -> tuple[Calibration | None, str]:
    """Returns the calibration and where it is from. Raises RecordingError."""
    if (own := own_calibration(folder)) is not None:
        return own, "camera_info.yaml"
    size = image_size(files)
    info = next((folder / name for name in INFO if (folder / name).is_file()), None)
    if info is not None and size is not None:
        return pinhole(_info_K(info), size, info), info.name
    if size != KINECT_SIZE:
        return None, "no calibration (the Kinect's is for 640x480 pixels)"
    return pinhole(KINECT_K, size, folder), "the Kinect's default, fx = fy = 525"


def _info_K(file: Path) -> Sequence[float]:
    """Returns fx, fy, cx, cy of the colour camera's 4x4 matrix. Raises RecordingError."""
    for number, text in rows(file):
        name, _, values = text.partition("=")
        if name.strip() == INFO_K:
            try:
                return focal_and_centre(np.reshape(numbers(values.split(), 16), (4, 4)))
            except ValueError as error:
                raise RecordingError(f"{file}, line {number}: {error}") from error
    raise RecordingError(f"{file} has no {INFO_K}: remove it, or add a camera_info.yaml")
