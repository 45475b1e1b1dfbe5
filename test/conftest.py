"""Shared by all tests: where recordings are, and what to skip."""

from pathlib import Path

import pytest

RECORDINGS = Path(__file__).parents[2] / "shared" / "data"


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("gpu"):
            import torch

            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))


@pytest.fixture
def recordings():
    """Folder of real recordings, which are never part of the repository."""
    if not RECORDINGS.is_dir():
        pytest.skip("real recordings are not on this machine")
    return RECORDINGS
