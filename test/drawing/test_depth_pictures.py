"""Histogram and slices of depth: what is drawn where, and depth that is not known."""

import numpy as np

from da3_ros.drawing.depth_pictures import HEIGHT, SLICES, SPACE, depth_histogram, depth_slices

SIZE = (60, 90)


def plane():
    """Depth that grows from left to right."""
    return np.tile(np.linspace(1, 7, SIZE[1], dtype=np.float32), (SIZE[0], 1))


def bar_heights(picture):
    """Heights of the bars, by column of pixels."""
    return (picture[:HEIGHT].any(axis=2)).sum(axis=0)


def test_each_slice_shows_its_part_of_the_image():
    image = np.full((*SIZE, 3), 240, np.uint8)
    picture = depth_slices(image, plane(), "m")
    assert picture.shape == (2 * (SIZE[0] + SPACE), 3 * SIZE[1], 3)
    cells = [
        picture[r * (SIZE[0] + SPACE) + SPACE :][: SIZE[0], c * SIZE[1] :][:, : SIZE[1]]
        for r in range(2)
        for c in range(3)
    ]
    for k, cell in enumerate(cells):
        bright = np.flatnonzero((cell == 240).all(axis=(0, 2)))
        share = SIZE[1] / SLICES
        assert abs(bright.min() - k * share) <= 1
        assert abs(bright.max() + 1 - (k + 1) * share) <= 1
        assert len(np.unique(cell)) == 2, "the rest is dark"


def test_unknown_depth_and_sky_are_in_no_slice():
    image, depth = np.full((*SIZE, 3), 240, np.uint8), plane()
    depth[:10], depth[10:20] = np.nan, np.inf
    picture = depth_slices(image, depth, "m")
    for row in range(2):
        top = row * (SIZE[0] + SPACE) + SPACE
        assert (picture[top : top + 20] == 30).all()


def test_bars_are_as_high_as_there_are_pixels():
    depth = plane()
    depth[:30] = 1.0  # half of the image is near
    heights = bar_heights(depth_histogram(depth, "spectral", "m"))
    assert heights[0] == HEIGHT - SPACE
    assert 0 < heights[-3] < heights[0] / 10


def test_where_nothing_is_known_no_bar_is_drawn():
    empty = np.full(SIZE, np.nan, np.float32)
    assert not bar_heights(depth_histogram(empty, "spectral", "m")).any()
    image = np.full((*SIZE, 3), 240, np.uint8)
    assert not depth_slices(image, empty, "m")[SPACE:].any()
