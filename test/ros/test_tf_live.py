"""Transforms of the live node beside a robot's own, over DDS."""

import dataclasses

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from support import ros_testing as rt
from support.node_process import FRAME, LIB, NODE, arguments, camera_frames
from support.robot import Robot, matrix, run

from da3_ros.messages import build

pytestmark = pytest.mark.process

ROBOT = {"base_frame": "base_link", "scale.source": "fixed"}


def level_mount(height=1.2):
    """base_link to a camera that looks forward, level, at ``height``."""
    T = np.eye(4)
    T[:3, :3] = Rotation.from_euler("xyz", (-90, 0, -90), degrees=True).as_matrix()
    T[:3, 3] = 0.1, 0.0, height
    return T


def test_with_base_and_mount_the_base_is_published():
    """With base and mount the base is published and starts level at the origin."""
    T_base_optical = level_mount()
    with Robot(**ROBOT) as robot:
        robot.mount(T_base_optical)
        poses = run(robot)
        robot.until(lambda: len(robot.edges()) >= 6)
        # The first of each: on a busy machine another publisher's may come between.
        edges = reversed(robot.edges()[:6])
        found = {(t.header.frame_id, t.child_frame_id): t for t in edges}
        assert set(found) == {("map", "odom"), ("odom", "base_link")}
        first = matrix(found["odom", "base_link"].transform)
    # The robot stands level where the map begins, so its floor is the map's x-y plane.
    np.testing.assert_allclose(first, np.eye(4), atol=1e-6)
    p = poses[0].pose.pose.position
    np.testing.assert_allclose([p.x, p.y, p.z], T_base_optical[:3, 3], atol=1e-6)


def test_beside_a_localiser_only_map_to_odom_is_published():
    with Robot(**ROBOT) as robot:
        robot.mount(level_mount())

        def localise(frame):
            T = np.eye(4)
            stamps = (frame.stamp_ns - 10**8, frame.stamp_ns + 10**8)
            robot.moving.publish(build.tf(LIB, [(s, "odom", "base_link", T) for s in stamps]))
            rt.spin_until(robot.node, lambda: False, 0.3)  # the robot is ahead of its camera

        run(robot, before=localise)
        mine = [t for t in robot.edges() if t.child_frame_id == "odom"]
        others = [t for t in robot.edges() if t.child_frame_id == "base_link"]
        assert mine
        assert len(others) == 6  # only the localiser's own


@pytest.mark.long
def test_an_unknown_scale_leaves_a_robots_tree_and_warns_once():
    with Robot(base_frame="base_link") as robot:
        robot.mount(level_mount())
        run(robot)
        assert not robot.edges()
        assert robot.process.output().count("no transform is published") == 1


FAR = 42.0  # where a localiser of the tests puts the robot: nowhere near


def localise(robot, stamp_ns, edge=("odom", "base_link")):
    """What a localiser sends: the robot's place before and after a frame."""
    T = np.eye(4)
    T[0, 3] = FAR
    stamps = (stamp_ns - 10**8, stamp_ns + 10**8)
    robot.moving.publish(build.tf(LIB, [(s, *edge, T) for s in stamps]))


def ours(robot, child):
    """Transforms to ``child`` that the node sent."""
    found = [t for t in robot.edges() if t.child_frame_id == child]
    return [t for t in found if t.transform.translation.x != FAR]


def frames_forever(rate_hz=10.0):
    """A camera that stands, with its stamps."""
    camera, frames = camera_frames(1)
    for n in range(10_000):
        stamp_ns = frames[0].stamp_ns + round(n * 1e9 / rate_hz)
        yield camera, dataclasses.replace(frames[0], stamp_ns=stamp_ns)


class Stream:
    """A camera that stands before a robot, frame by frame."""

    def __init__(self, robot, rate_hz=10.0):
        self.robot, self._frames = robot, frames_forever(rate_hz)
        self.depths = robot.listen("/da3/depth/image", "sensor_msgs/msg/Image")

    def next(self, before=lambda stamp_ns: None):
        """One more frame, processed; returns its stamp."""
        camera, frame = next(self._frames)
        before(frame.stamp_ns)
        rt.spin_until(self.robot.node, lambda: False, 0.05)  # the robot is ahead of its camera
        known = len(self.depths)
        self.robot.show(camera, frame)
        self.robot.until(lambda: len(self.depths) > known)
        return frame.stamp_ns


@pytest.mark.long
def test_a_localiser_that_starts_late_takes_its_transform_over():
    with Robot(**ROBOT) as robot:
        robot.mount(level_mount())
        stream = Stream(robot)
        robot.ready()
        for _ in range(3):
            stream.next()
        robot.until(lambda: len(ours(robot, "base_link")) >= 3)

        def run_localiser(stamp_ns):
            localise(robot, stamp_ns)

        stream.next(run_localiser)
        known = len(ours(robot, "base_link"))
        for _ in range(6):
            stream.next(run_localiser)
        rt.spin_until(robot.node, lambda: False, 2.0)  # nor is it repeated while idle
        assert len(ours(robot, "base_link")) == known
        # The map stays where it is: its transform makes up for the localiser's other origin.
        robot.until(lambda: abs(ours(robot, "odom")[-1].transform.translation.x + FAR) < 1)
        said = robot.process.output()
        assert said.count("test_node publishes odom -> base_link too") == 1
        assert "set tf.publish to map_only" in said

        robot.until(lambda: stream.next() and len(ours(robot, "base_link")) > known)
        robot.process.wait_for("da3 publishes it again")


@pytest.mark.long
def test_a_late_map_to_odom_is_left_to_its_owner():
    with Robot(**ROBOT) as robot:
        robot.mount(level_mount())
        stream = Stream(robot)
        robot.ready()
        stream.next()
        robot.until(lambda: ours(robot, "odom"))
        for _ in range(2):
            stream.next(lambda stamp_ns: localise(robot, stamp_ns, ("map", "odom")))
        known, moved = len(ours(robot, "odom")), len(ours(robot, "base_link"))
        for _ in range(3):
            stream.next(lambda stamp_ns: localise(robot, stamp_ns, ("map", "odom")))
        robot.until(lambda: len(ours(robot, "base_link")) >= moved + 3)
        assert len(ours(robot, "odom")) == known
        assert "test_node publishes map -> odom too" in robot.process.output()


@pytest.mark.long
def test_a_tree_that_starts_after_the_last_frame_is_complete():
    camera, frames = camera_frames(2)
    with Robot() as robot:
        depths = robot.listen("/da3/depth/image", "sensor_msgs/msg/Image")
        robot.ready()
        for n, frame in enumerate(frames, 1):
            robot.show(camera, frame)
            robot.until(lambda n=n: len(depths) == n)
        last = {}

        def repeated():
            late = [t for m in robot.late for t in m.transforms]
            last.update({(t.header.frame_id, t.child_frame_id): rt.stamp_ns(t) for t in late})
            return len(robot.late) >= 3

        rt.spin_until(robot.node, lambda: False, 1.5)
        robot.late = robot.listen("/tf", "tf2_msgs/msg/TFMessage")
        robot.until(repeated)
        assert set(last) == {("map", "odom"), ("odom", FRAME)}
        for stamp in last.values():  # no claim about a time that no frame has shown
            assert 0 < stamp - frames[-1].stamp_ns < 1000
        stamps = [rt.stamp_ns(t) for t in robot.edges() if t.child_frame_id == FRAME]
        assert len(set(stamps)) == len(stamps), "tf2 warns of a stamp that comes twice"
        # Paused it still has its tree; after a reset there is none.
        assert robot.call("std_srvs/srv/SetBool", "/da3/enable", data=False).success
        count = len(robot.late)
        robot.until(lambda: len(robot.late) > count + 1)
        assert robot.call("std_srvs/srv/Trigger", "/da3/reset").success
        rt.spin_until(robot.node, lambda: False, 0.5)
        count = len(robot.late)
        rt.spin_until(robot.node, lambda: False, 2.5)
        assert len(robot.late) == count
        assert "too: da3 stops" not in robot.process.output(), "its own are no other's"


@pytest.mark.long
def test_of_two_nodes_on_one_camera_one_publishes_in_the_end():
    with Robot() as robot:
        stream = Stream(robot)
        robot.ready()
        for _ in range(2):
            stream.next()
        second = rt.start(
            NODE, *arguments(), "-r", "__ns:=/second", env=rt.environment(robot.domain)
        )
        with second:
            others = robot.listen("/second/da3/depth/image", "sensor_msgs/msg/Image")
            robot.until(lambda: robot.images.get_subscription_count() == 2)
            robot.until(lambda: stream.next() and len(others) > 10)
            until_quiet(robot, stream)
            assert second.running


def until_quiet(robot, stream, frames=20):
    """Until every frame of a range has brought each transform once."""

    def quiet():
        start = len(robot.edges())
        for _ in range(frames):
            stream.next()
        rt.spin_until(robot.node, lambda: False, 0.5)
        stamps = [(t.child_frame_id, rt.stamp_ns(t)) for t in robot.edges()[start:]]
        return len(stamps) >= frames and len(set(stamps)) == len(stamps)

    robot.until(quiet)
