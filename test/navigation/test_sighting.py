"""What marks and what clears, on exact depth of known solids with the errors of real depth."""

import dataclasses

import numpy as np
import pytest
from support.solids import SIZE, K, Solid, camera_at, depth_of, in_level

from da3_ros.config import ObstacleConfig
from da3_ros.navigation.sighting import BEYOND, sight

CONFIG = ObstacleConfig()
CAMERAS = {"low": camera_at(0.3), "high": camera_at(1.0, 15.0)}
WALL = Solid((3.0, -5, 0), (3.2, 5, 2.5))


def seen(T, solids=(), *, noise=0.0, config=CONFIG, seed=0, **options):
    """Marks and clearing points in the level frame."""
    depth = depth_of(T, solids, **options)
    depth = depth * np.exp(noise * np.random.default_rng(seed).normal(size=depth.shape))
    found = sight(depth.astype(np.float32), K, T, config)
    for points in (found.marks, found.clearing):
        assert points.dtype == np.float32
        assert np.isfinite(points).all()
    return in_level(found.marks, T), in_level(found.clearing, T)


@pytest.mark.parametrize("camera", CAMERAS)
def test_the_floor_alone_marks_nothing_and_clears(camera):
    marks, clearing = seen(CAMERAS[camera], noise=0.02)
    assert len(marks) == 0
    far = np.linalg.norm(clearing[:, :2], axis=1)
    assert far.max() == pytest.approx(CONFIG.max_range + BEYOND, abs=0.05)
    on_floor = np.abs(clearing[:, 2]) < 0.05
    assert 0.2 < on_floor.mean() < 1


@pytest.mark.parametrize("camera", CAMERAS)
def test_a_wall_marks_where_it_is_and_nothing_clears_beyond_it(camera):
    marks, clearing = seen(CAMERAS[camera], [WALL])
    assert len(marks) > 1000
    np.testing.assert_allclose(marks[:, 0], 3.0, atol=0.01)
    assert marks[:, 2].min() == pytest.approx(CONFIG.min_height + 0.02 * 3, abs=0.05)
    assert clearing[:, 0].max() <= 3.01


def test_height_band_and_range_are_those_of_the_parameters():
    T = camera_at(1.0)
    low = dataclasses.replace(CONFIG, max_height=0.8, max_range=3.5)
    marks, clearing = seen(T, [WALL], config=low)
    assert 0.75 < marks[:, 2].max() < 0.8
    assert (clearing[:, 2] > 0.8).any()  # over a robot of that height the ray is free to the wall
    marks, _ = seen(T, [WALL], config=dataclasses.replace(CONFIG, max_range=2.9))
    assert len(marks) == 0
    marks, _ = seen(T, [WALL], config=dataclasses.replace(CONFIG, min_height=0.5))
    assert marks[:, 2].min() > 0.5


@pytest.mark.parametrize(
    ("solid", "marked"),
    [
        (Solid((1.5, -0.2, 0), (1.7, 0.2, 0.05)), False),  # lower than min_height: driven over
        (Solid((1.5, -0.2, 0), (1.7, 0.2, 0.20)), True),
        (Solid((3.0, -0.2, 0), (3.2, 0.2, 0.20)), True),
        (Solid((1.0, 0, 0), (1.01, 0.01, 0.7)), True),  # 1 cm: up to 1.5 m
        (Solid((3.0, 0, 0), (3.03, 0.03, 0.7)), True),  # 3 cm, up to the range
        (Solid((3.0, 0, 0), (3.005, 0.005, 0.7)), False),
        (Solid((2.0, -0.5, 0.68), (2.6, 0.5, 0.72)), True),  # a table's top
        (Solid((2.0, -0.5, 2.1), (2.6, 0.5, 2.2)), False),  # a lamp to pass under
    ],
    ids=["5cm", "20cm", "20cm-far", "leg-1cm", "leg-3cm", "wire", "table", "lamp"],
)
@pytest.mark.parametrize("camera", CAMERAS)
def test_what_is_marked(camera, solid, marked):
    for seed in range(3):
        marks, _ = seen(CAMERAS[camera], [solid], noise=0.02, seed=seed)
        beside = np.abs(marks[:, 0] - solid.low[0]) < 0.4
        assert (beside.sum() >= 3) == marked
        assert (~beside).sum() == 0 or solid.high[0] - solid.low[0] > 0.4


def test_a_gentle_ramp_is_floor_and_a_steep_one_an_obstacle():
    T = camera_at(1.0, 15.0)
    first = {}
    for tilt in (3, 8, 15):
        marks, _ = seen(T, [Solid((1.0, -2, -0.01), (4, 2, 0), tilt_deg=tilt)])
        first[tilt] = marks[:, 0].min() if len(marks) else np.inf
    assert first[3] > 3.5
    assert first[15] < first[8] < 2.5


def test_a_mirror_image_below_a_shiny_floor_is_nothing():
    T = camera_at(1.0, 15.0)
    depth = depth_of(T, [WALL])
    mirror = depth_of(T, [Solid((2.0, -5, -3), (2.2, 5, 0))], floor=False)  # in the floor
    shiny = np.where((mirror > depth) & np.isfinite(mirror), mirror, depth)
    assert (shiny != depth).mean() > 0.02
    found = sight(shiny, K, T, CONFIG)
    assert in_level(found.marks, T)[:, 2].min() > 0.1
    assert in_level(found.clearing, T)[:, 2].min() > -0.2


@pytest.mark.parametrize("below", [np.inf, 20.0, 1.0])
def test_nothing_is_cleared_beyond_an_edge(below):
    T = camera_at(1.0, 15.0)
    ledge = Solid((-5, -5, -0.01), (2.0, 5, 0))  # the floor ends at 2 m
    ground = [] if np.isinf(below) else [Solid((-90, -90, -below - 1), (90, 90, -below))]
    marks, clearing = seen(T, [ledge, *ground], floor=False)
    assert len(marks) == 0
    assert clearing[:, 2].min() > -0.2
    low = clearing[clearing[:, 2] < 0.3]
    assert low[:, 0].max() < 4.4


def test_a_way_down_marks_where_it_begins_if_it_is_to():
    T = camera_at(1.0, 15.0)
    ledge = Solid((-5, -5, -0.01), (2.0, 5, 0))
    lower = Solid((-90, -90, -0.4), (90, 90, -0.3))
    stairs = dataclasses.replace(CONFIG, drop=0.15)
    for solids in ([ledge], [ledge, lower]):
        assert len(seen(T, solids, floor=False)[0]) == 0
        marks, _ = seen(T, solids, floor=False, config=stairs, noise=0.02)
        assert len(marks) > 50
        assert marks[:, 0].min() > 1.9
        assert np.percentile(marks[:, 0], 5) < 2.3
        np.testing.assert_allclose(marks[:, 2], 0.05, atol=0.01)
    deeper = dataclasses.replace(CONFIG, drop=0.5)
    assert len(seen(T, [ledge, lower], floor=False, config=deeper)[0]) == 0
    assert len(seen(T, [WALL], config=stairs, noise=0.02)[0]) > 1000  # and the floor is none
    assert seen(T, config=stairs, noise=0.02)[0].size == 0


def test_what_is_unknown_neither_marks_nor_clears():
    T = camera_at(1.0)
    depth = depth_of(T, [WALL])
    depth[:, : SIZE[0] // 2] = np.nan
    found = sight(depth, K, T, CONFIG)
    assert (found.marks[:, 0] > -0.02).all()
    assert (found.clearing[:, 0] > -0.02).all()
    nothing = sight(np.full_like(depth, np.nan), K, T, CONFIG)
    assert len(nothing.marks) == len(nothing.clearing) == 0


def test_sky_clears_to_the_range():
    T = camera_at(1.0)
    depth = np.full((SIZE[1], SIZE[0]), np.inf, np.float32)
    found = sight(depth, K, T, CONFIG)
    far = np.linalg.norm(in_level(found.clearing, T)[:, :2] - T[:2, 3], axis=1)
    np.testing.assert_allclose(far, CONFIG.max_range + BEYOND, rtol=1e-5)
    assert len(found.marks) == 0


def test_isolated_pixels_do_not_mark():
    T = camera_at(1.0)
    depth = depth_of(T, [WALL])
    rng = np.random.default_rng(0)
    wild = rng.random(depth.shape) < 0.02
    depth[wild] = rng.uniform(0.5, 2.5, wild.sum())
    marks = in_level(sight(depth.astype(np.float32), K, T, CONFIG).marks, T)
    np.testing.assert_allclose(marks[:, 0], 3.0, atol=0.05)


def test_the_floor_may_lie_beside_the_bases_origin():
    T = camera_at(1.0)
    lifted = T.copy()
    lifted[2, 3] -= 0.25  # a base_link at the height of the axles
    depth = depth_of(T, [WALL])
    a, b = sight(depth, K, T, CONFIG), sight(depth, K, lifted, CONFIG, floor_z=-0.25)
    np.testing.assert_array_equal(a.marks, b.marks)
    np.testing.assert_array_equal(a.clearing, b.clearing)
    assert len(sight(depth, K, lifted, CONFIG).marks) != len(a.marks)


@pytest.mark.parametrize("size", [(112, 84), (504, 378), (1280, 960)])
def test_any_size_of_depth_is_judged_alike(size):
    T = camera_at(1.0)
    scaled = K.copy()
    scaled[:2] *= size[0] / SIZE[0]
    found = sight(depth_of(T, [WALL], size=size, K=scaled), scaled, T, CONFIG)
    marks = in_level(found.marks, T)
    np.testing.assert_allclose(marks[:, 0], 3.0, atol=0.01)
    assert marks[:, 1].min() == pytest.approx(-3 * np.tan(np.radians(32.5)), abs=0.06)


def test_a_few_pixels_on_no_surface_do_not_mark():
    """Larger than the median takes away, and smaller than what has neighbours."""
    T = camera_at(1.0)
    depth = depth_of(T, [WALL])
    for row, column in ((180, 100), (190, 300), (150, 400)):
        depth[row : row + 4, column : column + 4] = 1.5
    marks = in_level(sight(depth, K, T, CONFIG).marks, T)
    assert marks[:, 0].min() > 2.9


def test_clearing_reaches_beyond_the_marks():
    _, clearing = seen(camera_at(1.0, 15.0))
    assert np.linalg.norm(clearing[:, :2], axis=1).max() > CONFIG.max_range + 0.2
