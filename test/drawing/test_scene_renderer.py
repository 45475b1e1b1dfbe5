"""Surfaces of points and triangles: what is seen in each pixel."""

import cv2
import numpy as np
import pytest

from da3_ros.drawing import triangle_surface
from da3_ros.drawing.scene_drawing import Drawing
from da3_ros.drawing.scene_renderer import BACKGROUND, SceneRenderer
from da3_ros.drawing.squares import last_covering
from da3_ros.drawing.triangle_surface import TriangleSurface
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
    found = last_covering(corner, SIDES, kind, (WIDTH, HEIGHT))
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


def test_left_is_left_and_above_is_above():
    """Seen along the map's x, its y points left and its z up."""
    pixels, depth = wall_from(1.0).project(np.array([[0, 0.1, 0.0], [0, 0, 0.1], [1, 0, 0]]))
    np.testing.assert_allclose(depth, [1, 1, 2])
    assert (pixels[0] < (39, 31)).all()
    assert abs(pixels[0, 1] - 30) < 1e-6
    assert abs(pixels[1, 0] - 40) < 1e-6
    assert pixels[1, 1] < 29
    np.testing.assert_allclose(pixels[2], (40, 30))


def test_a_wall_near_the_eye_has_no_gaps(renderer):
    picture = renderer.picture(wall_from(0.7))
    assert (picture[5:-5, 5:-5] > 100).mean() > 0.95


def test_what_is_too_near_is_left_out(renderer):
    assert (renderer.picture(wall_from(0.5, near=0.4)) > 100).any()
    assert not (renderer.picture(wall_from(0.5, near=0.6)) > 100).any()


NO_LINES = np.zeros((0, 2, 3))


def box_drawing(points, faces, rgb=200):
    colors = np.full((len(points), 3), rgb, np.uint8)
    faces = np.asarray(faces, np.int64)
    return Drawing(np.asarray(points, np.float32), colors, NO_LINES, NO_LINES, faces=faces)


def painted(drawing, eye, direction, size=(160, 120)):
    direction = np.asarray(direction, float) / np.linalg.norm(direction)
    viewpoint = Viewpoint.looking(np.asarray(eye, float), direction, size, 60.0)
    return SceneRenderer(drawing, 32, 1).picture(viewpoint), viewpoint


@pytest.mark.parametrize("scale", [0.02, 0.3, 3.0, 40.0])
def test_a_triangle_covers_what_it_covers(scale):
    """From a few pixels to more than the picture; OpenCV fills the same triangle."""
    corners = scale * np.array([[0, 0.9, -0.6], [0, -0.8, -0.5], [0, 0.1, 0.7]])
    # Counterclockwise as seen from the eye, which is at -x.
    picture, viewpoint = painted(box_drawing(corners, [[0, 1, 2]]), [-3, 0, 0], [1, 0, 0])
    pixels, _ = viewpoint.project(corners)
    expected = np.zeros((120, 160), np.uint8)
    cv2.fillConvexPoly(expected, np.round(16 * (pixels - 0.5)).astype(np.int32), 1, shift=4)
    seen = (picture > BACKGROUND + 20).all(axis=2)
    inside = cv2.erode(expected, np.ones((3, 3))).astype(bool)
    around = cv2.dilate(expected, np.ones((5, 5))).astype(bool)
    assert seen[inside].all(), "no gaps"
    assert not seen[~around].any()
    assert seen.any()


def test_triangles_are_seen_from_their_front_alone():
    corners = [[0, 0.9, -0.6], [0, -0.8, -0.5], [0, 0.1, 0.7]]
    for faces, seen in (([[0, 1, 2]], True), ([[0, 2, 1]], False)):
        picture, _ = painted(box_drawing(corners, faces), [-3, 0, 0], [1, 0, 0])
        assert (picture > BACKGROUND + 20).any() == seen


def test_the_nearer_triangle_hides_the_farther_one():
    near = np.array([[0, 0.9, -0.6], [0, -0.8, -0.5], [0, 0.1, 0.7]])
    both = box_drawing(np.concatenate((near, 3 * near + [2, 0, 0])), [[0, 1, 2], [3, 4, 5]])
    both.rgb[:3], both.rgb[3:] = (250, 0, 0), (0, 250, 0)
    picture, viewpoint = painted(both, [-3, 0, 0], [1, 0, 0])
    x, y = viewpoint.project(near.mean(axis=0))[0].astype(int)
    assert picture[y, x, 0] > 150
    assert picture[y, x, 1] < 30
    assert (picture[..., 1] > 150).any()


def test_a_surface_is_brighter_where_it_faces_the_viewpoint():
    def brightness(tilt):
        c, s = np.cos(tilt), np.sin(tilt)
        corners = np.array([[0, 0.9, -0.6], [0, -0.8, -0.5], [0, 0.1, 0.7]])
        turned = corners @ np.array([[c, -s, 0], [s, c, 0], [0, 0, 1.0]]).T
        picture, _ = painted(box_drawing(turned, [[0, 1, 2]]), [-3, 0, 0], [1, 0, 0])
        return np.median(picture[picture.max(axis=2) > BACKGROUND + 20])

    flat, tilted, steep = brightness(0.0), brightness(0.7), brightness(1.4)
    assert flat > tilted + 15 > steep + 30


def test_triangles_go_with_their_points():
    points = [[0, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 1]]
    square = box_drawing(points, [[0, 1, 2], [1, 3, 2]])
    for keep in (np.array([False, True, True, True]), np.array([1, 2, 3])):
        taken = square.take(keep)
        np.testing.assert_array_equal(
            taken.points[taken.faces], [[[0, 1, 0], [0, 1, 1], [0, 0, 1]]]
        )


def test_large_triangles_take_a_bounded_number_of_squares(monkeypatch):
    corners = 40 * np.array([[0, 0.9, -0.6], [0, -0.8, -0.5], [0, 0.1, 0.7]])
    monkeypatch.setattr(triangle_surface, "MAX_SQUARES", 5000)
    many = box_drawing(corners, [[0, 1, 2]] * 10)
    viewpoint = Viewpoint.looking(np.array([-3.0, 0, 0]), np.array([1.0, 0, 0]), (160, 120), 60.0)
    assert 100 < len(TriangleSurface(many).squares(viewpoint).depth) <= 5000
