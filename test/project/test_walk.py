"""The tool that follows one frame through the code."""

import json
import runpy
from pathlib import Path

import pytest
from support import programs
from support.cases import long_after

TOOL = Path(__file__).parents[2] / "tools" / "walk.py"
NUMBERS = ("functions", "files", "switches", "room_switches")
# Most functions, files, changes of the file and of the room: of the frame's own thread, and of
# all. Fewer is better: lower them when you can, and raise one only for what is worth it to the
# next reader. They are at most two percent above what was found. What is off or not there is asked
# once, and what is on is worth its share.
MOST = {
    "live --off": ((480, 60, 390, 216), (480, 60, 390, 216)),
    # 676 to 698 functions: the frame collects what other threads have finished.
    # Switches: rotation vectors are of one file of `geometry`, for graphs, tracks and the gyro.
    "live": ((711, 76, 622, 354), (757, 76, 827, 428)),
    "replay": ((702, 83, 666, 402), (702, 83, 666, 402)),
}
MOST_FORWARDERS = 14


@pytest.mark.process
@pytest.mark.parametrize("words", long_after(1, reversed(MOST)))
def test_a_frame_crosses_no_more_than_it_did(words):
    done = programs.run(TOOL, *words.split(), "--order", "--json")
    assert done.returncode == 0, done.stderr
    *order, last = done.stdout.splitlines()
    found = json.loads(last)
    calls = set(order)
    assert found["all"]["functions"] == len(calls) > 100
    assert found["all"]["files"] == len({line.partition(":")[0] for line in calls}) > 20
    assert 100 < found["own"]["functions"] == sum(found["own"]["rooms"].values()) <= len(calls)
    assert found["own"]["rooms"]["pipeline"] > 20
    assert not any(line.startswith("ros/") for line in calls)
    if "--off" in words:  # there is no IMU, no measured depth, and no floor
        # The grid, which is empty, hears of views that have moved.
        others = {line for line in calls if "on_refinement" not in line}
        assert not any(line.startswith(("inertial/", "navigation/")) for line in others)
        assert not any("see" in line and "blind_frames" in line for line in calls)
    for threads, most in zip(("own", "all"), MOST[words], strict=True):
        numbers = tuple(found[threads][name] for name in NUMBERS)
        assert all(now <= limit for now, limit in zip(numbers, most, strict=True)), (
            f"{threads}: {numbers} of at most {most}"
        )


def test_few_methods_only_forward():
    found = list(runpy.run_path(str(TOOL))["forwarders"]())
    assert 0 < len(found) <= MOST_FORWARDERS, f"call the owner instead of these: {found}"
