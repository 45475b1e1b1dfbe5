"""A robot beside the live node: its transforms, and a drive of a few frames."""

import numpy as np
from scipy.spatial.transform import Rotation
from support import ros_testing as rt
from support.node_process import FRAME, LIB, Rig, camera_frames

from da3_ros.messages import build


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
