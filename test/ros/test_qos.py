"""Incompatible endpoints are reported with both sides; what the user overrides holds."""

import re
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="needs ROS 2: source tools/env.sh or a ROS set-up")

from support import ros_testing as rt
from support.cases import long_after
from support.node_process import (
    ACTIVATE,
    CLEANUP,
    CONFIGURE,
    DEACTIVATE,
    IMAGE,
    Rig,
    change,
    state_is,
)

from da3_ros.live.log_throttle import MOST, Throttle
from da3_ros.live.qos_rules import incompatible_policies
from da3_ros.ros.qos import (
    ATTEMPTS,
    UNNAMED,
    Endpoint,
    Endpoints,
    Incompatibility,
    incompatible_publishers_text,
    incompatible_subscribers_text,
)

PLAIN = Endpoint("", "T")
BEST = Endpoint("/driver", "T", "best_effort")
NAMELESS = Endpoint(UNNAMED, "T", "best_effort")


def test_what_is_refused():
    best, latched = (
        Endpoint("/a", "T", "best_effort"),
        Endpoint("/b", "T", durability="transient_local"),
    )
    plain = Endpoint("/c", "T")
    assert incompatible_policies(best, plain) == ["reliability"]
    assert incompatible_policies(plain, best) == []
    assert incompatible_policies(plain, latched) == ["durability"]
    assert incompatible_policies(best, latched) == ["reliability", "durability"]


def test_texts_name_both_sides_and_the_remedy():
    text = incompatible_publishers_text("/image", PLAIN, [BEST, Endpoint("/good", "T")], "do this")
    assert (
        "/driver offers best_effort and volatile, this node requests reliable and volatile" in text
    )
    assert "/good" not in text
    assert text.endswith("do this")
    text = incompatible_publishers_text("/odometry", PLAIN, [BEST])
    assert text.endswith("-p qos_overrides./odometry.subscription.reliability:=best_effort")
    rviz = Endpoint("/rviz", "T", durability="transient_local")
    text = incompatible_subscribers_text("/da3/path", PLAIN, [rviz])
    assert (
        "/rviz requests reliable and transient_local, this node offers reliable and volatile"
        in text
    )
    assert "qos_overrides./da3/path.publisher.durability:=transient_local" in text
    text = incompatible_subscribers_text(
        "/da3/path", PLAIN, [Endpoint("/rviz", "T")], ["deadline"]
    )
    assert text.endswith("incompatible deadline; lower it there")


def incompatibility(peers):
    """Of a reliable subscription; ``peers`` may change between two looks."""
    return Incompatibility(
        lambda: peers,
        lambda peer: incompatible_policies(peer, PLAIN),
        lambda found, policies: ", ".join([*(peer.node for peer in found), *policies]),
    )


def test_a_peer_is_reported_once_its_name_is_known():
    peers = [NAMELESS]
    one = incompatibility(peers)
    assert not one.pending
    one.record("reliability")
    assert one.text() == ""
    peers[:] = [BEST]
    assert one.text() == "/driver"
    assert not one.pending


def test_a_peer_that_never_gets_a_name_is_reported_too():
    one = incompatibility([NAMELESS])
    one.record("reliability")
    assert [one.text() for _ in range(ATTEMPTS)] == [""] * (ATTEMPTS - 1) + [UNNAMED]
    assert not one.pending


def test_a_peer_that_is_gone_is_forgotten():
    """A peer that is gone is forgotten though fitting ones stay."""
    one = incompatibility([Endpoint("/good", "T")])
    one.record("reliability")
    assert [one.text() for _ in range(ATTEMPTS)] == [""] * ATTEMPTS
    assert not one.pending


def test_a_policy_unknown_to_the_graph_comes_from_the_event():
    one = incompatibility([Endpoint("/good", "T")])
    one.record("deadline")
    assert [one.text() for _ in range(ATTEMPTS)][-1] == "/good, deadline"


def test_throttle_counts_each_key_and_remembers_not_without_end():
    throttle = Throttle()
    assert throttle.due("a", 10.0, 0.0)
    assert throttle.due("b", 10.0, 1.0), "one topic does not swallow another"
    assert not throttle.due("a", 10.0, 9.0)
    assert throttle.due("a", 10.0, 10.0)
    for i in range(2 * MOST):
        throttle.due(str(i), 10.0, 11.0)
    assert len(throttle._logged_s) == MOST


def test_two_topics_are_reported_at_once_a_throttled_one_later():
    endpoints = Endpoints(None)
    one, two = incompatibility([BEST]), incompatibility([Endpoint("/other", "T", "best_effort")])
    endpoints._incompatibilities = {("/a", "subscription"): one, ("/b", "subscription"): two}
    one.record(), two.record()
    assert endpoints.warnings(0.0) == ["/driver", "/other"]
    one.record()
    assert endpoints.warnings(5.0) == []
    assert endpoints.warnings(10.0) == ["/driver"]
    assert endpoints.warnings(30.0) == []


def test_every_endpoint_of_the_node_goes_through_endpoints():
    """So that none lacks overrides and events."""
    folder = Path(rt.ROOT, "da3_ros", "ros")
    makers = {
        path.name
        for path in folder.glob("*.py")
        if re.search(r"\.create_(publisher|subscription)\(", path.read_text())
    }
    # Those beside qos are nodes of their own: the demonstration and the synthetic camera.
    assert makers <= {"qos.py", "demo.py", "synthetic_camera.py"}


@pytest.mark.process
def test_node_reports_both_sides_and_obeys_overrides():
    override = {"qos_overrides./da3/depth/image.publisher.reliability": "best_effort"}
    with Rig(qos=rt.BEST_EFFORT, image_reliability="reliable", **override) as rig:
        rig.until(lambda: rig.status and rig.status[-1].state == "active")
        rig.listen("/da3/points", "sensor_msgs/msg/PointCloud2", rt.LATCHED)
        rig.listen("/da3/odom", "nav_msgs/msg/Odometry", rt.LATCHED)
        for topic in ("/da3/points", "/da3/odom"):
            rig.process.wait_for(
                f"{topic}: cannot deliver to every subscriber: /test_node requests"
            )
        rig.process.wait_for(f"{IMAGE}: cannot receive from")
        assert "/test_node offers best_effort and volatile" in rig.process.output()
        rig.until(lambda: rig.node.get_publishers_info_by_topic("/da3/depth/image"))
        (offer,) = rig.node.get_publishers_info_by_topic("/da3/depth/image")
        assert offer.qos_profile.reliability.name == "BEST_EFFORT"


@pytest.mark.process
@pytest.mark.parametrize("value", long_after(1, ["best_efort", "1"]))
def test_a_wrong_override_of_an_input_is_one_line(value):
    """A wrong override of an input is one line and the node stays inactive."""
    name = f"qos_overrides.{IMAGE}.subscription"
    with Rig(**{f"{name}.durability": value}) as rig:
        rig.process.wait_for(f"{name}: ")
        state_is(rig, "inactive")
        assert name in rig.status[-1].last_error
        assert "Traceback" not in rig.process.output()


@pytest.mark.process
def test_a_wrong_override_of_own_topics_ends_with_one_line():
    name = "qos_overrides./da3/status.publisher"
    with Rig(**{f"{name}.reliability": "best_efort"}) as rig:
        assert rig.process.wait() == 2
        assert f"da3_node: {name}: " in rig.process.output()
        assert "Traceback" not in rig.process.output()


@pytest.mark.long
@pytest.mark.process
def test_overrides_hold_after_cleanup_and_configure():
    """Every topic is overridden and still is after cleanup and configure."""
    override = {
        "qos_overrides./diagnostics.publisher.reliability": "best_effort",
        "qos_overrides./tf.publisher.reliability": "best_effort",
        "qos_overrides./tf.subscription.reliability": "best_effort",
        "qos_overrides./tf_static.subscription.durability": "volatile",
        "qos_overrides./da3/points.publisher.durability": "transient_local",
        f"qos_overrides.{IMAGE}.subscription.depth": 2,
        "qos_overrides./camera/camera_info.subscription.reliability": "reliable",
    }
    with Rig(autostart=False, **override) as rig:
        node = rig.node

        def sides(topic, look):
            rig.until(lambda: [i for i in look(topic) if i.node_name == "da3"])
            return next(i.qos_profile for i in look(topic) if i.node_name == "da3")

        publishers, subscriptions = (
            node.get_publishers_info_by_topic, node.get_subscriptions_info_by_topic,
        )  # fmt: skip
        state_is(rig, "unconfigured")
        for _ in range(2):
            change(rig, CONFIGURE)
            change(rig, ACTIVATE)
            assert sides("/diagnostics", publishers).reliability.name == "BEST_EFFORT"
            assert sides("/tf", publishers).reliability.name == "BEST_EFFORT"
            assert sides("/tf", subscriptions).reliability.name == "BEST_EFFORT"
            assert sides("/tf_static", subscriptions).durability.name == "VOLATILE"
            assert sides("/da3/points", publishers).durability.name == "TRANSIENT_LOCAL"
            assert sides("/camera/camera_info", subscriptions).reliability.name == "RELIABLE"
            change(rig, DEACTIVATE)
            change(rig, CLEANUP)
        assert "Traceback" not in rig.process.output()
