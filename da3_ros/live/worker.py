"""Thread that owns the pipeline and the device. Callbacks only submit work to it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

CHECK_PERIOD_S = 0.1  # between two calls of ``keep_waiting`` in ``try_stop``
TICK_S = 0.5  # between two calls of ``tick``


class WorkerStoppedError(RuntimeError):
    """The worker ended before the job could run."""

    def __init__(self, text: str = "the node is being cleaned up or shut down") -> None:
        super().__init__(text)


class Worker:
    """Runs submitted jobs in order, and ``step`` repeatedly while it finds work.

    Once a step has found work, ``tick`` is called every ``TICK_S`` seconds, between steps and
    while there are none, until it says that nothing waits.

    An exception of a job is raised for the caller that waits for it. An exception of ``step`` goes
    to ``on_error``, and the worker continues with the next frame, so that an unattended robot
    needs no restart. Every job gets a result or an exception, even if the worker ends first.
    """

    def __init__(
        self,
        step: Callable[[], bool],
        on_error: Callable[[BaseException], None],
        name: str = "da3-worker",
        tick: Callable[[], bool] = lambda: False,
    ) -> None:
        """name: name of the thread. step: returns True if there may be more work.

        tick: returns True if something waits for later ticks; its exception goes to ``on_error``,
        and ends them until the next step.
        """
        self._step, self._on_error, self._tick = step, on_error, tick
        self._tick_at: float | None = None  # time of the next tick; None: nothing waits for it
        self._jobs: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._condition = threading.Condition()
        self._work = False
        self._stop = self._stop_pending = False
        # A daemon thread: a running window must not keep a stopped process alive.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def stopping(self) -> bool:
        """True if ``stop`` was called; long jobs should check this between their parts."""
        return self._stop

    @property
    def stop_requested(self) -> bool:
        """True if the worker stops, or if ``try_stop`` waits for it and may still give up."""
        return self._stop or self._stop_pending

    def notify(self) -> None:
        """Wake the worker: ``step`` may find work."""
        with self._condition:
            self._work = True
            self._condition.notify()

    def submit(self, job: Callable[[], Any]) -> Future[Any]:
        """Run ``job`` between two windows; the future gets its result or exception."""
        future: Future[Any] = Future()
        with self._condition:
            if not self._stop:
                self._jobs.append((job, future))
                self._condition.notify()
                return future
        future.set_exception(WorkerStoppedError())
        return future

    def stop(self, timeout_s: float) -> bool:
        """End the thread; False if a window still runs after ``timeout_s`` seconds.

        Waiting jobs fail at once with WorkerStoppedError, since the running window may take long.
        """
        with self._condition:
            self._stop = True
            self._condition.notify()
        self._refuse_jobs()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def try_stop(self, keep_waiting: Callable[[], bool]) -> bool:
        """End the thread between two windows; waits for that while ``keep_waiting()`` is True.

        False if the wait ends first; then nothing has changed and the worker continues.
        """
        with self._condition:
            self._stop_pending = True
            self._condition.notify()
        while self._thread.is_alive() and keep_waiting():
            self._thread.join(CHECK_PERIOD_S)
        with self._condition:
            self._stop_pending = False
            if not self._stop:
                return False
        self._thread.join()  # takes no time after the last window
        return True

    def _run(self) -> None:
        try:
            while self._run_once():
                pass
        finally:  # whatever ended the thread, no caller may wait forever
            self._stop = True
            self._refuse_jobs()

    def _run_once(self) -> bool:
        """Run one job or one step, and a tick that is due; False if the thread must end."""
        with self._condition:
            self._condition.wait_for(
                lambda: self._stop or self._stop_pending or self._jobs or self._work,
                self._until_tick(),
            )
            self._stop = self._stop or self._stop_pending
            if self._stop:
                return False
            job = self._jobs.popleft() if self._jobs else None
            has_work = self._work and job is None
            self._work = self._work and job is not None
        if job is not None:
            _answer(*job)
        elif has_work:
            self._try_step()
        self._try_tick()
        return True

    def _until_tick(self) -> float | None:
        """Returns the seconds until the next tick; None: there is none."""
        if self._tick_at is None:
            return None
        return max(0.0, self._tick_at - time.monotonic())

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
            if self._tick_at is None:
                self._tick_at = time.monotonic() + TICK_S

    def _try_tick(self) -> None:
        if self._stop or self._tick_at is None or time.monotonic() < self._tick_at:
            return
        try:
            waits = self._tick()
        except Exception as error:
            self._on_error(error)
            waits = False
        self._tick_at = time.monotonic() + TICK_S if waits else None


def _answer(job: Callable[[], Any], future: Future[Any]) -> None:
    try:
        result = job()
    except Exception as error:
        future.set_exception(error)
    except BaseException as error:  # SystemExit must not end the caller's thread either
        future.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))
    else:
        future.set_result(result)
