"""Other nodes with the name, the topics or the camera's topic of the live node, over DDS."""

import dataclasses

import pytest
from support import ros_testing as rt
from support.node_process import FRAME, IMAGE, LIB, NODE, Rig, arguments, camera_frames, values_of

from da3_ros.messages import build

pytestmark = pytest.mark.process


@pytest.mark.long
def test_a_second_publisher_of_outputs_is_warned_of():
    with Rig() as rig:
        diagnostics = rig.listen("/diagnostics", "diagnostic_msgs/msg/DiagnosticArray")
        rig.ready()
        other = rig.node.create_publisher(LIB.type("sensor_msgs/msg/Image"), "/da3/depth/image", 1)
        name = rig.node.get_fully_qualified_name()
        said = f"/da3/depth/image: {name} publishes it too"
        rig.until(lambda: said in rig.process.output())
        rig.until(lambda: said in diagnostics[-1].status[0].message)
        rig.node.destroy_publisher(other)
        rig.until(lambda: said not in diagnostics[-1].status[0].message)
        assert rig.process.output().count(said) == 1


@pytest.mark.long
def test_a_second_node_of_one_name_is_warned_of():
    with Rig() as rig:
        rig.ready()
        assert "another node has this name" not in rig.process.output()
        env = rt.environment(rig.domain)
        with rt.start(NODE, *arguments(), env=env) as second:
            rig.until(lambda: "/da3: another node has this name" in rig.process.output())
            rig.until(lambda: "/da3: another node has this name" in second.output())


@pytest.mark.long
def test_of_two_cameras_on_one_topic_the_first_is_used():
    camera, frames = camera_frames(6)
    with Rig() as rig:
        depths = rig.listen("/da3/depth/image", "sensor_msgs/msg/Image")
        diagnostics = rig.listen("/diagnostics", "diagnostic_msgs/msg/DiagnosticArray")
        rig.ready()
        for n, frame in enumerate(frames, 1):
            other = dataclasses.replace(frame, stamp_ns=frame.stamp_ns + 1_000_000)
            rig.show(camera, frame)  # right before the other: it has not stopped
            rig.images.publish(build.image(LIB, other.stamp_ns, "right", other.image))
            rig.until(lambda n=n: len(depths) == n)
            rig.until(lambda n=n: rig.drops().get("foreign_frame") == n)
        assert {depth.header.frame_id for depth in depths} == {FRAME}
        said = f"{IMAGE}: images of frame_id 'right' are dropped, since '{FRAME}' came first"
        assert rig.process.output().count(said) == 1
        assert rig.node.get_fully_qualified_name() in rig.process.output()
        rig.until(lambda: "foreign_frame" in diagnostics[-1].status[0].message)
        rig.until(lambda: values_of(diagnostics[-1]).get("dropped_foreign_frame") == "6")
