"""The Gaussian head and its Gaussians equal the reference's, with the same random weights."""

import dataclasses

import numpy as np
import pytest
import torch
from support.cases import long_after
from support.oracle import (
    nested_reference,
    randomize,
    reference_network,
    relative_error,
    spec_of,
)
from support.tiny_networks import tiny_nested_spec

from da3_ros.geometry.similarity import Similarity
from da3_ros.inference.session import camera_to_window
from da3_ros.network.build import network_of
from da3_ros.network.checkpoint import aliases
from da3_ros.splats.gaussians import Gaussians, in_camera
from da3_ros.splats.relative import RelativeSplats

BOUND = 1e-4


def pair(spec, theirs, seed):
    """Our network and the reference's, with the same random weights."""
    ours = network_of(spec, gaussians=True)
    randomize(ours, seed)
    weights = dict(ours.state_dict())
    weights.update({alias: weights[kept] for alias, kept in aliases(spec).items()})
    theirs.load_state_dict(weights, strict=True)
    return ours.eval(), theirs.eval()


def images(n, size, seed):
    return torch.randn(1, n, 3, *size, generator=torch.Generator().manual_seed(seed))


def placed(out, factor=1.0):
    """All Gaussians of a window in its own frame, as one list; lengths times ``factor``."""
    T = camera_to_window(out.extrinsics[0].double().numpy())
    parts = []
    for i, values in enumerate(out.gaussians[0]):
        every = np.ones(values.shape[1:], bool)
        one = RelativeSplats(every, values.flatten(1).T.numpy())
        local = in_camera(one, out.depth[0, i].numpy(), out.intrinsics[0, i].double().numpy())
        parts.append(local.moved(Similarity(1.0, T[i, :3, :3], T[i, :3, 3])))
    names = [field.name for field in dataclasses.fields(Gaussians)]
    return Gaussians(*(np.concatenate([getattr(p, n) for p in parts]) for n in names))


def errors(found, wanted):
    """Worst relative errors; quaternions of either sign are equal."""
    theirs = {
        "means": wanted.means, "scales": wanted.scales, "opacities": wanted.opacities,
        "sh": wanted.harmonics,
    }  # fmt: skip
    out = {
        name: relative_error(torch.from_numpy(getattr(found, name)), value[0].double())
        for name, value in theirs.items()
    }
    q = torch.from_numpy(found.rotations)
    signed = torch.where((q * wanted.rotations[0]).sum(dim=-1, keepdim=True) < 0, -q, q)
    return out | {"rotations": relative_error(signed, wanted.rotations[0].double())}


@pytest.mark.parametrize("size", long_after(1, [(56, 84), ((84, 56),)]))
@pytest.mark.parametrize("n", [1, 3])
def test_gaussians_of_a_small_network_equal_the_reference(size, n):
    spec = dataclasses.replace(spec_of("da3-tiny"), gaussians=True)
    ours, theirs = pair(spec, reference_network(spec, gaussians=True), seed=n)
    x = images(n, size, 3)
    with torch.inference_mode():
        found, wanted = ours(x, gaussians=True), theirs(x, infer_gs=True).gaussians
    assert max(errors(placed(found), wanted).values()) < BOUND


@pytest.mark.long
@pytest.mark.slow
def test_gaussians_of_a_shortened_giant_equal_the_reference(record_property):
    spec = spec_of("da3-giant")
    ours, theirs = pair(spec, reference_network(spec, gaussians=True), seed=5)
    x = images(2, (56, 84), 7)
    with torch.inference_mode():
        found, wanted = ours(x, gaussians=True), theirs(x, infer_gs=True).gaussians
    for name, error in errors(placed(found), wanted).items():
        record_property(f"oracle/giant/gaussians/{name}", f"{error:.1e}")
        assert error < BOUND, name


def test_gaussians_of_a_nested_network_are_in_metres(record_property):
    """The reference scales depth and poses, and leaves its Gaussians in the unknown unit."""
    spec = tiny_nested_spec()
    ours, theirs = pair(spec, nested_reference(spec, gaussians=True), seed=2)
    x = images(3, (56, 84), 9)
    with torch.inference_mode():
        found, reference = ours(x, gaussians=True, fill_sky=False), theirs(x, infer_gs=True)
    factor, wanted = reference.scale_factor, reference.gaussians
    assert abs(factor - 1) > 0.1
    wanted.means, wanted.scales = wanted.means * factor, wanted.scales * factor
    assert max(errors(placed(found), wanted).values()) < BOUND


def test_only_the_last_frames_get_gaussians_and_the_same():
    spec = dataclasses.replace(spec_of("da3-tiny"), gaussians=True)
    ours = network_of(spec, gaussians=True).eval()
    randomize(ours, 0)
    x = images(4, (56, 84), 3)
    with torch.inference_mode():
        whole = ours(x, ref_view="first", gaussians=True)
        some = ours.decode(
            ours.encode(x), (56, 84), ref_view="first", frames=torch.tensor([0, 2, 3]),
            images=x[:, 2:],
        )  # fmt: skip
    assert some.gaussians.shape[1] == 2
    assert relative_error(some.gaussians, whole.gaussians[:, 2:]) < 1e-5


def test_a_network_without_the_head_says_so():
    ours = network_of(spec_of("da3-tiny")).eval()
    with pytest.raises(ValueError, match="without its Gaussian head"):
        ours(images(1, (56, 84), 3), gaussians=True)
    with pytest.raises(ValueError, match="da3-tiny has no Gaussian head"):
        network_of(spec_of("da3-tiny"), gaussians=True)
