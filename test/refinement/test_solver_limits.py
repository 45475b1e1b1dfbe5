"""Limits of the work and the time of a refinement."""

import dataclasses
import logging

import numpy as np
import pytest

from da3_ros.refinement import solver_limits
from da3_ros.refinement.features import FeatureDetector
from da3_ros.refinement.solver_limits import SolverLimits, TimeLimit, choose_limits

GOOD = {"features": 100, "pixels": 100_000, "tracks": 50, "steps": 3}


def test_without_a_limit_nothing_is_measured(monkeypatch):
    monkeypatch.setattr(solver_limits, "measured_ms", lambda _: pytest.fail("measured"))
    assert choose_limits(400, 0.0) == SolverLimits(400, 800_000, 300, 8)


def test_the_highest_limits_in_time_are_chosen(monkeypatch):
    monkeypatch.setattr(
        solver_limits, "measured_ms", lambda e: e.pixels / 4000
    )  # 200, 100, 50, 25
    assert choose_limits(400, 200.0) == SolverLimits.full(400)
    assert choose_limits(400, 99.0) == SolverLimits(200, 200_000, 150, 5)
    assert choose_limits(60, 30.0) == SolverLimits(50, 100_000, 105, 4)


def test_too_little_time_is_said(monkeypatch, caplog):
    monkeypatch.setattr(solver_limits, "measured_ms", lambda e: e.pixels / 4000)
    with caplog.at_level(logging.WARNING):
        assert choose_limits(400, 5.0) == SolverLimits.full(400).levels()[-1]
    assert "refinement.max_ms 5: the lowest limits take about 25 ms" in caplog.text


def test_lower_limits_take_less_time():
    most, *_, least = SolverLimits.full(400).levels()
    assert 0 < solver_limits.measured_ms(least) < solver_limits.measured_ms(most)


@pytest.mark.parametrize(
    "values",
    [[1], {}, {"features": 5}, "x", None, GOOD | {"steps": 0}, GOOD | {"features": 1.5},
     GOOD | {"features": 10**10}, GOOD | {"pixels": 1}],
)  # fmt: skip
def test_values_that_are_no_limits_are_refused(values):
    with pytest.raises(ValueError, match="refinement needs"):
        SolverLimits.from_values(values)


def test_limits_are_read_back():
    assert dataclasses.asdict(SolverLimits.from_values(GOOD)) == GOOD


def test_work_is_skipped_until_the_mean_is_within_the_limit():
    limit = TimeLimit(100.0)
    took = []
    for _ in range(100):
        took.append(0.0 if limit.skips() else 0.25)
        if took[-1]:
            limit.add(0.25)
    assert sum(took[:20]) <= 20 * 0.1 + 0.25
    assert np.mean(took) == pytest.approx(0.1, abs=0.01)


def test_work_within_the_limit_is_never_skipped():
    limit = TimeLimit(100.0)
    for _ in range(50):
        assert not limit.skips()
        limit.add(0.1)


def test_one_interruption_costs_few_windows():
    limit = TimeLimit(100.0)
    limit.add(3600.0)
    skipped = 0
    while limit.skips():
        skipped += 1
    assert skipped == solver_limits.MOST


def test_no_limit_skips_nothing():
    limit = TimeLimit(0.0)
    limit.add(100.0)
    assert not limit.skips()


def test_features_of_a_shrunk_image_are_in_its_own_pixels():
    rng = np.random.default_rng(1)
    small = np.kron(rng.integers(0, 255, (20, 30)), np.ones((8, 8))).astype(np.uint8)
    image = np.repeat(np.kron(small, np.ones((3, 3), np.uint8))[..., None], 3, axis=2)
    usable = np.ones(image.shape[:2], bool)
    usable[:, :300] = False
    full = FeatureDetector(1000, image[..., 0].size)(image)
    shrunk = FeatureDetector(300, image[..., 0].size // 9)(image, usable)
    assert full.shape == (480, 720)
    assert shrunk.shape == (160, 240)
    assert len(shrunk) > 20
    assert shrunk.pixel[:, 0].min() > 100
    offset = 3 * shrunk.pixel[:, None] - full.pixel
    nearest = offset[np.arange(len(shrunk)), np.linalg.norm(offset, axis=2).argmin(1)]
    same = nearest[np.linalg.norm(nearest, axis=1) < 2.0]
    assert len(same) > len(shrunk) / 2
    assert np.abs(np.median(same, axis=0)).max() < 0.1
