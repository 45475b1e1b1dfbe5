"""Global poses of the robot, which hold the map: topic ``~/global_pose``."""

from __future__ import annotations

from collections.abc import Callable

from geometry_msgs.msg import PoseWithCovarianceStamped
from rclpy.qos import QoSProfile, ReliabilityPolicy

from da3_ros.messages.global_pose import TOPIC, GlobalPoseError, given_pose
from da3_ros.ros.qos import Endpoints
from da3_ros.sensors.global_poses import GlobalPoses


class GlobalPoseInput:
    """Passes global poses on to the stream's frames, until closed."""

    def __init__(
        self, endpoints: Endpoints, poses: GlobalPoses, warn: Callable[[str], None]
    ) -> None:
        """warn: takes a line about a pose that is not used."""
        self._endpoints, self._poses, self._warn = endpoints, poses, warn
        # Best effort is compatible with every publisher; others follow one that is lost.
        qos = QoSProfile(depth=50, reliability=ReliabilityPolicy.BEST_EFFORT)
        self._subscription = endpoints.subscribe(PoseWithCovarianceStamped, TOPIC, self.take, qos)

    def close(self) -> None:
        """Drop the subscription."""
        self._endpoints.drop_subscription(self._subscription)

    def take(self, message: PoseWithCovarianceStamped) -> None:
        """Take a pose."""
        try:
            self._poses.add(given_pose(message))
        except GlobalPoseError as error:
            self._warn(f"global_pose: not used: {error}")
