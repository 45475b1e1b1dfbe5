"""Trajectories in the TUM format: a line per pose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TextIO

import numpy as np

from da3_ros.export.selection import (
    Points,
    Progress,
)
from da3_ros.geometry.poses import quaternion_from_matrix
from da3_ros.mapping.scene import Scene
from da3_ros.types import Array


def write_trajectory(file: TextIO, scene: Scene) -> None:
    """Writes the leading camera's poses in the TUM format; a comment begins each further
    component."""
    leading = replace(scene, poses=scene.poses.leading())
    last = 0
    for component, pose in zip(leading.component_of_poses(), leading.poses, strict=True):
        if component != last:
            state = "unconnected" if component else "connected"
            file.write(f"# component {component} of the scene, {state}\n")
        last = component
        file.write(tum_line(pose.stamp_ns, scene.T_ros_map @ pose.T_map_camera))


def write_tum(scene: Scene, points: Points, path: Path, progress: Progress) -> None:
    """Writes the trajectory file of a scene."""
    with path.open("w") as file:
        write_trajectory(file, scene)


def tum_line(stamp_ns: int, T_ros_camera: Array) -> str:
    """Returns ``timestamp tx ty tz qx qy qz qw`` of the optical camera in the map frame, stamps
    exact.

    Format: TUM RGB-D benchmark. Seconds are written from the integer nanoseconds.
    """
    q = quaternion_from_matrix(T_ros_camera[:3, :3])
    numbers = " ".join(f"{v:.9f}" for v in (*T_ros_camera[:3, 3], *q))
    return f"{stamp_ns // 10**9}.{stamp_ns % 10**9:09d} {numbers}\n"


def read_stamps(path: Path) -> Array:
    """Returns the stamps [N] int64, ns, of a file of such lines. Raises OSError, ValueError."""
    with path.open() as file:
        words = (line.split(maxsplit=1)[0].split(".") for line in file if line[0] != "#")
        return np.fromiter((int(s) * 10**9 + int(ns) for s, ns in words), np.int64)
