"""The tool that follows one frame through the code."""

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "walk.py"


def said(*arguments):
    done = subprocess.run(
        [sys.executable, str(TOOL), *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize("what", ["live", "replay"])
def test_a_frame_crosses_the_pipeline(what):
    *order, last = said(what, "--order")
    assert last.startswith(f"{what}: ")
    functions, files = int(last.split()[1]), int(last.split()[4])
    assert functions == len(set(order)) > 100
    assert files == len({line.partition(":")[0] for line in order}) > 20
    assert any(line.startswith("pipeline/") for line in order)
    assert not any(line.startswith("ros/") for line in order)


@pytest.mark.process
def test_forwarders_are_listed():
    *listed, last = said("--forwarders")
    assert last == f"{len(listed)} methods only forward"
