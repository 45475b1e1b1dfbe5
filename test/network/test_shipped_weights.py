"""The weights that ship still predict what they predicted when they were shipped."""

from pathlib import Path

import numpy as np
import pytest
import torch

from da3_ros.network.checkpoint import WEIGHTS, shipped_folder
from training.guard import STORED, network_outputs, shipped_network

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    shipped_folder("da3-tiny") is None, reason="no weights of da3-tiny ship yet"
)
# Other CPUs and kernels change the last digits only; relative to the largest value of an output.
TOLERANCE = 5e-4
REMEDY = "weights and code have drifted apart; if that is meant: python -m training.guard"


@pytest.fixture(scope="module")
def stored():
    if not STORED.is_file():
        pytest.fail(f"{STORED} is missing: python -m training.guard")
    return dict(np.load(STORED))


def drift(said, stored):
    """Largest change of any output, relative to that output's size."""
    return {k: np.abs(v - stored[k]).max() / np.abs(stored[k]).max() for k, v in said.items()}


def test_weights_and_code_give_the_stored_answer(stored):
    off = drift(network_outputs(shipped_network(), stored), stored)
    assert max(off.values()) < TOLERANCE, f"{REMEDY} ({off})"


def test_a_small_change_of_one_block_would_be_noticed(stored):
    network = shipped_network()
    with torch.no_grad():
        network.backbone.pretrained.blocks[3].mlp.fc2.weight.mul_(1.1)
    assert max(drift(network_outputs(network, stored), stored).values()) > TOLERANCE


def test_nothing_that_belongs_to_the_weights_is_left_to_fill_in():
    card = shipped_folder("da3-tiny") / "README.md"
    files = (card, ROOT / "README.md", ROOT / "test" / "end_to_end" / "test_end_to_end.py")
    assert [f.name for f in files if "TODO" in f.read_text()] == []


def test_files_stay_small():
    assert (shipped_folder("da3-tiny") / WEIGHTS).stat().st_size < 16e6
    assert STORED.stat().st_size < 50e3
