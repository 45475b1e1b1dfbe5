"""Adds to a frame what the robot knows of it: its own pose, and the camera's place on the rig.

The same step live and in a replay. It comes after frames were synchronised, decoded and prepared,
right before they are pushed: odometry may come later than images. Knows no ROS and no network.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from da3_ros.config import PipelineConfig
from da3_ros.sensors.pose_prior import PosePrior, PriorError
from da3_ros.sensors.rig_geometry import RigGeometry
from da3_ros.sensors.transform_tree import TransformTree
from da3_ros.types import Array, Frame

SAME_S = 5.0  # between two warnings about the prior


class FrameAnnotator:
    """Asks the prior and the rig's geometry about frames; ``without_prior`` counts in vain."""

    def __init__(
        self,
        config: PipelineConfig,
        transforms: TransformTree,
        prior: PosePrior | None,
        warn: Callable[..., None],
    ) -> None:
        """``prior``: None where the robot's own poses are not wanted.

        ``warn`` takes a line, and as ``every_s`` how often it may be repeated.
        """
        self.transforms, self.prior = transforms, prior
        self.without_prior = 0
        self._rig = RigGeometry(config, transforms, warn)
        self._warn = warn

    def annotate(self, frames: Iterable[Frame]) -> list[Frame]:
        """The frames of one instant with ``T_prior_camera`` and ``T_rig_camera`` as known."""
        return [
            dataclasses.replace(
                frame,
                T_prior_camera=self._prior_of(frame),
                T_rig_camera=self._rig.camera(frame.camera, frame.frame_id, frame.stamp_ns),
            )
            for frame in frames
        ]

    def _prior_of(self, frame: Frame) -> Array | None:
        if self.prior is None:
            return None
        try:
            return self.prior.camera(frame.frame_id, frame.stamp_ns)
        except PriorError as error:
            self.without_prior += 1
            self._warn(f"no pose from {self.prior.source}: {error}", every_s=SAME_S)
            return None
