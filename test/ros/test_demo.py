"""`make demo` as a user runs it: it ends by itself, writes its files and prints the errors."""

import re

import cv2
import pytest
from support import programs
from support import ros_testing as rt

from da3_ros.network.checkpoint import shipped_folder

pytestmark = pytest.mark.process

FILES = ("scene.glb", "scene.ply", "trajectory.tum", "demo.png")


def run_demo(output, *arguments):
    env = rt.environment(rt.domain())
    return programs.run(
        "-m", "da3_ros.ros.demo", "--output", output, "-p", "backend:=torch", *arguments, env=env
    )


@pytest.mark.slow
def test_demo_ends_with_files_and_errors_against_the_exact_room(tmp_path):
    weights = [] if shipped_folder("da3-tiny") else ["-p", "checkpoint:=random"]
    done = run_demo(tmp_path, "--frames", "6", "-p", "process_res:=112", *weights)
    assert done.returncode == 0, done.stderr
    for figure in ("AbsRel", "ATE", "median", "fitted scale", "baseline of constant depth"):
        assert re.search(rf"{figure}[^\n]*?\d\.\d", done.stdout), (figure, done.stdout)
    # The camera waits for each result, but only some seconds: a busy machine drops frames.
    processed = int(re.search(r"(\d) of 6 frames processed", done.stdout)[1])
    assert processed >= 1, done.stdout
    dropped = sum(int(n) for n in re.findall(r"'\w+': (\d+)", done.stdout.split("dropped:")[1]))
    assert processed + dropped == 6, done.stdout
    lost = re.search(r"results of (\d) processed frames were not received", done.stdout)
    received = processed - (int(lost[1]) if lost else 0)  # best effort loses images under load
    assert received >= 1
    assert f"depth of {received} frames" in done.stdout, done.stdout
    assert ("have no meaning" in done.stdout) == bool(weights)
    assert {f.name for f in tmp_path.iterdir()} == set(FILES)
    assert all(f.stat().st_size for f in tmp_path.iterdir())
    assert done.stdout.endswith(f"\n\nopen {tmp_path / 'demo.png'}\n")
    height, width = cv2.imread(str(tmp_path / "demo.png")).shape[:2]
    assert height > width  # the scene above the frames


@pytest.mark.long
def test_a_node_without_network_ends_the_demo_with_reason(tmp_path):
    done = run_demo(tmp_path, "--frames", "2", "-p", "checkpoint:=/nowhere")
    assert done.returncode == 1
    assert "demo: checkpoint folder /nowhere lacks" in done.stderr
