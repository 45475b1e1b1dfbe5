"""The corrected path of another SLAM, which the map follows: topic ``slam_path``."""

from __future__ import annotations

import threading
from collections.abc import Callable

from nav_msgs.msg import Path
from rclpy.qos import QoSProfile, ReliabilityPolicy

from da3_ros.messages.slam_path import TOPIC, PathReader, SlamPathError
from da3_ros.ros.qos import Endpoints
from da3_ros.ros.stream_runner import StreamRunner


class SlamPathInput:
    """Passes the newest path on to the stream, on its worker, until closed."""

    def __init__(
        self, endpoints: Endpoints, runner: StreamRunner, warn: Callable[[str], None]
    ) -> None:
        """warn: takes a line about a path that is not used."""
        self._endpoints, self._runner, self._warn = endpoints, runner, warn
        config = runner.stream.config.pipeline.pose_prior
        self._reader = PathReader(config.map_frame)
        self._newest: Path | None = None  # waits for the worker
        self._lock = threading.Lock()
        # Reliable, because a path is large; volatile is compatible with a latched topic too.
        qos = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE)
        self._subscription = endpoints.subscribe(Path, TOPIC, self.take, qos)

    def close(self) -> None:
        """Drop the subscription."""
        self._endpoints.drop_subscription(self._subscription)

    def take(self, message: Path) -> None:
        """Take a path; one that still waits for the worker is replaced."""
        with self._lock:
            waits, self._newest = self._newest is not None, message
        if not waits:
            self._runner.submit(self._pass_on)

    def _pass_on(self) -> None:
        with self._lock:
            message, self._newest = self._newest, None
        slam = self._runner.stream.slam
        if slam is None or message is None:
            return
        try:
            path, note = self._reader.read(message)
        except SlamPathError as error:
            self._warn(f"{TOPIC}: not used: {error}")
            return
        slam.add_path(path)
        if note:
            self._warn(f"{TOPIC}: {note}")
