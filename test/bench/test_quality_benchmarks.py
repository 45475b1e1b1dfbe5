"""Benchmarks of quality, at toy size, and the parts of them that compute errors."""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support import programs

from da3_ros.geometry.similarity import Similarity
from da3_ros.inference.feature_cache import FeatureCache
from da3_ros.types import Prediction, View, Window

BENCH = Path(__file__).parents[2] / "bench"


def long(test):
    """A benchmark as a process of its own, which may take its time."""
    return pytest.mark.process(pytest.mark.long(pytest.mark.timeout(0)(test)))


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    yield importlib.import_module
    for name in ("bench_chunks", "bench_postprocessing", "bench_quality"):
        sys.modules.pop(name, None)


@pytest.mark.long
def test_plans_are_made_again_and_what_was_measured_stays(tmp_path):
    """The pages have the plans of today."""
    plans = {"predicted_mib", "predicted_to_measured", "planned_gib"}
    for name in ("memory-cpu-no-amx.json", "memory-cpu.json", "quality.json"):
        data = json.loads((BENCH / "results" / name).read_text())
        rows = [row | dict.fromkeys(row.keys() & plans, 1.0) for row in data["rows"]]
        (tmp_path / name).write_text(json.dumps(data | {"rows": rows}))
    files = sorted(tmp_path.glob("*.json"))
    done = programs.run(BENCH / "plan_again.py", *files)
    assert done.returncode == 0, done.stderr
    for path in files:
        data, again = (json.loads(p.read_text()) for p in (BENCH / "results" / path.name, path))
        assert again["planned_at"]
        assert {k: v for k, v in again.items() if k not in ("rows", "planned_at")} == {
            k: v for k, v in data.items() if k not in ("rows", "planned_at")
        }
        for new, old in zip(again["rows"], data["rows"], strict=True):
            assert {k: new[k] for k in plans & new.keys()} == pytest.approx(
                {k: old[k] for k in plans & old.keys()}, rel=1e-6
            )
            assert new.items() - old.items() <= {(k, new[k]) for k in plans & new.keys()}


def run(tmp_path, script, *arguments):
    out = tmp_path / "out.json"
    done = programs.run(BENCH / script, *arguments, "--out", out)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())["rows"]


@long
def test_chunks_and_windows_are_compared(tmp_path):
    methods = ("all at once", "chunks of 4", "joined 6/3", "ours 4/1 refined")
    rows = run(
        tmp_path, "bench_chunks.py", "--frames", "10", "--rooms", "1", "--process-res", "112",
        "--device", "cpu", "--methods", *methods,
    )  # fmt: skip
    assert [row["method"] for row in rows] == list(methods)
    assert rows[1]["ate_m"] is None, "separate chunks have no common frame"
    assert all(0 < row["abs_rel"] < 0.5 and row["peak_gib"] > 0 for row in rows)
    assert rows[3]["ate_m"] < rows[0]["ate_m"]


@long
def test_quality_and_planned_memory_are_in_one_table(tmp_path):
    rows = run(
        tmp_path, "bench_quality.py", "--frames", "10", "--rooms", "1", "--sizes", "112",
        "--precisions", "off", "--backends", "torch", "--windows", "--others", "da3-small",
        "--device", "cpu",
    )  # fmt: skip
    ours, other = rows
    assert ours["size"] == "112x84"
    assert ours["frames_per_s"] > 0
    assert ours["ate_refined_m"] < ours["ate_m"]
    assert other["planned_gib"] > ours["planned_gib"]
    assert "abs_rel" not in other, "its weights are random"


@long
def test_flips_and_filters_are_compared_with_plain_windows(tmp_path):
    rows = run(tmp_path, "bench_postprocessing.py", "--rooms", "1", "--device", "cpu")
    assert rows[0]["variant"] == "plain"
    assert rows[1]["variant"] == "flips"
    assert rows[1]["abs_rel"] != rows[0]["abs_rel"]


def prediction(T, depth):
    n = len(T)
    K = np.tile([[40.0, 0, 20], [0, 40, 15], [0, 0, 1]], (n, 1, 1))
    return Prediction(depth, np.full_like(depth, 2), T, K)


def chunk_pair(rng, unit):
    """Two predictions of a moving camera that share three frames, the second in another frame."""
    T = np.tile(np.eye(4), (5, 1, 1))
    T[:, 0, 3] = 0.1 * np.arange(5)
    depth = rng.uniform(1, 2, (5, 30, 40)).astype(np.float32)
    turn = Similarity(unit, np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]]), np.array([1.0, 2, 3]))
    other = np.array([turn.inverse().pose(t) for t in T])
    return prediction(T[:4], depth[:4]), prediction(other[1:], depth[1:] / unit), turn


def test_chunks_are_joined_by_their_shared_points(load, rng):
    before, after, turn = chunk_pair(rng, 2.5)
    found = load("bench_chunks").fit_shared(before, after, 3, 0.1)
    assert found.scale == pytest.approx(turn.scale, rel=1e-5)
    np.testing.assert_allclose(found.R, turn.R, atol=1e-5)
    np.testing.assert_allclose(found.t, turn.t, atol=1e-4)


def test_points_that_moved_count_less_in_a_join(load, rng):
    before, after, turn = chunk_pair(rng, 1.0)
    after.depth[:3, :6] *= 1.5  # a fifth of the shared points
    bench = load("bench_chunks")
    found, plain = (bench.fit_shared(before, after, 3, huber) for huber in (0.1, 1e9))
    assert abs(found.scale - turn.scale) < 0.6 * abs(plain.scale - turn.scale)


class Shifting:
    """A session that sees the same scene in each window, in another unit and another frame."""

    def __init__(self, depth, T):
        self.depth, self.T, self.windows = depth, T, 0
        self.feature_cache = FeatureCache()

    def infer(self, window):
        self.windows += 1
        turn = Similarity(self.windows, np.eye(3), np.array([0.0, 0, self.windows]))
        at = [int(view.image[0, 0, 0]) for view in window.views]
        found = prediction(np.array([turn.pose(self.T[k]) for k in at]), self.depth[at])
        found.depth[:] *= self.windows
        return found


def test_joined_chunks_have_one_unit_and_one_frame(load, rng):
    T = np.tile(np.eye(4), (12, 1, 1))
    T[:, 0, 3] = 0.1 * np.arange(12)
    depth = rng.uniform(1, 2, (12, 28, 42)).astype(np.float32)
    images = [np.full((28, 42, 3), k, np.uint8) for k in range(12)]
    frames = [SimpleNamespace(image=i, depth=d) for i, d in zip(images, depth, strict=True)]
    session = Shifting(depth, T)
    found = load("bench_chunks").joined(session, frames, 6, 3, 42)
    assert session.windows == 3
    np.testing.assert_allclose(np.stack(found.depth), depth, rtol=1e-4)
    np.testing.assert_allclose(found.T - found.T[0], T - T[0], atol=1e-4)


class Mirrored:
    """A session whose depth grows to the right by the brightness of the image."""

    def infer(self, window):
        depth = np.stack([v.image[..., 0].astype(np.float32) for v in window.views])
        T = np.tile(np.eye(4), (len(depth), 1, 1))
        left = window.views[0].image[0, 0, 0] < window.views[0].image[0, -1, 0]
        T[1:, 0, 3] = 1.0 if left else -1.0
        return prediction(T, depth)


def test_flipping_an_exact_network_changes_nothing(load):
    image = np.tile(np.arange(10, 50, dtype=np.uint8)[None, :, None], (30, 1, 3))
    window = Window(0, (View(0, 0, image), View(1, 1, image)), 2)
    session = Mirrored()
    plain, both = session.infer(window), load("bench_postprocessing").flipped(session, window)
    np.testing.assert_allclose(both.depth, plain.depth, rtol=1e-6)
    np.testing.assert_allclose(both.T_window_camera, plain.T_window_camera, atol=1e-9)


@long
def test_stages_of_models_are_in_one_table(tmp_path):
    rows = run(
        tmp_path, "bench_window_stages.py", "--models", "da3-tiny", "--process-res", "56",
        "--views", "3", "--backends", "torch", "--device", "cpu",
    )  # fmt: skip
    assert {"pre-processing", "backbone", "head", "camera"} <= {row["stage"] for row in rows}
    assert all(row["ms"] > 0 for row in rows)


@long
def test_all_that_a_frame_costs_beside_the_network(tmp_path):
    pytest.importorskip("rclpy")
    out = tmp_path / "out.json"
    done = programs.run(BENCH / "bench_stages.py", "--count", "1", "--out", out)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["decode"] > 0
    assert found["build points"] > 0
    assert found["all but network"] > found["all but network, join and map"] > 0
