"""Wrong mounts, units and stamps of an IMU are named; sound ones are not."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from support.cases import long_after
from support.inertial import BODY, InertialWalk, rover

from da3_ros.inertial.mount_check import MountCheck


def checked(walk, change=lambda s: s, bend_deg=0.0, each=lambda check: None):
    """bend_deg: by which each pose is turned more than the one before, about one axis of the
    room, as by a network that bends the way. each: is called with the check after each frame."""
    check = MountCheck()
    for i, R in enumerate(walk.poses[:, :3, :3]):
        stretch = change(walk.stretches[i - 1]) if i else None
        bent = Rotation.from_rotvec(np.radians(bend_deg * i) * walk.R_local_room[:, 0])
        check.add(int(walk.at[i]), stretch, bent.as_matrix() @ R)
        each(check)
    return check


@pytest.mark.parametrize("kind", long_after(3, ["carried", "loop", "still", "drone", "handheld"]))
def test_a_sound_imu_has_no_fault(kind):
    for seed in range(3):
        check = checked(InertialWalk(kind, seed, 15, rotation_deg=0.1))
        assert check.fault == ""
        if check.time_offset_s is not None:
            assert abs(check.time_offset_s.seconds) < 4 * check.time_offset_s.sigma + 0.001


@pytest.mark.parametrize("bend_deg", [0.0, 0.012])
@pytest.mark.parametrize("rotation_deg", [0.0, 0.05])
@pytest.mark.parametrize("seed", long_after(1, [0, 1]))
def test_a_way_that_a_network_bends_is_no_fault_of_the_imu(seed, rotation_deg, bend_deg):
    """A slow circle: it turns evenly about the vertical, as a bias does, and hardly about another
    axis, so that little looks like a wrong mount."""
    walk, said = InertialWalk("loop", seed, 50, rotation_deg=rotation_deg), set()
    checked(walk, bend_deg=bend_deg, each=lambda check: said.update((check.fault, check.late)))
    assert said == {""}


@pytest.mark.long
def test_a_time_offset_that_noise_shows_is_not_stated():
    """Where rates hardly change, the least residual is where noise has one."""
    known = []

    def note(check):
        if (found := check.time_offset_s) is not None:
            known.append(abs(found.seconds) / found.sigma)

    for seed in range(3):
        for seconds in (15, 25):
            checked(InertialWalk("loop", seed, seconds, rotation_deg=0.03), each=note)
    assert max(known, default=0.0) < 3


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


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_mount_that_is_tilted_on_a_rover_is_named_by_its_tilt(seed):
    """And by nothing about the vertical, which no rotation shows."""
    stated = BODY.copy()
    stated[:3, :3] = BODY[:3, :3] @ Rotation.from_euler("y", 20, degrees=True).as_matrix()
    walk = InertialWalk("still", seed, 12, poses=rover(seed, 12), stated=stated, rotation_deg=0.1)
    fault = checked(walk).fault
    assert float(fault.split("turned by ")[1].split(" degrees")[0]) == pytest.approx(20, abs=3)


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


@pytest.mark.parametrize("slips", [60, 200])
@pytest.mark.parametrize(("axis", "turned"), [("y", 20), ("z", 90)])
def test_a_mount_that_slips_is_named_by_its_angle_within_seconds(slips, axis, turned):
    """While the rotations before it are still compared, which with it look like late stamps."""
    stated = BODY.copy()
    stated[:3, :3] = BODY[:3, :3] @ Rotation.from_euler(axis, turned, degrees=True).as_matrix()
    good, bad = (
        InertialWalk("carried", 1, 26, rotation_deg=0.1, stated=mount) for mount in (BODY, stated)
    )
    good.stretches[slips:] = bad.stretches[slips:]
    faults, late = [], []
    checked(good, each=lambda check: (faults.append(check.fault), late.append(check.late)))
    assert not any(faults[:slips])
    found = faults[slips + 55].split("turned by ")[1]
    assert float(found.split(" degrees")[0]) == pytest.approx(turned, rel=0.2)
    assert not any(late)


@pytest.mark.parametrize("then", ["is mended", "stands", "turns evenly", "goes on"])
@pytest.mark.parametrize("degrees", long_after(1, [90, 12]))
def test_a_named_mount_stays_until_rotations_contradict_it(then, degrees):
    """A camera that stands, or turns evenly about one axis, shows no mount."""
    stated = BODY.copy()
    stated[:3, :3] = BODY[:3, :3] @ Rotation.from_euler("z", degrees, degrees=True).as_matrix()
    begin = InertialWalk("carried", 1, 12).true
    poses = np.repeat(begin[-1:], 400, axis=0)
    if then == "turns evenly":
        turns = Rotation.from_euler("z", 0.03 * np.arange(400)[:, None]).as_matrix()
        poses[:, :3, :3] = turns @ poses[:, :3, :3]
    elif then != "stands":
        poses = InertialWalk("carried", 2, 40).true
    poses = np.concatenate((begin, poses))
    walk, wrong = (
        InertialWalk("", 1, 0, rotation_deg=0.1, poses=poses, stated=mount)
        for mount in (BODY, stated)
    )
    count = len(begin) if then == "is mended" else None
    walk.stretches[:count] = wrong.stretches[:count]
    faults = []
    checked(walk, each=lambda check: faults.append(bool(check.fault)))
    assert faults[len(begin) - 1]
    assert faults[-1] == (then != "is mended")
    assert then == "is mended" or all(faults[len(begin) :])


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
