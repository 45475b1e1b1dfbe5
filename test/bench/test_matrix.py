"""The matrix of modes and precisions: its rows are kept, told apart and summed up."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import session_row
from matrix import SAME_MACHINE, Matrix, MatrixError, matrix_of, summary
from session_row import RowSetting, percentile, spread
from support import programs

from da3_ros.inference import InferenceConfig, InferenceSession
from da3_ros.inference.random_windows import random_windows

ROOT = Path(__file__).parents[2]
KEYS = [("balanced", "off", "off", "torch"), ("max", "off", "off", "torch")]
TINY = RowSetting("da3-tiny", "cpu", image=(84, 56), process_res=84, views=3, warm_up=1, repeats=2)


def row(mode, precision, images_per_s, stability=0.0):
    return {
        "mode": mode, "precision": precision, "compile": "off", "backend": "torch",
        "mean_s": 1 / images_per_s, "std_s": 0.0, "images_per_s": images_per_s,
        "stability": stability,
    }  # fmt: skip


def test_the_summary_counts_refused_rows_and_averages_the_others():
    refused = {"mode": "max", "precision": "int8", "compile": "off", "backend": "torch"}
    rows = [
        row("minimal", "off", 1.0), row("max", "off", 3.0, 0.5), row("max", "bfloat16", 5.0),
        row("max", "off", 9.0) | {"backend": "openvino"},
        row("max", "off", 2.0) | {"compile": "on"},
        row("max", "off", 99.0) | {"reduced": ["images of 224 pixels"]},
        refused | {"refused": "no"},
    ]  # fmt: skip
    found = summary(rows)
    assert found["success"] == [6, 7]
    assert found["by_mode"] == {"torch minimal": 1.0, "torch max": 3.0, "openvino max": 9.0}
    assert found["by_precision"] == {"torch off": 3.0, "torch bfloat16": 5.0, "openvino off": 9.0}
    assert found["best"]["backend"] == "openvino"
    assert found["slowest"]["mode"] == "minimal"
    assert found["largest_stability"] == 0.5
    assert summary([refused | {"refused": "no"}])["best"] is None


def test_stability_is_the_largest_difference_over_the_median_depth():
    first = np.array([[2.0, 2.0], [4.0, np.nan]])
    other = np.array([[2.0, 1.0], [4.0, np.nan]])
    assert spread(iter([first, first, other, first])) == 0.5
    assert spread(iter([first, first.copy()])) == 0.0


def test_percentiles_need_enough_runs():
    assert percentile([1.0] * 19, 95) is None
    assert percentile([float(n) for n in range(101)], 95) == pytest.approx(95)
    assert percentile([1.0] * 99, 99) is None


def test_windows_of_unseen_views_show_the_same_images():
    """So that their depth must be the same: what the stability of such rows relies on."""
    plan = SimpleNamespace(width=28, height=14)
    first, *others = random_windows(plan, 3, 3, 3, unseen=True)
    for other in others:
        for a, b in zip(first.views, other.views, strict=True):
            assert a.image is not b.image
            np.testing.assert_array_equal(a.image, b.image)


def test_an_engine_is_not_compiled_twice():
    options = SimpleNamespace(
        compiles=("off", "on"), backends=("torch", "openvino"), modes=("max",),
        precisions=("off", "auto"), out=None, models=["da3-tiny"], again=True, cache=None,
        device="cpu", gib=0.0, process_res=84, image=(84, 56), views=3, unseen=False, warm_up=1,
        repeats=2,
    )  # fmt: skip
    rows = [(key["compile"], key["backend"]) for key in matrix_of(options, "da3-tiny").missing()]
    assert rows == [("off", "torch")] * 2 + [("off", "openvino")] * 2 + [("on", "torch")] * 2


def written(tmp_path, monkeypatch, setting=TINY):
    """A matrix with its first row measured, whose result is given."""
    monkeypatch.setattr("matrix.run", lambda *_: row("", "", 2.0) | {"runs": "here"})
    matrix = Matrix(setting, KEYS, tmp_path / "rows.json")
    matrix.measure(matrix.missing()[0], None)
    return matrix


def test_rows_that_are_there_are_not_measured_again(tmp_path, monkeypatch):
    written(tmp_path, monkeypatch)
    again = Matrix(TINY, KEYS, tmp_path / "rows.json")
    again.keep_earlier()
    assert [key["mode"] for key in again.missing()] == ["max"]
    again.measure(again.missing()[0], None)
    report = json.loads((tmp_path / "rows.json").read_text())
    assert [found["mode"] for found in report["rows"]] == ["balanced", "max"]
    assert report["summary"]["success"] == [2, 2]
    assert report["setting"]["image"] == "84x56"
    assert "commit" in report["rows"][0]
    assert {"openvino", "python", "os"} <= set(report["machine"])


def test_a_row_has_the_load_of_the_system_before_and_after_it(tmp_path, monkeypatch):
    loads = iter([(0.25, 9, 9), (1.75, 9, 9)])
    monkeypatch.setattr("matrix.os.getloadavg", lambda: next(loads, (0.0, 0.0, 0.0)))
    (found,) = written(tmp_path, monkeypatch).rows()
    assert (found["load_before"], found["load_after"]) == (0.25, 1.75)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (("setting", "views"), "setting (views differ"),
        *((("machine", name), f"machine ({name} differ") for name in SAME_MACHINE),
    ],
)
def test_rows_of_something_else_are_refused(tmp_path, monkeypatch, change, named):
    written(tmp_path, monkeypatch)
    file = tmp_path / "rows.json"
    report = json.loads(file.read_text())
    report[change[0]][change[1]] = "other"
    file.write_text(json.dumps(report))
    with pytest.raises(MatrixError, match="--again") as raised:
        Matrix(TINY, KEYS, file).keep_earlier()
    assert named in str(raised.value)


@pytest.mark.parametrize("text", ["[]", "{", '{"rows": []}'])
def test_a_file_of_another_kind_is_left_alone(tmp_path, text):
    file = tmp_path / "rows.json"
    file.write_text(text)
    with pytest.raises(MatrixError, match="another name"):
        Matrix(TINY, KEYS, file).keep_earlier()
    assert file.read_text() == text


@pytest.mark.process
def test_a_row_that_takes_too_long_says_so_and_is_tried_again(tmp_path):
    found = session_row.run(TINY, timeout=0.01)
    assert found["refused"] == "timed out after 0.01 s"
    file = tmp_path / "rows.json"
    first = Matrix(TINY, KEYS, file)
    first.measure(first.missing()[0], 0.01)
    again = Matrix(TINY, KEYS, file)
    again.keep_earlier()
    assert len(again.rows()) == 1
    assert len(again.missing()) == 2


@pytest.mark.openvino
def test_a_row_that_ran_on_another_backend_is_none(tmp_path):
    little = dataclasses.replace(TINY, backend="openvino", gib=0.075, cache_dir=str(tmp_path))
    found = session_row.measure(little)
    assert "ran on torch" in found["refused"]


def test_a_cold_start_is_not_that_of_another_rows_engine(tmp_path):
    found = session_row.measure(
        dataclasses.replace(TINY, backend="torch", cache_dir=str(tmp_path))
    )
    assert found["cold_start_s"] is None


@pytest.mark.parametrize("unseen", [False, True])
def test_a_row_times_windows_and_runs_the_same_input_again(unseen):
    found = session_row.measure(
        dataclasses.replace(TINY, backend="torch", unseen=unseen, precision="off", repeats=3)
    )
    assert found["timed"] == 3
    assert found["images_per_s"] == pytest.approx((3 if unseen else 1) / found["mean_s"])
    assert found["stability"] == 0
    assert found["cold_start_s"] > found["load_s"] > 0
    assert found["runs"] == "3 x 84x56 float32 torch"


def test_figures_of_a_row_are_those_of_its_times(monkeypatch):
    given = iter([2.0, 4.0, 9.0])

    def timed(self, window):
        self.seconds.append(next(given))
        return self._session.infer(window).depth

    monkeypatch.setattr(session_row.TimedWindows, "_timed", timed)
    found = session_row.measure(dataclasses.replace(TINY, backend="torch", repeats=3))
    assert (found["mean_s"], found["median_s"]) == (5.0, 4.0)
    assert found["std_s"] == pytest.approx(np.std([2.0, 4.0, 9.0]))
    assert (found["images_per_s"], found["frames_per_s"]) == (1 / 5, 1 / 4)
    assert found["p95_s"] is None


class Drifting:
    """A session whose depth is a little larger in each window."""

    def __init__(self, unknown_in=-1):
        self.memory = SimpleNamespace(plan=session_plan())
        self.windows, self.unknown_in = 0, unknown_in

    def infer(self, window):
        self.windows += 1
        image = window.views[0].image
        depth = np.full((len(window.views), *image.shape[:2]), 2.0 + 0.01 * self.windows)
        if self.windows == self.unknown_in:
            depth[0, 0, 0] = np.nan
        return SimpleNamespace(inference_s=1.0, depth=depth)


def session_plan():
    session = InferenceSession(
        InferenceConfig("da3-tiny", "random", "cpu", "torch", process_res=84), poses=False
    )
    return session.memory.fit((84, 56), 3, 1)


@pytest.mark.parametrize("unseen", [False, True])
def test_a_network_that_drifts_is_not_stable(unseen):
    setting = dataclasses.replace(TINY, unseen=unseen, repeats=3, same=3, warm_up=2)
    timed = session_row.TimedWindows(Drifting(), setting)
    timed.run()
    first = 2.0 + 0.01 * (3 if unseen else 6)
    assert timed.stability == pytest.approx(0.02 / first)


def test_depth_that_is_now_unknown_is_no_stability():
    setting = dataclasses.replace(TINY, unseen=True, repeats=3, warm_up=2)
    timed = session_row.TimedWindows(Drifting(unknown_in=4), setting)
    timed.run()
    assert timed.stability == float("inf")


def test_the_folder_of_engines_is_not_written_with_the_rows(tmp_path):
    found = [
        Matrix(dataclasses.replace(TINY, cache_dir=folder), KEYS, None).shared()
        for folder in ("", str(tmp_path))
    ]
    assert [setting["engines"] for setting in found] == ["built for each row", "kept"]
    assert str(tmp_path) not in json.dumps(found)


@pytest.mark.process
@pytest.mark.long
def test_a_matrix_is_measured_in_two_runs(tmp_path):
    """Resumed; in the published setting, but small; with rows that cannot run."""
    out = tmp_path / "matrix.json"
    words = (
        "--models", "da3-tiny", "--documents", "--image", "84x56", "--device", "cpu", "--modes",
        "balanced", "--precisions", "off", "int8", "--compiles", "off", "on", "--backends",
        "torch", "openvino", "--timeout", "30", "--out", out,
    )  # fmt: skip
    first = programs.run(ROOT / "bench" / "matrix.py", *words, "--minutes", "0.001")
    assert "the same command goes on" in first.stderr
    done = programs.run(ROOT / "bench" / "matrix.py", *words)
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert len(report["rows"]) == 8
    ran = report["rows"][0]
    assert ran["runs"] == "5 x 84x56 float32 torch"
    assert ran["images_per_s"] == pytest.approx(5 / ran["mean_s"])
    assert ran["stability"] == 0
    refused = {
        (r["compile"], r["backend"]): r["refused"] for r in report["rows"] if "refused" in r
    }
    assert "set backend to auto" in refused["off", "openvino"]
    assert "set compile to off" in refused["on", "torch"]
