"""Frames are published in order on a thread of their own, and never pile up."""

import threading
import time

import pytest

from da3_ros.live.publish_thread import Publisher

PATIENCE_S = 60.0  # before an event counts as never come: other work may share the processor


@pytest.fixture
def errors():
    return []


@pytest.fixture
def publisher(errors):
    publisher = Publisher(errors.append, most=2)
    yield publisher
    publisher.stop(PATIENCE_S)


def test_jobs_run_in_order_on_another_thread(publisher):
    ran = []
    for i in range(20):
        publisher.submit(lambda i=i: ran.append((i, threading.get_ident())))
    publisher.drain(PATIENCE_S)
    assert [i for i, _ in ran] == list(range(20))
    assert threading.get_ident() not in {thread for _, thread in ran}


def test_the_submitter_goes_on_while_a_job_runs(publisher):
    gate, ran = threading.Event(), []
    publisher.submit(lambda: gate.wait(PATIENCE_S) and ran.append(1))
    assert not ran  # it is still being published, and we are here
    gate.set()
    publisher.drain(PATIENCE_S)
    assert ran == [1]


def test_too_many_make_whoever_submits_wait(publisher):
    gate, submitted = threading.Event(), []

    def submit():
        for i in range(4):
            publisher.submit(lambda: gate.wait(PATIENCE_S))
            submitted.append(i)

    thread = threading.Thread(target=submit)
    thread.start()
    while len(submitted) < 2:
        time.sleep(0.01)
    thread.join(0.3)
    assert thread.is_alive()
    assert submitted == [0, 1]
    gate.set()
    thread.join(PATIENCE_S)
    assert submitted == [0, 1, 2, 3]


def test_a_failure_is_reported_and_the_next_job_runs(publisher, errors):
    ran = []
    publisher.submit(lambda: 1 / 0)
    publisher.submit(lambda: ran.append(1))
    publisher.drain(PATIENCE_S)
    assert ran == [1]
    assert isinstance(errors[0], ZeroDivisionError)


def test_the_end_waits_for_what_waits_but_not_for_ever(errors):
    ran, publisher = [], Publisher(errors.append)
    publisher.submit(lambda: ran.append(1))
    assert publisher.stop(PATIENCE_S)
    assert ran == [1]
    gate, stuck = threading.Event(), Publisher(errors.append, most=1)
    stuck.submit(lambda: gate.wait(PATIENCE_S))
    assert not stuck.stop(0.1)
    stuck.submit(lambda: None)  # returns, and drops it
    gate.set()
