"""The pictures of a video, on the disk until the replay ends, which then encodes them.

An encoder cannot go on where an interrupted one was; a file of pictures can.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from tqdm import tqdm

from da3_ros.drawing.video_writer import video_writer
from da3_ros.mapping.submap_points import jpeg
from da3_ros.types import Array, Image

HEAD = struct.Struct("<qI")  # stamp in ns, and bytes of the JPEG that follows
SLOWEST, FASTEST, USUAL = Fraction(2), Fraction(60), Fraction(10)  # pictures per second


class PictureSpill:
    """Appends pictures to a file, and makes the video of them."""

    def __init__(self, path: Path, written: int = 0) -> None:
        """written: bytes of an interrupted replay, which are kept. Raises OSError."""
        self.file = path.open("a+b")
        if os.fstat(self.file.fileno()).st_size < written:
            self.file.close()
            raise OSError(f"{path} is not complete")
        self.file.truncate(written)

    def add(self, stamp_ns: int, picture: Image) -> None:
        """Append RGB [H, W, 3]. Raises OSError."""
        data = jpeg(picture)
        self.file.write(HEAD.pack(stamp_ns, len(data)) + data)

    def written(self) -> int:
        """Returns the bytes so far, and waits until they are on the disk. Raises OSError."""
        self.file.flush()
        os.fsync(self.file.fileno())
        return os.fstat(self.file.fileno()).st_size

    def encode(self, target: Path) -> None:
        """Write the video at the pace of the stamps, if there are pictures. Raises OSError, and
        ExportError if no video can be made here."""
        stamps = np.fromiter((stamp for stamp, _ in self._heads()), np.int64)
        if not len(stamps):
            return
        progress = tqdm(
            self._heads(), total=len(stamps), unit="frame", desc="video",
            disable=not sys.stderr.isatty(),
        )  # fmt: skip
        with video_writer(target, _rate(stamps)) as video, progress:
            for _, size in progress:
                data = np.frombuffer(self.file.read(size), np.uint8)
                bgr: Any = cv2.imdecode(data, cv2.IMREAD_COLOR)
                video.add(np.asarray(cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB), np.uint8))

    def _heads(self) -> Iterator[tuple[int, int]]:
        """Yields stamp and size of each picture; the file stands where its data begin then."""
        self.file.flush()
        offset, end = 0, os.fstat(self.file.fileno()).st_size
        while offset < end:
            self.file.seek(offset)
            stamp_ns, size = HEAD.unpack(self.file.read(HEAD.size))
            offset += HEAD.size + size
            yield stamp_ns, size


def _rate(stamps_ns: Array) -> Fraction:
    """Returns pictures per second by the median interval of stamps; what no player shows well is
    left out."""
    steps = np.diff(stamps_ns)
    steps = steps[steps > 0]
    if not len(steps):
        return USUAL
    rate = Fraction(10**9, int(np.median(steps))).limit_denominator(100)
    return min(max(rate, SLOWEST), FASTEST)
