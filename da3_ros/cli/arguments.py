"""Arguments that several commands share, and exit codes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from da3_ros.config import (
    InputConfig,
    NodeConfig,
    PipelineConfig,
    config_from_parameters,
)
from da3_ros.parameter_schema import ConfigError, flatten, parameters

# The image input parameters of the live node that replay uses too.
REPLAY_INPUT = ("input_rectified", "camera_info_timeout_s")


FAILED, USAGE, INCOMPLETE, INTERRUPTED = 1, 2, 3, 130


EXIT_CODES = (
    "exit codes: 0 success; 1 failed, nothing written; 2 wrong usage; "
    "3 the recording is damaged, its readable part was processed; 130 interrupted, nothing written"
)


def add_parameters(command: argparse.ArgumentParser) -> None:
    """Add the options --config and -p."""
    command.add_argument(
        "--config", type=Path, help="YAML file with parameters (as for ROS nodes)"
    )
    command.add_argument(
        "-p", "--param", action="append", default=[], metavar="NAME:=VALUE",
        help="one parameter; overrides --config",
    )  # fmt: skip


def load_config(file: Path | None, assignments: Sequence[str]) -> NodeConfig:
    """Returns the defaults, overridden by a YAML file, then by ``NAME:=VALUE`` assignments.

    The file is a plain mapping (nested or dotted names) or a ROS parameter file for any node name.
    Raises ConfigError.
    """
    values = _read_yaml(file) if file else {}
    for assignment in assignments:
        name, separator, text = assignment.partition(":=")
        if not separator:
            raise ConfigError(f"-p {assignment!r}: write NAME:=VALUE")
        values[name.strip()] = _parse_value(text)
    return config_from_parameters(values, NodeConfig)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"--config {path}: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"--config {path}: it must hold a mapping of parameters")
    values: dict[str, Any] = {}
    for key, value in data.items():
        inner = value.get("ros__parameters") if isinstance(value, dict) else None
        values.update(flatten({key: value}) if inner is None else flatten(inner))
    return values


def _parse_value(text: str) -> Any:
    try:
        return yaml.safe_load(text) if text.strip() else ""
    except yaml.YAMLError:
        return text


def parameter_help() -> str:
    """Returns help lines of all parameters that a replay uses."""
    lines = ["parameters (-p NAME:=VALUE or --config), with their defaults:"]
    used = [*parameters(PipelineConfig())]
    used += [p for p in parameters(InputConfig()) if p.name in REPLAY_INPUT]
    for p in used:
        value = list(p.value) if isinstance(p.value, tuple) else p.value
        lines.append(f"  {p.name:<28} {value!s:<14} {p.text}")
    return "\n".join(lines)


def size_argument(text: str) -> tuple[int, int]:
    """Returns width and height of WIDTHxHEIGHT. Raises ConfigError."""
    width, _, height = text.partition("x")
    numbers = text.isascii() and width.isdecimal() and height.isdecimal()
    if not (numbers and int(width) and int(height)):
        raise ConfigError(f"--size {text!r}: write WIDTHxHEIGHT")
    return int(width), int(height)
