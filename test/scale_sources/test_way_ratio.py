"""Metres by the robot's way over the camera's, against the truth."""

from unittest.mock import Mock

import numpy as np
import pytest
from support.robot_ways import DEPTH, at, drive

from da3_ros.scale_sources.odometry import OdometryMotion, OdometryRatio
from da3_ros.types import ScaleMeasurement


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


def test_a_unit_that_changes_makes_it_as_uncertain_as_it_was_wrong():
    """A camera in front of a wall, say: its motion is found too short from then on."""
    ways = list(drive(2.0, steps=200))
    corner = ways[150][0][:3, 3].copy()
    for ours, _ in ways[150:]:
        ours[:3, 3] = corner + 0.4 * (ours[:3, 3] - corner)
    assert estimate(ways[:150], 2.0).sigma < 0.01
    found = estimate(ways, 2.0)
    assert np.exp(found.log) == pytest.approx(2.0, rel=0.02)
    assert found.deviation > 0.8 * np.log(1 / 0.4)


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


def test_what_a_network_measures_itself_is_no_odometry():
    """A nested network gives metres with each window; the parameter asks for the robot's."""
    prediction, by_prior = Mock(measure=ScaleMeasurement(2.0, 0.01)), ScaleMeasurement(3.0, 0.02)
    measure = OdometryMotion().measure
    assert measure(Mock(), prediction, None) is None
    assert measure(Mock(), prediction, by_prior) is by_prior
