"""Range sensors of the live node: subscribes to `range_topics` once their types are known."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from rclpy.qos import QoSProfile, ReliabilityPolicy

from da3_ros.messages.build import MessageLibrary
from da3_ros.messages.decode import stamp_ns
from da3_ros.messages.ranges import RANGE_TYPES, message_bytes, read_ranges
from da3_ros.ros.qos import Endpoints
from da3_ros.sensors.range_returns import RangeSensors

DEPTH = 5  # messages of a topic that wait for the executor
SILENT_S = 5.0  # time after which a topic without a publisher is warned of


class RangeInputs:
    """Passes messages on to the range sensors of a stream, until closed."""

    def __init__(
        self, node: Any, endpoints: Endpoints, library: MessageLibrary, sensors: RangeSensors,
        warn: Callable[[str], None],
    ) -> None:  # fmt: skip
        """warn: takes a line about a topic that cannot be used."""
        self._node, self._endpoints, self._library = node, endpoints, library
        self._sensors, self._warn = sensors, warn
        self._subscriptions: dict[str, Any] = {}
        self._warned: set[str] = set()
        self._start_s = time.monotonic()

    def update(self) -> None:
        """Subscribe to the topics whose publishers are there by now; call about once a second."""
        for topic in self._sensors.topics:
            if topic not in self._subscriptions:
                self._look_for(topic)

    def close(self) -> None:
        """Drop the subscriptions."""
        for subscription in self._subscriptions.values():
            self._endpoints.drop_subscription(subscription)
        self._subscriptions = {}

    def _look_for(self, topic: str) -> None:
        name = self._node.resolve_topic_name(topic)
        kinds = {i.topic_type for i in self._node.get_publishers_info_by_topic(name)}
        kind = next((k for k in RANGE_TYPES if k in kinds), None)
        if kind is not None:
            # Best effort is compatible with every publisher; a lost sweep is followed by another.
            qos = QoSProfile(depth=DEPTH, reliability=ReliabilityPolicy.BEST_EFFORT)
            self._subscriptions[topic] = self._endpoints.subscribe(
                self._library.type(kind), topic, functools.partial(self._take, topic, kind), qos
            )
        elif kinds:
            types = ", ".join(k.rpartition("/")[2] for k in RANGE_TYPES)
            self._warn_once(f"range_topics: {name} has type {min(kinds)}: needed is {types}")
        elif time.monotonic() - self._start_s > SILENT_S:
            self._warn_once(f"range_topics: nobody publishes {name}")

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._warn(text)

    def _take(self, topic: str, kind: str, message: Any) -> None:
        read = functools.partial(read_ranges, kind, message)
        self._sensors.topics[topic].add(
            stamp_ns(message.header.stamp), read, message_bytes(kind, message)
        )
