"""The live node with a LiDAR and a range finder, over DDS."""

import pytest

pytest.importorskip("rclpy", reason="needs ROS 2: source tools/env.sh or a ROS set-up")

from lifecycle_msgs.msg import Transition
from support import ros_testing as rt
from support.live_node import LiveNode
from support.node_process import FRAME, LIB, camera_frames, values_of

from da3_ros.messages import build
from da3_ros.recordings.synthetic_bag import MOUNTS
from da3_ros.synthetic.range_sensors import RenderedRanges
from da3_ros.synthetic.truth import TruthSession

pytestmark = pytest.mark.process

UP = (Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_ACTIVATE)
COUNT = 12
LIDAR = {
    "scale.source": "range", "range_topics": ["/lidar/points", "/lidar/info", "/nobody"],
    "refinement.enabled": False, "window.size": 5,
}  # fmt: skip


@pytest.mark.long
def test_a_lidar_gives_metres_live(monkeypatch):
    """Another topic of the list has no returns, and one nobody sends."""
    camera, frames = camera_frames(COUNT)
    ranges = RenderedRanges(camera)
    with LiveNode(monkeypatch, camera, frames, TruthSession, **LIDAR) as live:
        node = live.node
        clouds = node.create_publisher(
            LIB.type("sensor_msgs/msg/PointCloud2"), "/lidar/points", rt.BEST_EFFORT
        )
        node.create_publisher(LIB.type("sensor_msgs/msg/CameraInfo"), "/lidar/info", 1)
        static = node.create_publisher(
            LIB.type("tf2_msgs/msg/TFMessage"), "/tf_static", rt.LATCHED
        )
        mount = MOUNTS["/lidar"]
        static.publish(build.tf(LIB, [(frames[0].stamp_ns, FRAME, "lidar", mount)]))
        told = rt.collect(node, "diagnostic_msgs/msg/DiagnosticArray", "/diagnostics", rt.RELIABLE)
        assert live.change(*UP)
        live.until(lambda: rt.matched(clouds))
        stream = live.da3.runner.stream
        live.until(lambda: stream.ranges._transforms.connected(FRAME, "lidar"))
        for i, f in enumerate(frames):
            points, _ = ranges.sweep(mount, i / camera.rate_hz, 1e-6)
            clouds.publish(build.xyz_cloud(LIB, f.stamp_ns, "lidar", points))
            history = stream.ranges.topics["/lidar/points"]
            live.until(lambda f=f, h=history: h.newest_ns == f.stamp_ns)
            live.show()
            live.until(lambda i=i: len(live.depths) > i)
        assert stream.pipeline.scale.scale.source == "range"
        key = "frames_with_returns"
        live.until(lambda: told and values_of(told[-1]).get(key) == str(COUNT))
        said = values_of(told[-1])
        assert said["scale_source"] == "range"
        assert int(said["returns"]) > 100
        assert int(said["ranges_late"]) == 2 * COUNT  # of the other two topics
        assert float(said["returns_age_s"]) == 0
