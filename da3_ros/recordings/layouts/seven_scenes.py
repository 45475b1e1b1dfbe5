"""A sequence of Microsoft's 7-Scenes: files of each frame by number."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from da3_ros.recordings.layouts.layout import ImageList, Layout, ListedImage
from da3_ros.recordings.layouts.listing import (
    image_size,
    in_order,
    matrices_beside,
    own_calibration,
    pinhole,
)
from da3_ros.recordings.layouts.text_rows import numbered_stamp
from da3_ros.types import Array, Calibration

COLOUR = re.compile(r"frame-(\d+)\.color\.\w+")
# The data set has no calibration of its colour camera (its 585 px are those of the depth camera):
# the Kinect's default.
KINECT_K, KINECT_SIZE = (525.0, 525.0, 320.0, 240.0), (640, 480)


class SevenScenes(Layout):
    """``frame-N.color.png``, ``frame-N.depth.png`` in mm, ``frame-N.pose.txt`` (camera to map).

    Stamps follow N and the rate. K is that of camera_info.yaml, else the Kinect's default.
    """

    title, marks = "7-Scenes", "frame-N.color.png"
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
    if size != KINECT_SIZE:
        return None, "no calibration (the Kinect's is for 640x480 pixels)"
    return pinhole(KINECT_K, size, folder), "the Kinect's default, fx = fy = 525"
