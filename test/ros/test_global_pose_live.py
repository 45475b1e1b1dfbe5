"""Global poses reach the map of a live node over DDS."""

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs ROS 2: source tools/env.sh or a ROS set-up")

from lifecycle_msgs.msg import Transition
from support import ros_testing as rt
from support.live_node import LiveNode
from support.node_process import LIB, camera_frames

from da3_ros.messages import build
from da3_ros.messages.odometry_tf import rigid
from da3_ros.synthetic.truth import TruthSession

pytestmark = pytest.mark.process
UP = (Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_ACTIVATE)
COUNT, AT = 12, 8
VALUES = {
    "scale.source": "fixed", "refinement.enabled": False, "dense.enabled": False,
    "window.size": 4,
}  # fmt: skip
KIND = "geometry_msgs/msg/PoseWithCovarianceStamped"


def test_the_pose_moves_to_a_global_one_and_odometry_does_not_jump(monkeypatch):
    camera, frames = camera_frames(COUNT)
    with LiveNode(monkeypatch, camera, frames, TruthSession, **VALUES) as live:
        assert live.change(*UP)
        said = live.node.create_publisher(LIB.type(KIND), "/da3/global_pose", rt.RELIABLE)
        poses = rt.collect(live.node, KIND, "/da3/pose", rt.RELIABLE)
        odoms = rt.collect(live.node, "nav_msgs/msg/Odometry", "/da3/odom", rt.RELIABLE)
        warned = []
        monkeypatch.setattr(live.da3, "warn", lambda text, *_, **__: warned.append(text))
        live.until(lambda: rt.matched(said))
        covariance = np.diag([1e-4] * 6)
        for i in range(COUNT):
            if i == AT:
                T = frames[i - 1].T_room_camera  # of the camera: there is no base_frame
                at = frames[i - 1].stamp_ns
                said.publish(build.pose_with_covariance(LIB, at, "", T, covariance))
                live.until(lambda: any("its header has no frame_id" in w for w in warned))
                said.publish(build.pose_with_covariance(LIB, at, "map", T, covariance))
                anchors = live.da3.runner.stream.anchors
                live.until(lambda: bool(anchors._given[-1]))  # noqa: B023
            live.show()
            live.until(lambda i=i: len(poses) > i and len(odoms) > i)
        ours = [rigid(m.pose.pose.position, m.pose.pose.orientation) for m in poses]
        off = [
            np.linalg.norm(T[:3, 3] - f.T_room_camera[:3, 3])
            for T, f in zip(ours, frames, strict=True)
        ]
        assert off[AT - 1] > 1.0
        assert off[-1] < 0.5 * off[AT - 1]
        steps = np.linalg.norm(
            np.diff([[getattr(m.pose.pose.position, a) for a in "xyz"] for m in odoms], axis=0),
            axis=1,
        )
        assert steps[AT - 1] < 2 * np.median(steps)
        assert live.change(Transition.TRANSITION_DEACTIVATE)
        live.until(lambda: not live.node.get_subscriptions_info_by_topic("/da3/global_pose"))
