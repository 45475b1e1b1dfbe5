"""Fills our transform tree from /tf and /tf_static."""

from __future__ import annotations

from collections.abc import Callable

from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from tf2_msgs.msg import TFMessage

from da3_ros.ros.decode import stamp_ns
from da3_ros.ros.prior_input import rigid
from da3_ros.ros.qos_events import Endpoints
from da3_ros.transforms import TransformError, TransformTree


class TfInput:
    """Subscribes while it lives. Transforms that ``ours`` recognises are left out."""

    def __init__(
        self,
        endpoints: Endpoints,
        tree: TransformTree,
        ours: Callable[[TFMessage, str, str], bool],
        bad: Callable[[str], None],
    ) -> None:
        """``bad(text)`` is told of transforms that cannot be used."""
        self._endpoints, self.tree, self.ours, self._bad = endpoints, tree, ours, bad
        reliable = ReliabilityPolicy.RELIABLE
        latched = QoSProfile(
            depth=100, reliability=reliable, durability=DurabilityPolicy.TRANSIENT_LOCAL
        )
        self._subscriptions = [
            endpoints.subscribe(TFMessage, "/tf", self._moving, QoSProfile(depth=100)),
            endpoints.subscribe(TFMessage, "/tf_static", self._static, latched),
        ]

    def close(self) -> None:
        """Drop the subscriptions."""
        for subscription in self._subscriptions:
            self._endpoints.drop_subscription(subscription)

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
                topic = "/tf_static" if static else "/tf"
                self._bad(f"{topic}: transform ignored: {error}")
