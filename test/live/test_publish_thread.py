"""Frames are published in order on a thread of their own, and never pile up."""

import threading
import time

import pytest

from da3_ros.live.publish_thread import Publisher


@pytest.fixture
def errors():
    return []


@pytest.fixture
def publisher(errors):
    publisher = Publisher(errors.append, most=2)
    yield publisher
    publisher.stop(5.0)


def test_jobs_run_in_order_on_another_thread(publisher):
    ran = []
    for i in range(20):
        publisher.submit(lambda i=i: ran.append((i, threading.get_ident())))
    publisher.drain(5.0)
    assert [i for i, _ in ran] == list(range(20))
    assert threading.get_ident() not in {thread for _, thread in ran}


def test_the_submitter_goes_on_while_a_job_runs(publisher):
    gate, ran = threading.Event(), []
    publisher.submit(lambda: gate.wait(5.0) and ran.append(1))
    assert not ran  # it is still being published, and we are here
    gate.set()
    publisher.drain(5.0)
    assert ran == [1]


def test_too_many_make_whoever_submits_wait(publisher):
    gate, submitted = threading.Event(), []

    def submit():
        for i in range(4):
            publisher.submit(lambda: gate.wait(5.0))
            submitted.append(i)

    thread = threading.Thread(target=submit)
    thread.start()
    while len(submitted) < 2:
        time.sleep(0.01)
    thread.join(0.3)
    assert thread.is_alive()
    assert submitted == [0, 1]
    gate.set()
    thread.join(5.0)
    assert submitted == [0, 1, 2, 3]


def test_a_failure_is_reported_and_the_next_job_runs(publisher, errors):
    ran = []
    publisher.submit(lambda: 1 / 0)
    publisher.submit(lambda: ran.append(1))
    publisher.drain(5.0)
    assert ran == [1]
    assert isinstance(errors[0], ZeroDivisionError)


def test_the_end_waits_for_what_waits_but_not_for_ever(errors):
    ran, publisher = [], Publisher(errors.append)
    publisher.submit(lambda: ran.append(1))
    assert publisher.stop(5.0)
    assert ran == [1]
    gate, stuck = threading.Event(), Publisher(errors.append, most=1)
    stuck.submit(lambda: gate.wait(20.0))
    assert not stuck.stop(0.1)
    stuck.submit(lambda: None)  # returns, and drops it
    gate.set()
