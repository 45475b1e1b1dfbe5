"""Which transforms on /tf are this node's own."""

import types

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs ROS 2: source tools/env.sh or a ROS set-up")

from da3_ros.messages import build
from da3_ros.ros import tf_subscriber as tf_input
from da3_ros.ros.rclpy_library import RclpyLibrary
from da3_ros.ros.tf_subscriber import KEPT, QUEUE, SentTransforms, TfInput, TfPublishers
from da3_ros.sensors.transform_tree import TransformTree

LIB = RclpyLibrary()
OWN, OTHER = bytes(range(16)), bytes(range(16, 32))


def message(stamp_ns=5, x=0.0, parent="odom", child="base_link"):
    T = np.eye(4)
    T[0, 3] = x
    return build.tf(LIB, [(stamp_ns, parent, child, T)])


def endpoint(name, gid):
    return types.SimpleNamespace(node_name=name, node_namespace="/", endpoint_gid=list(gid))


class Node:
    """What is asked of a node: its name and the graph."""

    def __init__(self, *publishers):
        self.publishers = publishers

    def resolve_topic_name(self, topic):
        return topic

    def get_fully_qualified_name(self):
        return "/da3"

    def get_publishers_info_by_topic(self, topic):
        return self.publishers


def listener(node, sent=None):
    """What a node hears, and by which functions."""
    heard = {}
    endpoints = types.SimpleNamespace(
        subscribe=lambda kind, topic, callback, qos: heard.setdefault(topic, callback)
    )
    tree = TransformTree()
    TfInput(endpoints, tree, TfPublishers(node), sent or SentTransforms(), pytest.fail)
    return tree, heard["/tf"]


def info(gid):
    return {"publisher_gid": {"implementation_identifier": "any", "data": gid}}


def test_our_and_their_transforms_on_one_edge_are_distinguished():
    tree, hear = listener(Node(endpoint("da3", OWN), endpoint("ekf", OTHER)))
    hear(message(), info(OWN))
    assert tree.parent("base_link") is None
    hear(message(), info(OTHER))
    assert (tree.parent("base_link"), tree.owner("base_link")) == ("odom", "/ekf")


@pytest.mark.parametrize("known", [None, {}, info(None), info(OWN)])
def test_without_a_publishers_name_what_was_sent_is_ours(known):
    """rclpy of Jazzy, and a middleware whose identifiers the graph does not know."""
    sent = SentTransforms()
    tree, hear = listener(Node(), sent)
    sent.add(message(5, 1.0))
    known = {} if known is None else known
    hear(message(5, 1.0), {**known, "publisher_gid": known.get("publisher_gid")})
    assert tree.parent("base_link") is None
    for other in (message(5, 1.1), message(6, 1.0), message(5, 1.0, parent="world")):
        hear(other, known)
        assert tree.parent("base_link") == other.transforms[0].header.frame_id


def test_two_nodes_of_one_name_are_distinguished_by_content():
    sent = SentTransforms()
    tree, hear = listener(Node(endpoint("da3", OWN), endpoint("da3", OTHER)), sent)
    sent.add(message(5))
    hear(message(5), info(OWN))
    assert tree.parent("base_link") is None
    hear(message(5, 2.0), info(OTHER))
    assert tree.parent("base_link") == "odom"


def test_what_was_sent_is_bounded_and_outlasts_the_queue():
    sent = SentTransforms()
    for n in range(KEPT + 50):
        sent.add(message(n))
    held = [n for n in range(KEPT + 50) if message(n) in sent]
    assert held == list(range(50, KEPT + 50))
    assert len(held) > QUEUE


def test_without_message_info_what_was_sent_is_ours(monkeypatch):
    """Humble."""
    monkeypatch.setattr(tf_input, "WITH_INFO", False)
    sent = SentTransforms()
    tree, hear = listener(Node(endpoint("ekf", OTHER)), sent)
    sent.add(message(5))
    hear(message(5))
    assert tree.parent("base_link") is None
    hear(message(6))
    assert tree.parent("base_link") == "odom"
