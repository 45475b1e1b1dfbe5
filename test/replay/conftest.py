"""What tests of interrupted replays share."""

import pytest


@pytest.fixture
def checkpoints_are_saved(caplog):
    """Without one, a replay would begin anew, and end with the same bytes too."""
    yield
    assert "no checkpoint could be saved" not in caplog.text
