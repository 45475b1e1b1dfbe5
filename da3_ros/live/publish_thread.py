"""Thread that builds and publishes messages while the device runs the next window.

Torch and the middleware release Python's global lock, so both run at the same time. No
middleware.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeoutError  # a separate class until 3.11

from da3_ros.live.worker import Worker

MOST = 8  # waiting frames; each holds an image, depth and confidence
CHECK_PERIOD_S = 0.2  # between checks for the end while the queue is full


class Publisher:
    """Runs jobs in order. An exception is passed to ``on_error``; the next job still runs."""

    def __init__(self, on_error: Callable[[BaseException], None], most: int = MOST) -> None:
        self._on_error = on_error
        self._room = threading.BoundedSemaphore(most)
        self._worker = Worker(lambda: False, on_error, name="da3-publisher")

    def submit(self, job: Callable[[], None]) -> None:
        """Enqueue ``job``; blocks while the queue is full, so that memory is bounded."""
        while not self._room.acquire(timeout=CHECK_PERIOD_S):
            if self._worker.stopping:
                return
        self._worker.submit(lambda: self._run(job))

    def drain(self, timeout_s: float | None = None) -> None:
        """Wait until all submitted jobs have run. Raises TimeoutError."""
        if self._worker.stopping:
            return
        try:
            self._worker.submit(lambda: None).result(timeout_s)
        except FutureTimeoutError:
            text = f"frames are still being published after {timeout_s:g} s"
            raise TimeoutError(text) from None

    def stop(self, timeout_s: float) -> bool:
        """End the thread after the waiting jobs; False if it is busy after ``timeout_s``."""
        try:
            self.drain(timeout_s)
        except TimeoutError:
            self._worker.stop(0.0)
            return False
        return self._worker.stop(timeout_s)

    def _run(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception as error:
            self._on_error(error)
        finally:
            self._room.release()
