"""The live node follows another SLAM, over DDS: by its transform, and by its path."""

import numpy as np
import pytest
from support.cases import long_after

pytest.importorskip("rclpy", reason="needs ROS 2: source tools/env.sh or a ROS set-up")

from lifecycle_msgs.msg import Transition
from support import ros_testing as rt
from support.live_node import LiveNode
from support.node_process import FRAME, LIB, camera_frames, values_of

from da3_ros.geometry.poses import invert_pose
from da3_ros.messages import build
from da3_ros.messages.odometry_tf import rigid
from da3_ros.synthetic.odometry import drifted
from da3_ros.synthetic.truth import TruthSession

UP = (Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_ACTIVATE)
COUNT, AT = 24, 20
PRIOR = {
    "pose_prior.source": "odometry", "scale.source": "odometry", "refinement.enabled": False,
    "window.size": 5,
}  # fmt: skip
TF = {"pose_prior.corrections": "tf", "pose_prior.map_frame": "map"}
PATH = {"pose_prior.corrections": "path"}


class Robot:
    """Odometry that drifts, and another SLAM that finds out at frame ``AT``."""

    def __init__(self, live, frames):
        self.live, self.frames = live, frames
        offset = np.array([0.01, 0.0, 0.0])
        self.priors = drifted([f.T_room_camera for f in frames], 0.2, offset)
        node = live.node
        self.odometry = node.create_publisher(
            LIB.type("nav_msgs/msg/Odometry"), "/odometry", rt.RELIABLE
        )
        self.tf = node.create_publisher(LIB.type("tf2_msgs/msg/TFMessage"), "/tf", 100)
        self.path = node.create_publisher(LIB.type("nav_msgs/msg/Path"), "/slam_path", rt.LATCHED)
        self.poses = rt.collect(
            node, "geometry_msgs/msg/PoseWithCovarianceStamped", "/da3/pose", rt.RELIABLE
        )
        self.odoms = rt.collect(node, "nav_msgs/msg/Odometry", "/da3/odom", rt.RELIABLE)
        self.heard = rt.collect(node, "tf2_msgs/msg/TFMessage", "/tf", 100)
        self.diagnostics = rt.collect(
            node, "diagnostic_msgs/msg/DiagnosticArray", "/diagnostics", rt.RELIABLE
        )
        live.until(lambda: rt.matched(self.odometry) and rt.matched(self.tf))

    def drive(self, by):
        stream = self.live.da3.runner.stream
        for i, frame in enumerate(self.frames):
            at, prior = frame.stamp_ns, self.priors[i]
            self.odometry.publish(build.odometry(LIB, at, "odom", FRAME, prior))
            if by == "tf" and i in (0, AT):
                T = frame.T_room_camera @ invert_pose(prior)
                self.tf.publish(build.tf(LIB, [(at, "map", "odom", T)]))
            if by == "path" and i == AT:
                done = [(f.stamp_ns, f.T_room_camera) for f in self.frames[:i:3]]
                self.path.publish(build.path(LIB, at, "map", done))
            self.live.until(lambda i=i: self._knows(stream, by, i))
            self.live.show()
            self.live.until(lambda i=i: len(self.poses) > i and len(self.odoms) > i)

    def _knows(self, stream, by, i):
        """Whether the node has heard what was said before frame ``i``."""
        newest = stream.prior._history._poses
        if not newest or newest[-1][0] < self.frames[i].stamp_ns:
            return False
        if by == "none":
            return True
        if by == "path":
            return i < AT or bool(stream.slam._paths)
        tree, last = stream._annotator.transforms, self.frames[AT if i >= AT else 0].stamp_ns
        return tree.connected("map", "odom") and tree.newest("map", "odom") == last


@pytest.mark.long
@pytest.mark.parametrize(("by", "values"), long_after(1, [("tf", TF), ("path", PATH)]))
def test_the_pose_moves_to_the_other_slams_and_odometry_does_not_jump(monkeypatch, by, values):
    camera, frames = camera_frames(COUNT)
    with LiveNode(monkeypatch, camera, frames, TruthSession, **PRIOR, **values) as live:
        assert live.change(*UP)
        robot = Robot(live, frames)
        robot.drive(by)
        poses = [rigid(m.pose.pose.position, m.pose.pose.orientation) for m in robot.poses]
        odoms = [rigid(m.pose.pose.position, m.pose.pose.orientation) for m in robot.odoms]
        for i in range(AT - 1, COUNT - 1):  # as the robot's own odometry goes on
            ours = invert_pose(odoms[i]) @ odoms[i + 1]
            theirs = invert_pose(robot.priors[i]) @ robot.priors[i + 1]
            np.testing.assert_allclose(ours[:3, :3], theirs[:3, :3], atol=1e-6)
            assert np.linalg.norm(ours[:3, 3] - theirs[:3, 3]) < 0.02
        away = [np.linalg.norm((poses[i] - frames[i].T_room_camera)[:3, 3]) for i in range(COUNT)]
        assert away[AT] < 0.5 * away[AT - 1]
        live.until(
            lambda: (
                robot.diagnostics
                and values_of(robot.diagnostics[-1]).get("corrections_followed") == "1"
            )
        )
        assert float(values_of(robot.diagnostics[-1])["correction_m"]) > 0.05
        told = [t for m in robot.heard for t in m.transforms if t.child_frame_id == "odom"]
        assert len(told) == (2 if by == "tf" else 0)


@pytest.mark.long
def test_a_bad_path_is_named_and_the_node_goes_on(monkeypatch):
    camera, frames = camera_frames(3)
    with LiveNode(monkeypatch, camera, frames, TruthSession, **PRIOR, **PATH) as live:
        assert live.change(*UP)
        robot, warned = Robot(live, frames), []
        monkeypatch.setattr(live.da3, "warn", lambda text, *_, **__: warned.append(text))
        live.until(lambda: rt.matched(robot.path))
        robot.path.publish(build.path(LIB, 5, "map", [(2, np.eye(4)), (1, np.eye(4))]))
        live.until(lambda: any("slam_path: not used: its stamps go back" in w for w in warned))
        robot.drive("none")
        assert live.change(Transition.TRANSITION_DEACTIVATE)
        live.until(lambda: not live.node.get_subscriptions_info_by_topic("/slam_path"))
