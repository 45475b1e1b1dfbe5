"""Fills our transform tree from /tf and /tf_static."""

from __future__ import annotations

from collections.abc import Callable

from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from tf2_msgs.msg import TFMessage

from da3_ros.ros.decode import stamp_ns
from da3_ros.ros.prior_input import rigid
from da3_ros.transforms import TransformError, TransformTree


class TfInput:
    """Subscribes while it lives. Transforms that ``ours`` recognises are left out."""

    def __init__(
        self, node: Node, tree: TransformTree, ours: Callable[[TFMessage, str, str], bool]
    ) -> None:
        self.node, self.tree, self.ours = node, tree, ours
        reliable = ReliabilityPolicy.RELIABLE
        latched = QoSProfile(
            depth=100, reliability=reliable, durability=DurabilityPolicy.TRANSIENT_LOCAL
        )
        self._subscriptions = [
            node.create_subscription(TFMessage, "/tf", self._moving, QoSProfile(depth=100)),
            node.create_subscription(TFMessage, "/tf_static", self._static, latched),
        ]

    def close(self) -> None:
        """Drop the subscriptions."""
        for subscription in self._subscriptions:
            self.node.destroy_subscription(subscription)

    def _moving(self, message: TFMessage) -> None:
        self._add(message, static=False)

    def _static(self, message: TFMessage) -> None:
        self._add(message, static=True)

    def _add(self, message: TFMessage, *, static: bool) -> None:
        for item in message.transforms:
            parent, child = item.header.frame_id, item.child_frame_id
            if self.ours(message, parent, child):
                continue
            try:
                stamp = stamp_ns(item.header.stamp)
                T = rigid(item.transform.translation, item.transform.rotation)
                self.tree.add(parent, child, T, stamp, static=static)
            except (TransformError, ValueError) as error:
                self.node.get_logger().warning(
                    f"/tf: transform ignored: {error}", throttle_duration_sec=5.0
                )
