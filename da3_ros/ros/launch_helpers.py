"""Code that the launch files share. Does not import `launch`, so that tests do not need it."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from da3_ros.live.missing_input_hints import profile_file

log = logging.getLogger(__name__)

# The second name is that of Humble's Fast DDS; later versions warn if it is set.
PROFILE_VARIABLES = ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE")
# The files in config/ that `preset` selects.
PRESETS = (
    "realtime", "cpu", "jetson", "replay", "detail", "balanced", "memory", "quality",
    "budget_4gb", "budget_8gb", "budget_12gb", "budget_16gb", "budget_24gb", "low_memory",
)  # fmt: skip
# Of these, old names that launch lines may have, and what to name instead.
OLD_PRESETS = {"low_memory": "budget_4gb"}


def image_profile(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment that sets our Fast DDS profile, which avoids lost images.

    Empty if the user has set a profile under either name: a process can have only one.
    """
    profile = profile_file(environment.get("AMENT_PREFIX_PATH", ""))
    if not profile or any(environment.get(name) for name in PROFILE_VARIABLES):
        return {}
    return {PROFILE_VARIABLES[environment.get("ROS_DISTRO") == "humble"]: profile}


def values_of(context: Any, arguments: Iterable[Any]) -> dict[str, str]:
    """Returns the launch arguments' values by name; ``context`` is the LaunchContext."""
    return {a.name: context.launch_configurations[a.name] for a in arguments}


def is_on(value: str) -> bool:
    """True if a switch is on."""
    return value.lower() == "true"


def parameter_file(values: Mapping[str, str]) -> str:
    """Returns the path of ``params_file``. Raises RuntimeError if it is not a file."""
    path = os.path.expanduser(values["params_file"])
    if not os.path.isfile(path):
        # launch_ros would only warn, and the node would run with its defaults.
        raise RuntimeError(f"params_file: {path} is not a file")
    return path


def parameter_files(values: Mapping[str, str], share: str) -> list[str]:
    """Returns the paths of ``preset`` and ``params_file``: later ones override earlier ones.

    share: the package's share folder. The defaults come before a preset, since they set every
    parameter; a file of the user's comes after it. An old name is warned of. Raises RuntimeError
    as ``parameter_file``.
    """
    files, preset = [parameter_file(values)], values["preset"]
    config = os.path.join(share, "config")
    if preset:
        default = files == [os.path.join(config, "da3.yaml")]
        files.insert(default, os.path.join(config, f"{preset}.yaml"))
    for old, new in OLD_PRESETS.items():
        if os.path.join(config, f"{old}.yaml") in files:
            log.warning("%s is an old preset: take %s instead", old, new)
    return files


def process_options(values: Mapping[str, str]) -> dict[str, Any]:
    """Returns the options of a Node action that all processes of this package share."""
    return {
        "package": "da3_ros",
        "additional_env": image_profile(os.environ),
        "output": "screen",
        **interpreter_options(values["python"]),
    }


def node_options(values: Mapping[str, str]) -> dict[str, Any]:
    """Returns the options of the live node's action; the caller adds parameters and remappings."""
    return {
        **process_options(values),
        "executable": "da3_node",
        # launch_ros writes single parameters under the full name, which needs both.
        "name": "da3",
        "namespace": values["namespace"],
        "ros_arguments": ["--log-level", values["log_level"]],
    }


def rviz_options(
    values: Mapping[str, str], share: str, given: Mapping[str, Any], config: str
) -> dict[str, Any]:
    """Returns the options of RViz's action: our displays, the node's namespace and clock.

    share: the package's share folder. given: parameters of the node set by the user. config: a
    file in rviz/, or an absolute path.
    """
    clock = {name: value for name, value in given.items() if name == "use_sim_time"}
    return {
        "package": "rviz2",
        "executable": "rviz2",
        "namespace": values["namespace"],
        "arguments": ["-d", os.path.join(share, "rviz", config)],
        "parameters": [clock] if clock else [],
    }


def interpreter_options(python: str) -> dict[str, str]:
    """Returns the options of a Node action that run the script with this Python interpreter.

    python: path of the interpreter; empty: the script's own. The path is quoted because launch
    splits a prefix as a shell does.
    """
    return {"prefix": shlex.quote(os.path.expanduser(python))} if python else {}
