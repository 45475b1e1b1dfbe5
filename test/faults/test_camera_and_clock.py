"""A camera that goes and comes, lies about its type, and clocks that jump."""

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs ROS 2: source tools/env.sh or a ROS set-up")

from support import ros_testing as rt
from support.node_process import IMAGE, LIB, Rig, camera_frames, set_parameter, values_of

from da3_ros.messages import build

pytestmark = pytest.mark.process

START_NS = 1_700_000_000_000_000_000


@pytest.mark.long
def test_node_survives_unplugging_a_storm_and_a_wrong_type():
    """A camera unplugged and back, 200 parameter changes, and a publisher of another type."""
    camera, frames = camera_frames(6)
    with Rig() as rig:
        depths = rig.listen("/da3/depth/image", "sensor_msgs/msg/Image")
        diagnostics = rig.listen("/diagnostics", "diagnostic_msgs/msg/DiagnosticArray")
        rig.ready()
        rig.show(camera, frames[0])
        rig.until(lambda: len(depths) == 1)
        _parameter_storm(rig)
        rig.show(camera, frames[1])
        rig.until(lambda: len(depths) == 2)

        rig.node.destroy_publisher(rig.images)
        # Something else takes its name meanwhile.
        other = rig.node.create_publisher(
            LIB.type("sensor_msgs/msg/CompressedImage"), IMAGE, rt.RELIABLE
        )
        rig.until(lambda: "no images arrive" in diagnostics[-1].status[0].message)
        assert diagnostics[-1].status[0].level == b"\x01"
        rig.until(lambda: "its type is" in rig.process.output())
        rig.node.destroy_publisher(other)
        rig.images = rig.node.create_publisher(
            LIB.type("sensor_msgs/msg/Image"), IMAGE, rt.RELIABLE
        )
        rig.ready()
        rig.show(camera, frames[2])
        rig.until(lambda: len(depths) == 3)
        rig.until(lambda: "no images" not in diagnostics[-1].status[0].message)
        assert rig.process.running
        assert "Traceback" not in rig.process.output()
        said = values_of(diagnostics[-1])
        assert float(said["input_age_s"]) >= 0


def _parameter_storm(rig, count=200):
    """Changes asked for all at once: each is answered, and the last one holds."""
    from rcl_interfaces.srv import SetParameters
    from rclpy.parameter import Parameter
    from rclpy.qos import qos_profile_parameters

    # The default profile keeps 10 answers: a busy client would lose the others.
    client = rig.node.create_client(
        SetParameters, "/da3/set_parameters", qos_profile=qos_profile_parameters
    )
    rig.until(client.service_is_ready)
    values = [("depth.min_confidence", 0.001 * n) for n in range(count)]
    values += [("depth.min_confidence", -1.0), ("model", "da3-base"), ("window.size", 10**9)]
    asked = [
        client.call_async(
            SetParameters.Request(parameters=[Parameter(name, value=value).to_parameter_msg()])
        )
        for name, value in values
    ]
    rig.until(lambda: all(future.done() for future in asked))
    accepted = [future.result().results[0].successful for future in asked]
    assert accepted == [True] * count + [False] * 3
    assert set_parameter(rig, "depth.min_confidence", 0.0).successful


class Clock:
    """A simulator's clock and the camera that stands in it."""

    def __init__(self, rig):
        self.rig, self.t = rig, START_NS
        self.topic = rig.node.create_publisher(
            LIB.type("rosgraph_msgs/msg/Clock"), "/clock", rt.RELIABLE
        )
        self.image = np.random.default_rng(0).integers(0, 256, (112, 140, 3)).astype(np.uint8)

    def tick(self, seconds):
        """Time goes on, or back."""
        self.t += round(seconds * 1e9)
        message = LIB.type("rosgraph_msgs/msg/Clock")(clock=build.time(LIB, self.t))
        self.topic.publish(message)

    def frame(self, behind_s=0.0):
        """An image of now, or of a little ago."""
        stamp = self.t - round(behind_s * 1e9)
        self.rig.images.publish(build.image(LIB, stamp, "camera_optical", self.image))
        return stamp


def test_node_follows_the_clock_through_pause_seek_rate_loop():
    sim = {"use_sim_time": True, "max_frame_age_s": 2.0, "camera_info_timeout_s": 0.0}
    with Rig(**sim, max_late_s=0.3) as rig:
        depths = rig.listen("/da3/depth/image", "sensor_msgs/msg/Image")
        rig.ready()
        # Before the first /clock: the node serves and reports its state.
        rig.until(lambda: rig.status and rig.status[-1].state == "active")
        clock = Clock(rig)
        rig.until(lambda: rt.matched(clock.topic))
        rt.spin_until(rig.node, lambda: False, 0.5)

        def next_frame(step_s):
            heard = len(depths)
            clock.tick(step_s)
            stamp = clock.frame()
            rig.until(lambda: len(depths) > heard)
            assert rt.stamp_ns(depths[-1]) == stamp

        for _ in range(3):
            next_frame(0.1)
        for _ in range(2):  # pause: the clock repeats itself, nothing comes, nothing happens
            clock.tick(0.0)
            rt.spin_until(rig.node, lambda: False, 0.2)
        next_frame(0.1)
        next_frame(60.0)  # seek forward
        clock.frame()  # repeated stamp
        rig.until(lambda: rig.drops().get("late") == 1)
        clock.frame(behind_s=0.2)  # out of order
        rig.until(lambda: rig.drops().get("late") == 2)
        clock.tick(10.0)
        clock.frame(behind_s=5.0)  # too old by the simulator's clock, not by ours
        rig.until(lambda: rig.drops().get("too_old") == 1)
        next_frame(0.1)
        assert "jump back" not in rig.process.output()
        next_frame(-70.0)  # the bag begins again
        rig.until(lambda: "jump back" in rig.process.output())
        for _ in range(10):  # ten times as fast
            next_frame(1.0)
        assert rig.process.output().count("jump back") == 1
        rig.until(lambda: rig.status[-1].frames_processed == len(depths))
        assert rig.status[-1].latency_median_s < 1.0, "measured on the simulator's clock"
        assert "Traceback" not in rig.process.output()
