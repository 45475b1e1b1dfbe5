"""The correction of depth between tracks."""

import numpy as np
import pytest
from scipy.ndimage import map_coordinates

from da3_ros.refinement.refiner import TrackResiduals, correction, interpolated

SHAPE = (120, 160)


def tracks(depth, error, seed=0, count=200, noise=0.005, sigma=0.01):
    """Tracks at random pixels whose depth differs from ``depth`` by ``error`` (logarithm)."""
    rng = np.random.default_rng(seed)
    row, column = rng.integers(0, SHAPE[0], count), rng.integers(0, SHAPE[1], count)
    residual = error[row, column] + rng.normal(0, noise, count)
    pixel = np.column_stack((column, row)) + 0.5
    log_depth = np.log(depth[row, column].astype(float))
    return TrackResiduals(pixel, log_depth, residual, np.full(count, sigma), 0.1)


@pytest.fixture
def plane():
    return np.full(SHAPE, 2.0, np.float32)


@pytest.mark.parametrize("shape", [(5, 7, 9), (1, 2, 1), (3, 1, 4)])
def test_grids_are_interpolated_as_by_scipy(shape):
    rng = np.random.default_rng(0)
    grid, (height, width) = rng.normal(size=shape), (40, 50)
    row = np.linspace(-0.6, shape[0] + 0.3, height)[:, None]
    column = np.linspace(-0.6, shape[1] + 0.3, width)[None]
    layer = rng.uniform(-1, shape[2] + 1, (height, width)).astype(np.float32)
    at = np.stack(np.broadcast_arrays(row, column, layer)).reshape(3, -1)
    expected = map_coordinates(grid, at, order=1, mode="nearest", prefilter=False)
    found = interpolated(grid, row, column, layer)
    np.testing.assert_allclose(found, expected.reshape(height, width), atol=1e-5)
    assert found.dtype == np.float32


def test_a_smooth_error_is_corrected(plane):
    error = 0.1 * np.sin(np.linspace(0, 3, SHAPE[1]))[None] * np.ones(SHAPE)
    found = correction(tracks(plane, error), plane)
    assert np.abs(found - error).mean() < 0.3 * np.abs(error).mean()


def test_a_common_factor_is_corrected(plane):
    found = correction(tracks(plane, np.full(SHAPE, 0.2)), plane)
    assert np.abs(found - 0.2).max() < 0.03


def test_noise_gives_no_correction(plane):
    """Held-out tracks decide: noise of one half says nothing about the other."""
    found = correction(tracks(plane, np.zeros(SHAPE), noise=0.05), plane)
    assert np.abs(found).max() < 0.01


def test_nothing_is_averaged_across_a_depth_edge():
    depth = np.full(SHAPE, 2.0, np.float32)
    depth[:, 80:] = 4.0
    error = np.where(np.arange(SHAPE[1]) < 80, 0.15, -0.15)[None] * np.ones(SHAPE)
    found = correction(tracks(depth, error, count=300), depth)
    assert np.abs(found[:, 60:80] - 0.15).mean() < 0.03
    assert np.abs(found[:, 80:100] + 0.15).mean() < 0.03
    assert (found[:, :80] > 0.05).all()
    assert (found[:, 80:] < -0.05).all()


def test_bad_tracks_do_not_bend_a_wall(plane):
    clean = tracks(plane, np.zeros(SHAPE), noise=0.01)
    residual = clean.residual.copy()
    residual[::10] += np.random.default_rng(1).uniform(0.3, 1.0, len(residual[::10]))
    bad = TrackResiduals(clean.pixel, clean.log_depth, residual, clean.sigma, 0.1)
    found = correction(bad, plane)
    assert found is None or np.abs(found).max() < 0.02


def test_tracks_without_parallax_change_little(plane):
    error = np.full(SHAPE, 0.2)
    found = correction(tracks(plane, error, sigma=2.0), plane)
    assert np.abs(found).max() < 0.1


def test_few_tracks_give_none(plane):
    assert correction(tracks(plane, np.full(SHAPE, 0.2), count=10), plane) is None


def test_unknown_depth_stays_unknown(plane):
    plane[:20] = np.nan
    found = correction(tracks(np.full(SHAPE, 2.0), np.full(SHAPE, 0.1)), plane)
    assert np.isfinite(found).all()
    assert np.isnan((plane * np.exp(found))[:20]).all()
