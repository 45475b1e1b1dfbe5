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

EXPECTED = (ConfigError, CheckpointError, DeviceError, BudgetError)  # logged by their text alone
STOP_S = 2.5  # longest wait of a shutdown for the running window
CLEANUP_S = 20.0  # longest wait of a cleanup for the running window
PUBLISH_CLEANUP_S = 5.0  # then, twice, for messages that are being published
STORE_S = 2.0  # longest wait for the disk at the end
LOG_EVERY_S = 5.0  # between two log lines about the wait


class StreamRunner:
    """Owns the worker, which runs the network, and the thread that publishes its results."""

    def __init__(self, stream: Stream, log: NodeLog) -> None:
        self.stream, self._log = stream, log
        self._publisher = stream.publisher = Publisher(self._on_publish_error)
        self.worker = Worker(stream.step, self._on_worker_error, tick=stream.tick)

    def submit(self, job: Callable[[], Any]) -> Future[Any]:
        """Run a job on the worker between two windows. If it fails, its error is logged."""
        future = self.worker.submit(job)
        future.add_done_callback(self.log_failure)
        return future

    def log_failure(self, job: Future[Any]) -> None:
        """Log the error of a job that failed on the worker; nothing else reads its future."""
        error = job.exception()
        if error is not None and not self.worker.stopping:
            known = isinstance(error, EXPECTED)
            self._log.error(str(error) if known else f"{type(error).__name__}: {error}")

    def try_stop(self, what: str, ending: Callable[[], bool]) -> str:
        """Stop both threads between two windows. Returns why that failed; empty if it succeeded.

        what: name of the transition, for texts. ending: returns True if the process must end, so
        that there is no time to wait. If the running window takes too long, nothing is changed.
        """
        if not self.worker.stopping:
            wait = _WindowWait(what, self._log.logger.info, ending)
            if not self.worker.try_stop(wait):
                return (
                    f"{what} failed: the running window has not ended within "
                    f"{wait.elapsed_s:.0f} s; nothing was freed, try again later"
                )
        if not self.stop(STOP_S, PUBLISH_CLEANUP_S):
            return f"{what} failed: messages are still being published; try again"
        return ""

    def stop(self, window_s: float, publish_s: float) -> bool:
        """Stop worker and publisher; False if one is still busy after its time limit, seconds."""
        done = self.worker.stop(window_s)
        if done and not self.stream.finish_recording(STORE_S):
            self._log.warn("the disk is busy: the last keyframes may not be stored")
        self.stream.close()
        return self._publisher.stop(publish_s if done else 0.0) and done

    def _on_publish_error(self, error: BaseException) -> None:
        self.stream.publish_failed += 1  # not a drop: the frame counts as processed
        self._log.error(f"publishing a frame failed: {type(error).__name__}: {error}")

    def _on_worker_error(self, error: BaseException) -> None:
        self._log.error(f"a window failed: {type(error).__name__}: {error}")


class _WindowWait:
    """Tells the worker how long to wait for the running window, and logs the wait regularly."""

    def __init__(self, what: str, log: Callable[[str], Any], ending: Callable[[], bool]) -> None:
        self._what, self._log, self._ending = what, log, ending
        self._start_s = time.monotonic()
        self._logged_s = 0.5 - LOG_EVERY_S  # first log line after 0.5 s: most windows end earlier

    @property
    def elapsed_s(self) -> float:
        """Seconds since the wait began."""
        return time.monotonic() - self._start_s

    def __call__(self) -> bool:
        """True if the worker shall wait longer."""
        elapsed_s = self.elapsed_s
        if elapsed_s - self._logged_s >= LOG_EVERY_S:
            self._logged_s = elapsed_s
            self._log(f"{self._what} waits up to {CLEANUP_S:.0f} s for the running window")
        return elapsed_s < CLEANUP_S and not self._ending()
