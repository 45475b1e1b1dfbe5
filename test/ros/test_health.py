"""What diagnostics call OK, WARN and ERROR."""

import pytest

from da3_ros.ros.health import ERROR, OK, RECENT_S, WARN, Facts, Growth, Stages, judge

GOOD = {"state": "active", "input_age_s": 0.1, "output_age_s": 0.2}


@pytest.mark.parametrize(
    ("changes", "level", "words"),
    [
        ({}, OK, "active"),
        ({"growing": ("busy", "late")}, OK, "active"),
        ({"input_age_s": None}, WARN, "no images arrive"),
        ({"input_age_s": 6.0}, WARN, "no images arrive"),
        ({"state": "inactive", "input_age_s": None}, OK, "inactive"),
        ({"growing": ("bad_image",)}, WARN, "images are lost (bad_image)"),
        ({"growing": ("failed",), "last_error": "why"}, ERROR, "windows are lost (failed): why"),
        ({"output_age_s": 11.0}, ERROR, "nothing has come out for 11 s"),
        ({"output_age_s": 11.0, "enabled": False}, WARN, "paused"),
        ({"refused": True}, WARN, "do not fit"),
        ({"degraded": ("4 views",)}, WARN, "memory is short: 4 views"),
        ({"scale": "the scale is unknown"}, WARN, "the scale is unknown"),
        ({"configured": False, "state": "unconfigured"}, OK, "unconfigured"),
        ({"configured": False, "last_error": "no weights"}, ERROR, "no weights"),
    ],
)
def test_levels(changes, level, words):
    found, text = judge(Facts(**{**GOOD, **changes}))
    assert (found, words in text) == (level, True), text


def test_worst_comes_first_and_nothing_is_left_out():
    facts = Facts(**GOOD, growing=("failed", "bad_image"), last_error="x", scale="no metres")
    _, text = judge(facts)
    assert text.split("; ") == [
        "windows are lost (failed): x", "images are lost (bad_image)", "no metres",
    ]  # fmt: skip


def test_growth_is_forgotten_after_a_while():
    growth = Growth()
    assert growth.update({"a": 0, "b": 2}, 0.0) == ["b"]
    assert growth.update({"a": 1, "b": 2}, RECENT_S - 1) == ["a", "b"]
    assert growth.update({"a": 1, "b": 2}, RECENT_S + 1) == ["a"]


def test_stages_keep_median_and_95th_percentile():
    stages = Stages()
    for n in range(1, 21):
        stages.add("decode", n)
    with pytest.raises(KeyError), stages.of("publish"):
        raise KeyError
    assert stages.summary()["decode_median_s"] == 10.5
    assert stages.summary()["decode_p95_s"] == 20
    assert "publish_median_s" in stages.summary()
