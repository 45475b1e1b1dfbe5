"""Rest is told from motion by samples alone, but for constant speed."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from support.inertial import BODY, InertialWalk

from da3_ros.inertial.stillness import Stillness


def steady(turn_deg_s=0.0, axis="z", speed=0.0):
    T = np.tile(np.eye(4), (40, 1, 1))
    T[:, :3, :3] = [[1, 0, 0], [0, 0, 1], [0, -1, 0]]
    angle = np.radians(turn_deg_s) * 0.1 * np.arange(40)[:, None]
    T[:, :3, :3] = Rotation.from_euler(axis, angle).as_matrix() @ T[0, :3, :3]
    T[:, :3, 3] = 0.1 * speed * np.arange(40)[:, None] * [1.0, 0.0, 0.0]
    return T


def rest(walk, known=False):
    still = Stillness()
    if known:
        still.know_bias(walk.samples.gyro_bias[0] @ BODY[:3, :3].T, 5e-4)
    return [still.add(s) for s in walk.stretches]


def test_rest_is_seen_after_a_second():
    for seed in range(6):
        found = rest(InertialWalk("still", seed, 4, poses=steady()))
        assert not any(found[:9])
        assert all(found[10:])


@pytest.mark.parametrize("kind", ["carried", "drone", "handheld"])
def test_a_hand_and_a_drone_never_rest(kind):
    for seed in range(4):
        assert sum(rest(InertialWalk(kind, seed, 10))) == 0


@pytest.mark.parametrize("axis", ["x", "y"])
def test_a_slow_tilt_is_no_rest(axis):
    """Less than a degree per second is within the gyro's bias, but gravity turns."""
    for seed in range(4):
        assert sum(rest(InertialWalk("still", seed, 4, poses=steady(0.8, axis)))) == 0


def test_a_slow_turn_about_the_vertical_is_no_rest_once_the_bias_is_known():
    walk = InertialWalk("still", 3, 4, poses=steady(0.5))
    assert any(rest(walk))
    assert not any(rest(walk, known=True))
    assert all(rest(InertialWalk("still", 3, 4, poses=steady()), known=True)[10:])


def test_constant_speed_cannot_be_told():
    assert all(rest(InertialWalk("still", 3, 4, poses=steady(speed=1.0)))[10:])


def test_after_a_gap_rest_is_seen_anew():
    walk, still = InertialWalk("still", 3, 4, poses=steady()), Stillness()
    assert [still.add(s) for s in walk.stretches[:12]][-1]
    assert not still.add(None)
    assert not any(still.add(s) for s in walk.stretches[13:21])
