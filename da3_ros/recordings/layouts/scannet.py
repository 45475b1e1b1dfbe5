"""ScanNet's layout after its export: folders of colour, depth and poses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from da3_ros.recordings.base import RecordingError
from da3_ros.recordings.folder import image_files, stamps_of
from da3_ros.recordings.layouts.layout import ImageList, Layout, ListedImage
from da3_ros.recordings.layouts.listing import (
    image_size,
    in_order,
    matrices_beside,
    own_calibration,
    pinhole,
    read_matrix,
)
from da3_ros.recordings.layouts.text_rows import numbered_stamp
from da3_ros.types import Array, Calibration

COLOUR = ("color", "rgb")
K_FILE = "intrinsic/intrinsic_color.txt"


class ScanNet(Layout):
    """``color`` (or ``rgb``), ``depth`` in mm and ``pose`` (4x4, camera to map) have files of the
    same names; ``intrinsic/intrinsic_color.txt`` has K.

    Stamps follow the images' numbers and the rate, or are their names if these are times. K of
    camera_info.yaml replaces that of the file; without both it is unknown.
    """

    title = "ScanNet"
    pose_per_image = True

    def matches(self, folder: Path) -> bool:
        return (folder / "pose").is_dir() and bool(self.cameras(folder))

    def cameras(self, folder: Path) -> Sequence[str]:
        return [name for name in COLOUR if (folder / name).is_dir()][:1]

    def images(self, folder: Path, camera: str, rate_hz: float) -> ImageList:
        files = image_files(folder / camera)
        calibration, origin = _calibration(folder, files)
        depths = {file.stem: file for file in _depth_files(folder)}
        stamps = _stamps([file.stem for file in files], rate_hz)
        images, bad = in_order(
            (ListedImage(stamp, file, calibration, depths.get(file.stem))
             for stamp, file in zip(stamps, files, strict=True)),
            (), folder / camera,
        )  # fmt: skip
        return ImageList(images, origin, bad=bad)

    def poses(self, folder: Path, camera: str, rate_hz: float) -> Iterator[tuple[int, Array]]:
        images = self.images(folder, camera, rate_hz).images
        return matrices_beside(
            folder,
            ((one.stamp_ns, folder / "pose" / f"{one.file.stem}.txt") for one in images),
        )


def _depth_files(folder: Path) -> Sequence[Path]:
    return image_files(folder / "depth") if (folder / "depth").is_dir() else ()


def _stamps(stems: Sequence[str], rate_hz: float) -> list[int]:
    """Returns the stamps in ns of images by their names without suffix."""
    try:
        return [numbered_stamp(stem, rate_hz) for stem in stems]
    except ValueError:  # they are not numbers
        return stamps_of(stems, rate_hz)


def _calibration(folder: Path, files: Sequence[Path]) -> tuple[Calibration | None, str]:
    """Returns the calibration and where it is from. Raises RecordingError."""
    if (own := own_calibration(folder)) is not None:
        return own, "camera_info.yaml"
    file, size = folder / K_FILE, image_size(files)
    if not file.exists() or size is None:
        return None, "no calibration"
    try:
        values = read_matrix(file)
    except (OSError, ValueError) as error:
        raise RecordingError(f"{file} has no matrix of 3x3 or 4x4 numbers: {error}") from error
    width = {9: 3, 16: 4}.get(len(values), 0)
    if not width:
        raise RecordingError(f"{file} has {len(values)} numbers: 3x3 or 4x4 are expected")
    K = (values[0], values[width + 1], values[2], values[width + 2])
    return pinhole(K, size, file), file.name
