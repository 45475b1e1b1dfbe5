"""Squares of points: which one is seen in each pixel."""

import numpy as np
import pytest

from da3_ros.drawing.scene_drawing import Drawing
from da3_ros.drawing.scene_renderer import SceneRenderer, _nearest
from da3_ros.drawing.viewpoint import Viewpoint

SIDES = np.array([1, 2, 3, 7])
WIDTH, HEIGHT = 40, 30


def test_the_last_of_the_squares_that_cover_a_pixel_is_seen():
    rng = np.random.default_rng(0)
    corner = rng.integers(-6, (WIDTH, HEIGHT), (120, 2))
    kind = rng.integers(0, len(SIDES), 120)
    expected = np.zeros((HEIGHT, WIDTH), int)
    for number, ((x, y), k) in enumerate(zip(corner, kind, strict=True), 1):
        rows, columns = (np.arange(SIDES[k]) + start for start in (y, x))
        rows, columns = rows[(rows >= 0) & (rows < HEIGHT)], columns[columns >= 0]
        expected[rows[:, None], columns[columns < WIDTH]] = number
    found = _nearest(corner, SIDES, kind, (WIDTH, HEIGHT))
    assert (expected == 0).any()
    np.testing.assert_array_equal(found, expected)


@pytest.fixture
def renderer():
    """A wall at x = 0."""
    y, z = (axis.ravel() for axis in np.meshgrid(*[np.linspace(-1, 1, 50)] * 2))
    points = np.column_stack((np.zeros(2500), y, z)).astype(np.float32)
    lines = np.zeros((0, 2, 3))
    return SceneRenderer(Drawing(points, np.full((2500, 3), 200, np.uint8), lines, lines), 8, 1)


def wall_from(distance, near=0.0):
    eye, ahead = np.array([-distance, 0.0, 0.0]), np.array([1.0, 0.0, 0.0])
    return Viewpoint.looking(eye, ahead, (80, 60), 60.0, near)


def test_a_picture_does_not_depend_on_those_before_it(renderer):
    first = renderer.picture(wall_from(1.0))
    closer = renderer.picture(wall_from(0.5), np.array([[[0, -0.1, 0.0], [0, 0.1, 0]]]))
    assert (first != closer).any()
    assert (closer[29:32] == 255).all(axis=2).any(), "the line of this picture alone"
    np.testing.assert_array_equal(renderer.picture(wall_from(1.0)), first)


def test_a_wall_near_the_eye_has_no_gaps(renderer):
    picture = renderer.picture(wall_from(0.7))
    assert (picture[5:-5, 5:-5] > 100).mean() > 0.95


def test_what_is_too_near_is_left_out(renderer):
    assert (renderer.picture(wall_from(0.5, near=0.4)) > 100).any()
    assert not (renderer.picture(wall_from(0.5, near=0.6)) > 100).any()
