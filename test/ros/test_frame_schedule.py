"""How a walk becomes a stream: order, stamps, rendering ahead. Without ROS."""

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from da3_ros.ros import frame_schedule as module
from da3_ros.ros.frame_schedule import FrameBuffer, ResultPacer, StampGrid, cycle_index


@pytest.mark.parametrize(
    ("closed", "length", "order"),
    [
        (True, 4, [0, 1, 2, 3, 1, 2, 0, 1, 2]),
        (False, 4, [0, 1, 2, 3, 2, 1, 0, 1, 2]),
        (False, 1, [0, 0, 0]),
        (True, 1, [0, 0, 0]),
        (True, 2, [0, 1, 0, 0]),
    ],
)
def test_endless_walk_never_jumps(closed, length, order):
    found = [cycle_index(i, length, closed=closed) for i in range(len(order))]
    if closed and length > 2:
        # The last frame is the first again, so each step leads to a neighbour in the ring.
        ring = [i % (length - 1) for i in found]
        assert set(np.diff(ring) % (length - 1)) == {1}
    else:
        assert found == order


def test_stamps_stand_on_a_grid_however_late_the_calls():
    grid, late = StampGrid(30.0), np.random.default_rng(1).uniform(0.0, 0.6, 300)
    stamps = [grid.next(round((i + late[i]) * 1e9 / 30) + 10**18) for i in range(300)]
    steps = np.diff(stamps) * 30 / 1e9
    np.testing.assert_allclose(steps, 1.0, atol=1e-6)


def test_missed_periods_leave_a_hole():
    """Missed periods leave a hole and a clock set back begins anew."""
    grid = StampGrid(10.0)
    seconds = [5.0, 5.1, 5.52, 5.6, 2.0, 2.1]
    stamps = [grid.next(round(t * 1e9)) for t in seconds]
    np.testing.assert_allclose(np.array(stamps) / 1e9, [5.0, 5.1, 5.5, 5.6, 2.0, 2.1])


def test_fault_while_rendering_is_handed_over():
    def broken():
        yield 1
        raise ValueError("no free place")

    buffer = FrameBuffer(3, broken)
    assert buffer.stop(60.0)
    assert len(buffer) == 1
    assert buffer.get(1) is None
    assert str(buffer.error) == "no free place"


def test_publishing_begins_when_the_rest_will_be_in_time(monkeypatch):
    now = [100.0]  # a clock of the test's own: rendering takes the same on every machine
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def slow():
        for i in range(12):
            now[0] += 0.02
            if i == 9:
                there.wait()
            yield i

    there = threading.Event()
    buffer = FrameBuffer(12, slow)
    while len(buffer) < 9:
        time.sleep(0.005)
    assert buffer.enough(10.0)  # three are missing, 0.1 s; the last is due in 1.1 s
    assert not buffer.enough(1000.0)
    there.set()
    assert buffer.stop(60.0)


def test_next_frame_waits_for_the_answer_to_the_last_one():
    pacer = ResultPacer(timeout_s=5.0)
    assert pacer.may_send(0.0)
    pacer.frame_sent(100, 0.0)
    assert not pacer.may_send(0.1)
    pacer.result_received(99)  # late, to an earlier one
    assert not pacer.may_send(0.2)
    pacer.result_received(100)
    assert pacer.may_send(0.2)
    assert pacer.missed == 0


def test_without_an_answer_the_next_frame_goes_on_timeout():
    pacer = ResultPacer(timeout_s=5.0)
    pacer.frame_sent(100, 1.0)
    assert [pacer.may_send(t) for t in (1.0, 5.9, 6.0)] == [False, False, True]
    pacer.frame_sent(200, 6.0)
    assert not pacer.may_send(6.1)
    assert pacer.missed == 1
    pacer.result_received(200)
    assert pacer.may_send(6.2)
    assert pacer.missed == 1
