"""Our network equals the reference package with the same random weights (fp32, CPU)."""

import pytest
import torch
from support.cases import long_after
from support.oracle import given_poses, pair, randomize, reference_network, relative_error, spec_of

BOUND = 1e-4
SIZES = {"square": (518, 518), "wide": (56, 98), "tall": (98, 56), "small square": (56, 56)}
STRATEGIES = ("first", "middle", "saddle_balanced", "saddle_sim_range")


def images(n, size, seed):
    return torch.randn(1, n, 3, *size, generator=torch.Generator().manual_seed(seed))


def errors(ours, theirs, x, strategy="saddle_balanced", poses=()):
    """Worst relative error of each output."""
    with torch.inference_mode():
        a = ours(x, *poses, ref_view=strategy)
        b = theirs(x, *poses, ref_view_strategy=strategy)
    depth = float(((a.depth - b.depth) / b.depth).abs().max())
    return {
        "depth": depth,
        "confidence": relative_error(a.confidence, b.depth_conf),
        "extrinsics": relative_error(a.extrinsics, b.extrinsics),
        "intrinsics": relative_error(a.intrinsics, b.intrinsics),
    }


def assert_equal(found, record, label):
    for output, error in found.items():
        record(f"oracle/{label}/{output}", f"{error:.1e}")
        assert error < BOUND, (label, output, error)


@pytest.mark.slow
@pytest.mark.parametrize("seed", long_after(1, [0, 1]))
def test_tiny_equals_the_reference_for_every_strategy(seed, record_property):
    """da3-tiny equals the reference for every strategy and one to six views."""
    ours, theirs = pair("da3-tiny", seed)
    for n in range(1, 7):
        for strategy in STRATEGIES:
            found = errors(ours, theirs, images(n, SIZES["wide"], n), strategy)
            assert_equal(found, record_property, f"tiny/{n}/{strategy}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "counts"), long_after(1, [(0, (4,)), (0, (1, 2, 6)), (1, (1, 2, 4, 6))])
)
def test_small_equals_the_reference_for_every_strategy(seed, counts, record_property):
    ours, theirs = pair("da3-small", seed, packaged=True)
    for n in counts:
        for strategy in STRATEGIES:
            found = errors(ours, theirs, images(n, SIZES["small square"], n), strategy)
            assert_equal(found, record_property, f"da3-small/{n}/{strategy}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "shape"),
    long_after(1, [("da3-small", "tall"), ("da3-base", "wide"), ("da3-small", "wide"),
                   ("da3-base", "tall")]),
)  # fmt: skip
def test_full_model_equals_the_reference(model, shape, record_property):
    ours, theirs = pair(model, seed=3, packaged=True)
    found = errors(ours, theirs, images(3, SIZES[shape], 5))
    assert_equal(found, record_property, f"{model}/{shape}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "packaged"), long_after(1, [("da3-tiny", False), ("da3-small", True)])
)
def test_it_equals_the_reference_at_the_stored_position_size(model, packaged, record_property):
    ours, theirs = pair(model, seed=4, packaged=packaged)
    found = errors(ours, theirs, images(1, SIZES["square"], 6))
    assert_equal(found, record_property, f"{model}/518")


@pytest.mark.slow
@pytest.mark.parametrize("model", long_after(1, ["da3-large", "da3-giant"]))
def test_shortened_model_equals_the_reference(model, record_property):
    ours, theirs = pair(model, seed=5)
    found = errors(ours, theirs, images(3, SIZES["small square"], 7), "saddle_sim_range")
    assert_equal(found, record_property, model)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["da3-tiny", "da3-small"])
def test_known_poses_pass_the_encoder_as_in_the_reference(model, record_property):
    ours, theirs = pair(model, seed=6)
    found = errors(ours, theirs, images(4, SIZES["wide"], 8), poses=given_poses(4, 9))
    assert_equal(found, record_property, f"{model}/posed")


def test_scenes_of_a_batch_have_their_own_reference_views(record_property):
    ours, theirs = pair("da3-tiny", seed=7)
    x = torch.cat([images(5, SIZES["wide"], s) for s in (1, 2, 3)])
    assert_equal(errors(ours, theirs, x), record_property, "tiny/batch")


@pytest.mark.slow
def test_ray_maps_equal_the_reference():
    ours, theirs = pair("da3-small", seed=8)
    x = images(2, SIZES["wide"], 10)
    with torch.inference_mode():
        out = ours(x, ref_view="first", rays=True)
        taps = theirs.backbone(x, ref_view_strategy="first")[0]
        raw = theirs.head(taps, *SIZES["wide"], patch_start_idx=0)
    assert relative_error(out.ray, raw["ray"]) < BOUND
    assert relative_error(out.ray_confidence, raw["ray_conf"]) < BOUND


def test_skipping_rays_changes_no_bit_of_depth():
    ours, _ = pair("da3-tiny", seed=9)
    x = images(3, SIZES["wide"], 11)
    with torch.inference_mode():
        plain = ours(x, rays=True)
        lean = ours(x)
    assert torch.equal(plain.depth, lean.depth)


def test_the_oracle_notices_a_wrong_parameter():
    """The comparison itself must be able to fail: one changed gain in the last global block."""
    ours, theirs = pair("da3-tiny", seed=10)
    with torch.no_grad():
        ours.backbone.pretrained.blocks[7].ls1.gamma.mul_(1.05)
    assert max(errors(ours, theirs, images(2, SIZES["wide"], 12)).values()) > BOUND


def test_random_weights_of_the_oracle_differ_by_seed():
    a, b = (reference_network(spec_of("da3-tiny")) for _ in range(2))
    randomize(a, 0), randomize(b, 1)
    assert not torch.equal(a.cam_dec.fc_t.weight, b.cam_dec.fc_t.weight)
