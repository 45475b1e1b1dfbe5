"""The camera decoder with implausible outputs."""

import pytest
import torch
from support.oracle import pair

from da3_ros.network import build_network, initialize_randomly


def network_with_fov(vertical, horizontal):
    network = build_network("da3-tiny")
    initialize_randomly(network)
    layer = network.cam_dec.fc_fov[0]
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.copy_(torch.tensor([vertical, horizontal]))
    return network


@pytest.mark.parametrize("fov", [-1.0, 0.0, 3.2, 7.0])
def test_an_impossible_field_of_view_gives_no_focal_length(fov):
    x = torch.randn(1, 2, 3, 28, 42, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        K = network_with_fov(fov, 1.0)(x).intrinsics
    assert K[..., 1, 1].isnan().all()
    assert K[..., 0, 0].isfinite().all()


def test_reference_makes_huge_focal_lengths_of_clipped_fields():
    """The reference gives a clipped field of view a focal length of millions of pixels."""
    _, theirs = pair("da3-tiny", 0)
    with torch.no_grad():
        theirs.cam_dec.fc_fov[0].bias.fill_(-100.0)
        K = theirs(torch.zeros(1, 1, 3, 28, 42)).intrinsics
    assert float(K[0, 0, 0, 0]) > 1e7
