"""What diagnostics call OK, WARN and ERROR."""

import math

import pytest

from da3_ros.live.health import ERROR, OK, WARN, Facts, assess
from da3_ros.live.metrics import RECENT_S, STALE_S, CounterGrowth, EventTimes, StageTimes

GOOD = {"state": "active", "input_age_s": 0.1, "output_age_s": 0.2}


@pytest.mark.parametrize(
    ("changes", "level", "words"),
    [
        ({}, OK, "active"),
        ({"growing": ("busy", "late")}, OK, "active"),
        ({"input_age_s": None}, WARN, "no images arrive"),
        ({"input_age_s": 6.0}, WARN, "no images arrive"),
        ({"stamp_age_s": 4.0}, OK, "active"),
        ({"stamp_age_s": 7.0}, WARN, "image stamps are 7 s behind the node's clock"),
        ({"stamp_age_s": -1.7e9}, WARN, "1.7e+09 s ahead of the node's clock"),
        ({"silent": ("/left/image",)}, WARN, "no images arrive on /left/image"),
        ({"state": "inactive", "input_age_s": None}, OK, "inactive"),
        ({"growing": ("bad_image",)}, WARN, "images are lost (bad_image)"),
        ({"growing": ("failed",), "last_error": "why"}, ERROR, "windows are lost (failed): why"),
        ({"unpublished": True, "last_error": "why"}, ERROR, "frames are not published: why"),
        ({"output_age_s": 11.0}, ERROR, "there has been no result for 11 s"),
        ({"output_age_s": 11.0, "enabled": False}, WARN, "paused"),
        ({"refused": True}, WARN, "cannot be aligned"),
        ({"blind": ("dark of left",)}, WARN, "images show nothing (dark of left)"),
        ({"degraded": ("4 views",)}, WARN, "memory is short: 4 views"),
        ({"map_fault": "there is no map"}, WARN, "there is no map"),
        ({"scale": "the scale is unknown"}, WARN, "the scale is unknown"),
        ({"configured": False, "state": "unconfigured"}, OK, "unconfigured"),
        ({"configured": False, "failure": "no weights"}, ERROR, "no weights"),
        ({"configured": False, "state": "unconfigured", "last_error": "x"}, OK, "unconfigured"),
        ({"state": "inactive", "failure": "no topic"}, ERROR, "no topic"),
    ],
)
def test_levels(changes, level, words):
    found, text = assess(Facts(**{**GOOD, **changes}))
    assert (found, words in text) == (level, True), text


def test_worst_comes_first_and_nothing_is_left_out():
    facts = Facts(**GOOD, growing=("failed", "bad_image"), last_error="x", scale="no metres")
    _, text = assess(facts)
    assert text.split("; ") == [
        "windows are lost (failed): x", "images are lost (bad_image)", "no metres",
    ]  # fmt: skip


def test_images_with_wrong_stamps_are_not_said_to_be_missing():
    facts = Facts(**{**GOOD, "input_age_s": None}, growing=("bad_stamp",))
    level, text = assess(facts)
    assert level == WARN
    assert "no images arrive" not in text
    assert "image stamps are wrong (0, standing still" in text


def test_growth_is_forgotten_after_a_while():
    growth = CounterGrowth()
    assert growth.update({"a": 0, "b": 2}, 0.0) == ["b"]
    assert growth.update({"a": 1, "b": 2}, RECENT_S - 1) == ["a", "b"]
    assert growth.update({"a": 1, "b": 2}, RECENT_S + 1) == ["a"]


def test_rates_use_the_ros_clock_and_silence_the_steady_one():
    events = EventTimes()
    assert (events.rate_hz(0.0), events.silent_s(0.0)) == (0.0, None)
    assert math.isnan(events.age_s(0))
    for n in range(5):  # 10 Hz of the simulator, which runs at half speed
        events.add(n * 100_000_000, now_s=100.0 + 0.2 * n)
    assert events.rate_hz(101.0) == pytest.approx(10.0)
    assert events.age_s(700_000_000) == pytest.approx(0.3)
    assert events.silent_s(102.8) == pytest.approx(2.0)
    assert events.since_first_s(102.8) == pytest.approx(2.8)
    assert events.rate_hz(101.0 + STALE_S) == 0.0


def test_no_rate_is_made_up_before_the_clock_or_after_a_jump():
    events = EventTimes()
    for n in range(3):
        events.add(0, now_s=n)
    assert events.rate_hz(3.0) == 0.0
    events.add(90 * 10**9, now_s=3.0)
    events.add(10**9, now_s=3.1)  # the bag begins again
    assert events.age_s(0) == 0.0
    assert events.rate_hz(3.2) == 0.0
    events.add(2 * 10**9, now_s=3.2)
    assert events.rate_hz(3.3) == pytest.approx(1.0)


def test_stages_keep_median_and_95th_percentile():
    stages = StageTimes()
    for n in range(1, 21):
        stages.add("decode", n)
    with pytest.raises(KeyError), stages.of("publish"):
        raise KeyError
    assert stages.summary()["decode_median_s"] == 10.5
    assert stages.summary()["decode_p95_s"] == 20
    assert "publish_median_s" in stages.summary()
