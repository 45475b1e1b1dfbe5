"""Writes videos that browsers and common players play: H.264 in MP4, by PyAV."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from da3_ros.export.selection import ExportError
from da3_ros.types import Image

if TYPE_CHECKING:
    import av

SUFFIX = ".mp4"
MISSING = "a video needs PyAV: pip install 'da3_ros[video]' or pip install av"
# On one thread, and not slower: others gave other bytes for the same pictures from time to time.
OPTIONS = {"preset": "veryfast", "crf": "20"}
BT_709, LIMITED = 1, 1  # colour space and range, as ITU-T H.273 and FFmpeg number them


def check_encoder() -> None:
    """Raises ExportError with the remedy if PyAV, or the encoder in it, is missing."""
    try:
        import av
    except ImportError as error:
        raise ExportError(MISSING) from error
    if "libx264" not in av.codecs_available:
        raise ExportError(f"this PyAV has no encoder of H.264; {MISSING}")


class VideoWriter:
    """A video that is being written, picture by picture."""

    def __init__(self, container: av.container.OutputContainer, rate: Fraction) -> None:
        """rate: pictures per second."""
        self._container, self._rate = container, rate
        self._stream: av.VideoStream | None = None

    def add(self, picture: Image) -> None:
        """Add RGB [H, W, 3] of even height and width, all pictures of one size."""
        import av

        if self._stream is None:
            self._stream = self._begin(picture.shape[1], picture.shape[0])
        frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
        self._container.mux(
            self._stream.encode(frame.reformat(format="yuv420p", dst_colorspace="ITU709"))
        )

    def finish(self) -> None:
        """Write what the encoder still holds."""
        if self._stream is not None:
            self._container.mux(self._stream.encode())

    def _begin(self, width: int, height: int) -> av.VideoStream:
        stream = self._container.add_stream("libx264", rate=self._rate, options=OPTIONS)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        context = stream.codec_context
        context.thread_count = 1
        context.colorspace = context.color_primaries = context.color_trc = BT_709
        context.color_range = LIMITED
        return stream


@contextlib.contextmanager
def video_writer(path: Path, rate: Fraction) -> Iterator[VideoWriter]:
    """Yields a writer of the video at ``path``, which is complete at the end.

    rate: pictures per second. Raises ExportError if no video can be made here, and OSError.
    """
    check_encoder()
    import av

    try:
        # Players that load a file from a server begin before they have all of it.
        with av.open(str(path), "w", format="mp4", options={"movflags": "faststart"}) as container:
            writer = VideoWriter(container, rate)
            yield writer
            writer.finish()
    except av.FFmpegError as error:
        raise OSError(error.errno, f"{path}: {error.strerror}") from error
