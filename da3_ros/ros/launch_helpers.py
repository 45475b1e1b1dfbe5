"""What our launch files share. Knows no `launch`, so that it can be tested without it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping

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


def interpreter(python: str) -> dict[str, str]:
    """Options of a Node action that run our script with this Python; empty: the script chooses.

    launch splits a prefix as a shell would, hence the quotes.
    """
    return {"prefix": shlex.quote(os.path.expanduser(python))} if python else {}
