"""`make demo` as a user runs it: it ends by itself, writes its files and prints the errors."""

import re
import socket
import urllib.error
import urllib.request
from pathlib import Path

import cv2
import pytest
from support import programs
from support import ros_testing as rt
from support.browser import wait_for
from support.processes import PATIENCE_S

from da3_ros.network.checkpoint import shipped_folder
from da3_ros.ros.demo import _to_open

pytestmark = pytest.mark.process

FILES = ("scene.glb", "scene.ply", "trajectory.tum", "demo.png")


def run_demo(output, *arguments):
    env = rt.environment(rt.domain())
    return programs.run(
        "-m", "da3_ros.ros.demo", "--output", output, "-p", "backend:=torch", *arguments, env=env
    )


@pytest.mark.long
@pytest.mark.slow
def test_a_demo_whose_viewer_does_not_start_ends(tmp_path):
    weights = [] if shipped_folder("da3-tiny") else ["-p", "checkpoint:=random"]
    done = run_demo(tmp_path, "--frames", "4", "--viewer", "-p", "viewer.port:=0",
                    "-p", "process_res:=112", *weights)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"(viewer.port is 0): open {tmp_path / 'demo.png'}\n")


@pytest.mark.slow
def test_demo_ends_with_files_and_errors_against_the_exact_room(tmp_path):
    weights = [] if shipped_folder("da3-tiny") else ["-p", "checkpoint:=random"]
    done = run_demo(tmp_path, "--frames", "4", "-p", "process_res:=112", *weights)
    assert done.returncode == 0, done.stderr
    for figure in ("AbsRel", "ATE", "median", "fitted scale", "baseline of constant depth"):
        assert re.search(rf"{figure}[^\n]*?\d\.\d", done.stdout), (figure, done.stdout)
    # The camera waits for each result, but only some seconds: a busy machine drops frames.
    processed = int(re.search(r"(\d) of 4 frames processed", done.stdout)[1])
    assert processed >= 1, done.stdout
    dropped = sum(int(n) for n in re.findall(r"'\w+': (\d+)", done.stdout.split("dropped:")[1]))
    assert processed + dropped == 4, done.stdout
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
@pytest.mark.slow
def test_demo_names_the_page_that_is_there_although_its_port_is_taken(tmp_path):
    pytest.importorskip("viser")
    out, errors = tmp_path / "out.txt", tmp_path / "err.txt"
    for file in (out, errors):
        file.touch()
    weights = [] if shipped_folder("da3-tiny") else ["-p", "checkpoint:=random"]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = ["-m", "da3_ros.ros.demo", "--output", str(tmp_path / "demo"), "--frames", "4",
                 "--viewer", "-p", f"viewer.port:={port}", "-p", "backend:=torch",
                 "-p", "process_res:=112", *weights]  # fmt: skip
        process = programs.start(words, rt.environment(rt.domain()), str(out), str(errors))
        try:
            wait_for(
                lambda: "\nopen " in out.read_text() or process.exitcode is not None,
                "the end",
                200.0,
            )
            url = re.search(r"\n\nopen (http://localhost:\d+) until Ctrl-C\n$", out.read_text())
            assert url, out.read_text() + errors.read_text()
            assert not url[1].endswith(f":{port}")
            assert b"viser" in urllib.request.urlopen(url[1]).read().lower()
        finally:
            # SIGTERM, of which only rclpy hears: so is Ctrl-C of tests in the background.
            process.terminate()
            process.join(PATIENCE_S)
    assert process.exitcode == 0
    with pytest.raises(urllib.error.URLError):  # the node has ended too
        urllib.request.urlopen(url[1])


def test_without_a_page_the_picture_is_named():
    picture = Path("demo.png")
    assert _to_open(None, picture) == "\nopen demo.png\n"
    for viewer, why in (("viewer.port is 0", "viewer.port is 0"), ("", "it does not start")):
        assert _to_open(viewer, picture) == f"\nthere is no viewer ({why}): open demo.png\n"


@pytest.mark.long
def test_a_node_without_network_ends_the_demo_with_reason(tmp_path):
    done = run_demo(tmp_path, "--frames", "2", "-p", "checkpoint:=/nowhere")
    assert done.returncode == 1
    assert "demo: checkpoint folder /nowhere lacks" in done.stderr
