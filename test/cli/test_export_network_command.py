"""`da3_ros export-network`: its files and its complaints."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from support.processes import PATIENCE_S
from support.tiny_networks import tiny_metric_spec

pytest.importorskip("openvino", reason="needs OpenVINO: pip install openvino")

from da3_ros.backends import network_export
from da3_ros.cli import main
from da3_ros.cli.command_line import Interrupted
from da3_ros.network.checkpoint import shipped_folder
from da3_ros.network.specs import MODELS

SMALL = ("--views", "2", "--size", "42x28")
CHECKPOINT = () if shipped_folder("da3-tiny") else ("--checkpoint", "random")


def export(folder, *words, model="da3-tiny"):
    return main(["export-network", model, "--output", str(folder), *words])


def complaint(capsys):
    """The only line on stderr that is not a step."""
    lines = capsys.readouterr().err.splitlines()
    (line,) = [line for line in lines if not line.endswith(" ...")]
    return line


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.openvino
def test_a_folder_with_manifest_and_example_appears(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(MODELS, "da3metric-large", tiny_metric_spec())
    folder = tmp_path / "new" / "out"
    words = ("--checkpoint", "random", "--format", "openvino", "--size", "42x28", "--views", "0")
    assert export(folder, *words, model="da3metric-large") == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[-1] == f"{folder}: da3metric-large, weights under Apache-2.0"
    assert "da3_ros: exporting image ..." in said.err.splitlines()
    facts = json.loads((folder / "manifest.json").read_text())
    assert facts["size"] == {"width": 42, "height": 28}
    assert {"image.xml", "image.bin", "example.py", "golden.npz"} == set(facts["files"])
    assert list(tmp_path.iterdir()) == [tmp_path / "new"]
    assert list(folder.parent.iterdir()) == [folder]
    assert export(folder, *SMALL) == 1
    assert "is a folder with other contents (example.py): name a new one" in complaint(capsys)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ("--size", "500x375"),
            "--size 500x375: sides must be multiples of 14; the nearest: 504x378",
        ),
        (("--size", "5x3"), "the nearest: 14x14"),
        (("--size", "504"), "--size '504': write WIDTHxHEIGHT"),
        (("--size", "1400000x14"), "sides are at most 4200 pixels"),
        (("--size", "٥٦x56"), "write WIDTHxHEIGHT"),
        (("--views", "100000"), "--views 100000: at most 1024"),
        (("--views", "1"), "--views 1: da3-tiny needs at least 2"),
    ],
)
def test_wrong_options_are_one_line(tmp_path, capsys, words, text):
    assert export(tmp_path / "out", *words) == 2
    assert text in complaint(capsys)
    assert list(tmp_path.iterdir()) == []


def test_unknown_models_and_files_in_the_way_are_refused(tmp_path, capsys):
    assert export(tmp_path / "out", model="da3-huge") == 2
    assert complaint(capsys).startswith("da3_ros: model 'da3-huge': one of da3-tiny, da3-small")
    (tmp_path / "file").touch()
    assert export(tmp_path / "file") == 2
    assert complaint(capsys).endswith("file: it is not a folder")


def test_missing_weights_leave_nothing(tmp_path, capsys):
    checkpoint = tmp_path / "weights"
    checkpoint.mkdir()
    words = (*SMALL, "--format", "openvino", "--checkpoint", str(checkpoint))
    assert export(tmp_path / "out", *words) == 1
    assert "lacks config.json and model.safetensors" in complaint(capsys)
    assert list(tmp_path.iterdir()) == [checkpoint]


def test_missing_onnx_is_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(network_export, "find_spec", lambda name: None)
    assert export(tmp_path / "out", *SMALL) == 1
    assert "needs onnx and onnxscript: `pip install onnx onnxscript`" in complaint(capsys)
    assert list(tmp_path.iterdir()) == []


def test_errors_of_the_libraries_are_one_line(tmp_path, capsys, monkeypatch):
    def fails(part, path, form):
        raise RuntimeError("\nno such operator\nand much more")

    monkeypatch.setattr(network_export, "_write", fails)
    assert export(tmp_path / "out", *SMALL, *CHECKPOINT, "--format", "openvino") == 1
    assert complaint(capsys) == "da3_ros: encode cannot be exported: no such operator"
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_nothing(tmp_path, capsys, monkeypatch):
    def interrupted(part, path, form):
        path.with_suffix(".onnx").write_bytes(b"half")
        raise Interrupted

    monkeypatch.setattr(network_export, "_write", interrupted)
    assert export(tmp_path / "out", *SMALL, *CHECKPOINT, "--format", "openvino") == 130
    assert complaint(capsys) == "da3_ros: interrupted, nothing was written"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.process
@pytest.mark.slow
def test_ctrl_c_while_tracing_leaves_nothing(tmp_path):
    command = [sys.executable, "-m", "da3_ros", "export-network", "da3-tiny", *SMALL, *CHECKPOINT]
    process = subprocess.Popen(
        [*command, "--format", "openvino", "--output", str(tmp_path / "out")],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    said = [process.stderr.readline()]
    while "exporting decode" not in said[-1]:
        assert said[-1], said
        said.append(process.stderr.readline())
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, rest
    assert rest.splitlines()[-1] == "da3_ros: interrupted, nothing was written"
    assert list(tmp_path.iterdir()) == []


def test_help_has_an_example(capsys):
    with pytest.raises(SystemExit):
        main(["export-network", "--help"])
    assert "da3_ros export-network da3-small --format onnx" in capsys.readouterr().out
