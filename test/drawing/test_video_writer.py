"""Videos, read back by another decoder."""

import sys
from fractions import Fraction

import cv2
import numpy as np
import pytest

from da3_ros.drawing.video_writer import video_writer
from da3_ros.export.selection import ExportError

av = pytest.importorskip("av", reason="needs PyAV: pip install av")


def pictures(count=12, size=(64, 48)):
    """A bright square that moves over colours."""
    base = np.zeros((size[1], size[0], 3), np.uint8)
    base[:, : size[0] // 2], base[:, size[0] // 2 :] = (180, 40, 40), (30, 60, 190)
    for k in range(count):
        picture = base.copy()
        picture[16:32, 4 * k : 4 * k + 16] = (250, 250, 100)
        yield picture


def write(path, count=12):
    with video_writer(path, Fraction(25, 2)) as video:
        for picture in pictures(count):
            video.add(picture)


def test_what_is_read_is_what_was_written(tmp_path):
    write(tmp_path / "a.mp4")
    video = cv2.VideoCapture(str(tmp_path / "a.mp4"))
    assert video.get(cv2.CAP_PROP_FPS) == pytest.approx(12.5)
    for picture in pictures():
        read, bgr = video.read()
        assert read
        off = np.abs(bgr[..., ::-1].astype(int) - picture)
        # Colours have half the resolution, so that edges differ.
        assert np.median(off) <= 3
        assert off.mean() < 12
    assert not video.read()[0]


def test_browsers_can_play_it(tmp_path):
    """H.264 with 4:2:0, colours as HDTV has them, the index before the pictures."""
    write(tmp_path / "a.mp4")
    data = (tmp_path / "a.mp4").read_bytes()
    assert 0 < data.index(b"moov") < data.index(b"mdat")
    with av.open(str(tmp_path / "a.mp4")) as file:
        (stream,) = file.streams
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        assert stream.codec_context.colorspace == 1
        assert stream.codec_context.profile in ("High", "Main", "Constrained Baseline")


def test_a_folder_that_is_missing_is_an_error_of_the_system(tmp_path):
    with pytest.raises(OSError, match="missing"):
        write(tmp_path / "missing" / "a.mp4")


def test_without_the_library_one_line_names_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ExportError, match="pip install av"):
        write(tmp_path / "a.mp4")
    assert not list(tmp_path.iterdir())
