"""Frames of a video file, read with OpenCV."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np

from da3_ros.recordings.base import FIRST_STAMP_NS, FrameSelection, Recording, RecordingError
from da3_ros.types import Calibration, Frame

log = logging.getLogger(__name__)

VIDEO_SUFFIXES = (
    *(".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".ts", ".mts"),
    *(".wmv", ".flv", ".ogv", ".3gp", ".mjpeg"),
)
_FALLBACK_HZ = 30.0
# The length in a container is an estimate; below this share of it the file counts as truncated.
_TRUNCATED_BELOW = 0.9


class VideoRecording(Recording):
    """All frames of a video. Stamps are the file's times plus 1 s; without times, the frame rate.

    Rotation in the file's metadata is applied.
    """

    def __init__(
        self, path: Path, selection: FrameSelection, calibration: Calibration | None = None,
        rectified: bool = False, max_pixels: int = 64_000_000,
    ) -> None:  # fmt: skip
        self.path = path
        self.camera = path.name
        self.counters, self.bad_images = {"bad_images": 0}, []
        self._selection, self._calibration, self._rectified = selection, calibration, rectified
        self._stopped_at: str | None = None
        capture = _open(path)
        self._count = max(0, int(capture.get(cv2.CAP_PROP_FRAME_COUNT)))
        rate = capture.get(cv2.CAP_PROP_FPS)
        self._rate_hz = rate if np.isfinite(rate) and 0 < rate <= 1000 else _FALLBACK_HZ
        self._size = [
            int(capture.get(p)) for p in (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT)
        ]
        capture.release()
        if self._size[0] * self._size[1] > max_pixels:
            raise RecordingError(
                f"{path.name} has {self._size[0]}x{self._size[1]} pixels, above the limit of "
                f"{max_pixels / 1e6:g} megapixels: scale it down"
            )
        self.length = selection.estimate(self._count, self._count / self._rate_hz)

    @property
    def stopped_at(self) -> str | None:
        """Where and why reading ended early, or None."""
        return self._stopped_at

    def describe(self) -> str:
        """Number of frames, size and rate in one line."""
        return (
            f"{self.path.name}: about {self._count} frames, {self._size[0]}x{self._size[1]}, "
            f"{self._rate_hz:g} Hz"
        )

    def __iter__(self) -> Iterator[Frame]:
        """Yield the selected frames."""
        for stamp_ns, image in self._selection.apply(self._frames()):
            yield Frame(
                stamp_ns=stamp_ns,
                image=np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2RGB), np.uint8),
                calibration=self._calibration,
                rectified=self._rectified,
            )

    def _frames(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (stamp_ns, BGR image) of every frame."""
        capture, read, last_ns = _open(self.path), 0, -1
        try:
            while True:
                good, image = capture.read()
                if not good:
                    break
                own_ns = round(capture.get(cv2.CAP_PROP_POS_MSEC) * 1e6)
                # Some containers have no times: all are zero, or repeat.
                last_ns = own_ns if own_ns > last_ns else last_ns + round(1e9 / self._rate_hz)
                read += 1
                yield FIRST_STAMP_NS + last_ns, image
        finally:
            capture.release()
        if read < _TRUNCATED_BELOW * self._count:
            self._stopped_at = (
                f"{self.path.name} ends after {read} of {self._count} frames: it is damaged or "
                "truncated"
            )
            log.warning("%s", self._stopped_at)


def _open(path: Path) -> cv2.VideoCapture:
    capture = cv2.VideoCapture(str(path))
    if not capture.isOpened():
        raise RecordingError(
            f"{path.name} cannot be opened as a video: it is damaged or OpenCV lacks its codec"
        )
    return capture
