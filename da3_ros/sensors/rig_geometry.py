"""Poses of a rig's cameras, from parameters or from the robot's transforms. No ROS."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from da3_ros.config import POSE_NUMBERS, PipelineConfig
from da3_ros.geometry.poses import matrix_from_quaternion
from da3_ros.scale_sources import scale_source
from da3_ros.sensors.transform_tree import TransformError, TransformTree
from da3_ros.types import Array


class RigGeometry:
    """Poses of cameras on the rig, at the stamps of frames.

    ``rig.poses`` has priority over transforms. With transforms, the rig's frame is the optical
    frame of the first camera that is looked up; a moving mount is taken at the frame's stamp.
    """

    def __init__(
        self,
        config: PipelineConfig,
        transforms: TransformTree,
        warn: Callable[[str], None],
    ) -> None:
        """warn: called once for each camera whose pose is needed and unknown."""
        self._wanted = scale_source(config.scale.source).needs_rig
        self._configured = poses_of(config)
        self._transforms = transforms
        self._warn = warn
        self._reference = ""
        self._warned: set[str] = set()

    def camera(self, name: str, frame_id: str, stamp_ns: int) -> Array | None:
        """Returns ``T_rig_camera`` [4, 4] in metres, or None if it is not needed or unknown."""
        if not self._wanted or name in self._configured:
            return self._configured.get(name)
        self._reference = self._reference or frame_id
        try:
            return self._transforms.lookup(self._reference, frame_id, stamp_ns)
        except TransformError as error:
            if name not in self._warned:
                self._warned.add(name)
                self._warn(
                    f"the pose of camera {name} on the rig is unknown: {error}; publish it on "
                    "/tf_static or set rig.poses"
                )
            return None


def poses_of(config: PipelineConfig) -> dict[str, Array]:
    """Returns ``T_rig_camera`` [4, 4] of each camera by ``rig.poses``; empty if that is unset."""
    out: dict[str, Array] = {}
    numbers = np.array(config.rig.poses).reshape(-1, POSE_NUMBERS)
    for name, (x, y, z, *q) in zip(config.cameras, numbers, strict=False):
        out[name] = np.eye(4)
        out[name][:3, :3] = matrix_from_quaternion(np.array(q))
        out[name][:3, 3] = x, y, z
    return out
