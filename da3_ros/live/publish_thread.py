"""Makes and publishes messages on a thread of its own, while the device works on the next window.

Torch and the middleware release Python's lock, so the worker's window and these messages run at
the same time. Knows no middleware.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeoutError  # until 3.11 a class of its own

from da3_ros.live.worker import Worker

MOST = 8  # frames that wait; each holds an image, depth and confidence
LOOK_S = 0.2  # period of checks for the end while waiting for room


class Publisher:
    """Runs jobs one after another. An exception goes to ``on_error``, and the next still runs."""

    def __init__(self, on_error: Callable[[BaseException], None], most: int = MOST) -> None:
        self._on_error = on_error
        self._room = threading.BoundedSemaphore(most)
        self._worker = Worker(lambda: False, on_error, name="da3-publisher")

    def submit(self, job: Callable[[], None]) -> None:
        """Run ``job`` soon; waits while too many wait already, so that memory is bounded."""
        while not self._room.acquire(timeout=LOOK_S):
            if self._worker.stopping:
                return
        self._worker.submit(lambda: self._run(job))

    def drain(self, timeout_s: float | None = None) -> None:
        """Wait until everything submitted so far has run. Raises TimeoutError."""
        if self._worker.stopping:
            return
        try:
            self._worker.submit(lambda: None).result(timeout_s)
        except FutureTimeoutError:
            text = f"frames are still being published after {timeout_s:g} s"
            raise TimeoutError(text) from None

    def stop(self, timeout_s: float) -> bool:
        """End the thread after what waits; False if it is still busy after ``timeout_s``."""
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
