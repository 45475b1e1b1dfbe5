"""Wrong mounts, units and stamps of an IMU are named; sound ones are not."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from support.inertial import BODY, InertialWalk, rover

from da3_ros.inertial.mount_check import MountCheck


def checked(walk, change=lambda s: s, frames=None):
    check = MountCheck()
    for i in range(frames or len(walk.at)):
        stretch = change(walk.stretches[i - 1]) if i else None
        check.add(int(walk.at[i]), stretch, walk.poses[i, :3, :3])
    return check


@pytest.mark.parametrize("kind", ["carried", "drone", "handheld", "loop", "still"])
def test_a_sound_imu_has_no_fault(kind):
    for seed in range(3):
        check = checked(InertialWalk(kind, seed, 15, rotation_deg=0.1))
        assert check.fault == ""
        if check.time_offset_s is not None:
            assert abs(check.time_offset_s.seconds) < 4 * check.time_offset_s.sigma + 0.001


@pytest.mark.parametrize("turned", [0, 90])
def test_what_rotations_about_one_axis_cannot_show_is_not_named(turned):
    """A robot on a floor: about the vertical, any mount has the same rates."""
    stated = BODY.copy()
    stated[:3, :3] = BODY[:3, :3] @ Rotation.from_euler("z", turned, degrees=True).as_matrix()
    for seed in range(3):
        walk = InertialWalk(
            "still", seed, 12, poses=rover(seed, 12), stated=stated, rotation_deg=0.1
        )
        assert checked(walk).fault == ""


@pytest.mark.parametrize("turned", [(90, 0, 0), (0, -90, 0), (0, 0, 90), (0, 180, 0)])
def test_a_mount_that_is_turned_is_named_within_seconds(turned):
    stated = BODY.copy()
    stated[:3, :3] = BODY[:3, :3] @ Rotation.from_euler("xyz", turned, degrees=True).as_matrix()
    for seed in range(3):
        walk = InertialWalk("carried", seed, 6, rotation_deg=0.2, stated=stated)
        size, fault = max(abs(angle) for angle in turned), checked(walk).fault
        found = float(fault.split("turned by ")[1].split(" degrees")[0])
        assert found == pytest.approx(size, abs=8)
        assert "correct the transform" in fault


def test_body_axes_that_are_taken_for_optical_ones_are_named():
    walk = InertialWalk("carried", 3, 6, rotation_deg=0.2, stated=np.eye(4))
    assert "those of a body (x ahead, z up), but its mount says optical" in checked(walk).fault


@pytest.mark.parametrize(
    ("factor", "fault"),
    [
        ({"gyro": 57.3}, "in degrees per second"),
        ({"acceleration": 1 / 9.81}, "in g"),
        ({"acceleration": 0.01}, "with gravity"),
        ({"gyro": 0.0}, "other rotations"),
    ],
)
def test_wrong_units_and_dead_sensors_are_named(factor, fault):
    walk = InertialWalk("carried", 3, 6, rotation_deg=0.2)

    def change(stretch):
        return replace(stretch, **{k: v * getattr(stretch, k) for k, v in factor.items()})

    assert fault in checked(walk, change).fault


@pytest.mark.parametrize("late_s", [-0.06, 0.0, 0.03, 0.12])
@pytest.mark.parametrize("kind", ["carried", "handheld"])
def test_late_stamps_are_measured(kind, late_s):
    walk = InertialWalk(kind, 3, 15, rotation_deg=0.1, late_s=late_s)
    found = checked(walk).time_offset_s
    assert found.sigma < 0.01
    assert abs(found.seconds - late_s) < 4 * found.sigma + 0.002


@pytest.mark.parametrize(
    ("late_s", "said"), [(0.01, ""), (0.06, "60 ms later"), (-0.06, "60 ms earlier")]
)
def test_stamps_that_cost_metres_are_named_with_the_remedy(late_s, said):
    late = checked(InertialWalk("carried", 3, 15, rotation_deg=0.1, late_s=late_s)).late
    assert bool(late) == bool(said)
    if said:
        assert said[3:] in late
        parameter = float(late.split("subtract ")[1].split(" from imu.time_offset_s")[0])
        assert parameter == pytest.approx(late_s, abs=0.005)


def test_a_camera_that_does_not_turn_shows_nothing():
    check = checked(InertialWalk("straight", 3, 10))
    assert check.time_offset_s is None
    assert check.fault == ""


def test_gaps_are_left_out():
    walk = InertialWalk("carried", 3, 12, rotation_deg=0.1, late_s=0.05)
    check = MountCheck()
    for i in range(len(walk.at)):
        if i % 40 != 7:  # a frame that was not placed
            stretch = walk.stretches[i - 1] if i else None
            check.add(int(walk.at[i]), stretch, walk.poses[i, :3, :3])
    assert check.time_offset_s.seconds == pytest.approx(0.05, abs=0.01)


def test_samples_at_the_limit_of_the_range_are_named():
    walk = InertialWalk("carried", 3, 6, limits=(np.inf, 9.0))
    assert checked(walk).fault == ""  # as far as anyone can tell: no sensor ends at 9 m/s^2
    fast = InertialWalk("carried", 3, 6, poses=steep(walk.true), limits=(np.inf, 19.6))
    assert "at the limit of its range in" in checked(fast).fault


def steep(T):
    """The walk with a camera that is shaken up and down."""
    out = T.copy()
    out[::4, 2, 3] += 0.15
    return out
