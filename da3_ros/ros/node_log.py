"""The node's log: its own lines and those of the ROS-free rooms."""

from __future__ import annotations

import logging
import traceback
from typing import Any

from da3_ros.live.log_throttle import Throttle
from da3_ros.ros.camera_subscriber import SAME_S

SAME_FAULT_S = 1.0  # between two lines about the same exception


class NodeLog(logging.Handler):
    """Writes to the node's logger; repeated warnings are throttled by their kind.

    Owns what the status repeats: ``last_error``, and in ``failure`` why the last lifecycle
    transition failed (empty: it did not).
    """

    def __init__(self, logger: Any) -> None:
        """``logger`` is the node's."""
        super().__init__()
        self.last_error = self.failure = ""
        self._logger = logger
        self._of_rooms, self._of_node = Throttle(), Throttle()

    def attach(self) -> None:
        """Receive what the whole package logs, from the level `information` on."""
        rooms = logging.getLogger("da3_ros")
        rooms.addHandler(self)
        if rooms.level == logging.NOTSET:  # Python's own default lets no information through
            rooms.setLevel(logging.INFO)

    def detach(self) -> None:
        """Receive nothing more."""
        logging.getLogger("da3_ros").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Log one record of a ROS-free room at its own level."""
        text = record.getMessage()
        if record.levelno >= logging.ERROR:
            self.last_error = text
        if record.levelno >= logging.WARNING and not self._of_rooms.due(_kind(record), SAME_S):
            return
        # rclpy allows one severity per calling line, so each level has a line of its own.
        if record.levelno >= logging.ERROR:
            self._logger.error(text)
        elif record.levelno >= logging.WARNING:
            self._logger.warning(text)
        else:
            self._logger.info(text)

    def info(self, text: str) -> None:
        """Log one line."""
        self._logger.info(text)

    def warn(self, text: str, every_s: float = 0.0, about: str = "") -> None:
        """Log a warning, which becomes the last error.

        every_s: seconds between two warnings with the same ``about`` and the same text up to the
        first colon, which names the topic; 0: no limit.
        """
        self.last_error = text
        if not every_s or self._of_node.due(about + text.partition(":")[0], every_s):
            self._logger.warning(text)

    def error(self, text: str) -> None:
        """Log an error, which becomes the last error."""
        self.last_error = text
        self._logger.error(text)

    def callback_failed(self, error: Exception) -> None:
        """Log an unexpected exception of a callback; the node goes on."""
        self.last_error = f"a callback failed: {type(error).__name__}: {error}"
        place = traceback.extract_tb(error.__traceback__)[-1:]
        # Each fault by itself: rclpy's throttle would hide the second of two within a second.
        if self._of_node.due(f"{type(error).__name__} {place}", SAME_FAULT_S):
            self._logger.error(self.last_error)
        self._logger.debug("".join(traceback.format_exception(error)))

    def transition_failed(self, text: str) -> None:
        """Log why a lifecycle transition failed."""
        self.failure = text
        self.error(text)


def _kind(record: logging.LogRecord) -> str:
    """What a record is about: its text before numbers come in, and the name that leads it."""
    first = record.args[0] if isinstance(record.args, tuple) and record.args else ""
    return f"{record.msg} {first if isinstance(first, str) else ''}"
