"""OpenVINO in whole programs: replays, the live node, and what it may not do."""

import json
import os
import shutil
import subprocess
import sys
import time

import pytest

pytest.importorskip("openvino", reason="needs OpenVINO: pip install openvino")

from support import programs
from support.processes import PATIENCE_S, processes_with

from da3_ros.backends.engine_cache import EngineCache
from da3_ros.backends.engine_store import EngineSource
from da3_ros.cli import main

pytestmark = [pytest.mark.process, pytest.mark.slow]

QUICK = ["-p", "model:=da3-tiny", "-p", "checkpoint:=random", "-p", "process_res:=56",
         "-p", "window.size:=4", "-p", "mixed_precision:=off", "-p", "device:=cpu",
         "--no-report"]  # fmt: skip
SAME = ("report.json", "trajectory.tum", "scene.ply", "scene.glb", "output.mcap")


@pytest.fixture(scope="module")
def bag(tmp_path_factory):
    path = tmp_path_factory.mktemp("bags") / "bag"
    size = ["--width", "56", "--height", "42", "--frames", "8", "--seed", "3"]
    assert main(["synth-bag", str(path), *size]) == 0
    return path


def replay(bag, output, *arguments):
    done = programs.run("-m", "da3_ros", "replay", bag, "--output", output, *QUICK, *arguments)
    assert done.returncode == 0, done.stderr
    return {name: (output / name).read_bytes() for name in SAME}, done.stderr


@pytest.mark.long
def test_replays_are_equal_whether_the_engine_is_built_or_cached(bag, tmp_path):
    kept = ("-p", f"cache_dir:={tmp_path / 'cache'}")
    first, log = replay(bag, tmp_path / "first", *kept)
    assert "building the OpenVINO engine of da3-tiny" in log
    # With the first one's plan, which changes nothing.
    plan = ("--plan", tmp_path / "first" / "report.json")
    again, log = replay(bag, tmp_path / "again", *kept, *plan)
    assert "building" not in log
    assert first == again
    assert json.loads(first["report.json"])["backend"] == "openvino"
    uncached, log = replay(bag, tmp_path / "uncached", "-p", "cache_dir:=")
    assert "at every start: cache_dir is empty" in log
    assert first == uncached


OFFLINE = """
import socket, sys
def refuse(*a, **k): raise OSError("the network is blocked")
socket.getaddrinfo = socket.create_connection = refuse
class Blocked(socket.socket):
    def connect(self, address): print("CONNECT", address); refuse()
    connect_ex = connect
socket.socket = Blocked
from da3_ros.backends.openvino_import import openvino
ov = openvino()
assert "openvino_telemetry" not in sys.modules or sys.modules["openvino_telemetry"] is None
from openvino.tools.ovc import telemetry_utils
assert telemetry_utils.tm.__name__.endswith("telemetry_stub"), telemetry_utils.tm
import torch
class Twice(torch.nn.Module):
    def forward(self, x): return 2 * x
model = ov.convert_model(torch.export.export(Twice(), (torch.ones(2, 3),)))
print(ov.Core().compile_model(model, "CPU")([torch.ones(2, 3).numpy()])[0].sum())
"""


def test_nothing_is_sent(tmp_path):
    pytest.importorskip("openvino_telemetry", reason="OpenVINO has no telemetry here")
    (tmp_path / "offline.py").write_text(OFFLINE)
    done = programs.run(tmp_path / "offline.py")
    assert done.returncode == 0, done.stderr
    assert "CONNECT" not in done.stdout
    assert done.stdout.strip().endswith("12.0")


SESSION = """
import sys
from da3_ros.inference import InferenceConfig, InferenceSession
config = InferenceConfig(
    "da3-tiny", "random", "cpu", "openvino", sys.argv[1], mixed_precision="off", process_res=56
)
session = InferenceSession(config, poses=False, wait_for_engine=sys.argv[2] == "wait")
session.memory.fit((56, 42), 4, 1)
print("begun", flush=True)
while sys.argv[2] == "stay":
    pass
"""


def command(cache, mode, more=""):
    """A process of its own, not a forked one: those end without Python's clean-up."""
    return [sys.executable, "-c", SESSION + more, str(cache), mode]


def without_network():
    """The start of a command that runs a program without a network; [] if not allowed here."""
    start = ["unshare", "-rn"]
    allowed = shutil.which("unshare") and not subprocess.run([*start, "true"]).returncode
    return start if allowed else []


@pytest.mark.long
def test_a_process_may_end_while_it_loads_an_engine(tmp_path):
    """Ending while OpenVINO compiles aborted the process. The build needs no network."""
    built = "assert session.loaded._engines.get((42, 56)) is not None"
    line = [*without_network(), *command(tmp_path, "wait", built)]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    done = subprocess.run(command(tmp_path, "live"), capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "begun"), done.stderr


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_a_builder_ends_when_its_process_is_killed(tmp_path):
    parent = subprocess.Popen(command(tmp_path, "stay"), stderr=subprocess.DEVNULL)
    try:
        (left,) = until(lambda: list(tmp_path.iterdir()))
        until(lambda: processes_with(left))
    finally:
        parent.kill()
        parent.wait()
    until(lambda: not processes_with(left))
    os.utime(left, (1e9, 1e9))
    with EngineCache(tmp_path).new_folder():
        assert not left.exists()


def until(condition):
    """The first true value of ``condition()``."""
    end = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


@pytest.mark.long
def test_the_builder_imports_nothing_from_the_working_directory(tmp_path, monkeypatch):
    """A user starts programs in a folder of strangers' files."""
    for name in ("torch", "openvino", "json", "numpy", "da3_ros", "argparse"):
        (tmp_path / f"{name}.py").write_text("open('imported', 'a').write(__name__)")
    monkeypatch.chdir(tmp_path)
    source = EngineSource("da3-tiny", "random", {"a": 1}, EngineCache(None), lambda path: path)
    assert source.open((42, 56), lambda: True, lambda: True) is not None
    assert not (tmp_path / "imported").exists()
