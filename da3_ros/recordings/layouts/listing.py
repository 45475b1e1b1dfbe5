"""What the readers of data sets share: files below a folder, sizes, calibrations, lists."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from da3_ros.geometry.projection import Size
from da3_ros.messages.decode import ImageError, decode_file
from da3_ros.recordings.base import RecordingError
from da3_ros.recordings.folder import CALIBRATION_FILE, read_calibration
from da3_ros.recordings.layouts.layout import ListedImage
from da3_ros.recordings.layouts.text_rows import numbers, pose_of_matrix
from da3_ros.types import Array, Calibration

log = logging.getLogger(__name__)


def file_below(folder: Path, name: str) -> Path:
    """Returns the file that a list names. Raises ValueError for one outside of the folder."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\0" in name:
        raise ValueError(f"{name!r} is no file in the folder")
    return folder.joinpath(*parts)


def read_image(file: Path) -> bytes:
    """Returns an image file's bytes. Raises OSError, also for what is no regular file."""
    if not file.is_file():
        raise FileNotFoundError("the file is missing")
    return file.read_bytes()


def image_size(files: Iterable[Path]) -> Size | None:
    """Returns (width, height) of the first image that can be decoded; None: none can."""
    for file in files:
        try:
            height, width = decode_file(read_image(file), upright=False).shape[:2]
        except (ImageError, OSError):
            continue
        return width, height
    return None


def own_calibration(folder: Path) -> Calibration | None:
    """Returns the calibration of the folder's camera_info.yaml, if there is one. Raises
    RecordingError."""
    file = folder / CALIBRATION_FILE
    return read_calibration(file) if file.exists() else None


def pinhole(
    K: Sequence[float], size: Size, origin: Path | str, D: Sequence[float] = (),
    model: str = "plumb_bob",
) -> Calibration:  # fmt: skip
    """Returns the calibration (ROS rule) of fx, fy, cx, cy, and D of a distortion model.

    origin: its file, for the message. Raises RecordingError for what cannot be that of an image
    of ``size`` (width, height), so that resized images do not get the K of other ones.
    """
    fx, fy, cx, cy = K
    if not (min(fx, fy) > 0 and 0 < cx < size[0] and 0 < cy < size[1]):
        raise RecordingError(
            f"{origin}: fx, fy, cx, cy = {fx:g}, {fy:g}, {cx:g}, {cy:g} cannot be those of "
            f"{size[0]}x{size[1]} pixels: scale them for resized images, or remove the file"
        )
    matrix = np.array([[fx, 0.0, cx], [0.0, fy, cy], [0.0, 0.0, 1.0]])
    return Calibration(size[0], size[1], matrix, distortion_model=model, D=np.array(D, float))


def focal_and_centre(K: Array) -> tuple[float, float, float, float]:
    """Returns fx, fy, cx, cy of K [3, 3] or of a larger matrix."""
    return float(K[0, 0]), float(K[1, 1]), float(K[0, 2]), float(K[1, 2])


def in_order(
    images: Iterable[ListedImage], bad: Iterable[str], where: Path
) -> tuple[list[ListedImage], list[str]]:
    """Returns images in the order of their stamps, and what is bad with those that repeat a stamp.

    ``where``: what lists them. Raises RecordingError if there is no image.
    """
    found: dict[int, ListedImage] = {}
    bad = list(bad)
    for image in images:
        first = found.setdefault(image.stamp_ns, image)
        if first is not image:
            bad.append(f"{image.file.name}: has the stamp of {first.file.name}")
    if not found:
        why = f" ({bad[0]})" if bad else ""
        raise RecordingError(f"{where} lists no image{why}")
    return [found[stamp] for stamp in sorted(found)], bad


def read_matrix(file: Path) -> list[float]:
    """Returns all numbers of a text file. Raises OSError, ValueError, also for NaN."""
    words = file.read_text(encoding="utf-8-sig", errors="replace").split()
    return numbers(words, len(words))


def matrices_beside(
    folder: Path, files: Iterable[tuple[int, Path]]
) -> Iterator[tuple[int, Array]]:
    """Yields the stamp and the pose [4, 4] in each file of a matrix, for images of ``folder``.

    Images without one, or with NaN or infinity in it, are left out with one warning.
    """
    bad: list[str] = []
    for stamp_ns, file in files:
        try:
            values = read_matrix(file)
            if len(values) not in (12, 16):
                raise ValueError(f"{len(values)} numbers")
            pose = pose_of_matrix(values)
        except FileNotFoundError:
            bad.append(f"{file.name} is missing")
        except (OSError, ValueError) as error:
            bad.append(f"{file.name}: {error}")
        else:
            yield stamp_ns, pose
    if bad:
        log.warning("%s: %d images without a true pose (%s)", folder.name, len(bad), bad[0])
