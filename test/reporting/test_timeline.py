"""What a replay keeps of its course: bounded, exact sums, the same bytes."""

import json

import numpy as np
import pytest

from da3_ros.pipeline.delivery import NO_WINDOW
from da3_ros.reporting import timeline
from da3_ros.reporting.timeline import MOST_BINS, Timeline, TimelineError, coarser, read_timeline
from da3_ros.types import Scale, TrackedFrame, WindowReport

STEP_NS = 100_000_000


def frame(i, *, blind="", scale=float("nan"), covariance=None, stamp_ns=None):
    """Frame ``i`` of a stream with a window for each frame."""
    source = "none" if np.isnan(scale) else "odometry"
    known = Scale(source, scale, 0.1)
    window = WindowReport(
        i, i * STEP_NS, (i,), 1, True, 0.0, 1.0, 1.0, scale=known, refined=i % 2 == 0,
        tracks=i % 7, reprojection_px=0.5, loop_closed=i % 100 == 0, inference_s=0.25,
    )  # fmt: skip
    return TrackedFrame(
        id=i, stamp_ns=i * STEP_NS if stamp_ns is None else stamp_ns, frame_id="", camera="",
        image=np.zeros((1, 2, 3), np.uint8), depth_m=np.array([[1.0, np.nan]], np.float32),
        confidence=np.ones((1, 2), np.float32), K=np.eye(3), T_map_camera=np.eye(4),
        keyframe=i % 5 == 0, scale=known, window=NO_WINDOW if blind else window,
        covariance_map=covariance, blind=blind,
    )  # fmt: skip


def added(frames, R_ros_map=np.eye(3)):  # noqa: B008 - read only
    kept = Timeline()
    for one in frames:
        kept.add_frame(one, R_ros_map, leading=True)
    return kept


def test_fewer_bins_have_the_same_sums():
    rows = added(frame(i, scale=2.0) for i in range(101)).rows
    few = coarser(rows, 30)
    assert len(few) <= 30
    for name in ("frames", "windows", "tracks", "reprojection_px", "known_depth"):
        assert few[name].sum() == pytest.approx(rows[name].sum())
    assert (few["first_ns"][0], few["last_ns"][-1]) == (0, 100 * STEP_NS)
    assert coarser(rows, 101) is rows


def test_a_file_of_more_bins_than_are_written_is_refused(tmp_path):
    path = tmp_path / "timeline.json"
    columns = {"first_ns": [0] * (MOST_BINS + 1)}
    path.write_text(json.dumps({"version": timeline.VERSION, "columns": columns}))
    with pytest.raises(TimelineError, match="more than 2000 bins"):
        read_timeline(path, {})


@pytest.mark.slow
def test_sums_stay_exact_however_long_the_stream_is(tmp_path):
    count = 10_001
    kept = added(frame(i, blind="dark" if i % 10 == 3 else "") for i in range(count))
    assert MOST_BINS / 2 < len(kept.rows) <= MOST_BINS
    assert kept.frames_per_bin == 8
    rows = kept.rows
    seen = [i for i in range(count) if i % 10 != 3]
    assert rows["frames"].sum() == count
    assert (rows["frames"][:-1] == 8).all()
    assert rows["blind_dark"].sum() == count - len(seen)
    assert rows["windows"].sum() == len(seen)
    assert rows["tracks"].sum() == sum(i % 7 for i in seen)
    assert rows["loops"].sum() == sum(i % 100 == 0 for i in seen)
    assert rows["known_depth"].sum() == pytest.approx(0.5 * len(seen))
    assert rows["inference_s"].sum() == pytest.approx(0.25 * len(seen))
    assert (rows["first_ns"][1:] - rows["last_ns"][:-1] == STEP_NS).all()
    assert rows["gap_s"].max() == pytest.approx(0.1)
    kept.write(tmp_path / "timeline.json")
    assert (tmp_path / "timeline.json").stat().st_size < 1_000_000


def test_a_file_has_what_was_kept_but_for_what_was_measured(tmp_path):
    covariance = np.diag([1.0, 4.0, 9.0, 0, 0, 0])
    turned = np.array([[0.0, 0, 1], [1, 0, 0], [0, 1, 0]])
    kept = added([frame(0), frame(1, scale=2.0, covariance=covariance)], turned)
    for name in ("a", "b"):
        kept.write(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert "inference_s" not in (tmp_path / "a").read_text()
    rows = read_timeline(tmp_path / "a", kept.measured())
    assert [rows[0][f"sigma_{axis}"] for axis in "xyz"] == pytest.approx([np.nan] * 3, nan_ok=True)
    assert [rows[1][f"sigma_{axis}"] for axis in "xyz"] == [3.0, 1.0, 2.0]
    assert rows["scale"][1] == 2.0
    assert np.isnan(rows["scale"][0])
    assert rows["inference_s"].tolist() == [0.25, 0.25]
    assert rows["memory_mb"].min() > 1
    np.testing.assert_array_equal(rows["last_ns"], [0, STEP_NS])
    assert np.isnan(read_timeline(tmp_path / "a", {})["inference_s"]).all()


def test_the_newest_known_value_of_a_bin_counts(monkeypatch):
    monkeypatch.setattr(timeline, "MOST_BINS", 2)
    kept = added([frame(0, scale=1.0), frame(1, scale=3.0), frame(2)])
    assert kept.rows["scale"].tolist() == [3.0, pytest.approx(np.nan, nan_ok=True)]
    assert kept.rows["frames"].tolist() == [2, 1]


def test_a_gap_is_the_longest_time_between_two_frames():
    kept = added([frame(0), frame(1), frame(2, stamp_ns=5 * 10**9)])
    assert kept.rows["gap_s"].tolist() == pytest.approx([0, 0.1, 4.9])


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("no JSON", "is no timeline"),
        ("[]", "is no timeline"),
        ('{"version": 1, "columns": {"first_ns": [1, 2]}}', "is no timeline"),
        ('{"version": 2, "columns": {"first_ns": []}}', "has version 2"),
        ('{"version": 1, "columns": {"first_ns": [1e400]}}', "is no timeline"),
    ],
)
def test_another_file_is_refused(tmp_path, content, why):
    (tmp_path / "timeline.json").write_text(content)
    with pytest.raises(TimelineError, match=why):
        read_timeline(tmp_path / "timeline.json", {})


def test_measured_columns_that_do_not_fit_are_unknown(tmp_path):
    added([frame(0), frame(1)]).write(tmp_path / "t.json")
    foreign = {"inference_s": [1], "window_s": ["a", "b"], "memory_mb": [10**400, 1]}
    rows = read_timeline(tmp_path / "t.json", json.loads(json.dumps(foreign)))
    assert all(np.isnan(rows[name]).all() for name in foreign)
