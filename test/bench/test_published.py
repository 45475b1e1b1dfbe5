"""Figures of others (bench/published.json) agree where one follows from another."""

import json
from pathlib import Path

import pytest

from da3_ros.network import MODELS

FOUND = json.loads((Path(__file__).parents[2] / "bench" / "published.json").read_text())


def test_images_per_second_follow_from_seconds():
    setting, rows = FOUND["benchmark"]["setting"], FOUND["benchmark"]["rows"]
    timed = [row for row in rows if "mean_s" in row]
    assert {row["device"] for row in timed} == {"cpu", "mps", "cuda"}
    for row in timed:
        assert row["images_per_s"] == pytest.approx(setting["new"] / row["mean_s"], rel=0.01)


def test_the_best_and_the_slowest_lie_around_the_averages():
    rows = FOUND["benchmark"]["rows"]
    for device in ("cpu", "mps", "cuda"):
        by: dict = {}
        for row in rows:
            if row["device"] == device:
                by.setdefault(row["what"], []).append(row["images_per_s"])
        assert by["slowest"][0] < min(by["average by precision"])
        assert max(by["average by precision"]) < by["best"][0]


@pytest.mark.parametrize("table", ["one_image", "many_images"])
def test_every_anchor_has_a_source_hardware_and_both_units(table):
    for row in FOUND[table]:
        assert row["source"]
        assert row["hardware"]
        assert row["model"] in {*MODELS, "vggt"}
        assert row["ms_per_image"] * row["images_per_s"] == pytest.approx(1000, rel=0.03)
