"""Endpoints that do not fit are told with both sides; what the user overrides holds."""

import pytest

pytest.importorskip("rclpy", reason="needs ROS 2: source tools/env.sh or a ROS set-up")

from ros import ros_testing as rt
from ros.test_node import IMAGE, Rig

from da3_ros.ros.qos_events import Endpoint, refused, unheard_text, unserved_text


def test_what_is_refused():
    best, latched = (
        Endpoint("/a", "T", "best_effort"),
        Endpoint("/b", "T", durability="transient_local"),
    )
    plain = Endpoint("/c", "T")
    assert refused(best, plain) == ["reliability"]
    assert refused(plain, best) == []
    assert refused(plain, latched) == ["durability"]
    assert refused(best, latched) == ["reliability", "durability"]


def test_texts_name_both_sides_and_the_remedy():
    plain = Endpoint("", "T")
    best = Endpoint("/driver", "T", "best_effort")
    text = unheard_text("/image", plain, [best, Endpoint("/good", "T")], "do this")
    assert "/driver offers best_effort and volatile, we ask for reliable and volatile" in text
    assert "/good" not in text
    assert text.endswith("do this")
    text = unserved_text(
        "/da3/path", plain, [Endpoint("/rviz", "T", durability="transient_local")]
    )
    assert "/rviz asks for reliable and transient_local, we offer reliable and volatile" in text
    assert "qos_overrides./da3/path.publisher.durability:=transient_local" in text


def test_node_tells_both_sides_and_obeys_overrides():
    override = {"qos_overrides./da3/depth/image.publisher.reliability": "best_effort"}
    with Rig(qos=rt.BEST_EFFORT, image_reliability="reliable", **override) as rig:
        rig.until(lambda: rig.status and rig.status[-1].state == "active")
        rig.listen("/da3/points", "sensor_msgs/msg/PointCloud2", rt.LATCHED)
        rig.process.wait_for("/test_node asks for")
        assert "/da3/points: cannot serve" in rig.process.output()
        rig.process.wait_for(f"{IMAGE}: cannot hear")
        assert "/test_node offers best_effort and volatile" in rig.process.output()
        rig.until(lambda: rig.node.get_publishers_info_by_topic("/da3/depth/image"))
        (offer,) = rig.node.get_publishers_info_by_topic("/da3/depth/image")
        assert offer.qos_profile.reliability.name == "BEST_EFFORT"
