"""A view's depth at some pixels, by the tracks around them."""

import dataclasses

import numpy as np
import pytest

from da3_ros.refinement.depth_near_tracks import TrackResiduals, error_near_tracks

SHAPE = (84, 112)
AT = 42, 56  # row and column


def error_at(x, y):
    """Of the logarithm of depth: a view's, and one in the middle of the image."""
    return 0.03 + 0.1 * np.exp(-0.5 * (((x - 56) ** 2 + (y - 42) ** 2) / 20**2))


def tracks_in(depth, rng, count=150, sigma=0.02):
    row, column = rng.integers(0, SHAPE[0], count), rng.integers(0, SHAPE[1], count)
    pixel = np.column_stack((column, row)) + 0.5
    residual = error_at(*pixel.T) + sigma * rng.standard_normal(count)
    log_depth = np.log(depth[row, column].astype(float))
    return TrackResiduals(pixel, log_depth, residual, np.full(count, sigma), 0.1)


def plane(log_depth=0.0):
    return np.full(SHAPE, np.exp(log_depth), np.float32)


def test_the_error_of_the_middle_is_found_there_and_not_elsewhere():
    errors = []
    for seed in range(10):
        found = error_near_tracks(tracks_in(plane(), np.random.default_rng(seed)), plane())
        errors.append((found[AT] - 0.13, found[4, 4] - error_at(4, 4)))
    assert np.abs(np.mean(errors, axis=0)).max() < 0.01
    assert np.std(errors, axis=0).max() < 0.02


def test_a_tenth_of_wrong_tracks_changes_little():
    rng = np.random.default_rng(3)
    tracks = tracks_in(plane(), rng)
    before = error_near_tracks(tracks, plane())[AT]
    tracks.residual[::10] += 0.5
    assert error_near_tracks(tracks, plane())[AT] == pytest.approx(before, abs=0.015)


@pytest.mark.parametrize("off", [-1.0, -0.4, 0.5])
def test_where_tracks_agree_on_what_no_network_errs_nothing_is_known(off):
    """Somebody who walks there has a tenth of all tracks."""
    rng = np.random.default_rng(3)
    tracks = tracks_in(plane(), rng)
    before = error_near_tracks(tracks, plane())
    away = np.hypot(*(tracks.pixel - np.array(AT[::-1])).T)
    tracks.residual[np.argsort(away)[:15]] += off
    found = error_near_tracks(tracks, plane())
    assert np.isnan(found[AT])
    assert found[4, 4] == pytest.approx(before[4, 4], abs=0.03)


def test_a_large_image_has_the_same_error_at_the_same_places():
    tracks, large = tracks_in(plane(), np.random.default_rng(7)), (6 * SHAPE[0], 6 * SHAPE[1])
    found = error_near_tracks(tracks, plane())
    tracks = dataclasses.replace(tracks, pixel=6 * tracks.pixel)
    of_large = error_near_tracks(tracks, np.ones(large, np.float32))
    assert len(np.unique(of_large)) <= 64 * 48  # for its time
    np.testing.assert_allclose(of_large[3::6, 3::6], found, atol=0.02)


def test_what_is_far_behind_has_no_say():
    """A board in the middle, whose depth has another error than the wall behind it."""
    rng = np.random.default_rng(4)
    depth = plane(1.5)
    depth[22:62, 36:76] = 1.0
    tracks = tracks_in(depth, rng, 300)
    near = tracks.log_depth < 0.5
    tracks.residual[:] = np.where(near, 0.08, -0.02) + 0.01 * rng.standard_normal(300)
    found = error_near_tracks(tracks, depth)
    assert found[AT] == pytest.approx(0.08, abs=0.01)
    assert found[42, 16] == pytest.approx(-0.02, abs=0.01)


def test_unknown_depth_and_lost_tracks_are_no_numbers_of_others():
    rng = np.random.default_rng(5)
    tracks, depth = tracks_in(plane(), rng), plane()
    depth[:10] = np.nan
    tracks.residual[::3] = np.nan
    found = error_near_tracks(tracks, depth)
    assert np.isfinite(found).all()
    assert found[AT] == pytest.approx(0.13, abs=0.03)


def test_few_tracks_say_nothing():
    tracks = tracks_in(plane(), np.random.default_rng(6), 7)
    assert error_near_tracks(tracks, plane()) is None
