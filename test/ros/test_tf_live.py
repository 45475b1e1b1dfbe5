"""Transforms of the live node beside a robot's own, over DDS."""

import numpy as np
from ros import ros_testing as rt
from ros.test_node import FRAME, LIB, Rig, camera_frames
from scipy.spatial.transform import Rotation

from da3_ros.ros import messages as build

ROBOT = {"base_frame": "base_link", "scale.source": "fixed"}


def level_mount(height=1.2):
    """base_link to a camera that looks forward, level, at ``height``."""
    T = np.eye(4)
    T[:3, :3] = Rotation.from_euler("xyz", (-90, 0, -90), degrees=True).as_matrix()
    T[:3, 3] = 0.1, 0.0, height
    return T


class Robot(Rig):
    """A rig whose test node also publishes the robot's transforms."""

    def __enter__(self):
        super().__enter__()
        kind = LIB.type("tf2_msgs/msg/TFMessage")
        self.static = self.node.create_publisher(kind, "/tf_static", rt.LATCHED)
        self.moving = self.node.create_publisher(kind, "/tf", 100)
        self.transforms = self.listen("/tf", "tf2_msgs/msg/TFMessage")
        return self

    def mount(self, T):
        self.static.publish(build.tf(LIB, [(0, "base_link", FRAME, T)]))
        self.until(lambda: rt.matched(self.static))

    def edges(self):
        """Transforms of the node (the test's own are known by their frames)."""
        return [t for m in self.transforms for t in m.transforms]


def matrix(transform):
    q, t = transform.rotation, transform.translation
    T = np.eye(4)
    T[:3, :3] = Rotation.from_quat([q.x, q.y, q.z, q.w]).as_matrix()
    T[:3, 3] = t.x, t.y, t.z
    return T


def run(robot, n=3, before=None):
    camera, frames = camera_frames(n)
    depths = robot.listen("/da3/depth/image", "sensor_msgs/msg/Image")
    poses = robot.listen("/da3/pose", "geometry_msgs/msg/PoseWithCovarianceStamped")
    robot.ready()
    for i, frame in enumerate(frames):
        if before:
            before(frame)
        robot.show(camera, frame)
        robot.until(lambda i=i: len(depths) > i and len(poses) > i)
    return poses


def test_with_base_and_mount_the_base_is_published_and_starts_level_at_the_origin():
    T_base_optical = level_mount()
    with Robot(**ROBOT) as robot:
        robot.mount(T_base_optical)
        poses = run(robot)
        robot.until(lambda: len(robot.edges()) >= 6)
        found = {(t.header.frame_id, t.child_frame_id): t for t in robot.edges()[:2]}
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


def test_an_unknown_scale_leaves_a_robot_alone_and_says_so_once():
    with Robot(base_frame="base_link") as robot:
        robot.mount(level_mount())
        run(robot)
        assert not robot.edges()
        assert robot.process.output().count("no transform is published") == 1
