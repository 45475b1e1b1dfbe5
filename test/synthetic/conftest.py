"""Tests of the renderer itself."""

import pytest

from da3_ros.synthetic import camera, renderer


@pytest.fixture(autouse=True)
def rendered_each_time(rendered_once, monkeypatch):
    """Nothing is copied from what was rendered before."""
    for module in (camera, renderer):
        monkeypatch.setattr(module, "render_batch", rendered_once.render)
