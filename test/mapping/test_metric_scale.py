"""What a scene's unit is in metres, by each source, against the truth."""

import dataclasses

import numpy as np
import pytest

from da3_ros.config import ScaleConfig
from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.map_table import MapTable
from da3_ros.mapping.metric_scale import (
    MapScale,
    MeasurementFilter,
    OdometryRatio,
    OdomFrame,
    ScaleFilter,
)
from da3_ros.types import Prediction, Scale, ScaleMeasurement, View, Window

DEPTH = 3.0


def at(x, y=0.0):
    T = np.eye(4)
    T[:3, 3] = x, y, 0.0
    return T


def drive(metres_per_unit, steps=200, step_m=0.05, noise_m=0.0, seed=0):
    """(scene pose, odometry pose) along a bend; noise grows with the root of the way."""
    rng = np.random.default_rng(seed)
    true, theirs = np.zeros(2), np.zeros(2)
    for i in range(steps):
        move = step_m * np.array([np.cos(i / 60), np.sin(i / 60)])
        true = true + move
        theirs = theirs + move + noise_m * np.sqrt(step_m) * rng.standard_normal(2)
        yield at(*(true / metres_per_unit)), at(*theirs)


def estimate(pairs, metres_per_unit):
    ratio = OdometryRatio()
    for ours, theirs in pairs:
        ratio.add(ours, theirs, DEPTH / metres_per_unit)
    return ratio.estimate()


@pytest.mark.parametrize("unit", [0.3, 1.0, 4.0])
def test_clean_odometry_gives_the_unit(unit):
    found = estimate(drive(unit), unit)
    assert np.exp(found.log) == pytest.approx(unit, rel=0.002)
    assert found.sigma < 0.01


def test_noisy_odometry_is_as_wrong_as_stated():
    errors, sigmas = [], []
    for seed in range(40):
        found = estimate(drive(2.0, noise_m=0.02, seed=seed), 2.0)
        errors.append(found.log - np.log(2.0))
        sigmas.append(found.sigma)
    z = np.array(errors) / sigmas
    assert np.median(sigmas) < 0.02
    assert 0.4 < np.std(z) < 1.5
    assert np.abs(z).max() < 4


def test_slipping_and_spinning_wheels_are_outvoted():
    """Slip in every fourth stretch and wheels that spin on the spot are outvoted."""
    slipped = np.zeros(3)
    pairs = []
    last = None
    for i, (ours, theirs) in enumerate(drive(2.0, steps=300)):
        if last is not None and i % 40 < 10:
            slipped += theirs[:3, 3] - last  # wheels turn twice as far
        last = theirs[:3, 3].copy()
        moved = theirs.copy()
        moved[:3, 3] += slipped
        pairs.append((ours, moved))
        if i == 150:
            for _ in range(100):  # stuck: the wheels turn, the camera stands
                slipped[0] += 0.05
                stuck = theirs.copy()
                stuck[:3, 3] += slipped
                pairs.append((ours, stuck))
    found = estimate(pairs, 2.0)
    assert np.exp(found.log) == pytest.approx(2.0, rel=0.02)


def test_a_standing_robot_gives_no_scale():
    """It gives no scale, whatever motion the network imagines."""
    rng = np.random.default_rng(0)
    ratio = OdometryRatio()
    for _ in range(500):
        ratio.add(at(*(0.1 * rng.standard_normal(2))), at(0.0), DEPTH)
    assert ratio.estimate() is None


def test_odometry_that_goes_elsewhere_gives_no_scale():
    pairs = [(ours, at(theirs[1, 3], -theirs[0, 3])) for ours, theirs in drive(1.0)]
    assert estimate(pairs, 1.0) is None


def test_a_gap_in_the_odometry_ends_the_stretch():
    ratio = OdometryRatio()
    for i, (ours, theirs) in enumerate(drive(2.0)):
        gone = 50 <= i < 80
        jumped = theirs.copy()
        jumped[0, 3] += 100.0 * (i >= 80)
        ratio.add(ours, None if gone else jumped, DEPTH / 2.0)
    assert np.exp(ratio.estimate().log) == pytest.approx(2.0, rel=0.002)


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


def follow(config, values, windows_each=1):
    keeper = ScaleFilter(config)
    scales = []
    for value in values:
        for _ in range(windows_each):
            keeper.add_measurement(ScaleMeasurement(value, 0.02), 1.0)
            scales.append(keeper.update())
    return scales


def test_scale_is_not_metric_early_and_steps_within_bounds():
    """The answer is not metric before it is known and never steps farther than allowed."""
    config = ScaleConfig(source="metric_model", max_step=0.01)
    scales = follow(config, [2.0] * 10 + [3.0] * 80)
    assert not scales[0].metric
    assert np.isnan(scales[0].value)
    values = np.array([s.value for s in scales if s.metric])
    assert values[0] == pytest.approx(2.0)
    assert np.abs(np.log(values[1:] / values[:-1])).max() <= np.log(1.01) + 1e-12
    assert values[-1] == pytest.approx(3.0, rel=0.01)
    way = [s for s in scales if s.metric and s.value < 2.7 and s.value > 2.2]
    assert way
    for scale in way:  # the rest of the way is part of its stated uncertainty
        assert abs(np.log(3.0 / scale.value)) < 3 * scale.sigma


def test_measures_without_agreement_are_no_knowledge():
    config = ScaleConfig(source="metric_model")
    keeper = ScaleFilter(config)
    for _ in range(10):
        keeper.add_measurement(ScaleMeasurement(2.0, 0.9), 1.0)
        assert not keeper.update().metric


@pytest.mark.parametrize(("source", "value"), [("none", None), ("fixed", 1.0)])
def test_declared_sources_ignore_measurements(source, value):
    keeper = ScaleFilter(ScaleConfig(source=source, factor=2.0))
    keeper.add_measurement(ScaleMeasurement(5.0, 0.01), 1.0)
    scale = keeper.update()
    assert scale.metric == (value is not None)
    assert scale.value == value or np.isnan(scale.value)


def test_odometry_goes_on_smoothly_while_the_scale_is_corrected():
    continuity = OdomFrame()
    scales = np.where(np.arange(60) < 30, 2.0, 2.1)
    places = []
    for i, metres in enumerate(scales):
        T = at(100.0 + 0.1 * i)
        T_odom_local = continuity.add(T, metres, metric=True)
        places.append(T_odom_local[0, 3] + metres * T[0, 3])
    steps = np.diff(places)
    np.testing.assert_allclose(steps, 0.1 * scales[1:], atol=1e-9)


def test_a_new_unit_leaves_the_beginning_of_the_segment_where_it_was():
    """In the map, and in the published odometry."""
    submaps = MapTable()
    scale = MapScale(ScaleConfig(), submaps)
    scale.restart(at(10.0))
    for unit in (5.0, 2.0):
        scale._set_unit(unit)
        assert submaps.T_map_local.points(at(10.0)[:3, 3])[0] == pytest.approx(10.0)
        for x in (10.0, 10.3):
            published = scale.shifted(at(x), Scale())[0, 3] * scale.published_unit(Scale())
            assert published == pytest.approx(10.0 + unit * (x - 10.0))


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


@pytest.mark.parametrize("source", ["metric_model", "odometry"])
def test_a_new_unit_of_the_segment_keeps_metres(source):
    """Lengths that a new focal length has made 1.2 times as long are still as many metres. What
    was measured before had the error of the old focal length; the scale need not creep."""
    keeper = ScaleFilter(ScaleConfig(source=source, max_step=0.01))
    unit, wrong, values = 1.0, 1.1, []
    for k, (ours, theirs) in enumerate(drive(2.0, steps=150)):
        if k == 100:
            keeper.change_unit(1.2)
            unit, wrong = 1.2, 1.0
        if source == "metric_model":
            keeper.add_measurement(ScaleMeasurement(2.0 * wrong, 0.02), unit)
        else:
            ours[:3, 3] *= unit / wrong
            keeper.add_motion(ours, theirs, unit * DEPTH / 2.0)
        values.append(keeper.update().value * unit / 2.0)
    assert values[99] == pytest.approx(1.1, abs=0.001)
    assert values[100] == pytest.approx(1.1, abs=0.001)  # held until measured anew
    assert values[-1] == pytest.approx(1.0, abs=0.005)
    jumps = np.abs(np.diff(values[100:])) > 0.02
    assert jumps.sum() == 1


def test_only_measurements_that_are_certain_enough_replace_a_held_scale():
    keeper = ScaleFilter(ScaleConfig(source="metric_model", max_step=0.01))
    for _ in range(3):
        keeper.add_measurement(ScaleMeasurement(2.0, 0.02), 1.0)
    assert keeper.update().value == pytest.approx(2.0)
    keeper.change_unit(1.0001)
    assert keeper.update().sigma >= 0.15  # as long as nothing is measured
    for value in (3.0, 3.1, 2.9):
        keeper.add_measurement(ScaleMeasurement(value, 0.3), 1.0)
        assert keeper.update().value == pytest.approx(2.0, rel=0.001)
    for _ in range(15):
        keeper.add_measurement(ScaleMeasurement(2.4, 0.02), 1.0)
        found = keeper.update()
    assert found.value == pytest.approx(2.4, rel=0.01)
    assert found.sigma < 0.15


def test_a_unit_that_changes_before_the_first_value_leaves_the_limit():
    keeper = ScaleFilter(ScaleConfig(source="metric_model", max_step=0.01))
    keeper.change_unit(1.2)
    values = []
    for value in (2.0, 2.0, 2.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0):
        keeper.add_measurement(ScaleMeasurement(value, 0.05), 1.0)
        values.append(keeper.update().value)
    steps = np.abs(np.diff(np.log(values[2:])))
    assert steps.max() < 0.0101


@pytest.mark.parametrize(
    ("source", "value"), [("metric_model", 2.0), ("odometry", 1.0), ("rig", 1.0), ("fixed", 1.0)]
)
def test_the_factor_of_what_a_source_measures_counts(source, value):
    """A focal length changes depths and distances differently."""
    scale = MapScale(ScaleConfig(source=source, factor=4.0))
    window = Window(0, (View(0, 0, "", np.zeros((2, 2, 3), np.uint8)),), 1)
    measure = ScaleMeasurement(4.0, 0.02)
    ones = np.ones((1, 2, 2), np.float32)
    prediction = Prediction(ones, ones, np.eye(4)[None], np.eye(3)[None], measure=measure)
    for _ in range(3):
        found = scale.update(window, prediction, Similarity(1.0, np.eye(3), np.zeros(3)))
    assert found.value == pytest.approx(1.0 if source == "fixed" else 4.0)
    before = scale.metres
    scale.change_unit(depth=2.0, motion=4.0)
    prediction = dataclasses.replace(prediction, measure=None)
    again = scale.update(window, prediction, Similarity(1.0, np.eye(3), np.zeros(3)))
    assert again.value == pytest.approx(value)
    assert scale.metres == pytest.approx(before)  # older parts of the map stay as they are
    longer = 4.0 / value if source != "fixed" else 1.0  # one map unit, in the new unit
    assert longer * scale.unit == pytest.approx(1.0)
