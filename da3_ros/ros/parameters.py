"""ROS parameters of the node: declared from NodeConfig with description and range, read back."""

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
# Names for rclpy or the middleware; they are declared later or not at all.
QOS = "qos_overrides."
FOREIGN = (QOS, "use_sim_time", "start_type_description_service")
LIVE = {p.name for p in parameters(NodeConfig()) if p.live}


def declare(node: Node) -> None:
    """Declare every parameter of NodeConfig on ``node``."""
    for parameter in parameters(NodeConfig()):
        value = list(parameter.value) if isinstance(parameter.value, tuple) else parameter.value
        node.declare_parameter(parameter.name, value, descriptor(parameter))
    if text := unknown_keys(node):
        node.get_logger().warning(text)


def unknown_keys(node: Node) -> str:
    """Returns one line that lists given values without a parameter of that name, or "".

    rclpy ignores such values (from a file, ``-p`` or a launch file) silently, so that a misspelt
    name would go unnoticed.
    """
    named = _undeclared(node, lambda name: not name.startswith(FOREIGN))
    if not named:
        return ""
    known = f"`ros2 param list {node.get_name()}`"
    return f"unknown parameters, ignored: {named}; {known} lists all names"


def unknown_overrides(node: Node) -> str:
    """Returns one line that lists QoS overrides of topics that an active node ignores, or ""."""
    named = _undeclared(node, lambda name: name.startswith(QOS))
    return f"QoS overrides of topics that are not used, ignored: {named}" if named else ""


def _undeclared(node: Node, is_relevant: Callable[[str], bool]) -> str:
    """Returns the relevant given names that are not declared, with the closest declared."""
    # rclpy has no public access to values that were given but not declared.
    given = getattr(node, "_parameter_overrides", {})
    unknown = sorted(n for n in given if not node.has_parameter(n) and is_relevant(n))
    declared = list(node.get_parameters_by_prefix("")) if unknown else []
    return ", ".join(f"{name}{nearest(name, declared)}" for name in unknown)


def read(node: Node, changes: Sequence[RosParameter] = ()) -> NodeConfig:
    """Returns the node's parameters with ``changes``, not yet set, applied. Raises ConfigError."""
    values: dict[str, Any] = {}
    for parameter in parameters(NodeConfig()):
        value = node.get_parameter(parameter.name).value
        values[parameter.name] = _plain(value)
    values.update(
        {change.name: _plain(change.value) for change in changes if change.name in values}
    )
    return config_from_parameters(values, NodeConfig)


def accept() -> SetParametersResult:
    """Returns the result that accepts a change."""
    return SetParametersResult(successful=True)


def refuse(reason: str) -> SetParametersResult:
    """Returns the result that rejects a change, with the reason."""
    return SetParametersResult(successful=False, reason=reason)


def descriptor(parameter: Parameter) -> ParameterDescriptor:
    """Returns description, range and choices of one parameter."""
    out = ParameterDescriptor(description=parameter.text)
    if parameter.choices:
        several = "; or a list of them" if parameter.several else ""
        out.additional_constraints = "one of " + ", ".join(parameter.choices) + several
    if not parameter.live:
        note = "cannot change while the node is configured"
        out.additional_constraints = "; ".join(filter(None, (out.additional_constraints, note)))
    # An empty list has no type in ROS (bytes in rclpy, none in a YAML file), and YAML reads a bare
    # `off` as a boolean: NodeConfig checks the types of these instead, and of a text or a list.
    out.dynamic_typing = (
        parameter.items is not None or parameter.several or "off" in parameter.choices
    )
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
