"""The tool that follows one frame through the code."""

from pathlib import Path

import pytest
from support import programs

TOOL = Path(__file__).parents[2] / "tools" / "walk.py"


def said(*arguments):
    done = programs.run(TOOL, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


# Most functions, files and changes of the file. Fewer is better: lower them when you can, and
# raise one only for what is worth it to the next reader.
MOST = {"live": (755, 80, 690), "replay": (735, 90, 740)}  # what a thread does varies
MOST_FORWARDERS = 14


@pytest.mark.process
@pytest.mark.parametrize("what", sorted(MOST))
def test_a_frame_crosses_no_more_than_it_did(what):
    *order, last = said(what, "--order")
    assert last.startswith(f"{what}: ")
    counted = [int(word) for word in last.split() if word.isdecimal()]
    functions, files, switches, _ = counted
    found = functions, files, switches
    assert functions == len(set(order)) > 100
    assert files == len({line.partition(":")[0] for line in order}) > 20
    assert any(line.startswith("pipeline/") for line in order)
    assert not any(line.startswith("ros/") for line in order)
    assert all(now <= most for now, most in zip(found, MOST[what], strict=True))


@pytest.mark.process
def test_few_methods_only_forward():
    *listed, last = said("--forwarders")
    assert last == f"{len(listed)} methods only forward"
    assert len(listed) <= MOST_FORWARDERS, f"call the owner instead of these: {listed}"
