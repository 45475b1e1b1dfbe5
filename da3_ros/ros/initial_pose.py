"""Where the robot is in a loaded map, as a user says: ``initialpose``, as RViz's tool sends it."""

from __future__ import annotations

import math
from collections.abc import Callable

from geometry_msgs.msg import PoseWithCovarianceStamped
from rclpy.qos import QoSProfile

from da3_ros.ros.qos import Endpoints
from da3_ros.ros.stream_runner import StreamRunner

TOPIC = "initialpose"
SIGMA = 0.5  # metres, without a covariance
MAX_SIGMA = 1e3


class InitialPose:
    """Passes positions on to the stream, on its worker, until closed."""

    def __init__(
        self, endpoints: Endpoints, runner: StreamRunner, log: Callable[[str], object]
    ) -> None:
        """log: reports in a line what was done with a pose, or why it is not used."""
        self._endpoints, self._runner, self._log = endpoints, runner, log
        self._subscription = endpoints.subscribe(
            PoseWithCovarianceStamped, TOPIC, self.take, QoSProfile(depth=1)
        )

    def close(self) -> None:
        """Drop the subscription."""
        self._endpoints.drop_subscription(self._subscription)

    def take(self, message: PoseWithCovarianceStamped) -> None:
        """Take a pose in the map."""
        frame, at = message.header.frame_id.lstrip("/"), message.pose.pose.position
        sigma = sigma_of(list(message.pose.covariance))
        if sigma is None or not all(math.isfinite(v) and abs(v) < 1e6 for v in (at.x, at.y)):
            self._log(f"{TOPIC}: not used, because its position or covariance is invalid")
            return
        stream = self._runner.stream
        self._runner.submit(
            lambda: self._log(f"{TOPIC}: {stream.look_near(frame, at.x, at.y, sigma)}")
        )


def sigma_of(covariance: list[float]) -> float | None:
    """Returns the larger standard deviation on the ground, of a covariance [36]; None: invalid."""
    variances = covariance[0], covariance[7]
    if not all(math.isfinite(v) and v >= 0 for v in variances):
        return None
    return min(math.sqrt(max(variances)) or SIGMA, MAX_SIGMA)
