"""What our launch files share. Knows no `launch`, so that it can be tested without it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from da3_ros.live.missing_input_hints import profile_file

# The second is the name that Fast DDS had in Humble; later ones warn when they find it.
PROFILE_VARIABLES = ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE")


def image_profile(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables by which a process of ours gets our Fast DDS profile, without losing images.

    None if the user has a profile already, by either name: one process can have only one.
    """
    profile = profile_file(environment.get("AMENT_PREFIX_PATH", ""))
    if not profile or any(environment.get(name) for name in PROFILE_VARIABLES):
        return {}
    return {PROFILE_VARIABLES[environment.get("ROS_DISTRO") == "humble"]: profile}


def values_of(context: Any, arguments: Iterable[Any]) -> dict[str, str]:
    """The launch arguments' values by name; ``context`` is the LaunchContext."""
    return {a.name: context.launch_configurations[a.name] for a in arguments}


def is_on(value: str) -> bool:
    """Whether a switch is on."""
    return value.lower() == "true"


def parameter_file(values: Mapping[str, str]) -> str:
    """Path of ``params_file``. Raises RuntimeError if there is no such file."""
    path = os.path.expanduser(values["params_file"])
    if not os.path.isfile(path):
        # launch_ros would only warn, and the node would run on its defaults.
        raise RuntimeError(f"params_file: {path} is not a file")
    return path


def our_process(values: Mapping[str, str]) -> dict[str, Any]:
    """Options of a Node action that every process of ours has."""
    return {
        "package": "da3_ros",
        "additional_env": image_profile(os.environ),
        "output": "screen",
        **interpreter(values["python"]),
    }


def live_node(values: Mapping[str, str]) -> dict[str, Any]:
    """Options of the live node's action; its parameters and remappings are the caller's."""
    return {
        **our_process(values),
        "executable": "da3_node",
        # Both are needed for the full name under which launch_ros writes single parameters.
        "name": "da3",
        "namespace": values["namespace"],
        "ros_arguments": ["--log-level", values["log_level"]],
    }


def rviz(values: Mapping[str, str], share: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of RViz's action: our displays, in the node's namespace and with its clock.

    share: the package's share folder. given: parameters of the node that were given.
    """
    clock = {name: value for name, value in given.items() if name == "use_sim_time"}
    return {
        "package": "rviz2",
        "executable": "rviz2",
        "namespace": values["namespace"],
        "arguments": ["-d", os.path.join(share, "rviz", "da3.rviz")],
        "parameters": [clock] if clock else [],
    }


def interpreter(python: str) -> dict[str, str]:
    """Options of a Node action that run our script with this Python; empty: the script chooses.

    launch splits a prefix as a shell would, hence the quotes.
    """
    return {"prefix": shlex.quote(os.path.expanduser(python))} if python else {}
