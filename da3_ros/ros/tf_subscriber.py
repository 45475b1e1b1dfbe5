"""Fills the transform tree with the transforms of other nodes on /tf and /tf_static."""

from __future__ import annotations

import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.subscription import Subscription
from tf2_msgs.msg import TFMessage

from da3_ros.messages.odometry_tf import add_transforms
from da3_ros.ros.qos import UNNAMED, Endpoints
from da3_ros.sensors.transform_tree import TransformTree

TOPIC = "/tf"
QUEUE = 100  # messages that wait for the executor, including those of this node
KEPT = 10 * QUEUE  # messages of this node that can be recognised
QUERY_PERIOD_S = 1.0  # least seconds between two graph queries for unknown publishers
# Humble's rclpy passes the message alone; Jazzy's message info lacks the publisher.
WITH_INFO = hasattr(Subscription, "CallbackType")


class SentTransforms:
    """The newest messages that this node sent to /tf, so that it can recognise and ignore them."""

    def __init__(self, most: int = KEPT) -> None:
        self._most = most
        self._keys: OrderedDict[bytes, None] = OrderedDict()
        self._lock = threading.Lock()  # two threads send, the executor's thread receives

    def add(self, message: Any) -> None:
        """Add a tf2_msgs/TFMessage before it is sent."""
        with self._lock:
            self._keys[_key(message)] = None
            while len(self._keys) > self._most:
                self._keys.popitem(last=False)

    def __contains__(self, message: Any) -> bool:
        with self._lock:
            return _key(message) in self._keys


class TfPublishers:
    """Names of the nodes that publish /tf, by the identifiers (GID) of their publishers."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self._topic = node.resolve_topic_name(TOPIC)
        self.own = node.get_fully_qualified_name()
        self._names: dict[bytes, str] = {}
        self._queried_s = -QUERY_PERIOD_S

    def name(self, gid: bytes) -> str:
        """Returns the node's full name; empty if it is unknown or two nodes share it."""
        if gid not in self._names and time.monotonic() - self._queried_s >= QUERY_PERIOD_S:
            self._query()
        return self._names.get(gid, "")

    def _query(self) -> None:
        self._queried_s = time.monotonic()
        infos = self._node.get_publishers_info_by_topic(self._topic)
        names = [f"{i.node_namespace.rstrip('/')}/{i.node_name}" for i in infos]
        self._names = {
            bytes(info.endpoint_gid): name
            for info, name in zip(infos, names, strict=True)
            if names.count(name) == 1 and not info.node_name.startswith("_NODE_NAME_UNKNOWN")
        }


class TfInput:
    """Subscribes to transforms until closed, and ignores those that this node sent itself.

    A message is recognised as own by its publisher's identifier, where rclpy and the middleware
    provide one that the graph knows; otherwise if it equals a sent message in stamps, frames and
    numbers. (An equal message of another node holds the same transforms, so nothing is lost.)
    """

    def __init__(
        self,
        endpoints: Endpoints,
        tree: TransformTree,
        publishers: TfPublishers,
        sent: SentTransforms,
        warn: Callable[[str], None],
    ) -> None:
        """``warn(text)`` is called for transforms that cannot be used."""
        self._endpoints, self.tree, self._warn = endpoints, tree, warn
        self._publishers, self._sent = publishers, sent
        reliable = ReliabilityPolicy.RELIABLE
        latched = QoSProfile(
            depth=QUEUE, reliability=reliable, durability=DurabilityPolicy.TRANSIENT_LOCAL
        )
        callback: Any = self._on_tf if WITH_INFO else self._on_tf_without_info
        self._subscriptions = [
            endpoints.subscribe(TFMessage, TOPIC, callback, QoSProfile(depth=QUEUE)),
            endpoints.subscribe(TFMessage, "/tf_static", self._on_static, latched),
        ]

    def close(self) -> None:
        """Drop the subscriptions."""
        for subscription in self._subscriptions:
            self._endpoints.drop_subscription(subscription)

    def _on_tf(self, message: TFMessage, info: Any) -> None:
        gid = (info.get("publisher_gid") or {}).get("data", b"")
        self._receive(message, self._publishers.name(gid) if gid else "")

    def _on_tf_without_info(self, message: TFMessage) -> None:
        self._receive(message, "")

    def _receive(self, message: TFMessage, owner: str) -> None:
        if owner != self._publishers.own and message not in self._sent:
            self._add(message, owner, static=False)

    def _on_static(self, message: TFMessage) -> None:
        self._add(message, "", static=True)  # this node sends none

    def _add(self, message: TFMessage, owner: str, *, static: bool) -> None:
        add_transforms(self.tree, message, static=static, warn=self._warn, owner=owner or UNNAMED)


def _key(message: Any) -> bytes:
    """Returns stamps, frames and numbers of a tf2_msgs/TFMessage as bytes."""
    parts = []
    for item in message.transforms:
        t, q, stamp = item.transform.translation, item.transform.rotation, item.header.stamp
        parts.append(f"{item.header.frame_id}\0{item.child_frame_id}\0".encode(errors="replace"))
        parts.append(
            struct.pack("<iI7d", stamp.sec, stamp.nanosec, t.x, t.y, t.z, q.x, q.y, q.z, q.w)
        )
    return b"".join(parts)
