"""One thread that owns the pipeline, and so the device. Callbacks only hand things to it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class WorkerStoppedError(RuntimeError):
    """The worker ended before it could answer."""


class Worker:
    """Runs submitted jobs in order, and ``step`` again and again while it finds work.

    An exception of a job goes to whoever waits for it; one of ``step`` goes to ``on_error``, and
    the worker goes on with the next frame: a robot at night has nobody to restart it.
    """

    def __init__(
        self, step: Callable[[], bool], on_error: Callable[[BaseException], None]
    ) -> None:
        self._step, self._on_error = step, on_error
        self._jobs: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._condition = threading.Condition()
        self._work = False
        self._stop = False
        # A daemon: a network in mid-window must not keep a stopped process alive.
        self._thread = threading.Thread(target=self._run, name="da3-worker", daemon=True)
        self._thread.start()

    @property
    def stopping(self) -> bool:
        """Whether ``stop`` was called; long work should look at this between its parts."""
        return self._stop

    def notify(self) -> None:
        """Say that ``step`` may find work."""
        with self._condition:
            self._work = True
            self._condition.notify()

    def submit(self, job: Callable[[], Any]) -> Future[Any]:
        """Run ``job`` between two windows; its result or exception is in the future."""
        future: Future[Any] = Future()
        with self._condition:
            if self._stop:
                future.set_exception(WorkerStoppedError("the node is shutting down"))
                return future
            self._jobs.append((job, future))
            self._condition.notify()
        return future

    def stop(self, timeout_s: float) -> bool:
        """End the thread; False if it is still in mid-window after ``timeout_s``."""
        with self._condition:
            self._stop = True
            self._condition.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._stop or self._jobs or self._work)
                if self._stop:
                    break
                job = self._jobs.popleft() if self._jobs else None
                self._work = self._work and job is not None
            if job is not None:
                _answer(*job)
            else:
                self._try_step()
        for _, future in self._jobs:
            future.set_exception(WorkerStoppedError("the node is shutting down"))

    def _try_step(self) -> None:
        try:
            more = self._step()
        except Exception as error:
            self._on_error(error)
            more = True
        if more:
            self.notify()


def _answer(job: Callable[[], Any], future: Future[Any]) -> None:
    try:
        result = job()
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(result)
