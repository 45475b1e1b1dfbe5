"""Returns of range sensors from a camera at its own stamp: motion, mounts, what is left out."""

import dataclasses

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from da3_ros.geometry.poses import invert_pose
from da3_ros.sensors.pose_prior import PosePrior
from da3_ros.sensors.range_returns import (
    KEEP_S,
    MOST_RETURNS,
    RangeError,
    RangeHistory,
    RangeScan,
    RangeSensors,
)
from da3_ros.sensors.transform_tree import TransformTree
from da3_ros.types import Frame

MS = 1_000_000
# Sensor (x forward, z up) in the camera's optical axes.
MOUNT = np.array([[0.0, -1, 0, 0.1], [0, 0, -1, -0.2], [1, 0, 0, 0.05], [0, 0, 0, 1]])


def frame(stamp_ns):
    return Frame(stamp_ns, np.zeros((4, 6, 3), np.uint8), "camera")


def base_at(seconds):
    """A robot that drives 1 m/s and turns 60 degrees per second."""
    T = np.eye(4)
    T[:3, :3] = Rotation.from_rotvec([0, 0, np.radians(60) * seconds]).as_matrix()
    T[0, 3] = seconds
    return T


CAMERA = np.array([[0.0, 0, 1, 0.2], [-1, 0, 0, 0], [0, -1, 0, 0.5], [0, 0, 0, 1]])  # in base


def tree(until_s=2.0, odom=True):
    out = TransformTree(keep_s=100)
    out.add("base", "camera", CAMERA, 0, static=True)
    out.add("camera", "lidar", MOUNT, 0, static=True)
    for i in range(int(until_s * 50) + 1):
        if odom:
            out.add("odom", "base", base_at(i / 50), i * 20 * MS)
    return out


def sensors(transforms, prior=None):
    warned = []
    made = RangeSensors(
        ["/lidar"], transforms, "odom", lambda text, every_s=0: warned.append(text), prior
    )
    return made, warned


def sweep(start_s, duration_s, points=None):
    """A scan of points of the surroundings [N, 3] (in odom), each seen at its own time."""
    rng = np.random.default_rng(0)
    # Before the camera: it looks along x of the base.
    ahead = rng.uniform([2, -0.4, 0], [4, 0.4, 1], (200, 3))
    there = ahead @ base_at(start_s)[:3, :3].T + base_at(start_s)[:3, 3]
    offsets = np.linspace(0, duration_s, len(there))
    seen = []
    for point, offset in zip(there, offsets, strict=True):
        T = invert_pose(base_at(start_s + offset) @ CAMERA @ MOUNT)
        seen.append(T[:3, :3] @ point + T[:3, 3])
    stamps = np.int64(start_s * 1e9) + np.rint(offsets * 1e9).astype(np.int64)
    return there, RangeScan("lidar", int(start_s * 1e9), np.array(seen, np.float32), stamps)


def expected(there, stamp_ns):
    T = invert_pose(base_at(stamp_ns / 1e9) @ CAMERA)
    return there @ T[:3, :3].T + T[:3, 3]


def error_of(found, there, stamp_ns):
    return np.linalg.norm(found.points - expected(there, stamp_ns), axis=1).max()


def test_each_return_is_moved_from_its_own_time_to_the_images():
    made, warned = sensors(tree())
    there, scan = sweep(1.0, 0.1)
    made.topics["/lidar"].add(scan.stamp_ns, lambda: scan, 1)
    stamp = 1130 * MS
    found = made.at(frame(stamp))
    assert error_of(found, there, stamp) < 0.01  # poses of 2 ms
    assert warned == []
    assert made.counts["frames_with_returns"] == 1
    assert made.age_s == pytest.approx(0.13)
    # With the stamp of the message for all, they would be off by a sweep's motion.
    made, _ = sensors(tree())
    at_once = RangeScan("lidar", scan.stamp_ns, scan.points)
    made.topics["/lidar"].add(scan.stamp_ns, lambda: at_once, 1)
    assert error_of(made.at(frame(stamp)), there, stamp) > 0.2


def test_of_many_returns_those_before_the_camera_are_kept():
    """Before they are moved, each from its own time, they are thinned."""
    there, scan = sweep(1.0, 0.1)
    behind = np.tile(np.float32([-3, 0, 0]), (5 * MOST_RETURNS, 1))
    stamps = np.linspace(scan.stamps_ns[0], scan.stamps_ns[-1], len(behind)).astype(np.int64)
    many = dataclasses.replace(
        scan, points=np.concatenate((behind, scan.points)),
        stamps_ns=np.concatenate((stamps, scan.stamps_ns)),
    )  # fmt: skip
    made, _ = sensors(tree())
    made.topics["/lidar"].add(scan.stamp_ns, lambda: many, 10)
    stamp = scan.stamp_ns + 150 * MS
    found = made.at(frame(stamp))
    np.testing.assert_allclose(found.points, expected(there, stamp), atol=0.01)


def test_the_robots_own_poses_move_returns_where_no_transform_does():
    transforms = tree(odom=False)
    prior = PosePrior("odometry", 0.5, transforms, "odom")
    for i in range(100):
        prior.add_odometry("base", base_at(i / 50), i * 20 * MS)
    made, warned = sensors(transforms, prior)
    there, scan = sweep(1.0, 0.1)
    made.topics["/lidar"].add(scan.stamp_ns, lambda: scan, 1)
    assert error_of(made.at(frame(1130 * MS)), there, 1130 * MS) < 0.01
    assert warned == []


def test_without_any_motion_only_returns_near_the_image_count():
    made, warned = sensors(tree(odom=False))
    _, scan = sweep(1.0, 0.1)
    made.topics["/lidar"].add(scan.stamp_ns, lambda: scan, 1)
    found = made.at(frame(1000 * MS))
    assert len(found.points) == 100  # of the first 50 ms
    assert made.at(frame(1200 * MS)) is None
    assert "no transform from 'odom' (odom_frame) tells how the robot moved" in warned[-1]
    assert made.counts["ranges_no_transform"] == 1


def test_transforms_that_are_a_little_late_are_held():
    made, warned = sensors(tree(until_s=1.08))
    there, scan = sweep(1.0, 0.08)
    made.topics["/lidar"].add(scan.stamp_ns, lambda: scan, 1)
    found = made.at(frame(1110 * MS))
    assert error_of(found, there, 1080 * MS) < 0.01  # as if it had stood still since
    assert warned == []


def test_messages_far_from_the_image_are_late():
    made, warned = sensors(tree())
    assert made.at(frame(1000 * MS)) is None
    _, scan = sweep(1.0, 0.0)
    made.topics["/lidar"].add(scan.stamp_ns, lambda: scan, 1)
    assert made.at(frame(1300 * MS)) is None
    assert "nothing was received yet" in warned[0]
    assert "the newest is 0.30 s older" in warned[1]
    assert made.counts["ranges_late"] == 2


def test_unreadable_messages_and_unknown_frames_are_warned_of():
    def broken():
        raise RangeError("no x")

    made, warned = sensors(tree())
    made.topics["/lidar"].add(0, broken, 1)
    assert made.at(frame(0)) is None
    assert warned == ["no returns of /lidar: a message is not used: no x"]
    scan = RangeScan("sonar", 500 * MS, np.ones((1, 3), np.float32))
    made.topics["/lidar"].add(500 * MS, lambda: scan, 1)
    assert made.at(frame(500 * MS)) is None
    assert "'sonar' is not in the transform tree" in warned[-1]


def test_returns_behind_the_camera_are_left_out_and_many_thinned():
    made, warned = sensors(tree())
    points = np.tile(np.array([[2, 0, 0], [-2, 0, 0]], np.float32), (MOST_RETURNS + 5, 1))
    scan = RangeScan("lidar", 0, points)
    made.topics["/lidar"].add(0, lambda: scan, 1)
    found = made.at(frame(0))
    assert len(found.points) == MOST_RETURNS
    assert (found.points[:, 2] > 0).all()
    behind = RangeScan("lidar", 100 * MS, points[1::2])
    made.topics["/lidar"].add(100 * MS, lambda: behind, 1)
    assert made.at(frame(100 * MS)) is None
    assert "none of its returns is in the image" in warned[-1]


def test_a_single_range_is_a_cone_from_the_sensor():
    made, _ = sensors(tree())
    scan = RangeScan("lidar", 0, np.array([[3, 0, 0]], np.float32), half_angle=0.2)
    made.topics["/lidar"].add(0, lambda: scan, 1)
    (cone,) = made.at(frame(0)).cones
    np.testing.assert_allclose(cone.origin, MOUNT[:3, 3])
    np.testing.assert_allclose(cone.axis, [0, 0, 1], atol=1e-7)
    assert (cone.range_m, cone.half_angle) == (3.0, 0.2)


def test_a_history_is_bounded_in_time_and_bytes():
    read, counts = lambda: None, []
    history = RangeHistory(keep_bytes=1000)
    for i in range(100):
        history.add(i * 100 * MS, read, 10)
        counts.append(len(history._messages))
    assert max(counts) == round(KEEP_S * 10) + 1
    history.add(10_000 * MS, read, 980)
    assert len(history._messages) == 3
    history.add(0, read, 1)  # stamps begin anew
    assert history.newest_ns == 0
