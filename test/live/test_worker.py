"""The worker thread answers jobs, survives errors and stops."""

import threading
from collections import deque

import pytest

from da3_ros.live import worker as module
from da3_ros.live.worker import Worker, WorkerStoppedError

PATIENCE_S = 60.0  # before an event counts as never come: other work may share the processor


def make(step=lambda: False, errors=None):
    return Worker(step, (errors if errors is not None else []).append)


def test_jobs_run_in_order_between_steps():
    seen, gate = [], threading.Event()

    def step():
        gate.wait(PATIENCE_S)
        seen.append("step")
        return False

    worker = make(step)
    worker.notify()
    jobs = [worker.submit(lambda i=i: seen.append(i) or i) for i in range(3)]
    gate.set()
    assert [job.result(PATIENCE_S) for job in jobs] == [0, 1, 2]
    assert [s for s in seen if s != "step"] == [0, 1, 2]
    assert worker.stop(PATIENCE_S)


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
    assert done.wait(PATIENCE_S)
    assert [str(e) for e in errors] == ["bad frame"]
    assert worker.stop(PATIENCE_S)


def test_an_error_in_a_job_reaches_its_caller_only():
    errors = []
    worker = make(errors=errors)
    with pytest.raises(ZeroDivisionError):
        worker.submit(lambda: 1 / 0).result(PATIENCE_S)
    assert worker.submit(lambda: "alive").result(PATIENCE_S) == "alive"
    assert errors == []
    assert worker.stop(PATIENCE_S)


def test_stop_waits_for_no_long_step_and_answers_jobs():
    begun, release, ended = threading.Event(), threading.Event(), threading.Event()

    def step():
        begun.set()
        assert release.wait(PATIENCE_S)
        ended.set()
        return False

    worker = make(step)
    worker.notify()
    assert begun.wait(PATIENCE_S)
    waiting = worker.submit(lambda: None)
    assert not worker.stop(0.1)
    assert not ended.is_set()
    with pytest.raises(WorkerStoppedError):
        waiting.result(0)  # at once: the step may take long
    release.set()
    with pytest.raises(WorkerStoppedError):
        worker.submit(lambda: None).result(PATIENCE_S)


def test_a_worker_retires_between_two_steps_or_works_on():
    begun, release = threading.Event(), threading.Event()

    def step():
        begun.set()
        release.wait(PATIENCE_S)
        return True  # more frames wait

    worker = make(step)
    worker.notify()
    assert begun.wait(PATIENCE_S)
    looks, requested = iter((True, False)), []
    assert not worker.stop_requested
    assert not worker.try_stop(lambda: requested.append(worker.stop_requested) or next(looks))
    assert requested == [True, True]
    assert not worker.stopping
    assert not worker.stop_requested
    waiting = worker.submit(lambda: "alive")
    release.set()
    assert waiting.result(PATIENCE_S) == "alive"
    assert worker.try_stop(lambda: True)
    assert worker.stopping
    assert worker.stop_requested
    with pytest.raises(WorkerStoppedError):
        worker.submit(lambda: None).result(PATIENCE_S)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_leaves_no_caller_waiting():
    begun, release = threading.Event(), threading.Event()

    def step():
        begun.set()
        release.wait(PATIENCE_S)
        raise ValueError("in the step")

    def bad_handler(error):
        raise RuntimeError("in its handler")

    worker = Worker(step, bad_handler)
    worker.notify()
    assert begun.wait(PATIENCE_S)
    waiting = worker.submit(lambda: None)
    release.set()
    with pytest.raises(WorkerStoppedError):
        waiting.result(PATIENCE_S)
    with pytest.raises(WorkerStoppedError):
        worker.submit(lambda: None).result(PATIENCE_S)


def test_a_job_that_asks_to_exit_is_an_error_of_its_caller():
    worker = make()

    def leave():
        raise SystemExit("now")

    with pytest.raises(RuntimeError, match="SystemExit: now"):
        worker.submit(leave).result(PATIENCE_S)
    assert worker.submit(lambda: "alive").result(PATIENCE_S) == "alive"
    assert worker.stop(PATIENCE_S)


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(module, "TICK_S", 0.01)


def ticking(step, answers):
    """A worker, its ticks, which answer so, its errors, and whether all answers were given. An
    exception is raised. step: is told that too."""
    ticks, errors, said, waiting = [], [], threading.Event(), deque(answers)

    def tick():
        ticks.append(len(ticks))
        answer = waiting.popleft()
        if not waiting:
            said.set()
        if isinstance(answer, Exception):
            raise answer
        return answer

    worker = Worker(lambda: step(said.is_set()), errors.append, tick=tick)
    return worker, ticks, errors, said


@pytest.mark.usefixtures("soon")
def test_ticks_follow_work_until_nothing_waits():
    work = deque([False, True])
    worker, ticks, errors, said = ticking(
        lambda _: bool(work and work.popleft()), [True, True, False]
    )
    worker.notify()  # finds nothing
    assert worker.submit(lambda: len(ticks)).result(PATIENCE_S) == 0
    assert not said.wait(0.1)
    worker.notify()
    assert said.wait(PATIENCE_S)
    assert worker.submit(lambda: worker._until_tick()).result(PATIENCE_S) is None
    assert len(ticks) == 3
    assert not errors
    assert worker.stop(PATIENCE_S)


@pytest.mark.usefixtures("soon")
def test_ticks_come_between_steps_that_go_on():
    worker, ticks, errors, said = ticking(lambda ends: not ends, [True] * 5 + [False])
    worker.notify()
    assert said.wait(PATIENCE_S)
    assert not errors
    assert worker.stop(PATIENCE_S)
    assert len(ticks) == 6


@pytest.mark.usefixtures("soon")
def test_an_error_in_a_tick_is_reported_once():
    work = deque([True, False, True, False])
    worker, ticks, errors, said = ticking(
        lambda _: bool(work and work.popleft()), [ValueError("bad tick"), False]
    )
    worker.notify()
    while not errors:
        worker.submit(lambda: None).result(PATIENCE_S)
    assert [str(e) for e in errors] == ["bad tick"]
    worker.notify()  # the next work
    assert said.wait(PATIENCE_S)
    assert len(ticks) == 2
    assert len(errors) == 1
    assert worker.stop(PATIENCE_S)
