"""Frames of a folder of image files."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from da3_ros.messages.decode import MAX_PIXELS, ImageError, decode_file
from da3_ros.recordings.base import FrameSelection, Recording, RecordingError, stamp_of
from da3_ros.types import Calibration, Frame

log = logging.getLogger(__name__)

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
CALIBRATION_FILE = "camera_info.yaml"
# Integer file names are times since 1970 in s, ms, us or ns: digits -> power of 10 to ns.
_UNITS = {10: 9, 13: 6, 16: 3, 19: 0}


class FolderRecording(Recording):
    """All images of a folder, in natural order (2 before 10).

    The stamps are the file names if all are times (``1305031102.175304.png``,
    ``1403636579763555584.png``); otherwise they start at 1 s and follow ``rate_hz``. The
    calibration is read from ``camera_info.yaml`` in the folder, in camera_calibration's format.
    """

    def __init__(
        self, path: Path, selection: FrameSelection, rate_hz: float = 10.0,
        calibration: Calibration | None = None, rectified: bool = False,
        max_pixels: int = MAX_PIXELS,
    ) -> None:  # fmt: skip
        self.path = path
        self.camera = path.name
        self.counters, self.bad_images = {"bad_images": 0}, []
        self._selection, self._rectified, self._max_pixels = selection, rectified, max_pixels
        self._files = image_files(path)
        self._stamps = stamps_of([file.stem for file in self._files], rate_hz)
        own = path / CALIBRATION_FILE
        self._calibration = calibration
        if calibration is None and own.exists():
            self._calibration = read_calibration(own)
        first, last = min(self._stamps), max(self._stamps)
        self.length = selection.estimate(len(self._files), (last - first) / 1e9)

    @property
    def stopped_at(self) -> str | None:
        """Always None: a damaged image is skipped and counted."""
        return None

    def describe(self) -> str:
        """Number of images and calibration file in one line."""
        calibration = CALIBRATION_FILE if self._calibration is not None else "no calibration"
        return f"{self.path.resolve().name}: {len(self._files)} images, {calibration}"

    def __iter__(self) -> Iterator[Frame]:
        """Yield the selected frames."""
        self.counters["bad_images"], self.bad_images = 0, []
        ordered = sorted(zip(self._stamps, self._files, strict=True), key=lambda pair: pair[0])
        for stamp_ns, file in self._selection.apply(ordered):
            try:
                image = decode_file(file.read_bytes(), self._max_pixels)
            except (ImageError, OSError) as error:
                self.counters["bad_images"] += 1
                self.bad_images.append(f"{file.name}: {error}")
                log.warning("%s", self.bad_images[-1])
                continue
            yield Frame(
                stamp_ns=stamp_ns, image=image, calibration=self._calibration,
                rectified=self._rectified,
            )  # fmt: skip


def image_files(folder: Path) -> list[Path]:
    """Image files of a folder in natural order."""
    files = (p for p in folder.iterdir() if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file())
    named = (p for p in files if not p.name.startswith("."))
    return sorted(named, key=lambda path: natural_order(path.name))


def natural_order(name: str) -> list[tuple[int, int | str]]:
    """Returns the key by which names are sorted in natural order (2 before 10)."""
    parts = re.split(r"(\d+)", name)
    return [(0, int(p)) if p.isdecimal() else (1, p.lower()) for p in parts if p] + [(2, name)]


def stamps_of(stems: Sequence[str], rate_hz: float) -> list[int]:
    """Stamps in ns for file names without suffix: the names if all are times and distinct."""
    own = [_time_of(stem) for stem in stems]
    known = [t for t in own if t is not None]
    if len(known) == len(stems) and len(set(known)) == len(known):
        return known
    return [stamp_of(i, rate_hz) for i in range(len(stems))]


def _time_of(stem: str) -> int | None:
    """The exact time in ns since 1970 that a file name gives; None: not a time."""
    if re.fullmatch(r"\d+\.\d+", stem):
        return int(Decimal(stem) * 1_000_000_000)
    if re.fullmatch(r"[1-9]\d*", stem) and len(stem) in _UNITS:
        return int(stem) * 10 ** _UNITS[len(stem)]
    return None


def read_calibration(file: Path) -> Calibration:
    """Read a calibration file in camera_calibration's format. Raises RecordingError."""
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        distortion = content.get("distortion_coefficients", {"data": []})
        P = _matrix(content, "projection_matrix", (3, 4), np.zeros((3, 4)))
        return Calibration(
            width=int(content["image_width"]),
            height=int(content["image_height"]),
            K=_matrix(content, "camera_matrix", (3, 3)),
            distortion_model=str(content.get("distortion_model", "plumb_bob")),
            D=np.array(distortion["data"], np.float64),
            R=_matrix(content, "rectification_matrix", (3, 3), np.eye(3)),
            P=P if P.any() else None,
        )
    except (
        OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError,
        yaml.YAMLError,
    ) as error:  # fmt: skip
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise RecordingError(
            f"{file.name} is not a calibration in camera_calibration's format ({why})"
        ) from error


def _matrix(content: Any, name: str, shape: tuple[int, int], default: Any = None) -> Any:
    if name not in content and default is not None:
        return default
    return np.array(content[name]["data"], np.float64).reshape(shape)
