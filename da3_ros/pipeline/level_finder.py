"""What is up in each frame, and how high its camera is over the floor: by gravity and floor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from da3_ros.config import PipelineConfig, uses_imu
from da3_ros.inertial.followed_camera import FollowedCamera
from da3_ros.inertial.gravity import GravityFilter
from da3_ros.inertial.mount_check import MountCheck
from da3_ros.mapping.frames import LocalFrame
from da3_ros.mapping.levelling import Up
from da3_ros.mapping.metric_scale import scaled_pose
from da3_ros.navigation.floor import IMAGE_UP, Floor, level_at
from da3_ros.types import Array, ImuStretch

# Factor on the stated deviation of gravity: errors of 32 rendered walks were so much larger.
CAUTION = 1.5
# Least cosine between up and the image's up while no rotation has confirmed the IMU's mount: a
# mount that is a right angle wrong is not believed then.
LIKELY = np.cos(np.radians(45.0))
MOST_SIGMA = np.radians(2.0)  # of what is up, from which on it is not known well enough


class LevelFinder:
    """Follows gravity and the floor of one scene, from frame to frame."""

    def __init__(self, config: PipelineConfig, mount: MountCheck) -> None:
        """mount: of the IMU, which begins anew, and gets all rotations."""
        self.source = config.level.source
        self.floor = Floor()
        self._gravity = GravityFilter() if uses_imu(config) else None
        self._mount = mount
        mount.begin()
        self._camera = FollowedCamera()  # whose IMU data are
        self._chain = -1
        self.up: Up | None = None  # by gravity, in the axes of the newest frame's camera

    @property
    def camera(self) -> str:
        """The camera whose rotations the mount gets; empty: it has no name, or is unknown."""
        return self._camera.name or ""

    def follow(
        self, frame: LocalFrame, stretch: ImuStretch | None, unit: float, *, trust: str,
        still: bool = False,
    ) -> LocalFrame:  # fmt: skip
        """Returns a frame with ``T_level_camera`` by gravity or by the floor, if up is that.

        stretch: what the IMU has measured since the camera's last frame. unit: published units per
        unit of odometry. trust: ``agrees`` if the camera's rotations confirm the IMU, ``unknown``
        if there were none, ``no`` if they contradict it. still: whether the camera stands.
        """
        self.up = self._follow_gravity(frame, stretch, trust, still=still)
        if self.source not in ("ground", "imu"):
            return frame
        by_imu = self.source == "imu"
        T: Array | None = None
        if not by_imu or self.up is not None:
            up = self.up.direction if by_imu and self.up is not None else None
            T = self.floor.follow(frame, up)
            T = level_at(up) if T is None and up is not None else T
        if T is not None:
            T = scaled_pose(T, unit)
        return replace(frame, T_level_camera=T)

    def doubt(self) -> None:
        """Forgets what gravity said is up, and the accelerometer's bias: the IMU was wrong."""
        if self._gravity is not None:
            self._gravity = GravityFilter()

    def _follow_gravity(
        self, frame: LocalFrame, stretch: ImuStretch | None, trust: str, *, still: bool
    ) -> Up | None:
        """Returns what gravity says is up, in the axes of the frame's camera; None: unknown."""
        T, before = frame.T_local_camera, self._camera.name
        if self._gravity is None or not np.isfinite(T).all():
            return None
        if stretch is None and frame.camera != before:  # it may have none
            return None
        if not self._camera.admits(frame.camera, frame.stamp_ns):
            return None
        if before is not None and frame.camera != before:  # biases are in the camera's axes
            self._gravity = GravityFilter()
            self._mount.begin()
        if frame.window.chain != self._chain:
            self._chain = frame.window.chain
            self._gravity.restart()
            self._mount.restart()
        self._mount.add(frame.stamp_ns, stretch, T[:3, :3])
        if trust == "no":
            self._gravity.restart()
            return None
        metres = frame.scale.value if frame.scale.metric else None
        found = self._gravity.follow(frame.stamp_ns, stretch, T, metres, still=still)
        if found is None or not CAUTION * found.sigma < MOST_SIGMA:
            return None
        up = Up(T[:3, :3].T @ found.up_local, CAUTION * found.sigma)
        if trust != "agrees" and up.direction @ IMAGE_UP < LIKELY:
            return None
        return up
