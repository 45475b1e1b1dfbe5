#!/usr/bin/env python3
"""Writes config/da3.yaml: all parameters of the node with their defaults and descriptions.

Usage: write_config.py [FILE]; prints the file if FILE is not given. Requires da3_ros on the path;
ROS is not needed.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from da3_ros.config import NodeConfig
from da3_ros.parameter_schema import Parameter, parameters

HEADER = """\
# All parameters of da3_node at their defaults. To change some, keep those lines in a file of your
# own (params_file:=FILE for launch, --params-file FILE for ros2 run, --config FILE for replay):
# what a file does not name keeps its default. Made by tools/write_config.py.
"""
STEP, WIDTH = 2, 99


def config_text() -> str:
    """Returns the contents of the file, for any node name and namespace."""
    lines = ["/**:", "  ros__parameters:"]
    group: list[str] = []
    for parameter in parameters(NodeConfig()):
        *path, name = parameter.name.split(".")
        shared = 0
        while shared < min(len(path), len(group)) and path[shared] == group[shared]:
            shared += 1
        for depth in range(shared, len(path)):
            lines.append(_indent(depth) + f"{path[depth]}:")
        group = path
        indent = _indent(len(path))
        lines += textwrap.wrap(
            _comment(parameter), WIDTH, initial_indent=indent + "# ",
            subsequent_indent=indent + "#   ", break_on_hyphens=False,
        )  # fmt: skip
        lines.append(f"{indent}{name}: {_value(parameter.value)}")
    return HEADER + "\n".join(lines) + "\n"


def _indent(depth: int) -> str:
    return " " * STEP * (depth + 2)


def _comment(parameter: Parameter) -> str:
    return parameter.text + "".join(f"; {part}" for part in _allowed(parameter))


def _allowed(parameter: Parameter) -> Iterable[str]:
    low, high = parameter.low, parameter.high
    if parameter.choices:
        # In quotes, because an unquoted true is a bool, which ROS refuses for a string.
        yield "one of " + ", ".join(_value(c) for c in parameter.choices)
    if parameter.several:
        yield "or a list of them"
    if low is not None and high is not None:
        yield f"{low:g} to {high:g}"
    elif low is not None:
        yield f"at least {low:g}"
    elif high is not None:
        yield f"at most {high:g}"


def _value(value: Any) -> str:
    """Returns a value in YAML that PyYAML and the parser of ROS read as the same type."""
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, tuple):
        return f"[{', '.join(_value(v) for v in value)}]"
    # PyYAML writes 1.0e-06; YAML 1.1 reads 1e-06 as a string. Lines after the first are its end
    # mark.
    return yaml.safe_dump(value).split("\n")[0]


def main(arguments: list[str]) -> int:
    """Writes or prints the file. Returns the exit code."""
    if len(arguments) > 1 or any(a.startswith("-") for a in arguments):
        sys.stderr.write(f"{__doc__}")
        return 2
    if arguments:
        Path(arguments[0]).write_text(config_text())
    else:
        sys.stdout.write(config_text())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
