"""`da3_ros bench`: what it measures, prints and writes, with the smallest model."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from support.tiny_networks import tiny_metric_spec

from da3_ros.cli import main
from da3_ros.network import MODELS

TINY = ["-p", "model:=da3-tiny", "-p", "process_res:=56", "-p", "device:=cpu"]
ROOT = Path(__file__).parents[2]


def bench(tmp_path, *arguments):
    file = tmp_path / "bench.json"
    assert main(["bench", *TINY, "--size", "160x120", "--json", str(file), *arguments]) == 0
    return json.loads(file.read_text())


@pytest.mark.slow
def test_table_and_file_have_equal_figures(tmp_path, capsys):
    report = bench(tmp_path, "--frames", "7", "-p", "window.size:=4", "-p", "window.new:=2")
    table = capsys.readouterr().out
    assert (report["views"], report["new"]) == (4, 2)
    assert report["network_image"] == [56, 42]
    assert len(report["window_ms"]) == 4, "as many windows as hold seven new frames"
    ms, memory = report["milliseconds"], report["memory_gib"]
    assert ms["window"]["p50"] <= ms["window"]["p95"] <= ms["window"]["p99"]
    assert ms["new_frame"]["p50"] == pytest.approx(ms["window"]["p50"] / 2)
    assert report["frames_per_s"] == pytest.approx(1e3 / ms["new_frame"]["p50"])
    assert min(ms["loading"], ms["first_window"], ms["window_of_unseen_views"]) > 0
    assert 0 < memory["peak"] <= memory["budget"]
    assert 0 < memory["planned"] <= memory["budget"]
    for shown in (
        "da3-tiny", "160x120, 56x42 in the network", "4 views, 2 of them new", report["precision"],
        f"{ms['new_frame']['p95']:.1f}", f"{report['frames_per_s']:.2f}", "cold start",
    ):  # fmt: skip
        assert shown in table


@pytest.mark.slow
def test_parameters_of_a_file_decide_what_runs(tmp_path):
    config = tmp_path / "robot.yaml"
    config.write_text(
        "/**:\n  ros__parameters:\n    mixed_precision: 'off'\n    cameras: [front, left]\n"
        "    checkpoint: random\n    window: {size: 6, new: 1}\n"
    )
    report = bench(tmp_path, "--frames", "1", "--config", str(config))
    assert report["precision"] == "float32"
    assert report["checkpoint"] == "random"
    assert (report["views"], report["new"]) == (6, 2), "a new view of each camera"
    assert report["parameters"]["window.size"] == 6


@pytest.mark.slow
def test_runs_of_the_metric_model_are_timed_and_counted(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(MODELS, "da3metric-large", tiny_metric_spec())
    metric = ("source:=metric_model", "metric_checkpoint:=random", "metric_every:=2")
    report = bench(tmp_path, "--frames", "1", *(x for m in metric for x in ("-p", f"scale.{m}")))
    ms = report["milliseconds"]
    assert ms["metric_look"] > 0
    assert 1e3 / report["frames_per_s"] == pytest.approx(
        ms["window"]["p50"] + ms["metric_look"] / 2
    )
    assert "every 2 windows" in capsys.readouterr().out


def test_a_model_of_single_images_gets_new_ones_only(tmp_path, monkeypatch):
    monkeypatch.setitem(MODELS, "da3metric-large", tiny_metric_spec())
    alone = ("model:=da3metric-large", "checkpoint:=random", "window.new:=2")
    report = bench(tmp_path, "--frames", "4", *(x for a in alone for x in ("-p", a)))
    assert (report["views"], report["new"]) == (2, 2)
    assert len(report["window_ms"]) == 2


def test_without_weights_the_error_names_the_remedy(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("da3_ros.network.hub.cached", lambda repo: None)
    assert main(["bench", "-p", "model:=da3-large", "-p", "device:=cpu"]) == 1
    said = capsys.readouterr().err
    assert "not in the local hub cache" in said
    assert "-p checkpoint:=random" in said


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--frames", "0"], 2, "--frames is 0"),
        (["--size", "640"], 2, "write WIDTHxHEIGHT"),
        (["--size", "4000x10"], 1, "too thin"),
        (["--json", "no/such/folder/b.json"], 1, "folder does not exist"),
        (["-p", "windows.size:=3"], 2, "unknown parameter"),
    ],
)
def test_the_unmeasurable_is_reported_in_one_line(capsys, caplog, arguments, code, words):
    assert main(["bench", *TINY, *arguments]) == code
    (said,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("da3_ros:")]
    assert words in said


@pytest.mark.slow
def test_stages_and_pictures_are_in_table_and_file(tmp_path, capsys):
    folder = tmp_path / "pictures"
    report = bench(
        tmp_path, "--frames", "1", "-p", "map.max_points:=1000", "-p", "window.size:=3",
        "--stages", "--pictures", str(folder),
    )  # fmt: skip
    table = capsys.readouterr().out
    names = [row["name"] for row in report["stages"]["window"]]
    assert {"pre-processing", "backbone", "head", "camera"} <= set(names)
    assert [row["name"] for row in report["stages"]["export"]] == [
        "export of 1000 points as GLB", "export of 1000 points as PLY",
    ]  # fmt: skip
    assert all(row["ms"] > 0 and 0 <= row["mib"] < 500 for row in report["stages"]["window"])
    for row in report["stages"]["window"]:
        assert f"{row['ms']:10.1f}{row['mib']:10.1f}" in table
    pictures = [cv2.imread(path) for path in report["pictures"]]
    assert [p.shape[2] for p in pictures] == [3, 3, 3]
    assert sorted(f.name for f in folder.iterdir()) == ["depth.png", "histogram.png", "slices.png"]


@pytest.mark.slow
def test_pictures_show_a_recording(tmp_path):
    images, folder, rng = tmp_path / "images", tmp_path / "pictures", np.random.default_rng(0)
    images.mkdir()
    for k in range(4):
        cv2.imwrite(str(images / f"{k}.png"), rng.integers(0, 255, (48, 64, 3), dtype=np.uint8))
    given = ("--frames", "1", "-p", "window.size:=3", "--pictures", str(folder))
    bench(tmp_path, *given, "--of", str(images))
    shown = cv2.imread(str(folder / "slices.png"))
    assert shown.any()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--of", "x"], 2, "add --pictures"),
        (["--pictures", "p", "--of", "no/such.bag"], 1, "no/such.bag does not exist"),
        (["--stages", "-p", "compile:=on", "-p", "backend:=torch"], 1, "set compile to off"),
    ],
)
def test_what_stages_and_pictures_cannot_do_is_said(
    tmp_path, capsys, caplog, monkeypatch, arguments, code, words
):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *TINY, "--frames", "1", "-p", "window.size:=2", *arguments]) == code
    said = [x for x in capsys.readouterr().err.splitlines() if x.startswith("da3_ros:")]
    assert words in said[-1]


@pytest.mark.long
@pytest.mark.process
def test_ctrl_c_ends_it_without_a_file(tmp_path):
    torch = ["-p", "backend:=torch", "--frames", "1000000"]
    command = [sys.executable, "-u", "-m", "da3_ros", "bench", *TINY, *torch]
    file = tmp_path / "bench.json"
    with subprocess.Popen(
        [*command, "--json", str(file)], cwd=ROOT, stderr=subprocess.PIPE, text=True
    ) as process:
        for line in process.stderr:
            if "loaded from" in line:
                break
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode == 130
    assert "Traceback" not in said
    assert not file.exists()
