"""Mono, metric and nested equal the reference package with the same random weights (fp32, CPU)."""

import dataclasses

import pytest
import torch
from support.oracle import (
    given_poses,
    monocular_reference,
    nested_reference,
    packaged_network,
    randomize,
    relative_error,
)
from support.tiny_networks import tiny_metric_spec, tiny_nested_spec

from da3_ros.network import MODELS
from da3_ros.network.build import network_of
from da3_ros.network.checkpoint import aliases
from da3_ros.network.precision import convert, drop_rays

BOUND = 1e-4
WIDE, TALL = (56, 84), (84, 42)


def images(n, size, seed):
    return torch.randn(1, n, 3, *size, generator=torch.Generator().manual_seed(seed))


def same_weights(spec, theirs, seed):
    """Our network with random weights, and the reference's with the same tensors."""
    with torch.device("meta"):
        ours = network_of(spec)
    ours.to_empty(device="cpu")
    randomize(ours, seed)
    weights = dict(ours.state_dict())
    weights.update({alias: weights[kept] for alias, kept in aliases(spec).items()})
    theirs.load_state_dict(weights, strict=True, assign=True)
    return ours.eval(), theirs.eval()


def set_sky(ours, theirs, x, share):
    """Shift the sky map of both networks, so that this share of x, 0 to 1, is sky."""

    def shift(by):
        for network in (ours, theirs):
            last = getattr(network, "da3_metric", network).head.scratch.sky_output_conv2[2]
            last.bias = torch.nn.Parameter(last.bias.detach() + by)

    shift(100)  # above zero everywhere, where the map is linear
    with torch.inference_mode():
        sky = getattr(ours, "da3_metric", ours)(x).sky
        shift(0.3 - sky.quantile(1 - share) + {0.0: -1.0, 1.0: 1.0}.get(share, 0.0))
        sky = getattr(ours, "da3_metric", ours)(x).sky
    assert float((sky >= 0.3).float().mean()) == pytest.approx(share, abs=0.01)


def worst(output, a, b):
    """Relative error: of each pixel for depth, else over the largest magnitude."""
    if output == "depth":
        return float(((a - b) / b).abs().max())
    return 0.0 if torch.equal(a, b) else relative_error(a, b)


def assert_maps_equal(found, record, label):
    for output, (a, b) in found.items():
        error = worst(output, a, b)
        record(f"oracle/{label}/{output}", f"{error:.1e}")
        assert error < BOUND, (label, output, error)


def monocular_outputs(ours, theirs, x):
    with torch.inference_mode():
        a, b = ours(x), theirs(x)
    return {"depth": (a.depth, b.depth), "sky": (a.sky, b.sky)}


@pytest.mark.parametrize("name", ["da3mono-large", "da3metric-large"])
@pytest.mark.parametrize("size", [WIDE, TALL])
def test_short_monocular_networks_equal_the_reference(name, size, record_property):
    spec = tiny_metric_spec(name)
    ours, theirs = same_weights(spec, monocular_reference(spec), 1)
    for n in (1, 3):
        found = monocular_outputs(ours, theirs, images(n, size, n))
        assert_maps_equal(found, record_property, f"{name}/short/{n}")


@pytest.mark.long
@pytest.mark.slow
def test_full_metric_network_equals_the_reference(record_property):
    name = "da3metric-large"
    ours, theirs = same_weights(MODELS[name], packaged_network(name), 2)
    found = monocular_outputs(ours, theirs, images(1, (28, 42), 3))
    assert_maps_equal(found, record_property, f"{name}/full")


def test_many_frames_of_several_scenes_pass_the_monocular_head():
    """Scene by scene the reference agrees; given all at once it loses frames and fails."""
    spec = tiny_metric_spec()
    ours, theirs = same_weights(spec, monocular_reference(spec), 4)
    x = torch.cat([images(9, (28, 42), s) for s in (1, 2)])
    with torch.inference_mode():
        found = ours(x)
        for b in range(2):
            expected = theirs(x[b : b + 1])
            assert relative_error(found.depth[b : b + 1], expected.depth) < BOUND
            assert relative_error(found.sky[b : b + 1], expected.sky) < BOUND
        with pytest.raises(RuntimeError):
            theirs(x)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_sky_is_filled_as_in_the_reference(share, record_property):
    spec = tiny_metric_spec()
    ours, theirs = same_weights(spec, monocular_reference(spec), 3)
    x = images(2, WIDE, 4)
    set_sky(ours, theirs, x, share)
    found = monocular_outputs(ours, theirs, x)
    assert_maps_equal(found, record_property, f"metric/sky {share}")


def nested_pair(seed, **changes):
    spec = dataclasses.replace(tiny_nested_spec(), **changes)
    return same_weights(spec, nested_reference(spec), seed)


def nested_outputs(ours, theirs, x, poses=(), **options):
    with torch.inference_mode():
        a = ours(x, *poses, **options)
        b = theirs(x, *poses, ref_view_strategy=options.get("ref_view", "saddle_balanced"))
        metric = theirs.da3_metric(x)
    scale = torch.tensor([b.scale_factor])
    return {
        "depth": (a.depth, b.depth),
        "confidence": (a.confidence, b.depth_conf),
        "extrinsics": (a.extrinsics, b.extrinsics),
        "intrinsics": (a.intrinsics, b.intrinsics),
        "scale": (a.scale, scale),
        "sky": (a.sky, metric.sky),
    }


@pytest.mark.parametrize("seed", [0, 1])
def test_nested_equals_the_reference_with_one_to_four_views(seed, record_property):
    ours, theirs = nested_pair(seed)
    for n in (1, 2, 4):
        found = nested_outputs(ours, theirs, images(n, WIDE, n))
        assert_maps_equal(found, record_property, f"nested/short/{n}")
        assert torch.isfinite(found["scale"][0]).all()


def test_nested_takes_poses_and_views_as_the_reference_does(record_property):
    """Nested takes known poses and reference views as the reference does."""
    ours, theirs = nested_pair(2)
    x = images(4, WIDE, 5)
    found = nested_outputs(ours, theirs, x, given_poses(4, 6))
    assert_maps_equal(found, record_property, "nested/posed")
    found = nested_outputs(ours, theirs, x, ref_view="middle")
    assert_maps_equal(found, record_property, "nested/middle")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_nested_fills_sky_as_the_reference_does(share, record_property):
    ours, theirs = nested_pair(3)
    x = images(2, WIDE, 7)
    set_sky(ours, theirs, x, share)
    found = nested_outputs(ours, theirs, x)
    assert_maps_equal(found, record_property, f"nested/sky {share}")


def test_all_sky_gives_no_scale_where_the_reference_raises():
    ours, theirs = nested_pair(3)
    x = images(2, WIDE, 7)
    set_sky(ours, theirs, x, 1.0)
    with torch.inference_mode():
        with pytest.raises(AssertionError, match="non-sky"):
            theirs(x)
        out, alone = ours(x), ours.da3(x)
    assert out.scale.isnan().all()
    assert torch.equal(out.depth, alone.depth)  # in its own unit, and not called metres
    assert torch.equal(out.extrinsics, alone.extrinsics)


@pytest.mark.long
@pytest.mark.slow
def test_nested_keeps_the_width_of_the_real_parts(record_property):
    """Real widths, heads and feed-forward of both parts, with few blocks."""
    metric = dataclasses.replace(
        MODELS["da3metric-large"], blocks=4, alt_start=4, taps=(0, 1, 2, 3)
    )
    ours, theirs = nested_pair(
        4, width=1536, heads=24, blocks=6, alt_start=1, taps=(1, 3, 4, 5), features=256,
        channels=(256, 512, 1024, 1024), metric_branch=metric,
    )  # fmt: skip
    x = images(2, (28, 42), 8)
    set_sky(ours, theirs, x, 0.2)
    found = nested_outputs(ours, theirs, x)
    assert_maps_equal(found, record_property, "nested/wide")


def test_nested_in_16_bits_stays_close():
    """Nested in 16 bits stays close and keeps its last steps in fp32."""
    ours, _ = nested_pair(6)
    x = images(2, WIDE, 10)
    with torch.inference_mode():
        exact = ours(x)
        convert(ours, torch.bfloat16)
        drop_rays(ours)
        rough = ours(x)
    last = ours.da3_metric.head.scratch
    assert last.output_conv2[2].weight.dtype == last.sky_output_conv2[2].weight.dtype
    assert last.sky_output_conv2[2].weight.dtype == torch.float32
    assert ours.da3_metric.backbone.pretrained.blocks[0].mlp.fc1.weight.dtype == torch.bfloat16
    ratio = (rough.metric_depth / exact.metric_depth).log().abs()
    assert float(ratio.median()) < 0.05


def test_metric_depth_is_the_metric_networks_by_focal_length():
    """Metric depth is the metric network's times the focal length over 300."""
    ours, theirs = nested_pair(5)
    x = images(2, WIDE, 9)
    with torch.inference_mode():
        out = ours(x)
        canonical = theirs.da3_metric.head(theirs.da3_metric.backbone(x)[0], *WIDE, 0).depth
    f = (out.intrinsics[..., 0, 0] + out.intrinsics[..., 1, 1]) / 2
    assert relative_error(out.metric_depth, canonical * f[..., None, None] / 300) < BOUND
