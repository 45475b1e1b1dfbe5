"""The node's publishers, created from the list in ``outputs`` and destroyed together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

from da3_ros.messages import outputs
from da3_ros.messages.outputs import Published, SceneTopic
from da3_ros.ros.qos import Endpoints
from da3_ros.ros.rclpy_library import RclpyLibrary
from da3_ros.ros.tf_subscriber import TOPIC as TF
from da3_ros.ros.tf_subscriber import SentTransforms


class Topics:
    """Publishers of the frames and scenes of one configured stream, by topic."""

    def __init__(self, endpoints: Endpoints, library: RclpyLibrary, sent: SentTransforms) -> None:
        """``sent`` records every message to /tf."""
        self._endpoints, self._library, self._sent = endpoints, library, sent
        self._publishers: dict[str, Any] = {}
        self._of_map: list[str] = []  # topics that show the maps

    def create(self, cameras: Sequence[str], scenes: Sequence[str]) -> list[str]:
        """Create the publishers of a stream with these cameras and scenes; returns the types of
        optional topics whose packages are not installed."""
        missing = []
        for topic, row in outputs.topics(cameras, scenes):
            try:
                kind = self._library.type(row.type)
            except ImportError:
                if not row.optional:
                    raise
                missing.append(row.type)
                continue
            self._publishers[topic] = self.advertise(topic, kind, row.depth, latched=row.latched)
            if isinstance(row, SceneTopic) and row.on_change:
                self._of_map.append(topic)
        return missing

    def advertise(self, topic: str, kind: Any, depth: int = 1, *, latched: bool = False) -> Any:
        """Create a publisher that the caller owns."""
        profile = QoSProfile(
            depth=depth,
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

    def has_subscribers(self, topic: str) -> bool:
        """True if a topic has a subscriber."""
        publisher = self._publishers.get(topic)
        return publisher is not None and publisher.get_subscription_count() > 0

    def map_subscribers(self) -> int:
        """Number of subscribers to what shows the maps of all scenes."""
        return sum(self._publishers[name].get_subscription_count() for name in self._of_map)

    def drop(self) -> None:
        """Destroy all publishers."""
        publishers, self._publishers, self._of_map = self._publishers, {}, []
        for publisher in publishers.values():
            self._endpoints.drop_publisher(publisher)
