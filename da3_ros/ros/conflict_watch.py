"""Warns of other nodes with this node's name, on its topics, or on its camera's topic."""

from __future__ import annotations

import time

from rclpy.node import Node

from da3_ros.live.graph_conflicts import Conflicts, read_conflicts
from da3_ros.ros.camera_subscriber import CameraInputs
from da3_ros.ros.node_log import NodeLog
from da3_ros.ros.publishers import Topics


class ConflictWatch:
    """Looks at the graph of a node, and warns once of each conflict that has lasted."""

    def __init__(self, node: Node, topics: Topics, log: NodeLog) -> None:
        self._node, self._topics, self._log = node, topics, log
        self._status = node.resolve_topic_name("~/status")
        self.conflicts = Conflicts()

    def update(self, cameras: CameraInputs | None) -> None:
        """Look at the graph; call this about once per second. cameras: None if not active."""
        images = [] if cameras is None else cameras.image_types
        found = read_conflicts(self._node, [self._status, *self._topics.own], images)
        for text in self.conflicts.update(found, time.monotonic()):
            self._log.warn(text)
