"""The choice of the reference view does not depend on the type that the network runs in."""

import pytest
import torch

from da3_ros.network.backbone import select_reference


@pytest.mark.parametrize("strategy", ["saddle_balanced", "saddle_sim_range"])
def test_reference_view_is_chosen_in_fp32(strategy):
    """Near-still frames: their similarities differ by less than bf16 resolves."""
    selector = pytest.importorskip("depth_anything_3.model.reference_view_selector")
    g = torch.Generator().manual_seed(0)
    still = torch.randn(1, 1, 384, generator=g) + 0.02 * torch.randn(50, 8, 384, generator=g)
    coarse = still.bfloat16()  # what a network in 16 bits hands over
    chosen = select_reference(coarse, strategy)[:, 0]
    slots = coarse.float()[:, :, None]
    assert torch.equal(chosen, selector.select_reference_view(slots, strategy))
    with torch.autocast("cpu", torch.bfloat16):  # as the reference runs
        rounded = selector.select_reference_view(slots, strategy)
    assert (rounded != chosen).float().mean() > 0.1
