"""Metres and sky as pure functions: exact, never at random, and NaN instead of exceptions."""

import math

import pytest
import torch

from da3_ros.network import metric
from da3_ros.network.model import Output
from da3_ros.network.monocular import MonocularOutput
from da3_ros.network.nested import to_metres

SHAPE = (1, 2, 30, 40)


def scene(seed=0, factor=2.5, noise=0.0):
    """Depth, confidence, metres = factor x depth, and a sky map with sky in the upper third."""
    g = torch.Generator().manual_seed(seed)
    depth = 1 + 4 * torch.rand(SHAPE, generator=g)
    metres = factor * depth * (noise * torch.randn(SHAPE, generator=g)).exp()
    confidence = 1 + torch.rand(SHAPE, generator=g)
    sky = torch.zeros(SHAPE)
    sky[..., :10, :] = 1
    return depth, confidence, metres, sky


def test_scale_of_a_scene_is_found_with_its_spread():
    found = metric.align_depth(*scene(noise=0.05))
    assert float(found.scale) == pytest.approx(2.5, rel=0.01)
    assert float(found.spread) == pytest.approx(0.05, rel=0.15)
    assert int(found.pixels) == pytest.approx(2 * 20 * 40 / 2, abs=2)


def test_sky_and_low_confidence_do_not_count():
    depth, confidence, metres, sky = scene()
    metres[..., :10, :] = 1000
    metres[confidence < 1.4] = 1000
    assert float(metric.align_depth(depth, confidence, metres, sky).scale) == pytest.approx(2.5)


def test_each_scene_of_a_batch_has_its_own_scale():
    one, two = scene(0, 2.0), scene(1, 3.0)
    found = metric.align_depth(*(torch.cat(pair) for pair in zip(one, two, strict=True)))
    assert found.scale.tolist() == pytest.approx([2.0, 3.0])


@pytest.mark.parametrize("case", ["all sky", "ten pixels", "no depth", "NaN depth", "NaN sky"])
def test_too_little_to_compare_gives_nan(case):
    depth, confidence, metres, sky = scene()
    if case == "all sky":
        sky[:] = 1
    elif case == "ten pixels":
        sky[:] = 1
        sky[0, 0, 20, :10] = 0
    elif case == "no depth":
        depth[:] = 1e-4
    elif case == "NaN depth":
        depth[:] = torch.nan
    else:
        sky[:] = torch.nan
    found = metric.align_depth(depth, confidence, metres, sky)
    assert found.scale.isnan().all()
    assert found.spread.isnan().all()


def test_some_nan_pixels_do_not_matter():
    depth, confidence, metres, sky = scene()
    for k, x in enumerate((depth, confidence, metres, sky)):
        x[0, 0, 15 + k, 3] = torch.nan
    assert float(metric.align_depth(depth, confidence, metres, sky).scale) == pytest.approx(2.5)


def test_large_scenes_are_measured_exactly_and_repeatably():
    """Over 100,000 pixels the reference draws some at random."""
    g = torch.Generator().manual_seed(1)
    depth = torch.rand(1, 1, 500, 700, generator=g)
    sky = torch.zeros_like(depth)
    sky[..., :100, :] = 1
    expected = torch.quantile(depth[..., 100:, :].flatten(), 0.99)
    torch.manual_seed(0)
    first = metric.fill_sky(depth, sky)
    second = metric.fill_sky(depth, sky)
    assert torch.equal(first, second)
    assert torch.allclose(first[..., :100, :], expected)
    assert torch.equal(first[..., 100:, :], depth[..., 100:, :])


@pytest.mark.parametrize("n", [1, 2, 7, 1000])
@pytest.mark.parametrize("q", [0.0, 0.5, 0.99, 1.0])
def test_quantile_equals_the_library_and_takes_any_size(n, q):
    values = torch.randn(n, generator=torch.Generator().manual_seed(n))
    assert float(metric.quantile(values, q)) == pytest.approx(float(values.quantile(q)), abs=1e-6)


def test_filled_sky_ends_at_the_limit():
    depth, _, _, sky = scene()
    assert float(metric.fill_sky(depth * 1000, sky, 200.0)[..., :10, :].max()) == 200.0


def test_metres_follow_the_focal_length():
    canonical = torch.ones(SHAPE)
    found = metric.metric_depth(canonical, torch.tensor([[300.0, 600.0]]))
    assert found[0, 0].unique().tolist() == [1.0]
    assert found[0, 1].unique().tolist() == [2.0]


def output(depth, confidence):
    T = torch.eye(4)[:3].repeat(1, 2, 1, 1)
    T[0, 1, 0, 3] = 1.0
    K = torch.tensor([[250.0, 0, 20], [0, 350.0, 15], [0, 0, 1]]).repeat(1, 2, 1, 1)
    return Output(depth, confidence, T, K)


def test_two_models_of_ones_own_are_scaled_as_the_nested_one_is():
    depth, confidence, metres, sky = scene()
    found = to_metres(output(depth, confidence), MonocularOutput(metres, sky), fill_sky=False)
    assert float(found.scale) == pytest.approx(2.5)
    assert torch.allclose(found.depth, 2.5 * depth)
    assert float(found.extrinsics[0, 1, 0, 3]) == pytest.approx(2.5)
    assert torch.equal(found.confidence, confidence)


def test_a_known_focal_length_replaces_the_predicted_one():
    depth, confidence, metres, sky = scene()
    focal = torch.full((1, 2), 600.0)
    found = to_metres(output(depth, confidence), MonocularOutput(metres, sky), focal)
    assert float(found.scale) == pytest.approx(5.0)


def test_unknown_scale_leaves_lengths_alone():
    depth, confidence, metres, sky = scene()
    before = output(depth, confidence)
    found = to_metres(before, MonocularOutput(metres, torch.ones_like(sky)))
    assert math.isnan(float(found.scale))
    assert torch.equal(found.depth, depth)
    assert torch.equal(found.extrinsics, before.extrinsics)
