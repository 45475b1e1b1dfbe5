"""The node's log: its own messages and those of the modules without ROS."""

from __future__ import annotations

import logging
import traceback
from typing import Any

from da3_ros.live.log_throttle import Throttle
from da3_ros.ros.camera_subscriber import SAME_S

SAME_FAULT_S = 1.0  # between two lines about the same exception


class NodeLog(logging.Handler):
    """Writes to the node's logger and throttles repeated warnings of the same kind.

    Owns two texts of the status: ``last_error``, and ``failure``: why the last lifecycle
    transition failed (empty if it succeeded).
    """

    def __init__(self, logger: Any) -> None:
        """``logger`` is the node's rclpy logger."""
        super().__init__()
        self.last_error = self.failure = ""
        self.logger = logger
        self._package_throttle, self._node_throttle = Throttle(), Throttle()

    def attach(self) -> None:
        """Receive all log records of the package from level INFO upwards."""
        rooms = logging.getLogger("da3_ros")
        rooms.addHandler(self)
        if rooms.level == logging.NOTSET:  # Python's default level is WARNING
            rooms.setLevel(logging.INFO)

    def detach(self) -> None:
        """Stop receiving log records."""
        logging.getLogger("da3_ros").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Log one record of the package at its own level."""
        text = record.getMessage()
        if record.levelno >= logging.ERROR:
            self.last_error = text
        if record.levelno >= logging.WARNING and not self._package_throttle.due(
            _kind(record), SAME_S
        ):
            return
        # rclpy allows one severity per calling line, so each level has a line of its own.
        if record.levelno >= logging.ERROR:
            self.logger.error(text)
        elif record.levelno >= logging.WARNING:
            self.logger.warning(text)
        else:
            self.logger.info(text)

    def warn(self, text: str, every_s: float = 0.0, about: str = "") -> None:
        """Log a warning and store it as the last error.

        every_s: least seconds between two warnings of the same ``about`` and the same text before
        the first colon (which names the topic); 0: no limit.
        """
        self.last_error = text
        if not every_s or self._node_throttle.due(about + text.partition(":")[0], every_s):
            self.logger.warning(text)

    def error(self, text: str) -> None:
        """Log an error and store it as the last error."""
        self.last_error = text
        self.logger.error(text)

    def callback_failed(self, error: Exception) -> None:
        """Log an unexpected exception of a callback; the node continues."""
        self.last_error = f"a callback failed: {type(error).__name__}: {error}"
        line = traceback.extract_tb(error.__traceback__)[-1:]
        # Throttled by line: rclpy's throttle would hide a second, different fault.
        if self._node_throttle.due(f"{type(error).__name__} {line}", SAME_FAULT_S):
            self.logger.error(self.last_error)
        self.logger.debug("".join(traceback.format_exception(error)))

    def transition_failed(self, text: str) -> None:
        """Log why a lifecycle transition failed."""
        self.failure = text
        self.error(text)


def _kind(record: logging.LogRecord) -> str:
    """Returns the kind of a record: its format text, and its first argument if that is a name."""
    first = record.args[0] if isinstance(record.args, tuple) and record.args else ""
    return f"{record.msg} {first if isinstance(first, str) else ''}"
