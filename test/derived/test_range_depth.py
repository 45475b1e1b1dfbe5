"""Depth of keyframes with returns of range sensors: exact, smooth, not across edges."""

import dataclasses
import functools

import cv2
import numpy as np
import pytest

from da3_ros.derived.measuring import DepthMeasurement, Measurable
from da3_ros.derived.range_depth import SIGMA, observed, with_returns
from da3_ros.geometry.projection import backproject
from da3_ros.synthetic import SyntheticCamera
from da3_ros.types import DenseDepth

SIZE = (168, 126)
METRES = 2.5  # per unit of the keyframe's depth


@functools.cache
def frame(index=0):
    return SyntheticCamera(seed=91, size=SIZE, walk="loop", frames=40)[index]


def wrong_depth(f, seed=0, strength=0.1):
    """A network's depth: smoothly wrong, in its own unit."""
    noise = cv2.GaussianBlur(
        np.random.default_rng(seed).standard_normal(f.depth.shape), (0, 0), 18
    )
    return (f.depth / METRES * np.exp(strength * noise / noise.std())).astype(np.float32)


def returns_of(f, count, seed=0):
    """Returns spread evenly over the image of a frame, metres."""
    points = backproject(f.depth, f.K).reshape(-1, 3)
    points = points[np.isfinite(points).all(axis=1)]
    return points[np.random.default_rng(seed).permutation(len(points))[:count]]


def measured_with(f, network, points, dense=None):
    return with_returns(network, dense, observed(points, f.K, network, METRES))


def rmse(depth, f):
    known = np.isfinite(depth) & np.isfinite(f.depth)
    return float(np.sqrt(np.mean((METRES * depth - f.depth)[known] ** 2)))


@pytest.mark.parametrize(("count", "share"), [(64, 0.8), (500, 0.5), (5000, 0.35)])
def test_depth_is_nearer_to_the_truth_with_returns(count, share):
    f = frame()
    network = wrong_depth(f)
    dense, pixels = measured_with(f, network, returns_of(f, count))
    assert 0.5 * count < pixels <= count
    assert rmse(dense.depth, f) < share * rmse(network, f)


def test_returns_are_exact_at_their_pixels():
    f = frame()
    points = returns_of(f, 500)
    dense, pixels = measured_with(f, wrong_depth(f), points)
    assert dense.measured.sum() == pixels
    np.testing.assert_allclose(METRES * dense.depth[dense.measured], f.depth[dense.measured], 1e-5)
    np.testing.assert_allclose(dense.sigma[dense.measured], SIGMA, rtol=1e-5)


def test_stated_deviations_fit_the_errors_between_returns():
    f = frame()
    dense, _ = measured_with(f, wrong_depth(f), returns_of(f, 1000))
    smooth = ~dense.measured & np.isfinite(f.depth) & (dense.sigma < 0.06)
    assert smooth.mean() > 0.2
    error = np.log(METRES * dense.depth / f.depth)[smooth] / dense.sigma[smooth]
    assert 0.3 < np.sqrt(np.mean(error**2)) < 1.5


def step_scene():
    """A near wall on the left and a far one on the right."""
    depth = np.full((SIZE[1], SIZE[0]), 1.0, np.float32)
    depth[:, 84:] = 2.0
    return depth


def test_nothing_is_carried_across_an_edge():
    """The network sees the near wall too near and the far one too far."""
    f, depth = frame(), step_scene()
    points = backproject(METRES * depth, f.K)[::4, ::4].reshape(-1, 3)
    wrong = np.where(depth < 1.5, np.float32(0.95), np.float32(1.05))
    dense, _ = measured_with(f, wrong * depth, points)
    np.testing.assert_allclose(dense.depth / depth, 1, rtol=0.01)


def test_what_moves_and_rain_correct_nothing_around_them():
    """A part of the returns is of something that has left since."""
    f = frame()
    network = (f.depth / METRES).astype(np.float32)
    points = returns_of(f, 1000)
    moved = np.random.default_rng(1).random(len(points)) < 0.1
    points[moved] *= 0.7
    dense, _ = measured_with(f, network, points)
    rest = np.isfinite(f.depth) & ~dense.measured
    assert np.quantile(np.abs(METRES * dense.depth / f.depth - 1)[rest], 0.95) < 0.02


def test_what_images_have_measured_stays_between_returns():
    f = frame()
    network = wrong_depth(f)
    there = np.zeros(network.shape, bool)
    there[30:90, 40:120] = True
    depth = np.where(there, 1.02 * f.depth / METRES, network).astype(np.float32)
    images = DenseDepth(depth, np.full(depth.shape, 0.02, np.float32), there)
    dense, _ = measured_with(f, network, returns_of(f, 200), images)
    own = there & (dense.sigma > 1.5 * SIGMA)
    np.testing.assert_array_equal(dense.depth[own], depth[own])
    assert rmse(np.where(there, np.nan, dense.depth), f) < rmse(np.where(there, np.nan, depth), f)


def test_unknown_depth_and_sky_stay():
    f = frame()
    network = wrong_depth(f)
    network[:20], network[20:40] = np.nan, np.inf
    dense, _ = measured_with(f, network, returns_of(f, 500))
    assert np.isnan(dense.depth[:20]).all()
    assert np.isposinf(dense.depth[20:40]).all()
    assert not dense.measured[:40].any()
    assert np.isnan(dense.sigma[:40]).all()


def test_without_returns_nothing_is_measured():
    f = frame()
    assert measured_with(f, wrong_depth(f), np.zeros((0, 3), np.float32)) == (None, 0)
    behind = -returns_of(f, 100)
    assert measured_with(f, wrong_depth(f), behind) == (None, 0)


def keyframes(count=3, **changes):
    """Keyframes of a camera that stands: their images measure nothing."""
    f = frame()
    for id in range(count):
        network = wrong_depth(f, id)
        one = Measurable(
            id, 0, 0, "", f.stamp_ns + id, f.image, f.K, network, np.ones_like(network),
            returns_of(f, 500, id),
        )  # fmt: skip
        yield dataclasses.replace(one, **changes)


def results(metres, **changes):
    measurement = DepthMeasurement()
    for one in keyframes(**changes):
        measurement.add_keyframe(one)
    unit = 0.5  # of odometry per unit of the submap
    job = measurement.job(lambda k: (frame().T_room_camera, unit), ends=True, metres=metres / unit)
    return job.run().measured


@pytest.mark.parametrize("by_images", [True, False])
def test_a_camera_that_stands_gets_depth_by_returns(by_images):
    found = results(METRES, by_images=by_images)
    assert len(found) == 3
    for one in found:
        assert one.stays
        assert one.found == one.dense.measured.sum() > 400
        assert rmse(one.dense.depth, frame()) < 0.5 * rmse(one.keyframe.depth, frame())


def test_returns_do_not_count_while_the_scale_is_unknown():
    assert [one.dense for one in results(float("nan"))] == [None] * 3
