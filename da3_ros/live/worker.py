"""One thread that owns the pipeline, and so the device. Callbacks only hand things to it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

LOOK_S = 0.1  # how often ``retire`` asks for patience


class WorkerStoppedError(RuntimeError):
    """The worker ended before it could answer."""

    def __init__(self, text: str = "the node is being cleaned up or shut down") -> None:
        super().__init__(text)


class Worker:
    """Runs submitted jobs in order, and ``step`` again and again while it finds work.

    An exception of a job goes to the caller that waits for it; one of ``step`` goes to
    ``on_error``, and the worker goes on with the next frame: a robot at night has nobody to
    restart it. Every job is answered, also when the worker ends before its turn.
    """

    def __init__(
        self,
        step: Callable[[], bool],
        on_error: Callable[[BaseException], None],
        name: str = "da3-worker",
    ) -> None:
        """``name`` is the thread's."""
        self._step, self._on_error = step, on_error
        self._jobs: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._condition = threading.Condition()
        self._work = False
        self._stop = self._retiring = False
        # A daemon: a network in mid-window must not keep a stopped process alive.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def stopping(self) -> bool:
        """Whether ``stop`` was called; long work should look at this between its parts."""
        return self._stop

    @property
    def leaving(self) -> bool:
        """Whether it stops, or ``retire`` waits for it and may still give up."""
        return self._stop or self._retiring

    def notify(self) -> None:
        """Say that ``step`` may find work."""
        with self._condition:
            self._work = True
            self._condition.notify()

    def submit(self, job: Callable[[], Any]) -> Future[Any]:
        """Run ``job`` between two windows; its result or exception is in the future."""
        future: Future[Any] = Future()
        with self._condition:
            if not self._stop:
                self._jobs.append((job, future))
                self._condition.notify()
                return future
        future.set_exception(WorkerStoppedError())
        return future

    def stop(self, timeout_s: float) -> bool:
        """End the thread; False if it is still in mid-window after ``timeout_s``.

        Jobs that wait are answered at once: the window under way may take long.
        """
        with self._condition:
            self._stop = True
            self._condition.notify()
        self._refuse_jobs()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def retire(self, patient: Callable[[], bool]) -> bool:
        """End the thread between two windows, and wait for that as long as ``patient()``.

        False where patience ends first: then nothing has changed, and the worker works on.
        """
        with self._condition:
            self._retiring = True
            self._condition.notify()
        while self._thread.is_alive() and patient():
            self._thread.join(LOOK_S)
        with self._condition:
            self._retiring = False
            if not self._stop:
                return False
        self._thread.join()  # what it does after the last window takes no time
        return True

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        finally:  # whatever ended it, no caller waits for an answer that never comes
            self._stop = True
            self._refuse_jobs()

    def _turn(self) -> bool:
        """One job or one step; False when it is time to end."""
        with self._condition:
            self._condition.wait_for(
                lambda: self._stop or self._retiring or self._jobs or self._work
            )
            self._stop = self._stop or self._retiring
            if self._stop:
                return False
            job = self._jobs.popleft() if self._jobs else None
            self._work = self._work and job is not None
        if job is not None:
            _answer(*job)
        else:
            self._try_step()
        return True

    def _refuse_jobs(self) -> None:
        while True:
            with self._condition:
                if not self._jobs:
                    return
                _, future = self._jobs.popleft()
            future.set_exception(WorkerStoppedError())

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
    except BaseException as error:  # SystemExit must not end the caller's thread either
        future.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))
    else:
        future.set_result(result)
