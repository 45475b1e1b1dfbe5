"""Live sampling: the newest frame always, the others spread evenly, every drop counted."""

import numpy as np
import pytest

from da3_ros.live.scene_stream import FrameQueue, choose_evenly
from da3_ros.types import Frame

MS = 10**6


def frame(stamp_ms):
    return Frame(stamp_ms * MS, np.zeros((1, 1, 3), np.uint8))


def stamps(frames):
    return [f.stamp_ns // MS for f in frames]


def test_one_frame_per_pass_is_the_newest():
    inbox = FrameQueue(1)
    for t in (0, 33, 66):
        inbox.put(frame(t))
    assert stamps(inbox.take()) == [66]
    assert inbox.take() == []
    assert inbox.counts["busy"] == 2


@pytest.mark.parametrize("waiting", [9, 30, 300])
def test_frames_of_a_pass_spread_over_the_time_since_the_last(waiting):
    inbox = FrameQueue(3)
    for t in (0, 10, 20):
        inbox.put(frame(t))
    assert stamps(inbox.take()) == [0, 10, 20]
    for i in range(1, waiting + 1):
        inbox.put(frame(20 + 10 * i))
    taken = stamps(inbox.take())
    assert taken[-1] == 20 + 10 * waiting
    gaps = np.diff([20, *taken])
    assert gaps.max() <= 1.6 * gaps.min()
    assert inbox.counts["busy"] == waiting - 3
    assert len(inbox) == 0


def test_memory_is_bounded_while_the_worker_is_busy():
    inbox = FrameQueue(4)
    for t in range(1000):
        inbox.put(frame(t))
        assert len(inbox) <= 16
    assert stamps(inbox.take())[-1] == 999


def test_too_few_frames_wait_for_more():
    inbox = FrameQueue(2)
    inbox.put(frame(0))
    assert inbox.take() == []
    inbox.put(frame(1))
    assert stamps(inbox.take()) == [0, 1]


def test_old_frames_are_dropped_and_counted():
    inbox = FrameQueue(2, max_age_s=0.1)
    for t in (0, 50, 150, 160):
        inbox.put(frame(t))
    assert stamps(inbox.take(now_ns=200 * MS)) == [150, 160]
    assert inbox.counts["too_old"] == 2


def test_clear_counts_what_it_drops():
    inbox = FrameQueue(2)
    inbox.put(frame(0))
    inbox.clear()
    assert (len(inbox), inbox.counts["cleared"]) == (0, 1)


def test_choice_is_made_of_distinct_frames_even_with_a_burst():
    assert choose_evenly([0, 1, 2, 1000], 3, None) == [0, 2, 3]
    assert choose_evenly([900, 901, 902, 1000], 3, 0) == [0, 1, 3]


def test_waiting_time_counts_from_the_first_frame():
    """By this several cameras take turns on one network."""
    inbox = FrameQueue(1)
    assert inbox.since_ns == float("inf")
    for t in (5, 38, 71):
        inbox.put(frame(t))
    assert inbox.since_ns == 5 * MS
    inbox.take()
    assert inbox.since_ns == float("inf")
    inbox.put(frame(104))
    assert inbox.since_ns == 104 * MS


def test_frames_that_stand_for_several_images_are_counted_so():
    inbox = FrameQueue(1, images=lambda f: 2)
    for t in (0, 33, 66):
        inbox.put(frame(t))
    assert inbox.counts["busy"] == 4
    inbox.clear()
    assert inbox.counts["cleared"] == 2
