"""A planar scan of a frame's obstacles."""

import numpy as np
import pytest
from support.solids import K, Solid, camera_at, depth_of

from da3_ros.config import ObstacleConfig
from da3_ros.messages import build
from da3_ros.messages.build import RosbagsLibrary
from da3_ros.navigation.scan import BEAMS, scan_ranges
from da3_ros.navigation.sighting import sight

CONFIG = ObstacleConfig()
ANGLES = 2 * np.pi * (np.arange(BEAMS) / BEAMS - 0.5)


def scan(T, solids=(), config=CONFIG, **options):
    return scan_ranges(sight(depth_of(T, solids, **options), K, T, config), T, config.max_range)


@pytest.mark.parametrize("x", [0.0, 0.4])
def test_ranges_are_from_the_levels_origin(x):
    T = camera_at(1.0, x=x)
    ranges = scan(T, [Solid((3.0, -5, 0), (3.2, 5, 2.5))])
    ahead = np.abs(ANGLES) < np.radians(20)
    np.testing.assert_allclose(ranges[ahead] * np.cos(ANGLES[ahead]), 3.0, atol=0.05)
    assert np.isnan(ranges[np.abs(ANGLES) > np.radians(50)]).all()


def test_no_return_is_infinite_and_what_was_not_seen_is_not_a_number():
    box = Solid((2.0, -0.3, 0), (2.3, 0.3, 1.0))
    ranges = scan(camera_at(1.0), [box])
    at_box = np.abs(ANGLES) < np.radians(7)
    beside = (np.abs(ANGLES) > np.radians(12)) & (np.abs(ANGLES) < np.radians(30))
    np.testing.assert_allclose(ranges[at_box] * np.cos(ANGLES[at_box]), 2.0, atol=0.05)
    assert np.isposinf(ranges[beside]).mean() > 0.95  # a beam beside the box may see too little
    assert np.isnan(ranges[np.abs(ANGLES) > np.radians(34)]).all()


def test_a_beam_that_was_seen_free_only_near_by_is_unknown():
    down = camera_at(0.5, 60.0)  # sees the floor to about 1 m
    ranges = scan(down)
    assert np.isnan(ranges).all()


@pytest.mark.parametrize("height", [0.1, 0.15, 0.2, 0.3, 0.5])
def test_a_low_camera_sees_that_nothing_is_there(height):
    """Its rows of pixels meet the floor far apart before the range."""
    ahead = np.abs(ANGLES) < np.radians(30)
    wall, pallet = Solid((9.0, -50, 0), (9.2, 50, 2.5)), Solid((3.6, -50, 0), (4.6, 50, 0.22))
    assert np.isposinf(scan(camera_at(height), [wall])[ahead]).mean() > 0.95
    before = np.abs(ANGLES) < np.radians(20)  # where the pallet is within the range
    assert not np.isposinf(scan(camera_at(height), [wall, pallet])[before]).any()


def test_a_ray_over_a_chair_does_not_say_that_none_is_there():
    ranges = scan(camera_at(1.0, -30.0))  # looks up: sees nothing lower than 1 m
    assert np.isnan(ranges).all()


def test_a_beam_over_an_edge_is_not_free():
    ledge = Solid((-5, -5, -0.01), (2.0, 5, 0))  # the floor ends at 2 m
    ranges = scan(camera_at(1.0, 15.0), [ledge], floor=False)
    assert np.isnan(ranges[np.abs(ANGLES) < np.radians(20)]).all()


def test_the_nearest_obstacle_counts():
    near, far = Solid((1.5, -0.2, 0), (1.6, 0.2, 0.6)), Solid((3.0, -3, 0), (3.2, 3, 2.5))
    ranges = scan(camera_at(1.0), [near, far])
    assert ranges[BEAMS // 2] == pytest.approx(1.5, abs=0.02)


def test_its_geometry_is_constant_and_that_of_the_message():
    lib = RosbagsLibrary()
    ranges = scan(camera_at(1.0), [Solid((3.0, 1.0, 0), (3.2, 5, 2.5))])
    message = build.laser_scan(lib, 7, "base_link", ranges, 8.0)
    kind = "sensor_msgs/msg/LaserScan"
    sent = lib.store.deserialize_cdr(lib.serialize(message, kind), kind)
    angles = sent.angle_min + np.arange(len(sent.ranges)) * sent.angle_increment
    np.testing.assert_allclose(angles, ANGLES, atol=1e-4)
    assert sent.angle_max == pytest.approx(angles[-1], abs=1e-4)
    left = angles[np.isfinite(sent.ranges)]
    assert left.min() > 0.2  # y is to the left
    assert sent.header.frame_id == "base_link"
    assert sent.header.stamp.nanosec == 7
