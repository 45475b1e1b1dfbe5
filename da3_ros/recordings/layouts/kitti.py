"""KITTI odometry: rectified pairs of grey (0, 1) and colour cameras (2, 3)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from da3_ros.recordings.base import FIRST_STAMP_NS, RecordingError
from da3_ros.recordings.folder import image_files
from da3_ros.recordings.layouts.layout import ImageList, Layout, ListedImage
from da3_ros.recordings.layouts.listing import focal_and_centre, image_size, in_order, pinhole
from da3_ros.recordings.layouts.text_rows import (
    cells,
    numbered_stamp,
    numbers,
    pose_of_matrix,
    read_poses,
    rows,
    seconds_to_ns,
)
from da3_ros.types import Array, Calibration

CAMERAS = ("image_2", "image_0", "image_3", "image_1")  # left colour, left grey, right ones


class KittiOdometry(Layout):
    """``sequences/NN`` has images by number in ``image_0`` to ``image_3``, times.txt and calib.txt
    (P0 to P3); ``poses/NN.txt`` beside ``sequences`` has camera 0's poses.

    Stamps are 1 s and the time of times.txt.
    """

    title = "KITTI odometry"
    pose_per_image = True

    def matches(self, folder: Path) -> bool:
        listed = any((folder / name).is_file() for name in ("calib.txt", "times.txt"))
        return listed and bool(self.cameras(folder))

    def cameras(self, folder: Path) -> Sequence[str]:
        return [name for name in CAMERAS if (folder / name).is_dir()]

    def images(self, folder: Path, camera: str, rate_hz: float) -> ImageList:
        times, files = _times(folder), image_files(folder / camera)
        calibration = _calibration(folder, camera, files)
        images, bad = [], []
        for file in files:
            try:
                stamp_ns = _stamp(file.stem, times, rate_hz)
            except ValueError as error:
                bad.append(f"{file.name}: {error}")
                continue
            images.append(ListedImage(stamp_ns, file, calibration))
        images, bad = in_order(images, bad, folder / camera)
        origin = "no calibration" if calibration is None else "calib.txt"
        return ImageList(images, origin, calibration is not None, bad)

    def mount(self, folder: Path, camera: str) -> Array | None:
        return _in_camera_0(folder, camera) if (folder / "calib.txt").exists() else None

    def poses(self, folder: Path, camera: str, rate_hz: float) -> Iterator[tuple[int, Array]]:
        path = Path(os.path.abspath(folder))
        file = path.parent.parent / "poses" / f"{path.name}.txt"
        if not file.exists():
            raise RecordingError(f"{folder} has no true poses: {file} is missing")
        # Camera 0's own poses need no calibration.
        T_camera0_camera = np.eye(4) if camera == "image_0" else _in_camera_0(folder, camera)
        times = _times(folder)
        image_of = {number: k for k, (number, _) in enumerate(rows(file))}  # blank lines are none

        def read(line: tuple[int, str]) -> tuple[int, Array]:
            T = pose_of_matrix(numbers(cells(line[1]), 12))
            return _stamp(str(image_of[line[0]]), times, rate_hz), T @ T_camera0_camera

        return read_poses(file, rows(file), read)


def _times(folder: Path) -> dict[int, int] | None:
    """Returns the times in ns of images by number; None without times.txt. Raises
    RecordingError."""
    file = folder / "times.txt"
    if not file.exists():
        return None
    found: dict[int, int] = {}
    for k, (number, text) in enumerate(rows(file)):
        try:
            found[k] = seconds_to_ns(text)
        except ValueError as error:
            raise RecordingError(f"{file}, line {number}: {error}") from error
    return found


def _stamp(number: str, times: dict[int, int] | None, rate_hz: float) -> int:
    """Returns the stamp in ns of an image by its number. Raises ValueError."""
    by_rate = numbered_stamp(number, rate_hz)
    if times is None:
        return by_rate
    if int(number) not in times:
        raise ValueError(f"times.txt has no line {int(number) + 1}")
    return FIRST_STAMP_NS + times[int(number)]


def _projection(folder: Path, camera: str) -> Array:
    """Returns P [3, 4] of a camera. Raises RecordingError."""
    file, name = folder / "calib.txt", f"P{camera[-1]}"
    for number, text in rows(file):
        key, _, values = text.partition(":")
        if key.strip() == name:
            try:
                return np.reshape(numbers(cells(values.strip()), 12), (3, 4))
            except ValueError as error:
                raise RecordingError(f"{file}, line {number}: {error}") from error
    raise RecordingError(f"{file} has no {name}, the projection matrix of {camera}")


def _in_camera_0(folder: Path, camera: str) -> Array:
    """Returns T_camera0_camera [4, 4], metres, by P = K [I | t]. Raises RecordingError."""
    P, T = _projection(folder, camera), np.eye(4)
    try:
        T[:3, 3] = -np.linalg.inv(P[:, :3]) @ P[:, 3]
    except np.linalg.LinAlgError as error:
        raise RecordingError(f"{folder / 'calib.txt'}: P of {camera} has no K") from error
    return T


def _calibration(folder: Path, camera: str, files: Sequence[Path]) -> Calibration | None:
    """Returns the calibration of a rectified image; None without calib.txt or an image."""
    size = image_size(files)
    if size is None or not (folder / "calib.txt").exists():
        return None
    K = focal_and_centre(_projection(folder, camera))
    return pinhole(K, size, folder / "calib.txt")
