"""Fills our transform tree from /tf and /tf_static."""

from __future__ import annotations

from collections.abc import Callable

from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from tf2_msgs.msg import TFMessage

from da3_ros.ros.prior_input import add_transforms
from da3_ros.ros.qos_events import Endpoints
from da3_ros.transforms import TransformTree


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
        def ours(parent: str, child: str) -> bool:
            return self.ours(message, parent, child)

        add_transforms(self.tree, message, static=static, bad=self._bad, ours=ours)
