"""Which stamps are believed: single wrong ones are faults, and no jumps of time."""

import re

import numpy as np
import pytest

from da3_ros.sensors.stamp_check import MOST_HELD, StampCheck

HOUR, STEP = 3600.0, 0.1
START = 1_700_000_000.0


def stamps_through(stamps, clock=None):
    """Believed stamps in order and faults of images 0.1 s apart; seconds after the start."""
    check, out = StampCheck(), []
    for n, s in enumerate(stamps):
        now = n * STEP
        at = START + (now if clock is None else clock[n])
        ns = 0 if s is None else round((START + s) * 1e9)
        out += check.add(n, ns, round(at * 1e9), 1000.0 + now)
    out += check.release()
    return [one.item for one in out], check.take_faults()


FAR = [1e6] * 60  # a clock that has nothing to do with the stamps


@pytest.mark.parametrize("off", [HOUR, -HOUR])
@pytest.mark.parametrize("wrong", [1, 2, 3])
@pytest.mark.parametrize("clock", [None, FAR])
def test_a_few_stamps_an_hour_off_are_faults(off, wrong, clock):
    right = [n * STEP for n in range(20)]
    stamps = [s + off * (10 <= n < 10 + wrong) for n, s in enumerate(right)]
    believed, faults = stamps_through(stamps, clock)
    assert believed == [n for n in range(20) if not 10 <= n < 10 + wrong]
    assert len(faults) == wrong
    assert "the camera driver's clock jumped" in faults[0]
    assert re.search(r"3(600|599|601)[.\d]* s", faults[0])


@pytest.mark.parametrize("off", [HOUR, -HOUR])
def test_a_jump_that_stays_is_believed_in_whole(off):
    stamps = [n * STEP + off * (n >= 10) for n in range(20)]
    believed, faults = stamps_through(stamps, FAR)
    assert believed == list(range(20))
    assert not faults


def test_the_clock_confirms_a_jump_at_once():
    """A camera that was off, or a simulator that was sent to another time."""
    check = StampCheck()
    for n in range(5):
        assert len(check.add(n, round((START + n * STEP) * 1e9), round(START * 1e9), n)) == 1
    later = round((START + HOUR) * 1e9)
    assert [one.item for one in check.add("on", later, later + 10**8, 9.0)] == ["on"]


@pytest.mark.parametrize("off", [8.0, 4.0, 2.4, -2.0, -3.0, -4.5])
@pytest.mark.parametrize("clock", [None, FAR])
def test_one_stamp_some_seconds_off_is_a_fault(off, clock):
    """Also where the clock would allow an image to come so late."""
    stamps = [n * STEP + off * (n == 10) for n in range(20)]
    believed, faults = stamps_through(stamps, clock)
    assert believed == [n for n in range(20) if n != 10]
    assert len(faults) == 1


@pytest.mark.parametrize("off", [HOUR, -HOUR, -60.0])
@pytest.mark.parametrize("wrong", [1, 2, 3])
@pytest.mark.parametrize("clock", [None, FAR])
def test_wrong_stamps_of_the_first_images_are_faults(off, wrong, clock):
    stamps = [n * STEP + off * (n < wrong) for n in range(20)]
    believed, faults = stamps_through(stamps, clock)
    assert believed == list(range(wrong, 20))
    assert len(faults) == wrong
    assert "the next image: the camera driver's clock jumped" in faults[0]


@pytest.mark.parametrize("wrong", [1, 2, 3])
@pytest.mark.parametrize("off", [HOUR, -HOUR])
def test_wrong_stamps_of_the_last_images_of_a_recording_are_faults(wrong, off):
    check, believed = StampCheck(), []
    for n in range(20):
        at = START + n * STEP
        stamp = at + off * (n >= 20 - wrong)
        believed += check.add(n, round(stamp * 1e9), round(at * 1e9), n * STEP + 1.0)
    believed += check.end()
    assert [one.item for one in believed] == list(range(20 - wrong))
    assert len(check.take_faults()) == wrong


@pytest.mark.parametrize("right", [1, 2])
def test_the_last_images_of_a_recording_are_believed_if_both_clocks_were_set_back(right):
    """By simulated time: no clock confirms them before the end."""
    check, believed = StampCheck(), []
    for n in range(10):
        set_back = 300.0 * (n >= 10 - right)
        stamp, clock = 1000.0 + n * STEP - set_back, START + n * STEP - set_back
        believed += check.add(n, round(stamp * 1e9), round(clock * 1e9), n * STEP + 1.0)
    assert check.waiting == right
    believed += check.end()
    assert [one.item for one in believed] == list(range(10))
    assert check.take_faults() == []


def test_a_slow_camera_whose_clock_is_ahead_is_believed_to_the_end():
    """Its age is sometimes just beyond what the clock may confirm."""
    check, believed = StampCheck(), []
    for n, age in enumerate([-0.99, -0.98, -1.01, -0.99, -1.02]):
        at = START + 2.5 * n
        believed += check.add(n, round((at - age) * 1e9), round(at * 1e9), 2.5 * n + 1.0)
    believed += check.end()
    assert [one.item for one in believed] == list(range(5))


def test_the_last_image_of_a_recording_is_believed_after_a_pause():
    check, times = StampCheck(), [0.0, 0.1, 0.2, 60.0]
    for n, t in enumerate(times):
        check.add(n, round((5.0 + t) * 1e9), round((START + t) * 1e9), t + 1.0)
    check.end()
    assert check.take_faults() == []


def test_images_do_not_wait_without_bound_where_no_two_stamps_agree():
    check, rng = StampCheck(), np.random.default_rng(0)
    for n, s in enumerate(rng.uniform(-1e6, 1e6, 200)):
        check.add(n, round((START + s) * 1e9), 10**15, n * STEP + 1.0)
        assert check.waiting <= MOST_HELD
    assert len(check.take_faults()) > 150


def test_the_first_image_of_a_rig_waits_for_one_more_only():
    for of_rig, waiting in ((True, [1, 0, 0]), (False, [1, 2, 3])):
        check, found = StampCheck(of_rig=of_rig), []
        for n in range(3):
            check.add(n, round((START + n * STEP) * 1e9), 1, 100.0 + n * STEP)
            found.append(check.waiting)
        assert found == waiting


@pytest.mark.parametrize("clock", [None, FAR])
def test_stamps_that_jump_each_time_are_never_believed(clock):
    stamps = [n * STEP + HOUR * max(0, n - 9) * (n < 18) for n in range(22)]
    believed, faults = stamps_through(stamps, clock)
    assert believed == [n for n in range(22) if not 10 <= n < 18]
    assert len(faults) == 8


def test_the_first_image_waits_only_where_the_clock_is_another_one():
    for clock, waiting in ((START, 0), (1.0, 1)):
        check = StampCheck()
        check.add("a", round(START * 1e9), round(clock * 1e9), 100.0)
        assert check.waiting == waiting
        assert not check.overdue(101.1)  # the next one may have arrived unseen
        assert [one.item for one in check.overdue(101.2)] == ["a"] * waiting


def test_stamps_of_zero_are_faults_with_their_cause():
    believed, faults = stamps_through([None] * 5)
    assert believed == []
    assert len(faults) == 5
    assert "header.stamp is 0" in faults[0]


def test_a_stamp_that_stands_still_becomes_a_fault():
    believed, faults = stamps_through([0.0, 0.1] + [0.1] * 20)
    assert len(believed) == 11  # repeated stamps are late frames at first
    assert "stands still" in faults[0]


def through(times, polled=True):
    """Number of believed images of (stamp, clock) pairs, seconds; polled five times a second, or
    read from a bag."""
    check, believed, now = StampCheck(), 0, None
    for stamp, clock in times:
        while polled and now is not None and now + 0.2 < clock:
            now += 0.2
            believed += len(check.overdue(now))
        now = clock
        believed += len(check.add(0, round(stamp * 1e9), round(clock * 1e9), clock))
    return believed + len(check.release())


@pytest.mark.parametrize("clock", [0.0, -5e6])
@pytest.mark.parametrize("first", [0.1, 3.0])
def test_what_comes_seldom_is_believed(clock, first):
    """Stills every 20 s, the first one late; pairs; a slow camera with one more image."""
    for stamps in (
        [20.0 * n for n in range(40)],
        [5.0 * n + k for n in range(20) for k in (0.0, 0.1)],
        sorted([*(5.0 * n for n in range(40)), 45.1]),
        [0.1 * n for n in range(20)] + [5 + 3.0 * n for n in range(20)],
    ):
        times = [(START + s, START + clock + s + 0.1) for s in stamps]
        times[0] = (START, START + clock + first) if stamps[1] > first else times[0]
        assert through(times) == through(times, polled=False) == len(times)


@pytest.mark.parametrize("latest", [1.3, 3.2])
def test_latency_that_varies_is_no_fault(latest):
    late = np.random.default_rng(0).uniform(0.1, latest, 40)
    for step in (0.5, 3.0, 20.0):
        stamps = START + step * np.arange(40)
        times = list(zip(stamps, np.maximum.accumulate(stamps + late), strict=True))
        assert through(times) == 40


@pytest.mark.parametrize("rate", [0.5, 1.0, 3.0])
def test_a_bag_may_be_played_at_another_rate(rate):
    stamps = [*(0.1 * n for n in range(20)), *(5 + 3.0 * n for n in range(20))]
    assert through([(START + s, 1e6 + s / rate) for s in stamps]) == len(stamps)


def test_a_bag_without_times_of_recording_is_believed():
    check = StampCheck()
    got = sum(len(check.add(n, round((START + 5.0 * n) * 1e9), 0, 0.0)) for n in range(20))
    assert got == 20


@pytest.mark.parametrize("off", [2.5, -1.5])
def test_a_clock_that_is_set_with_the_cameras_own_is_no_fault(off):
    """One computer, whose clock is set by NTP while the camera waits."""
    stamps = [n * STEP + off * (n >= 10) for n in range(20)]
    believed, faults = stamps_through(stamps, [s + 0.02 * (n % 3) for n, s in enumerate(stamps)])
    assert (believed, faults) == (list(range(20)), [])


def test_images_that_were_held_up_are_no_fault():
    """By another clock than the node's: a stall ends in a burst of images, slow or fast ones."""
    stamps = [3.3 * n for n in range(20)]
    arrivals = [s + 3.25 * (n % 5 == 3) for n, s in enumerate(stamps)]
    times = [(START + s, 1e6 + a) for s, a in zip(stamps, arrivals, strict=True)]
    assert through(times, polled=True) == through(times, polled=False) == 20
    check = StampCheck()
    for n in range(20):
        stamp, arrival = n * STEP + 1.6 * (n >= 10), n * STEP
        check.add(n, round((START + stamp) * 1e9), 1, 100.0 + arrival)
        assert n < 4 or not check.waiting


def test_a_clock_that_is_right_again_is_believed_at_once():
    stamps = [n * STEP + HOUR * (5 <= n < 15) for n in range(20)]
    check, believed = StampCheck(), []
    for n, s in enumerate(stamps):
        clock = round((START + n * STEP) * 1e9)
        believed += check.add(n, round((START + s) * 1e9), clock, 100.0 + n * STEP)
        assert not check.waiting or 5 <= n < 8
    assert [one.item for one in believed] == list(range(20))


@pytest.mark.parametrize("polled", [False, True])
def test_a_recording_that_is_played_fast_loses_nothing(polled):
    stamps = START + 2.5 * np.arange(40)
    for rate in (5.2, 10.0, 2500.0):
        times = [(s, 1e6 + (s - START) / rate) for s in stamps]
        assert through(times, polled) == 40


def test_a_short_recording_in_a_loop_is_believed():
    for loop in ([0.0, 1.0, 2.0], [0.0, 1.5]):
        times = [(START + loop[n % len(loop)], 1e6 + n) for n in range(60)]
        assert through(times) >= 58


@pytest.mark.parametrize("clock", [0.0, -5e6])
@pytest.mark.parametrize(("step", "stall"), [(3.0, 9.0), (3.0, 30.0), (0.1, 3.0)])
def test_a_burst_after_a_stall_loses_nothing(clock, step, stall):
    stamps = step * np.arange(40)
    arrivals = np.where((stamps > 9) & (stamps < 9 + stall), 9 + stall, stamps) + 0.01
    arrivals += 0.002 * np.arange(40)
    times = [(START + s, START + clock + a) for s, a in zip(stamps, arrivals, strict=True)]
    assert through(times) == through(times, polled=False) == 40


@pytest.mark.parametrize("every", [3, 4, 5])
def test_right_images_survive_wrong_ones_among_them(every):
    """From the start, by another clock."""
    stamps = [n * STEP + HOUR * (n % every == every - 1) for n in range(60)]
    believed, faults = stamps_through(stamps, FAR)
    right = [n for n in range(60) if n % every != every - 1]
    assert [n for n in believed if n < 57] == [n for n in right if n < 57]
    assert len(faults) >= 60 // every - 1


@pytest.mark.parametrize("rate", [2.0, 10.0, 30.0])
@pytest.mark.parametrize("off", [-1.05, -1.5, -3.0])
def test_a_camera_whose_clock_is_set_back_loses_nothing(rate, off):
    stamps = np.arange(60) / rate
    times = [(START + s + off * (n >= 20), START + s + 0.05) for n, s in enumerate(stamps)]
    assert through(times, polled=False) == 60


def test_late_and_unordered_stamps_pass():
    stamps = [0.0, 0.1, 0.3, 0.2, 0.4, 0.4, -0.5, 0.5]
    assert stamps_through(stamps, FAR) == (list(range(8)), [])


def test_a_slow_camera_does_not_wait():
    check = StampCheck()
    check.add(0, round(START * 1e9), 1, 100.0)
    assert not check.overdue(101.1)
    assert check.overdue(101.2)
    for n in range(1, 5):
        got = check.add(n, round((START + 9.0 * n) * 1e9), 1, 100.0 + 9.0 * n)
        assert [one.item for one in got] == [n]
    assert check.add(5, round((START + 66.0) * 1e9), 1, 166.0)  # three were lost


def begun():
    """A check that has believed four images, 0.1 s apart, by another clock."""
    check = StampCheck()
    for n in range(4):
        believed = check.add(n, round((START + n * STEP) * 1e9), 1, 100.0 + n * STEP)
    assert [one.item for one in believed] == [0, 1, 2, 3]
    return check


def test_an_image_waits_for_the_next_one_for_a_bounded_time():
    check = begun()
    assert not check.add("jumped", round((START + HOUR) * 1e9), 1, 100.4)
    assert check.waiting == 1
    assert not check.overdue(101.1)
    assert not check.overdue(101.5)
    assert [one.item for one in check.overdue(101.7)] == ["jumped"]
    assert not check.overdue(200.0)


def test_after_a_stall_the_next_image_is_seen_before_one_is_overdue():
    check = begun()
    assert not check.add("jumped", round((START + HOUR) * 1e9), 1, 100.4)
    assert not check.overdue(105.0)
    assert [o.item for o in check.add("right", round((START + 0.5) * 1e9), 1, 105.0)] == ["right"]
    assert len(check.take_faults()) == 1


def test_a_reset_drops_what_waits():
    check = begun()
    check.add("jumped", round((START + HOUR) * 1e9), 1, 100.4)
    assert check.reset() == 1
    assert check.waiting == 0
    assert not check.add("new", round(START * 1e9), 1, 101.0)
    assert check.waiting == 1
