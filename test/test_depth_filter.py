"""What may be published of a depth map."""

import numpy as np
import pytest

from da3_ros.config import DepthConfig
from da3_ros.depth_filter import depth_edges, filter_depth
from da3_ros.geometry import backproject

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


def test_pixels_between_two_surfaces_are_removed_and_the_surfaces_stay():
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
def test_sky_is_sky_whatever_its_depth_and_confidence_and_the_roof_below_it_stays(said, expected):
    depth = np.full((40, 30), 5.0, np.float32)
    depth[:20] = 7.0  # what the network happens to say of sky
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
