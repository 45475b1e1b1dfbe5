"""Preset files: keys are parameters that differ from the default and fit the named memory."""

import dataclasses
from pathlib import Path

import pytest
import yaml

from da3_ros.cli.arguments import load_config
from da3_ros.config import NodeConfig, config_from_parameters
from da3_ros.parameter_schema import flatten

CONFIG = Path(__file__).parents[2] / "config"
PRESETS = ("realtime", "quality", "low_memory", "budget_12gb", "jetson", "replay")
each_preset = pytest.mark.parametrize("name", PRESETS)


def values(name):
    document = yaml.safe_load((CONFIG / f"{name}.yaml").read_text())
    assert list(document) == ["/**"], "a renamed node keeps its settings"
    assert list(document["/**"]) == ["ros__parameters"]
    return flatten(document["/**"]["ros__parameters"])


def test_no_other_files_lie_there():
    assert {f.stem for f in CONFIG.glob("*.yaml")} == {"da3", "nav2_costmap", *PRESETS}


@each_preset
def test_every_key_is_a_parameter_in_range(name):
    config = config_from_parameters(values(name), NodeConfig)
    assert config == load_config(CONFIG / f"{name}.yaml", []), "the same for node and replay"
    assert config != NodeConfig()


@each_preset
def test_file_begins_with_what_it_is_for(name):
    first = (CONFIG / f"{name}.yaml").read_text().splitlines()[0]
    assert first.startswith("# ")
    assert len(first) > 30


@pytest.mark.parametrize(
    ("name", "limit_gb"), [("low_memory", 4.0), ("budget_12gb", 12.0), ("jetson", 8.0)]
)
def test_preset_for_a_card_runs_undiminished_within_it(name, limit_gb):
    """By the planner, for a CUDA GPU that need not be here."""
    from da3_ros.cli.plan_table import Question, table

    pipeline = config_from_parameters(values(name), NodeConfig).pipeline
    inference = dataclasses.replace(pipeline.inference, device="cuda")
    budget = inference.memory_budget_gb
    assert 0 < budget < limit_gb * 1e9 / 2**30
    question = Question(
        [inference.model], [budget], inference, (640, 480), pipeline.window.size,
        pipeline.window.new,
    )  # fmt: skip
    row = dict(zip(*table(question), strict=True))
    assert row["views"] == str(pipeline.window.size)
    assert row["size"].split("x")[0] == str(inference.process_res)
    assert row["reduced"] == "nothing", row
