"""Frames with tracks: their file, and the sheet that shows them."""

import io

import numpy as np
import pytest

from da3_ros.drawing.track_sheet import NO_POINT, draw_tracks, track_colors
from da3_ros.drawing.tracks_file import (
    MAX_BYTES,
    FrameTracks,
    load_tracks,
    save_tracks,
)
from da3_ros.export.scene_file import SceneFileError
from da3_ros.mapping.submap_points import jpeg
from da3_ros.refinement.track_history import LENGTH, TrackHistory


def frame(seed, tracks=5, shape=(60, 80), error_px=0.1, value=200):
    """A frame of one grey, and tracks anywhere in it."""
    position = np.random.default_rng(seed).uniform(0, 1, (tracks, LENGTH, 2)).astype(np.float32)
    position[::2, :3] = np.nan
    error = np.full(tracks, error_px, np.float32)
    image = np.full((*shape, 3), value, np.uint8)
    return FrameTracks(10**9 * seed + 5, jpeg(image), TrackHistory(position, error))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "tracks.npz"
    save_tracks(path, [frame(0), frame(1, tracks=0), frame(2, tracks=9, error_px=np.nan)])
    return path


def arrays(file):
    with np.load(file, allow_pickle=False) as data:
        return dict(data)


def test_what_is_read_is_what_was_written(file):
    for folder in (file, file.parent):
        frames = load_tracks(folder)
        assert [f.stamp_ns for f in frames] == [5, 10**9 + 5, 2 * 10**9 + 5]
        assert [len(f.track_history) for f in frames] == [5, 0, 9]
        for n, (read, tracks) in enumerate(zip(frames, (5, 0, 9), strict=True)):
            written = frame(n, tracks, error_px=np.nan if n == 2 else 0.1)
            np.testing.assert_array_equal(
                read.track_history.position, written.track_history.position
            )
            np.testing.assert_array_equal(
                read.track_history.error_px, written.track_history.error_px
            )
            assert read.jpeg == written.jpeg
            assert abs(read.image().astype(int) - 200).max() <= 2


def test_the_same_frames_give_the_same_bytes(file, tmp_path):
    save_tracks(tmp_path / "b.npz", load_tracks(file))
    assert (tmp_path / "b.npz").read_bytes() == file.read_bytes()


def spoil(file, how):
    """Spoils a file of three frames."""
    whole, data = file.read_bytes(), arrays(file)
    if how == "cut":
        file.write_bytes(whole[: len(whole) // 2])
    elif how == "flipped":
        middle = len(whole) // 2
        file.write_bytes(whole[:middle] + bytes(64) + whole[middle + 64 :])
    elif how == "text":
        file.write_text("tracks")
    elif how == "empty":
        file.write_bytes(b"")
    elif how == "array":
        buffer = io.BytesIO()
        np.save(buffer, np.zeros(3))
        file.write_bytes(buffer.getvalue())
    else:
        spoilt = {
            "object": {"error_px": np.array([print] * 14, object)},
            "missing": {"position": None},
            "type": {"error_px": np.zeros(14)},
            "shape": {"position": np.zeros((14, LENGTH, 3), np.float32)},
            "rows": {"error_px": np.zeros(13, np.float32)},
            "counts": {"count": np.array([5, 0, 8])},
            "negative": {"count": np.array([15, -1, 0])},
            "frames": {"stamp_ns": np.zeros(2, np.int64)},
            "many": {"stamp_ns": np.zeros(13, np.int64)},
            "none": {k: v[:0] for k, v in data.items()},
            "image": {"jpeg": np.zeros_like(data["jpeg"])},
            "bomb": {"error_px": np.zeros(MAX_BYTES // 4 + 1, np.float32)},
        }[how]
        data |= spoilt
        np.savez_compressed(file, **{k: v for k, v in data.items() if v is not None})


SPOILT = {
    "cut": "zip", "flipped": "", "text": "zip", "empty": "zip", "array": "zip",
    "object": "allow_pickle", "missing": "position", "type": "type or shape of error_px",
    "shape": "type or shape of position", "rows": "lengths", "counts": "lengths",
    "negative": "lengths", "frames": "lengths", "none": "lengths", "image": "cannot be decoded",
    "bomb": "too large", "many": "12 are the most",
}  # fmt: skip


@pytest.mark.parametrize("how", SPOILT)
def test_a_spoilt_file_is_one_clear_line(file, how):
    spoil(file, how)
    with pytest.raises(SceneFileError, match="is not a file of tracks or is damaged") as raised:
        load_tracks(file)
    assert SPOILT[how] in str(raised.value)
    assert str(file) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("frames", "columns", "rows"), [(1, 1, 1), (3, 3, 1), (4, 3, 2), (12, 3, 4)]
)
def test_the_sheet_has_three_pictures_a_row(frames, columns, rows):
    sheet = draw_tracks([frame(n) for n in range(frames)], (160, 108))
    height = 108 + 12  # with the line of text
    assert sheet.shape == (rows * height + 8 * (rows - 1), columns * 160 + 8 * (columns - 1), 3)


def test_a_dot_shows_where_the_newest_view_sees_a_track():
    position = np.full((1, LENGTH, 2), np.nan)
    position[0, -1] = 0.25, 0.75
    position[0, -3] = 0.75, 0.75
    one = FrameTracks(0, frame(0).jpeg, TrackHistory(position, np.zeros(1)))
    sheet = draw_tracks([one], (160, 120)).astype(int)
    green = sheet[:120, :, 1] - sheet[:120, :, 0] > 60
    rows, columns = np.nonzero(green)
    assert abs(rows.mean() - 90) < 1
    assert columns.min() == pytest.approx(40, abs=3)
    assert columns.max() == pytest.approx(120, abs=2)
    heights = [np.ptp(rows[columns == x]) for x in (40, 80)]
    assert heights[0] > heights[1], "the dot is thicker than the line"
    assert (sheet[:120][~green].max(axis=-1) < 200).all(), "the image is dimmed"


def test_images_keep_their_proportions():
    plain = frame(0, tracks=0, shape=(60, 60), value=255)
    sheet = draw_tracks([plain], (160, 120))
    dark = (sheet[:120] < 200).all(axis=2)
    assert (dark.sum(axis=0)[[19, 21, 138, 141]] == [0, 120, 120, 0]).all()
    assert (sheet[120:] < 128).any(), "a line of text"


def test_colors_go_from_green_to_red():
    colors = track_colors(np.array([0.0, 1.0, 2.0, 50.0, np.nan]))
    expected = [[0, 255, 0], [255, 255, 0], [255, 0, 0], [255, 0, 0], NO_POINT]
    np.testing.assert_array_equal(colors, expected)
    assert track_colors(np.zeros(0)).shape == (0, 3)
