"""The worker thread answers jobs, survives errors and stops."""

import threading
import time

import pytest

from da3_ros.ros.worker import Worker, WorkerStoppedError


def make(step=lambda: False, errors=None):
    return Worker(step, (errors if errors is not None else []).append)


def test_jobs_run_in_order_between_steps():
    seen, gate = [], threading.Event()

    def step():
        gate.wait(5)
        seen.append("step")
        return False

    worker = make(step)
    worker.notify()
    jobs = [worker.submit(lambda i=i: seen.append(i) or i) for i in range(3)]
    gate.set()
    assert [job.result(5) for job in jobs] == [0, 1, 2]
    assert [s for s in seen if s != "step"] == [0, 1, 2]
    assert worker.stop(5)


def test_an_error_in_a_step_is_reported_and_the_next_step_runs():
    errors, calls, done = [], [], threading.Event()

    def step():
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("bad frame")
        done.set()
        return False

    worker = make(step, errors)
    worker.notify()
    assert done.wait(5)
    assert [str(e) for e in errors] == ["bad frame"]
    assert worker.stop(5)


def test_an_error_in_a_job_reaches_its_caller_only():
    errors = []
    worker = make(errors=errors)
    with pytest.raises(ZeroDivisionError):
        worker.submit(lambda: 1 / 0).result(5)
    assert worker.submit(lambda: "alive").result(5) == "alive"
    assert errors == []
    assert worker.stop(5)


def test_stop_does_not_wait_for_a_long_step_and_answers_waiting_jobs():
    begun, release = threading.Event(), threading.Event()

    def step():
        begun.set()
        release.wait(10)
        return False

    worker = make(step)
    worker.notify()
    begun.wait(5)
    waiting = worker.submit(lambda: None)
    start = time.monotonic()
    assert not worker.stop(0.1)
    assert time.monotonic() - start < 2
    release.set()
    with pytest.raises(WorkerStoppedError):
        waiting.result(5)
    with pytest.raises(WorkerStoppedError):
        worker.submit(lambda: None).result(5)
