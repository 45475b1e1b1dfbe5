"""Adds to a frame the camera's pose by the robot (prior), its poses on the rig and on the level
base, what another SLAM and the IMU say, and the returns of range sensors.

The same step live and in a replay. It follows synchronising, decoding and preparing, right before
frames are pushed, because odometry may arrive later than images. No ROS, no network.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from da3_ros.config import POSE_NUMBERS, PipelineConfig
from da3_ros.geometry.poses import matrix_from_quaternion
from da3_ros.scale_sources import scale_source
from da3_ros.sensors.global_poses import GlobalPoses
from da3_ros.sensors.imu_input import ImuInput
from da3_ros.sensors.pose_prior import PosePrior, PriorError
from da3_ros.sensors.range_returns import RangeSensors
from da3_ros.sensors.slam_corrections import SlamCorrections
from da3_ros.sensors.transform_tree import TransformError, TransformTree
from da3_ros.types import Array, Frame, GlobalPose, ImuStretch, SlamPose

WARNING_PERIOD_S = 5.0  # between two warnings about the prior


class FrameAnnotator:
    """Adds poses to frames; ``without_prior`` counts frames without a prior pose."""

    def __init__(
        self,
        config: PipelineConfig,
        transforms: TransformTree,
        prior: PosePrior | None,
        warn: Callable[..., None],
        slam: SlamCorrections | None = None,
        mounts: Mapping[str, Array] | None = None,
        base_frame: str = "",
        imu: ImuInput | None = None,
        ranges: RangeSensors | None = None,
        anchors: GlobalPoses | None = None,
    ) -> None:
        """prior: None if the robot's own poses are not used. slam: None if none is followed.
        base_frame: the robot's base, which is level; empty: none. imu: None if it is not used.
        ranges: None: no range sensors. anchors: None: no global poses of the robot.

        mounts: ``T_rig_camera`` by the names of cameras, as a recording says it. warn: takes a
        line, and ``every_s``, the shortest time between two equal warnings.
        """
        self.transforms, self.prior, self.slam, self.imu = transforms, prior, slam, imu
        self.ranges, self.anchors = ranges, anchors
        self.without_prior = 0
        self._base = base_frame if config.level.source == "base" else ""
        self._rig = RigGeometry(config, transforms, warn, mounts)
        self._warn = warn

    @property
    def missing(self) -> dict[str, int]:
        """Numbers of frames without what was to be added, and of frames and messages of range
        sensors by what became of them, by name of a count."""
        imu = 0 if self.imu is None else self.imu.without
        counts = {"frames_without_prior": self.without_prior, "frames_without_imu": imu}
        return counts | ({} if self.ranges is None else self.ranges.counts)

    def annotate(self, frames: Iterable[Frame]) -> list[Frame]:
        """Returns the frames of one frameset with the poses that are known."""
        return [
            dataclasses.replace(
                frame,
                T_prior_camera=self._prior_of(frame, self.prior) if self.prior else None,
                prior_variance=self.prior.variance(frame.stamp_ns) if self.prior else None,
                T_rig_camera=self._rig.camera(frame.camera, frame.frame_id, frame.stamp_ns),
                T_level_camera=self._level_of(frame) if self._base else None,
                slam=self._slam_of(frame, self.slam) if self.slam else None,
                imu=self._imu_of(frame, self.imu) if self.imu else None,
                returns=self.ranges.at(frame) if self.ranges else None,
                anchors=self._anchors_of(frame, self.anchors) if self.anchors else (),
            )
            for frame in frames
        ]

    def _prior_of(self, frame: Frame, prior: PosePrior) -> Array | None:
        try:
            return prior.camera(frame.frame_id, frame.stamp_ns)
        except PriorError as error:
            self.without_prior += 1
            self._warn(f"no pose from {prior.source}: {error}", every_s=WARNING_PERIOD_S)
            return None

    def _level_of(self, frame: Frame) -> Array | None:
        try:
            return self.transforms.lookup(self._base, frame.frame_id, frame.stamp_ns)
        except TransformError as error:
            text = "what is up is unknown: the map is not level, and obstacles are not published"
            self._warn(f"{text}: {error}", every_s=WARNING_PERIOD_S)
            return None

    def _imu_of(self, frame: Frame, imu: ImuInput) -> ImuStretch | None:
        return imu.stretch(frame.camera, frame.frame_id, frame.stamp_ns, self._warn)

    def _slam_of(self, frame: Frame, slam: SlamCorrections) -> SlamPose | None:
        try:
            return slam.at(frame.frame_id, frame.stamp_ns)
        except TransformError as error:
            text = f"pose_prior.corrections is {slam.kind}, but nothing can be followed"
            self._warn(f"{text}: {error}", every_s=WARNING_PERIOD_S)
            return None

    def _anchors_of(self, frame: Frame, anchors: GlobalPoses) -> tuple[GlobalPose, ...]:
        found, why = anchors.until(frame.camera, frame.frame_id, frame.stamp_ns)
        if why:
            self._warn(f"global_pose: not used: {why}", every_s=WARNING_PERIOD_S)
        return found


# Poses of a rig's cameras, from parameters or from the robot's transforms. No ROS.


class RigGeometry:
    """Poses of cameras on the rig, at the stamps of frames.

    ``rig.poses`` has priority over what a recording says (mounts), and that over transforms. With
    transforms, the rig's frame is the optical frame of the first camera that is looked up; a
    moving mount is taken at the frame's stamp.
    """

    def __init__(
        self,
        config: PipelineConfig,
        transforms: TransformTree,
        warn: Callable[[str], None],
        mounts: Mapping[str, Array] | None = None,
    ) -> None:
        """warn: called once for each camera whose pose is needed and unknown."""
        self._wanted = scale_source(config.scale.source).needs_rig
        self._configured = poses_of(config) or dict(mounts or {})
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
