"""The one config as ROS parameters: declared with description and range, read back as a config."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rcl_interfaces.msg import (
    FloatingPointRange,
    IntegerRange,
    ParameterDescriptor,
    SetParametersResult,
)
from rclpy.node import Node
from rclpy.parameter import Parameter as RosParameter

from da3_ros.config import NodeConfig, config_from_parameters
from da3_ros.parameter_schema import Parameter, nearest, parameters

NAMES = tuple(p.name for p in parameters(NodeConfig()))
UNBOUNDED = 1e12  # ROS ranges need both ends
# Given to a node for rclpy or the middleware, declared later or not at all.
QOS = "qos_overrides."
FOREIGN = (QOS, "use_sim_time", "start_type_description_service")
# Read anew at every frame, so that a change takes effect at once.
DYNAMIC = ("depth.", "keyframe.", "memory_budget_gb", "map.export_guessed")


def declare(node: Node) -> None:
    """Declare every parameter of NodeConfig on ``node``."""
    for parameter in parameters(NodeConfig()):
        value = list(parameter.value) if isinstance(parameter.value, tuple) else parameter.value
        node.declare_parameter(parameter.name, value, descriptor(parameter))
    if text := unknown_keys(node):
        node.get_logger().warning(text)


def unknown_keys(node: Node) -> str:
    """One line about values given to the node that no parameter of it takes, or an empty text.

    rclpy keeps such values (of a file, ``-p``, a launch file) to itself: a misspelt name would
    otherwise change nothing and nobody would know.
    """
    named = _undeclared(node, lambda name: not name.startswith(FOREIGN))
    if not named:
        return ""
    return f"unknown parameters, ignored: {named}; `ros2 param list {node.get_name()}` has all"


def unknown_overrides(node: Node) -> str:
    """One line about QoS overrides that no topic of an active node takes, or an empty text."""
    named = _undeclared(node, lambda name: name.startswith(QOS))
    return f"QoS overrides of no topic that is in use, ignored: {named}" if named else ""


def _undeclared(node: Node, counts: Callable[[str], bool]) -> str:
    """Names that were given to the node and not declared, each with the nearest that was."""
    # No public way leads to values that were given but not declared.
    given = getattr(node, "_parameter_overrides", {})
    unknown = sorted(n for n in given if not node.has_parameter(n) and counts(n))
    declared = list(node.get_parameters_by_prefix("")) if unknown else []
    return ", ".join(f"{name}{nearest(name, declared)}" for name in unknown)


def read(node: Node, changes: Sequence[RosParameter] = ()) -> NodeConfig:
    """The node's parameters, with ``changes`` that are not set yet. Raises ConfigError."""
    values: dict[str, Any] = {}
    for parameter in parameters(NodeConfig()):
        value = node.get_parameter(parameter.name).value
        values[parameter.name] = _plain(value)
    values.update(
        {change.name: _plain(change.value) for change in changes if change.name in values}
    )
    return config_from_parameters(values, NodeConfig)


def is_dynamic(name: str) -> bool:
    """Whether a parameter may change while the node is configured."""
    return name.startswith(DYNAMIC)


def accept() -> SetParametersResult:
    """An acceptance."""
    return SetParametersResult(successful=True)


def refuse(reason: str) -> SetParametersResult:
    """A rejection with its reason."""
    return SetParametersResult(successful=False, reason=reason)


def descriptor(parameter: Parameter) -> ParameterDescriptor:
    """Description, range and choices of one parameter."""
    out = ParameterDescriptor(description=parameter.text)
    if parameter.choices:
        out.additional_constraints = "one of " + ", ".join(parameter.choices)
    if not is_dynamic(parameter.name):
        note = "cannot change while the node is configured"
        out.additional_constraints = "; ".join(filter(None, (out.additional_constraints, note)))
    # An empty list has no type in ROS (rclpy says bytes, a YAML file nothing), and a bare `off` is
    # a truth value: config checks these.
    out.dynamic_typing = parameter.items is not None or "off" in parameter.choices
    _add_range(out, parameter)
    return out


def _add_range(out: ParameterDescriptor, parameter: Parameter) -> None:
    if parameter.low is None and parameter.high is None:
        return
    low = -UNBOUNDED if parameter.low is None else parameter.low
    high = UNBOUNDED if parameter.high is None else parameter.high
    if isinstance(parameter.value, float):
        out.floating_point_range = [
            FloatingPointRange(from_value=float(low), to_value=float(high))
        ]
    else:
        out.integer_range = [IntegerRange(from_value=int(low), to_value=int(high), step=1)]


def _plain(value: Any) -> Any:
    return list(value) if hasattr(value, "tolist") or isinstance(value, tuple) else value
