"""Decides when the map is published for display."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from da3_ros.ros.camera_subscriber import SAME_S
from da3_ros.ros.node_log import NodeLog
from da3_ros.ros.publishers import Topics
from da3_ros.ros.stream_runner import StreamRunner


class MapDisplay:
    """Has the map published while it has subscribers or viewers: at once for a new one, else on
    changes."""

    def __init__(self, topics: Topics, log: NodeLog) -> None:
        self._topics, self._log = topics, log
        self.forget()

    def forget(self) -> None:
        """Forget subscribers and job: the stream has ended."""
        self._subscribers = 0
        self._job: Future[Any] | None = None

    def update(self, runner: StreamRunner | None) -> None:
        """Check the subscribers; call this regularly."""
        view = None if runner is None else runner.stream.view
        count = self._topics.map_subscribers() + (0 if view is None else view.feed.watched)
        ready = self._job is None or self._job.done()  # False while a long window delays the job
        if count and ready and runner is not None:
            stream, new = runner.stream, count > self._subscribers
            self._job = runner.worker.submit(stream.publish_map if new else stream.refresh_map)
            self._job.add_done_callback(lambda job: self._on_shown(job, runner))
            self._subscribers = count
        self._subscribers = min(count, self._subscribers)

    def _on_shown(self, job: Future[Any], runner: StreamRunner) -> None:
        error = job.exception()
        if error is not None and not runner.worker.stopping:
            text = f"the map cannot be published: {type(error).__name__}: {error}"
            self._log.warn(text, every_s=SAME_S)
