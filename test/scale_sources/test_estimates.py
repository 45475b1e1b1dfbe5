"""Estimates of a chain's scale from the measurements of many windows, against the truth."""

import numpy as np
import pytest

from da3_ros.scale_sources.estimates import MeasurementFilter
from da3_ros.types import ScaleMeasurement


def test_measures_of_windows_in_any_unit_agree_on_the_scenes():
    rng = np.random.default_rng(1)
    measures = MeasurementFilter()
    for i in range(15):
        unit = float(np.exp(rng.normal()))  # scene units per network unit
        wrong = 3.0 if i in (2, 7, 11) else np.exp(0.02 * rng.standard_normal())
        measures.add(ScaleMeasurement(1.5 * unit * wrong, 0.03), unit)
    found = measures.estimate()
    assert np.exp(found.log) == pytest.approx(1.5, rel=0.02)
    assert abs(found.log - np.log(1.5)) < 3 * found.sigma


def test_measurements_that_are_not_positive_change_nothing():
    measures = MeasurementFilter()
    measures.add(ScaleMeasurement(float("nan"), float("nan")), 1.0)
    measures.add(ScaleMeasurement(0.0, 0.1), 1.0)
    assert measures.estimate() is None


def estimates(values, own=0.05):
    measures = MeasurementFilter()
    for value in values:
        measures.add(ScaleMeasurement(float(value), own), 1.0)
    return measures.estimate()


def test_an_error_that_windows_share_does_not_average_out():
    assert estimates(np.full(15, 2.0)).sigma == pytest.approx(0.05, rel=0.01)
    rng = np.random.default_rng(0)
    apart = [estimates(2 * np.exp(0.05 * rng.normal(size=15))) for _ in range(50)]
    assert np.median([e.sigma for e in apart]) < 0.03
    off = np.array([e.log - np.log(2) for e in apart]) / [e.sigma for e in apart]
    assert np.sqrt(np.mean(off**2)) < 1.2


def test_outliers_in_a_row_make_it_as_uncertain_as_they_differ():
    """The unit has changed, or the source errs: which is not known until one side has most."""
    before = [2.0, 2.02, 1.99, 2.01, 2.0, 1.98, 2.0, 2.01, 1.99, 2.0]
    assert estimates([*before, 4.0, 4.0], own=0.01).deviation < 0.02
    found = estimates([*before, 4.0, 4.1, 3.9], own=0.01)
    assert np.exp(found.log) == pytest.approx(2.0, rel=0.01)
    assert found.deviation == pytest.approx(np.log(2), rel=0.05)
    assert found.sigma < 0.02  # by which it agrees with other sources, or not
    assert estimates([*before, 4.0, 4.1, 3.9, 2.0], own=0.01).deviation < 0.02
    assert estimates([*before, 4.0, 1.0, 4.0], own=0.01).deviation < 0.02  # noise
    after = estimates([*before, *[4.0] * 11], own=0.01)
    assert np.exp(after.log) == pytest.approx(4.0)
    assert after.deviation < 0.02


def test_a_drifting_scene_is_followed_and_widens_the_scale():
    """The newest measurements count, and their age is reported."""
    rng = np.random.default_rng(1)
    z = []
    for _ in range(200):
        drift = np.cumsum(rng.normal(0.0, 0.02, 15))
        found = estimates(np.exp(drift + 0.01 * rng.normal(size=15)), own=0.01)
        z.append((found.log - drift[-1]) / found.sigma)
    assert np.sqrt(np.mean(np.square(z))) < 1.8  # independent they were called, it would be 4
    steady = [estimates(np.exp(0.01 * rng.normal(size=15)), own=0.01) for _ in range(50)]
    assert np.median([e.sigma for e in steady]) < 0.008
