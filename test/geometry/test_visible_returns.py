"""Which returns an image shows."""

import numpy as np

from da3_ros.geometry.visible_returns import visible_returns

K = np.array([[100.0, 0, 60], [0, 100.0, 40], [0, 0, 1]])
SHAPE = (80, 120)
FLAT = np.ones(SHAPE, np.float32)  # depth of one distance, in any unit


def wall(z, left=0, right=120, step=2.0):
    """Returns of a wall across the camera's view at a distance, between two columns."""
    u, v = np.meshgrid(np.arange(left, right, step) + 0.5, np.arange(0, 80, step) + 0.5)
    rays = np.stack([(u - 60) / 100, (v - 40) / 100, np.ones_like(u)], -1).reshape(-1, 3)
    return (z * rays).astype(np.float32)


def test_returns_outside_the_image_or_behind_it_are_not_seen():
    points = np.array([[0, 0, 2], [0, 0, -2], [3, 0, 2], [0, 9, 2]], np.float32)
    pixels, z = visible_returns(points, K, FLAT)
    np.testing.assert_allclose(pixels, [[60, 40]])
    np.testing.assert_allclose(z, [2])


def test_a_surface_behind_a_nearer_one_is_hidden():
    """The sensor sees past the near wall, the camera does not."""
    far, near = wall(4.0), wall(2.0, 0, 60)
    depth = FLAT.copy()
    depth[:, 60:] = 2
    pixels, z = visible_returns(np.concatenate([far, near]), K, depth)
    assert len(z) > 1000
    assert (z[pixels[:, 0] < 60] < 3).all()
    assert (z[pixels[:, 0] > 60] > 3).all()
    assert (pixels[:, 0] > 60).sum() == len(far) / 2  # also beside the edge


def test_a_slanted_surface_hides_nothing_of_itself():
    """A floor, whose distance doubles within a few rows."""
    v, u = np.mgrid[42:80:3, 0:120:6] + 0.5
    rays = np.stack([(u - 60) / 100, (v - 40) / 100, np.ones_like(u)], -1)
    points = (rays / rays[..., 1:2]).reshape(-1, 3).astype(np.float32)
    row = (np.arange(80) + 0.5 - 40) / 100
    depth = np.where(row > 0, 1 / row, np.nan)[:, None] * np.ones(SHAPE)
    assert len(visible_returns(points, K, depth.astype(np.float32))[1]) == len(points)


def test_single_near_returns_hide_nothing():
    """Rain before a wall: the drops are left out, the wall stays."""
    rng = np.random.default_rng(0)
    points = wall(4.0)
    rain = rng.random(len(points)) < 0.1
    points[rain] *= (rng.uniform(0.1, 0.7, rain.sum()))[:, None].astype(np.float32)
    _, z = visible_returns(points, K, FLAT)
    assert (z > 3.9).sum() > 0.8 * (~rain).sum()
    assert (z < 3.9).sum() < 0.1 * rain.sum()


def test_few_returns_are_all_kept():
    points = wall(3.0, step=40.0)
    assert len(visible_returns(points, K, FLAT)[1]) == len(points)
    pixels, z = visible_returns(np.zeros((0, 3), np.float32), K, FLAT)
    assert (pixels.shape, z.shape) == ((0, 2), (0,))
