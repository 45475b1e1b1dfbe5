"""What may be published of a depth map."""

import cv2
import numpy as np
import pytest

from da3_ros.config import DepthConfig
from da3_ros.geometry.projection import backproject
from da3_ros.mapping.depth_filter import depth_edges, filter_depth, without_smears

K = np.array([[100.0, 0, 60], [0, 100, 40], [0, 0, 1]])


def slanted_floor(height=80, width=120):
    """z-depth of a floor 1.5 m below a level camera, up to 20 m, and a wall behind it."""
    rows = (np.arange(height) + 0.5 - 40) / 100
    with np.errstate(divide="ignore"):
        z = np.where(rows > 0, 1.5 / rows, np.inf)
    return np.repeat(np.minimum(z, 20)[:, None], width, axis=1).astype(np.float32)


def test_a_grazing_floor_is_no_edge():
    depth = slanted_floor()
    # Rows around the crease to the wall may go; the floor itself must stay.
    assert not depth_edges(depth)[55:].any()


def test_pixels_between_surfaces_go_and_the_surfaces_stay():
    depth = np.full((60, 60), 4.0, np.float32)
    depth[:, 30:] = 2.0
    depth[:, 29] = 2.9  # smeared between both
    edges = depth_edges(depth)
    assert edges[:, 29].all()
    assert not edges[:, :26].any()
    assert not edges[:, 34:].any()


def test_unknown_doubtful_and_sourceless_pixels_become_nan():
    depth = np.full((10, 10), 2.0, np.float32)
    depth[0, 0], depth[0, 1], depth[0, 2] = np.nan, np.inf, -1
    confidence = np.full((10, 10), 3.0, np.float32)
    confidence[5, 5] = 1.0
    valid = np.ones((10, 10), bool)
    valid[9] = False
    out = filter_depth(
        depth, confidence, DepthConfig(min_confidence=2.0, edge_filter=False), valid
    )
    expected = np.zeros((10, 10), bool)
    expected[0, :3] = expected[5, 5] = expected[9] = True
    np.testing.assert_array_equal(np.isnan(out), expected)
    assert depth[5, 5] == 2.0  # the input is not touched


def test_percentile_drops_the_least_confident_share():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(1, 5, (40, 50)).astype(np.float32)
    config = DepthConfig(confidence_percentile=25.0, edge_filter=False)
    out = filter_depth(np.ones((40, 50), np.float32), confidence, config)
    assert abs(np.isnan(out).mean() - 0.25) < 0.01
    assert confidence[np.isnan(out)].max() <= confidence[np.isfinite(out)].min()


@pytest.mark.parametrize(("said", "expected"), [("inf", np.inf), ("nan", np.nan)])
def test_sky_is_sky_and_the_roof_below_it_stays(said, expected):
    """Sky is sky whatever its depth and confidence and the roof below it stays."""
    depth = np.full((40, 30), 5.0, np.float32)
    depth[:20] = 7.0  # what the network happens to predict for sky
    depth[25] = np.nan
    sky = np.zeros((40, 30), bool)
    sky[:20] = True
    confidence = np.where(sky, 1.0, 3.0).astype(np.float32)
    valid = np.ones((40, 30), bool)
    valid[:, 0] = False
    config = DepthConfig(sky=said, min_confidence=2.0, confidence_percentile=10.0)
    out = filter_depth(depth, confidence, config, valid, sky)
    assert np.isnan(out[:, 0]).all()  # no source: not even sky
    np.testing.assert_array_equal(out[:19, 1:], expected)
    np.testing.assert_array_equal(out[27:, 1:], 5.0)
    assert np.isnan(out[25, 1:]).all()


def test_back_projected_points_of_the_floor_lie_on_the_floor():
    depth = slanted_floor()
    points = backproject(depth, K)[50:]
    np.testing.assert_allclose(points[..., 1], 1.5, rtol=1e-5)


# What the map is spared


def lost(depth):
    return np.isnan(without_smears(depth)) & ~np.isnan(depth)


def ramp(width, columns=120):
    """A near surface on the left, a far one on the right, ``width`` pixels of smear between."""
    row = np.interp(np.arange(columns), [60, 60 + width], [2.0, 4.0])
    return np.repeat(row[None].astype(np.float32), 90, axis=0)


@pytest.mark.parametrize("width", [2, 4, 8, 12])
@pytest.mark.parametrize("turned", [False, True])
def test_a_smear_between_two_surfaces_stays_out_of_the_map(width, turned):
    depth = ramp(width)
    gone = lost(depth.T).T if turned else lost(depth)
    middle = (depth > 2.4) & (depth < 3.6)
    assert gone[middle].all()
    assert not gone[:, :54].any()
    assert not gone[:, 60 + width + 6 :].any()
    if width == 8:  # what is published keeps such a ramp
        assert not depth_edges(depth)[middle].any()


@pytest.mark.parametrize("height_m", [0.2, 1.5])
def test_a_floor_stays_in_the_map_however_low_the_camera(height_m):
    rows = (np.arange(168) + 0.5 - 84) / 175
    with np.errstate(divide="ignore"):
        z = np.where(rows > 0, height_m / rows, np.inf)
    floor = np.repeat(z[:, None], 224, axis=1).astype(np.float32)
    assert not lost(floor)[86:].any()


@pytest.mark.parametrize("slant_deg", [60, 80])
def test_a_slanted_wall_stays_in_the_map_up_to_the_image_border(slant_deg):
    columns = (np.arange(224) + 0.5 - 112) / 175
    z = 3 / (1 + np.tan(np.radians(slant_deg)) * columns)
    wall = np.repeat(np.where((z > 0) & (z < 50), z, np.nan)[None], 168, axis=0)
    assert not lost(wall.astype(np.float32)).any()


def test_a_thin_pole_stays_in_the_map():
    depth = np.full((60, 80), 4.0, np.float32)
    depth[:, 38:42] = 2.0
    assert not lost(depth)[:, 39:41].any()


def test_unknown_depth_and_noise_are_no_smear():
    depth = np.full((60, 80), 4.0, np.float32)
    depth[20:30, 20:30] = np.nan
    depth[:, 78:] = np.nan
    assert not lost(depth).any()
    noise = np.random.default_rng(0).normal(0, 0.01, depth.shape)
    assert lost((depth * np.exp(noise)).astype(np.float32)).mean() < 1e-3


def test_reach_grows_with_images_that_were_enlarged():
    small = ramp(8, columns=504)[:20]
    large = cv2.resize(small, None, fx=3, fy=3, interpolation=cv2.INTER_LINEAR)
    middle = (large > 2.4) & (large < 3.6)
    assert lost(large)[middle].all()
    assert not lost(large[:, :504])[middle[:, :504]].all(), "the reach of 504 pixels is too short"


def test_an_image_too_small_for_a_smear_is_left_alone():
    depth = np.random.default_rng(1).uniform(1, 5, (4, 6)).astype(np.float32)
    np.testing.assert_array_equal(without_smears(depth), depth)
