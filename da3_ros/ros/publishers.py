"""The node's publishers, created from the list in ``outputs`` and destroyed together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

from da3_ros.messages import outputs
from da3_ros.messages.outputs import MAP_TOPIC, Published
from da3_ros.ros.qos import Endpoints
from da3_ros.ros.rclpy_library import RclpyLibrary
from da3_ros.ros.tf_subscriber import TOPIC as TF
from da3_ros.ros.tf_subscriber import SentTransforms

DEPTHS = {"pose": 10, "odom": 10, "window": 5, "/tf": 100, "/diagnostics": 10}
LATCHED = ("path", "map/points", "status")


class Topics:
    """Publishers of the frames and scenes of one configured stream, by topic."""

    def __init__(self, endpoints: Endpoints, library: RclpyLibrary, sent: SentTransforms) -> None:
        """``sent`` records every message to /tf."""
        self._endpoints, self._library, self._sent = endpoints, library, sent
        self._publishers: dict[str, Any] = {}

    def create(self, cameras: Sequence[str], scenes: Sequence[str]) -> None:
        """Create the publishers of a stream with these cameras and scenes."""
        for topic, base, kind in outputs.topics(cameras, scenes):
            self._publishers[topic] = self.advertise(topic, self._library.type(kind), base)

    def advertise(self, topic: str, kind: Any, base: str = "") -> Any:
        """Create a publisher that the caller owns; ``base`` is the topic without a prefix."""
        base = base or topic
        latched = base in LATCHED
        profile = QoSProfile(
            depth=DEPTHS.get(base, 1),
            reliability=ReliabilityPolicy.RELIABLE,
            durability=(
                DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE
            ),
        )
        name = topic if topic.startswith("/") else f"~/{topic}"
        # Not a lifecycle publisher: the last frames of a deactivated node are still delivered.
        return self._endpoints.advertise(kind, name, profile)

    @property
    def own(self) -> list[str]:
        """Full names of the topics that no other node should publish: all but ``/tf``."""
        publishers = self._publishers.items()
        return [p.topic_name for name, p in publishers if not name.startswith("/")]

    def publish(self, published: Published) -> None:
        """Publish one message. Thread-safe."""
        topic, _, message = published
        publisher = self._publishers.get(topic)
        if publisher is None:
            return
        if topic == TF:
            self._sent.add(message)  # before our own subscription can receive it
        publisher.publish(message)

    def wanted(self, topic: str) -> bool:
        """True if a topic has a subscriber."""
        publisher = self._publishers.get(topic)
        return publisher is not None and publisher.get_subscription_count() > 0

    def map_subscribers(self) -> int:
        """Number of subscribers to the maps of all scenes."""
        maps = [p for name, p in self._publishers.items() if name.endswith(MAP_TOPIC[0])]
        return sum(publisher.get_subscription_count() for publisher in maps)

    def drop(self) -> None:
        """Destroy all publishers."""
        publishers, self._publishers = self._publishers, {}
        for publisher in publishers.values():
            self._endpoints.drop_publisher(publisher)
