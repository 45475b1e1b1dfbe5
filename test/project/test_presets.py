"""Preset files: keys are parameters that differ from the default and fit the named memory."""

import dataclasses
import functools
import re
from pathlib import Path

import pytest
import torch
import yaml

from da3_ros.cli.arguments import load_config
from da3_ros.cli.plan_table import AbsentCuda
from da3_ros.config import NodeConfig, config_from_parameters
from da3_ros.derived.measuring import MeasuringLoad
from da3_ros.inference.devices import Cpu
from da3_ros.inference.planner import GIB, ORDER, Request, is_full, make_plan
from da3_ros.network import MODELS
from da3_ros.parameter_schema import flatten
from da3_ros.ros.launch_helpers import OLD_PRESETS

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "config"
CARDS_GB = {f"budget_{gb}gb": gb for gb in (4, 8, 12, 16, 24)}
# What was published for the reference: model, resize, views and least expected memory in GB.
PUBLISHED = {
    "balanced": ("da3-large", 504, "upper_bound_resize", (10, 20), 6.0),
    "memory": ("da3-base", 392, "lower_bound_resize", (4, 6), 4.0),
    "quality": ("da3-large", 560, "upper_bound_resize", (8, 8), 7.0),
}
PRESETS = ("realtime", "cpu", "jetson", "replay", "detail", *PUBLISHED, *CARDS_GB)
LONGEST = 64  # views; longer windows are limited by time (docs/tuning.md)
NEW = 8  # views of a budget preset for each new one
each_preset = pytest.mark.parametrize("name", PRESETS)
each_file = pytest.mark.parametrize("name", [*PRESETS, *OLD_PRESETS])
each_budget = pytest.mark.parametrize("name", CARDS_GB)
each_published = pytest.mark.parametrize("name", PUBLISHED)


def text(name):
    return (CONFIG / f"{name}.yaml").read_text()


def values(name):
    document = yaml.safe_load(text(name))
    assert list(document) == ["/**"], "a renamed node keeps its settings"
    assert list(document["/**"]) == ["ros__parameters"]
    return flatten(document["/**"]["ros__parameters"])


def settings(name):
    """The pipeline's parameters of a preset; ``name``: (defaults) for none."""
    given = {} if name == "(defaults)" else values(name)
    return config_from_parameters(given, NodeConfig).pipeline


@functools.cache
def planned(name, model="", window=0, limit=1e4):
    """The plan of a preset for images of 640x480, with other settings if given, and whether
    nothing was reduced for it; on a GPU that need not be here, of cpu.yaml on a CPU.

    limit: GiB of memory.
    """
    config = settings(name)
    inference, views = config.inference, window or config.window.size
    on_cpu = inference.device == "cpu"
    device = Cpu() if on_cpu else AbsentCuda()
    request = Request(
        model or inference.model, torch.float32 if on_cpu else torch.bfloat16, None,
        inference.process_res, views, views // NEW if window else config.window.new, (640, 480),
        backend="openvino" if on_cpu else "torch", measuring=MeasuringLoad(),
        process_res_method=inference.process_res_method,
    )  # fmt: skip
    plan = make_plan(device, request, int(limit * GIB))
    return plan, is_full(device, request, plan)


def fits(name, **changes):
    """Whether a preset, with other settings if given, fits into its budget at full speed."""
    plan, full = planned(name, **changes)
    assert full
    return plan.predicted <= settings(name).inference.memory_budget_gb * GIB


def test_no_other_files_lie_there():
    names = {f.stem for f in CONFIG.glob("*.yaml")}
    assert names == {"da3", "nav2_costmap", *PRESETS, *OLD_PRESETS}


@each_file
def test_every_key_is_a_parameter_in_range(name):
    config = config_from_parameters(values(name), NodeConfig)
    assert config == load_config(CONFIG / f"{name}.yaml", []), "the same for node and replay"
    assert config != NodeConfig()


@each_file
def test_file_begins_with_what_it_is_for(name):
    first = text(name).splitlines()[0]
    assert first.startswith("# ")
    assert len(first) > 30


def test_an_old_preset_names_the_new_one():
    for old, new in OLD_PRESETS.items():
        assert new in PRESETS
        assert f"take {new} instead" in text(old).splitlines()[0]
        assert fits(old)


@each_preset
def test_weights_without_commercial_use_are_named_and_never_a_default(name):
    model = settings(name).inference.model
    if MODELS[model].commercial:
        return
    assert name in ("balanced", "quality"), "as published; no preset of ours"
    head = " ".join(line.strip("# ") for line in text(name).splitlines() if line[0] == "#")
    assert f"{model} are under {MODELS[model].license}: no commercial use" in head
    assert "`model:=da3-base` may be used for anything (Apache 2.0)" in head
    assert MODELS["da3-base"].license == "Apache-2.0"


# Budgets


@pytest.mark.parametrize(("name", "card_gb"), [*CARDS_GB.items(), ("jetson", 8)])
def test_a_budget_leaves_memory_to_the_rest_of_the_card(name, card_gb):
    assert 0 < settings(name).inference.memory_budget_gb <= 0.95 * card_gb * 1e9 / GIB


@pytest.mark.parametrize("name", [*CARDS_GB, "jetson"])
def test_a_preset_for_a_card_runs_undiminished_at_full_speed(name):
    config = settings(name)
    plan, full = planned(name, limit=config.inference.memory_budget_gb)
    assert full
    assert (plan.window, plan.new) == (config.window.size, config.window.new)
    assert plan.predicted <= plan.budget


@each_budget
def test_a_budget_is_used_for_the_longest_window_that_time_allows(name):
    """The rule of docs/tuning.md: windows of 8, 16, 32 or 64 views, one view in eight new."""
    config = settings(name)
    assert config.inference.model == "da3-base"
    assert config.inference.process_res == 504
    assert config.window.size in (8, 16, 32, LONGEST)
    assert config.window.new == config.window.size // NEW
    assert config.window.size == LONGEST or not fits(name, window=2 * config.window.size)


@pytest.mark.slow
@each_budget
def test_the_largest_model_that_fits_is_named(name):
    order = ORDER[: ORDER.index("da3-base") + 1]
    largest = next(model for model in order if fits(name, model=model))
    (told,) = re.findall(r"^# Largest model that fits too: (.*)\.$", text(name), re.MULTILINE)
    assert told == largest + ("" if MODELS[largest].commercial else " (no commercial use)")
    rows = {row["Preset"].strip("`"): row for row in documented()}
    assert rows[name]["Largest model"] == largest


# What was published


@each_published
def test_a_published_preset_has_the_published_settings(name):
    model, res, method, views, _ = PUBLISHED[name]
    config = settings(name)
    assert config.inference.model == model
    assert config.inference.process_res == res
    assert config.inference.process_res_method == method
    assert views[0] <= config.window.size <= views[1]
    points = {"balanced": (500_000, 50.0), "memory": (250_000, 60.0)}
    if name in points:
        assert (config.map.max_points, config.depth.confidence_percentile) == points[name]


@each_published
def test_a_published_preset_takes_less_than_was_published(name):
    *_, expected_gb = PUBLISHED[name]
    assert planned(name)[0].predicted < expected_gb * 1e9


# The table in docs/tuning.md


def documented():
    """The rows of the table of presets, by the names of its columns."""
    chapter = (ROOT / "docs" / "tuning.md").read_text().split("## Presets\n")[1].split("\n## ")[0]
    lines = [line for line in chapter.splitlines() if line.startswith("|")]
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return [dict(zip(header, row, strict=True)) for row in rows]


def expected_row(name):
    config, plan = settings(name), planned(name)[0]
    budget = config.inference.memory_budget_gb
    return {
        "Model": config.inference.model,
        "Views, new": f"{config.window.size}, {config.window.new}",
        "Image": f"{plan.width}x{plan.height}",
        "Predicted, GiB": f"{plan.predicted / GIB:.2f}",
        "Budget, GiB": f"{budget:.1f}" if budget else "90 % of free",
    }


def test_the_table_has_every_preset_once():
    assert [row["Preset"].strip("`") for row in documented()] == ["(defaults)", *PRESETS]


@pytest.mark.parametrize("name", ["(defaults)", *PRESETS])
def test_the_table_says_what_the_planner_predicts(name):
    rows = {row["Preset"].strip("`"): row for row in documented()}
    wanted = expected_row(name)
    assert {column: rows[name][column] for column in wanted} == wanted


def test_settings_of_one_card_grow_with_it():
    budgets = [settings(name).inference.memory_budget_gb for name in CARDS_GB]
    windows = [settings(name).window.size for name in CARDS_GB]
    assert budgets == sorted(set(budgets))
    assert windows == sorted(windows)
    assert dataclasses.astuple(settings("budget_24gb").window)[0] == LONGEST
