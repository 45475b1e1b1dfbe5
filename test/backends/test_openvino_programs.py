"""OpenVINO in whole programs: replays, the live node, and what it may not do."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("openvino", reason="needs OpenVINO: pip install openvino")

from support import programs

from da3_ros.cli import main

pytestmark = [pytest.mark.process, pytest.mark.slow]

QUICK = ["-p", "model:=da3-tiny", "-p", "checkpoint:=random", "-p", "process_res:=56",
         "-p", "window.size:=4", "-p", "mixed_precision:=off", "-p", "device:=cpu"]  # fmt: skip
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


def test_replays_are_equal_whether_the_engine_is_built_or_cached(bag, tmp_path):
    kept = ("-p", f"cache_dir:={tmp_path / 'cache'}")
    first, log = replay(bag, tmp_path / "first", *kept)
    assert "building the OpenVINO engine of da3-tiny" in log
    again, log = replay(bag, tmp_path / "again", *kept)
    assert "building" not in log
    assert first == again
    assert json.loads(first["report.json"])["backend"] == "openvino"
    torch, _ = replay(bag, tmp_path / "torch", "-p", "backend:=torch")
    assert json.loads(torch["report.json"])["backend"] == "torch"
    (engine,) = (tmp_path / "cache").iterdir()
    data = engine / "window.bin"
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.chmod(0o644)
    data.write_bytes(content)
    mended, log = replay(bag, tmp_path / "mended", *kept)
    assert mended == first
    assert log.count("it is built again") == 1


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
    done = subprocess.run([sys.executable, "-c", OFFLINE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "CONNECT" not in done.stdout
    assert done.stdout.strip().endswith("12.0")
