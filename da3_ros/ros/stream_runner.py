"""The stream of a configured node and the threads that run it."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from da3_ros.inference import BudgetError, DeviceError
from da3_ros.live.publish_thread import Publisher
from da3_ros.live.stream import Stream
from da3_ros.live.worker import Worker
from da3_ros.network import CheckpointError
from da3_ros.parameter_schema import ConfigError
from da3_ros.ros.node_log import NodeLog

EXPECTED = (ConfigError, CheckpointError, DeviceError, BudgetError)  # their texts say it all
STOP_S = 2.5  # how long the end waits for a window under way
CLEANUP_S = 20.0  # how long a cleanup waits for a window under way
PUBLISH_CLEANUP_S = 5.0  # and, twice, for messages on their way out
TELL_S = 5.0  # between two lines about that


class StreamRunner:
    """Owns the worker, which runs the network, and the thread that publishes its results."""

    def __init__(self, stream: Stream, log: NodeLog) -> None:
        self.stream, self._log = stream, log
        self._publisher = stream.publisher = Publisher(self._on_publish_error)
        self.worker = Worker(stream.step, self._on_worker_error)

    @property
    def stopping(self) -> bool:
        """Whether the worker was told to stop."""
        return self.worker.stopping

    @property
    def leaving(self) -> bool:
        """Whether the worker stops, or a cleanup waits for it and may still give up."""
        return self.worker.leaving

    def submit(self, job: Callable[[], Any]) -> Future[Any]:
        """Run a job between two windows; its failure is logged."""
        future = self.worker.submit(job)
        future.add_done_callback(self.log_failure)
        return future

    def log_failure(self, job: Future[Any]) -> None:
        """Log a job that failed on the worker: nothing else reads its future."""
        error = job.exception()
        if error is not None and not self.stopping:
            known = isinstance(error, EXPECTED)
            self._log.error(str(error) if known else f"{type(error).__name__}: {error}")

    def retire(self, what: str, ending: Callable[[], bool]) -> str:
        """End both threads between two windows. Returns why that failed; empty: it is done.

        A failure of the first kind (the window under way takes too long) changes nothing.
        ``ending``: whether the process is to end, so that there is no time to wait.
        """
        if not self.worker.stopping:
            waiting = _Patience(what, self._log.info, ending)
            if not self.worker.retire(waiting):
                return (
                    f"{what} failed: the window under way has not ended within "
                    f"{waiting.elapsed_s:.0f} s; nothing was freed, try again later"
                )
        if not self.stop(STOP_S, PUBLISH_CLEANUP_S):
            return f"{what} failed: messages are still on their way out; try again"
        return ""

    def stop(self, window_s: float, publish_s: float) -> bool:
        """Stop worker and publisher; False if one is still busy after so many seconds."""
        done = self.worker.stop(window_s)
        return self._publisher.stop(publish_s if done else 0.0) and done

    def _on_publish_error(self, error: BaseException) -> None:
        self.stream.publish_failed += 1  # no drop: the frame counts as processed
        self._log.error(f"publishing a frame failed: {type(error).__name__}: {error}")

    def _on_worker_error(self, error: BaseException) -> None:
        self._log.error(f"a window failed: {type(error).__name__}: {error}")


class _Patience:
    """How long an end waits for the window under way; says now and then that it does."""

    def __init__(self, what: str, say: Callable[[str], Any], ending: Callable[[], bool]) -> None:
        self._what, self._say, self._ending = what, say, ending
        self._since = time.monotonic()
        self._told_s = 0.5 - TELL_S  # most windows are over before there is anything to say

    @property
    def elapsed_s(self) -> float:
        """Since the waiting began."""
        return time.monotonic() - self._since

    def __call__(self) -> bool:
        elapsed_s = self.elapsed_s
        if elapsed_s - self._told_s >= TELL_S:
            self._told_s = elapsed_s
            self._say(f"{self._what} waits up to {CLEANUP_S:.0f} s for the window under way")
        return elapsed_s < CLEANUP_S and not self._ending()
