"""The live node with a robot's odometry, over DDS."""

import pytest
from support import ros_testing as rt
from support.node_process import FRAME, LIB
from support.robot import Robot, run

from da3_ros.messages import build

pytestmark = pytest.mark.process

PRIOR = {"pose_prior.source": "odometry", "scale.source": "odometry"}


def odometer(robot, topic="/odometry"):
    kind = LIB.type("nav_msgs/msg/Odometry")
    # Best effort, as some drivers send: reliable ones are heard too, never the other way round.
    publisher = robot.node.create_publisher(kind, topic, rt.BEST_EFFORT)
    rt.spin_until(robot.node, lambda: rt.matched(publisher))

    def say(frame):
        T = frame.T_room_camera
        publisher.publish(build.odometry(LIB, frame.stamp_ns, "odom", FRAME, T))
        rt.spin_until(robot.node, lambda: False, 0.3)  # before its image

    return say


def test_odometry_reaches_the_network_and_keeps_its_owner():
    with Robot(**PRIOR) as robot:
        robot.ready()
        run(robot, n=4, before=odometer(robot))
        output = robot.process.output()
        assert "the network gets poses" in output
        assert "no pose from" not in output
        assert not robot.edges()


@pytest.mark.long
def test_without_odometry_the_network_goes_on_alone_and_warns():
    with Robot(**PRIOR) as robot:
        run(robot, n=2)
        output = robot.process.output()
        assert "no pose from odometry: no odometry yet" in output
        assert "the network gets no poses" in output
