"""Fills our transform tree from /tf and /tf_static with what other nodes publish."""

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
QUEUE = 100  # messages that wait for the executor, so that many of our own at most
KEPT = 10 * QUEUE  # messages of ours that are known again
LOOK_S = 1.0  # between two looks at the graph for publishers without a name
# Humble's rclpy hands over the message alone; Jazzy's information lacks the publisher.
WITH_INFO = hasattr(Subscription, "CallbackType")


class SentTransforms:
    """The newest messages that this node sent to /tf, by which it knows them again."""

    def __init__(self, most: int = KEPT) -> None:
        self._most = most
        self._keys: OrderedDict[bytes, None] = OrderedDict()
        self._lock = threading.Lock()  # two threads send, the executor's hears

    def add(self, message: Any) -> None:
        """A tf2_msgs/TFMessage, before it is sent."""
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
        self._looked_s = -LOOK_S

    def name(self, gid: bytes) -> str:
        """Full name of the node; empty where the graph does not tell, or two have one name."""
        if gid not in self._names and time.monotonic() - self._looked_s >= LOOK_S:
            self._look()
        return self._names.get(gid, "")

    def _look(self) -> None:
        self._looked_s = time.monotonic()
        infos = self._node.get_publishers_info_by_topic(self._topic)
        names = [f"{i.node_namespace.rstrip('/')}/{i.node_name}" for i in infos]
        self._names = {
            bytes(info.endpoint_gid): name
            for info, name in zip(infos, names, strict=True)
            if names.count(name) == 1 and not info.node_name.startswith("_NODE_NAME_UNKNOWN")
        }


class TfInput:
    """Subscribes while it lives. This node's own transforms are left out.

    They come back as all others' do. The identifier of the publisher tells them where rclpy and
    the middleware give one that the graph knows; elsewhere, a message that equals one that was
    sent, in stamps, frames and numbers, is ours. (If it is not, it says nothing else than ours.)
    """

    def __init__(
        self,
        endpoints: Endpoints,
        tree: TransformTree,
        publishers: TfPublishers,
        sent: SentTransforms,
        bad: Callable[[str], None],
    ) -> None:
        """``bad(text)`` is told of transforms that cannot be used."""
        self._endpoints, self.tree, self._bad = endpoints, tree, bad
        self._publishers, self._sent = publishers, sent
        reliable = ReliabilityPolicy.RELIABLE
        latched = QoSProfile(
            depth=QUEUE, reliability=reliable, durability=DurabilityPolicy.TRANSIENT_LOCAL
        )
        moving: Any = self._moving if WITH_INFO else self._moving_unnamed
        self._subscriptions = [
            endpoints.subscribe(TFMessage, TOPIC, moving, QoSProfile(depth=QUEUE)),
            endpoints.subscribe(TFMessage, "/tf_static", self._static, latched),
        ]

    def close(self) -> None:
        """Drop the subscriptions."""
        for subscription in self._subscriptions:
            self._endpoints.drop_subscription(subscription)

    def _moving(self, message: TFMessage, info: Any) -> None:
        gid = (info.get("publisher_gid") or {}).get("data", b"")
        self._hear(message, self._publishers.name(gid) if gid else "")

    def _moving_unnamed(self, message: TFMessage) -> None:
        self._hear(message, "")

    def _hear(self, message: TFMessage, owner: str) -> None:
        if owner != self._publishers.own and message not in self._sent:
            self._add(message, owner, static=False)

    def _static(self, message: TFMessage) -> None:
        self._add(message, "", static=True)  # we send none

    def _add(self, message: TFMessage, owner: str, *, static: bool) -> None:
        add_transforms(self.tree, message, static=static, bad=self._bad, owner=owner or UNNAMED)


def _key(message: Any) -> bytes:
    """Stamps, frames and numbers of a tf2_msgs/TFMessage."""
    parts = []
    for item in message.transforms:
        t, q, stamp = item.transform.translation, item.transform.rotation, item.header.stamp
        parts.append(f"{item.header.frame_id}\0{item.child_frame_id}\0".encode(errors="replace"))
        parts.append(
            struct.pack("<iI7d", stamp.sec, stamp.nanosec, t.x, t.y, t.z, q.x, q.y, q.z, q.w)
        )
    return b"".join(parts)
