"""Up frame by frame: with metres and without, at rest, after gaps, in a new frame, and honest."""

from dataclasses import replace

import numpy as np
import pytest
from support.cases import long_after
from support.inertial import UNIT, InertialWalk

from da3_ros.inertial.gravity import GravityFilter, noise_of
from da3_ros.types import ImuNoise

CALIBRATED = ImuNoise(gyro_bias=0.0, acceleration_bias=0.01)


def followed(walk, metres=None, filter=None, without=(), **kwargs):
    """The estimates after each frame."""
    filter, out = filter or GravityFilter(), []
    for i, stamp in enumerate(walk.at):
        stretch = walk.stretches[i - 1] if i and i not in without else None
        out.append(filter.follow(int(stamp), stretch, walk.poses[i], metres, **kwargs))
    return out


def tilt_deg(walk, found):
    return np.degrees(walk.tilt(found.up_local))


@pytest.mark.parametrize("kind", ["carried", "drone", "loop"])
def test_up_is_known_to_a_degree_in_seconds_with_metres(kind):
    for seed in range(3):
        walk = InertialWalk(kind, seed, 12, position_m=0.003, rotation_deg=0.1)
        found = followed(walk, 1 / UNIT)
        assert found[0] is None
        assert tilt_deg(walk, found[60]) < 1.0
        assert tilt_deg(walk, found[-1]) < 0.3
        assert found[-1].sigma < np.radians(0.3)
        np.testing.assert_allclose(np.linalg.norm(found[-1].up_local), 1.0)


@pytest.mark.parametrize("kind", long_after(1, ["carried", "drone", "handheld"]))
def test_without_metres_up_needs_longer(kind):
    for seed in range(2):
        walk = InertialWalk(kind, seed, 20, noise=CALIBRATED)
        found = followed(walk, filter=GravityFilter(CALIBRATED.acceleration_bias))
        assert tilt_deg(walk, found[50]) < 4 * np.degrees(found[50].sigma) < 10
        assert tilt_deg(walk, found[-1]) < 1.0


@pytest.mark.long
@pytest.mark.parametrize("metres", [None, 1 / UNIT])
@pytest.mark.parametrize("kind", ["carried", "handheld", "still"])
def test_the_stated_deviation_is_honest(kind, metres):
    nees = []
    for seed in range(12):
        walk = InertialWalk(kind, seed, 8, position_m=0.003, rotation_deg=0.1)
        found = followed(walk, metres)[-1]
        nees.append(walk.tilt(found.up_local) ** 2 / found.sigma**2 / 2)
    assert 0.02 < np.mean(nees) < 2.0


@pytest.mark.parametrize("shake", [0.0, 5.0])
def test_an_accelerometer_that_shakes_says_less_of_what_is_up(shake):
    """White noise of half of gravity on each sample: up is as uncertain as it is wrong."""
    nees = []
    for seed in range(4):
        walk = InertialWalk("carried", seed, 12, position_m=0.003, rotation_deg=0.1)
        rng = np.random.default_rng(seed)
        walk.stretches = [
            replace(s, acceleration=s.acceleration + shake * rng.normal(size=s.acceleration.shape))
            for s in walk.stretches
        ]
        stated = walk.stretches[5].noise
        assert (noise_of(walk.stretches[5]) is stated) == (shake == 0)
        found = followed(walk, 1 / UNIT)
        nees += [walk.tilt(e.up_local) ** 2 / e.sigma**2 / 2 for e in found[60::10]]
        assert (found[-1].sigma > np.radians(0.5)) == (shake > 0)
    assert np.mean(nees) < 2.0


def test_standing_tells_up_at_once_as_far_as_the_bias_is_known():
    walk = InertialWalk("still", 3, 2, noise=CALIBRATED)
    found = followed(walk, filter=GravityFilter(CALIBRATED.acceleration_bias), still=True)
    assert found[10].sigma < np.radians(0.3)
    assert tilt_deg(walk, found[10]) < 0.6
    unknown = followed(walk, still=True)[-1].sigma
    assert np.radians(0.9) < unknown < np.radians(1.4)  # 20 mg


def test_the_bias_is_separated_where_the_camera_turns():
    walk = InertialWalk("carried", 2, 20)
    found = followed(walk, 1 / UNIT)[-1]
    true = walk.samples.acceleration_bias.mean(axis=0) @ walk.samples.T_camera_imu[:3, :3].T
    np.testing.assert_allclose(found.acceleration_bias, true, atol=0.05)


def test_after_a_gap_up_is_still_known():
    walk = InertialWalk("carried", 3, 12, position_m=0.003)
    found = followed(walk, 1 / UNIT, without=range(60, 75))
    assert found[74].sigma > found[59].sigma
    assert max(tilt_deg(walk, f) for f in found[60:]) < 1.0


def test_in_another_frame_only_the_bias_stays_known():
    first = InertialWalk("carried", 3, 15)
    filter = GravityFilter()
    followed(first, 1 / UNIT, filter)
    filter.restart()
    later = InertialWalk("carried", 3, 15)  # the same chip
    turn = first.R_local_room[[1, 2, 0]]
    later.poses[:, :3, :3] = turn @ later.true[:, :3, :3]
    later.poses[:, :3, 3] = UNIT * later.true[:, :3, 3] @ turn.T
    found = followed(later, 1 / UNIT, filter)
    assert found[0] is None
    up = turn @ [0.0, 0.0, 1.0]
    fresh = followed(later, 1 / UNIT)
    assert found[20].sigma < fresh[20].sigma / 2
    assert np.degrees(np.arccos(found[20].up_local @ up)) < 0.7


def test_a_scale_that_is_corrected_frame_by_frame_costs_nothing():
    walk, filter = InertialWalk("carried", 3, 10), GravityFilter()
    for i, stamp in enumerate(walk.at):
        metres = (1 + 0.02 * np.sin(i)) / UNIT
        stretch = walk.stretches[i - 1] if i else None
        found = filter.follow(int(stamp), stretch, walk.poses[i], metres)
    assert found.sigma < np.radians(0.3)
    assert tilt_deg(walk, found) < 0.6


@pytest.mark.parametrize("bad", [np.nan, 1e30, slice(3)])
def test_samples_that_cannot_be_are_a_gap(bad):
    walk = InertialWalk("carried", 3, 6)
    if isinstance(bad, slice):  # at the limit of the range
        walk.stretches[30].acceleration[bad] = 156.9
    else:
        walk.stretches[30].acceleration[3] = bad
    found = followed(walk, 1 / UNIT)
    assert np.isfinite(found[-1].up_local).all()
    assert tilt_deg(walk, found[-1]) < 1.0


@pytest.mark.parametrize("name", ["acceleration", "acceleration_walk"])
def test_up_is_as_uncertain_as_the_accelerometer_is_stated_to_be(name):
    walk = InertialWalk("carried", 3, 10)
    sure = followed(walk, 1 / UNIT)[-1].sigma
    loud = replace(ImuNoise(), **{name: 0.1})
    walk.stretches = [replace(stretch, noise=loud) for stretch in walk.stretches]
    assert followed(walk, 1 / UNIT)[-1].sigma > 1.2 * sure
