"""Several sources of metres as one: how certain they are together, and who is left out."""

import math

import numpy as np
import pytest

from da3_ros.config import ScaleConfig, config_from_parameters
from da3_ros.mapping.metric_scale import ScaleFilter
from da3_ros.parameter_schema import ConfigError
from da3_ros.scale_sources import SCALE_SOURCES, scale_source
from da3_ros.scale_sources.combined import agreement, combined
from da3_ros.scale_sources.estimates import Estimate, MeasurementFilter
from da3_ros.scale_sources.interface import ScaleSource
from da3_ros.types import ScaleMeasurement

TRUE = 2.0
NAMES = ("a", "b", "c")


class Said(MeasurementFilter):
    """Says what a test has set."""

    said = None

    def estimate(self):
        return self.said


class Sayer(ScaleSource):
    def estimator(self):
        return Said()


@pytest.fixture
def keeper(monkeypatch):
    """A scale by three sources, of which each says what ``say`` sets."""
    for name in NAMES:
        monkeypatch.setitem(SCALE_SOURCES, name, Sayer)
    return ScaleFilter(ScaleConfig(source="+".join(NAMES), max_step=0.02))


def say(keeper, *values, sigma=0.01):
    """What each source says, as a factor of the true scale; None: nothing."""
    for member, value in zip(keeper.estimator.members, values, strict=False):
        member.said = value and Estimate(math.log(TRUE * value), sigma)
    return keeper.update()


def go(keeper, metres, depth=1.0):
    """Moves the camera along."""
    T = np.eye(4)
    for x in np.linspace(0, metres, 5):
        T[0, 3] = x
        keeper.estimator.note_way(T.copy(), depth)


def state_of(keeper):
    return {s.name: s.state for s in keeper.estimator.states}


# The parameter


def test_a_list_is_the_names_of_its_sources():
    config = config_from_parameters({"scale.source": ["odometry", "metric_model"]})
    assert config.scale.source == "odometry+metric_model"
    source = scale_source(config.scale.source)
    assert source.needs_prior
    assert source.needs_metric_model
    assert not source.needs_rig
    assert source.learns
    for one in (["odometry"], "odometry"):
        assert config_from_parameters({"scale.source": one}).scale.source == "odometry"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["odometry", "none"], "none measures nothing, so it cannot be combined: name it alone"),
        (["fixed", "odometry"], "fixed measures nothing, so it cannot be combined"),
        (["odometry", "odometry"], "name each one once"),
        (["odometry", "sonar"], "must be one of none, .*; or a list of them"),
        ([], "an empty list: name at least one"),
        (["odometry", 3], "must be a list of texts"),
        (["odometry", "rig"], "rig: this needs two or more `cameras`"),
        (3, "must be a str"),
    ],
)
def test_a_bad_list_is_refused(given, why):
    with pytest.raises(ConfigError, match=f"^scale.source is .*{why}"):
        config_from_parameters({"scale.source": given})


# How certain they are together


@pytest.mark.parametrize("drift", [0.0, 0.003])
def test_the_noise_of_sources_averages_out_and_the_drift_of_the_unit_does_not(drift):
    """The sigma of a combination is that of its error, over seeds."""
    squares, ratios = [], []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        members = [MeasurementFilter() for _ in NAMES]
        unit = 0.0  # logarithm of odometry's unit
        for _ in range(15):
            unit += drift * rng.standard_normal()
            for one in members:
                value = math.exp(unit + 0.02 * rng.standard_normal())
                one.add(ScaleMeasurement(value, 0.02), 1.0)
        single = [one.estimate() for one in members]
        found = combined(single)
        squares.append(((found.log - unit) / found.sigma) ** 2)
        ratios.append(found.sigma / np.mean([one.sigma for one in single]))
    assert 0.3 < np.mean(squares) < 1.3
    assert np.median(ratios) < 0.75


def test_what_estimates_share_stays_in_their_mean():
    """Of the variance, a third is taken as shared at least, and nine tenths at most."""
    alone = Estimate(0.0, 0.05)
    assert combined([alone] * 4).sigma == pytest.approx(0.05 * math.sqrt(0.475), rel=1e-6)
    sharing = Estimate(0.0, 0.05, shared=0.05)
    assert combined([sharing] * 4).sigma == pytest.approx(0.05 * math.sqrt(0.925), rel=1e-6)


def test_the_more_certain_one_decides_the_value():
    found = combined([Estimate(0.0, 0.01), Estimate(0.05, 0.1)])
    assert 0 < found.log < 0.001


def test_estimates_that_differ_by_more_than_they_state_are_less_certain():
    apart = [Estimate(0.0, 0.005), Estimate(0.028, 0.005)]  # too little to matter
    assert agreement(apart) == 1.0
    assert combined(apart).sigma > 0.012


# Who counts


def test_the_one_that_disagrees_is_named_and_left_out(keeper, caplog):
    assert say(keeper, 1.0, 1.01, 0.99).source == "a+b+c"
    for _ in range(5):
        scale = say(keeper, 1.0, 1.3, 0.99)
    assert scale.source == "a+c"
    assert scale.value == pytest.approx(0.995 * TRUE, rel=0.002)
    assert scale.sigma < 0.012
    assert state_of(keeper) == {"a": "counts", "b": "left out", "c": "counts"}
    assert caplog.text.count("scale.source: b differs by 31 % from a and c and is left out") == 1
    # Between agreement and disagreement it stays out.
    assert say(keeper, 1.0, 1.036, 1.0).source == "a+c"
    assert say(keeper, 1.0, 1.02, 0.99).source == "a+b+c"
    assert caplog.text.count("scale.source: b agrees again") == 1
    assert len(caplog.records) == 2


def test_a_doubted_source_is_uncertain_and_agrees_with_no_wrong_one(keeper):
    """Two whose newest measurements differ do not take in one that was left out."""
    for _ in range(6):
        say(keeper, 1.0, 1.0, 1.35)
    members = keeper.estimator.members
    for doubted in (1, 2):
        for member in members[:doubted]:
            member.said = Estimate(math.log(TRUE), 0.01, doubt=0.7)
        found = keeper.update()
        assert list(state_of(keeper).values()) == ["counts", "counts", "left out"]
        assert found.value == pytest.approx(TRUE, rel=0.01)
        assert (found.sigma > 0.6) == (doubted == 2)  # one that is sure confirms the other


def test_of_two_that_disagree_the_scale_so_far_counts(keeper):
    """The deviation includes the difference, whichever is more certain."""
    say(keeper, 1.0, 1.005)
    for moved in (1.05, 1.2, 1.4):
        scale = say(keeper, moved, 1.005, sigma=0.004)
        assert scale.value == pytest.approx(1.004 * TRUE, rel=0.003)
        assert scale.source == "b"
        assert scale.sigma == pytest.approx(math.log(moved / 1.005), rel=0.05)


def test_of_two_the_one_that_slips_slowly_does_not_take_the_scale_along(keeper):
    slips, stays, _ = keeper.estimator.members
    for i in range(60):
        slips.said = Estimate(math.log(TRUE * 1.01**i), 0.01)  # and states to be the better one
        stays.said = Estimate(math.log(TRUE), 0.03)
        scale = keeper.update()
    assert scale.source == "b"
    assert scale.value == pytest.approx(TRUE, rel=0.01)


def test_two_that_never_agreed_give_no_metres_if_they_are_far_apart(keeper, caplog):
    assert not say(keeper, 1.0, 1.3).metric
    assert "nothing tells which is wrong: the scale is that uncertain" in caplog.text
    scale = say(keeper, 1.0, 1.1)
    assert scale.metric
    assert abs(math.log(scale.value / TRUE)) <= scale.sigma


def test_pairs_that_contradict_each_other_are_no_majority(monkeypatch):
    for name in (*NAMES, "d"):
        monkeypatch.setitem(SCALE_SOURCES, name, Sayer)
    keeper = ScaleFilter(ScaleConfig(source="a+b+c+d"))
    assert say(keeper, 1.0, 1.0, 1.12, 1.12).sigma > 0.11


def test_a_source_that_falls_silent_fades_and_one_that_returns_counts(keeper):
    """No change exceeds ``scale.max_step``."""
    values = [say(keeper, 1.0, 1.04, sigma=0.02).value]
    first = values[0]
    for i in range(60):
        go(keeper, 1.0)
        values.append(say(keeper, 1.0, 1.04 + 1e-6 * i, sigma=0.02).value)  # b goes on
    assert state_of(keeper)["a"] == "silent"
    assert values[-1] > first * 1.01
    assert keeper.update().source == "b"
    for i in range(3):
        go(keeper, 1.0)
        values.append(say(keeper, 1.0 + 1e-6 * i, 1.04 - 1e-6 * i, sigma=0.02).value)
    assert keeper.update().source == "a+b"
    assert np.abs(np.diff(np.log(values))).max() <= math.log(1.02) + 1e-12


def test_one_that_says_nothing_keeps_its_last_estimate_and_ages(keeper, monkeypatch):
    """A source with a bias does not take over where the true one is silent for a while."""
    monkeypatch.setattr(keeper.estimator._sources[1], "bias", 0.1)
    for _ in range(5):
        before = say(keeper, 1.0, 1.3, sigma=0.02)
    assert before.value == pytest.approx(TRUE, rel=0.02)
    for i in range(30):
        go(keeper, 1.0)
        scale = say(keeper, None, 1.3 + 1e-6 * i, sigma=0.02)
    assert scale.value == pytest.approx(TRUE, rel=0.06)
    assert before.sigma < scale.sigma
    assert abs(math.log(scale.value / TRUE)) < 2 * scale.sigma
    assert state_of(keeper)["a"] == "silent"
    say(keeper, 1.0 + 1e-6, 1.3, sigma=0.02)
    assert state_of(keeper)["a"] == "counts"
    keeper.estimator.restart_members([True, False, False])  # what is forgotten counts no more
    say(keeper, None, 1.3, sigma=0.02)
    assert state_of(keeper)["a"] == "unknown"


def test_a_standing_robot_ages_nothing(keeper):
    scale = say(keeper, 1.0, 1.04, sigma=0.02)
    for i in range(200):
        go(keeper, 0.0)
        assert say(keeper, 1.0, 1.04 + 1e-6 * i, sigma=0.02).source == "a+b"
    assert keeper.update().value == pytest.approx(scale.value, rel=0.01)


def test_a_bias_that_no_measurement_states_counts_beside_others(monkeypatch):
    """A precise source with a bias yields to a true one."""

    class Biased(Sayer):
        bias = 0.1

    monkeypatch.setitem(SCALE_SOURCES, "a", Biased)
    monkeypatch.setitem(SCALE_SOURCES, "b", Sayer)
    keeper = ScaleFilter(ScaleConfig(source="a+b"))
    assert say(keeper, 1.08, None).sigma > 0.1
    for _ in range(10):
        scale = say(keeper, 1.08, 1.0)
    assert scale.source == "a+b"
    assert scale.value == pytest.approx(TRUE, rel=0.002)


def test_what_was_measured_is_forgotten_by_member(keeper):
    old = keeper.estimator.members
    keeper.estimator.restart_members([False, True, False])
    assert [new is one for new, one in zip(keeper.estimator.members, old, strict=True)] == [
        True, False, True,
    ]  # fmt: skip


def test_a_flapping_source_does_not_fill_the_log(keeper, caplog):
    for _ in range(50):
        say(keeper, 1.0, 1.3, 0.99)
        say(keeper, 1.0, 1.0, 0.99)
    assert len(caplog.records) == 10
