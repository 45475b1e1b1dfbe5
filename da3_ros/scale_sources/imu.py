"""Metres from an IMU: its accelerations against those of the camera's path."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from da3_ros.geometry.similarity import Similarity
from da3_ros.inertial.followed_camera import FollowedCamera
from da3_ros.inertial.initialisation import YAW, InertialEstimate, PathPose, estimate
from da3_ros.inertial.preintegration import Preintegrated, preintegrate
from da3_ros.inertial.samples import usable
from da3_ros.scale_sources.estimates import FLOOR, Estimate, MeasurementFilter
from da3_ros.scale_sources.interface import ScaleSource
from da3_ros.types import (
    Array,
    ImuNoise,
    ImuStretch,
    ScaleMeasurement,
    View,
    Window,
    WindowEstimate,
)

log = logging.getLogger(__name__)

SPACING_S = 0.2  # between keyframes; steps of a walking person are twice as long
MAX_KEYFRAMES = 75  # newest ones that are used
LEAST_S = 1.5  # of a path whose scale is estimated
SOLVED_EVERY = 0.1  # share of the path's time that passes between two estimates
# Factor by which a newer estimate may be less certain. The smallest of several deviations belongs
# to the shortest scale, so that the most certain estimate must not always win.
WORSE = 1.5
# Largest relative standard deviation of an estimate that counts. Noise of the path that is as
# large as what the camera accelerates makes the scale too small, by more than its deviation.
CERTAIN = 0.1
GAIN = 0.01  # of the accelerometer: relative standard deviation
DRIFT = 0.004  # of the path's unit: relative standard deviation after a second
PATIENCE = 10  # frames without IMU data before they are missed
NOISY = "the camera accelerates too little for a path with so much noise"
NOT_VERIFIED = (
    "the camera must turn by some ten degrees, so that its rotations confirm the mount of the IMU"
)
NO_DATA = (
    "no IMU data: give topic `imu` (sensor_msgs/Imu) and the transform from the optical frame to "
    "its frame_id"
)


class ImuFilter(MeasurementFilter):
    """The scale of a chain by keyframes and what the IMU measured between them.

    An estimate takes about 50 ms of one core with all keyframes, once in a tenth of their time.
    The newest one counts; where the camera accelerates less, the last one of a better time.
    """

    def __init__(self, source: ScaleSource | None = None) -> None:
        """source: that it is of, which knows whether the IMU's mount is verified; None: it is."""
        super().__init__()
        self._noise, self._source = ImuNoise(), source
        self.why_unknown = NO_DATA
        self.newest: InertialEstimate | None = None  # whether its scale may be used or not
        self.without_data = 0  # consecutive frames
        self._keyframes: list[PathPose] = []
        self._camera = FollowedCamera()  # whose path it is
        self._last_ns: int | None = None  # of the last frame
        self._since: Preintegrated | None = None  # from the last keyframe to the last frame
        self._t_camera_imu = np.zeros(3)
        self._solved_ns = 0
        self._best: Estimate | None = None
        self._best_ns = 0

    def add(self, measure: ScaleMeasurement, unit: float) -> None:
        """Ignores what windows measure."""

    def add_motion(self, view: View, T_local_camera: Array, depth: float) -> None:
        """Adds a frame with what the IMU measured since the last one; of a rig, those of one
        camera count."""
        before = self._camera.name
        if not self._camera.admits(view.camera, view.stamp_ns):
            return
        if view.camera != before:
            self._keyframes = []
            self.interrupt_motion()
        self.without_data = 0 if view.imu is not None else self.without_data + 1
        last, self._last_ns = self._last_ns, view.stamp_ns
        if last is not None:
            self._move(view.imu, last)
        keyframes = self._keyframes
        passed = math.inf if not keyframes else (view.stamp_ns - keyframes[-1].stamp_ns) / 1e9
        if passed < SPACING_S - 1e-3:
            return
        keyframes.append(PathPose(view.id, view.stamp_ns, T_local_camera, self._since))
        self._since = None
        del keyframes[:-MAX_KEYFRAMES]
        self._solve(view.stamp_ns)

    def _move(self, stretch: ImuStretch | None, last_ns: int) -> None:
        """Adds a stretch to what was measured since the last keyframe. A gap makes the motion up
        to the next keyframe unknown."""
        if stretch is None or stretch.stamps_ns[0] != last_ns or not usable(stretch):
            self._since = None
            return
        self._t_camera_imu, self._noise = stretch.t_camera_imu, stretch.noise
        here = preintegrate(stretch, stretch.noise)
        begins = self._keyframes and self._keyframes[-1].stamp_ns == last_ns
        if begins:
            self._since = here
        elif self._since is not None:
            self._since = self._since.then(here)

    def interrupt_motion(self) -> None:
        self._last_ns, self._since = None, None

    def refine(self, poses: Mapping[int, Array]) -> None:
        self._keyframes = [
            replace(k, T_local_camera=poses[k.id]) if k.id in poses else k for k in self._keyframes
        ]

    def move(self, moves: Mapping[int, Similarity]) -> None:
        self.refine(
            {k.id: moves[k.id].pose(k.T_local_camera) for k in self._keyframes if k.id in moves}
        )

    def _solve(self, now_ns: int) -> None:
        seconds = (now_ns - self._keyframes[0].stamp_ns) / 1e9
        if seconds < LEAST_S or now_ns - self._solved_ns < 1e9 * SOLVED_EVERY * seconds:
            return
        self._solved_ns = now_ns
        self.newest = estimate(self._keyframes, self._t_camera_imu, self._noise)
        self.why_unknown = NO_DATA if self.without_data else self.newest.why_unknown
        if self.newest.why_unknown:
            return
        # The unit has drifted since the middle of the path.
        drift = DRIFT * math.sqrt(seconds / 3)
        found = Estimate(self.newest.log_metres, math.hypot(self.newest.sigma, FLOOR, drift))
        if found.sigma > CERTAIN:
            self.why_unknown = NOISY
            return
        if self._best is None or found.sigma <= WORSE * self._aged(self._best, now_ns).sigma:
            self._best, self._best_ns = found, now_ns

    def _aged(self, found: Estimate, now_ns: int) -> Estimate:
        """Returns an estimate as uncertain as the path's unit has become since then."""
        drift = DRIFT * math.sqrt((now_ns - self._best_ns) / 1e9)
        return Estimate(found.log, math.hypot(found.sigma, drift))

    def estimate(self) -> Estimate | None:
        if self._source is not None and self._source.imu_state != "agrees":
            return None
        if self._best is None or self._last_ns is None:
            return None
        found = self._aged(self._best, self._last_ns)
        return replace(found, sigma=math.hypot(found.sigma, GAIN))


class ImuMotion(ScaleSource):
    """The accelerations of an IMU on the camera, over those of the camera's path."""

    needs_imu = True

    def __init__(self) -> None:
        self._filter = ImuFilter()
        self._reported = self._yaw_reported = False

    def measure(
        self, window: Window, estimate: WindowEstimate, by_prior: ScaleMeasurement | None
    ) -> ScaleMeasurement | None:
        return None

    def estimator(self) -> MeasurementFilter:
        self._filter = ImuFilter(self)
        return self._filter

    def report_missing(self) -> None:
        missing = self._filter.without_data >= PATIENCE and self.imu_state != "no"
        if missing and not self._reported:
            self._reported = True
            log.warning("scale.source imu: %s", NO_DATA)
        if (why := self._filter.why_unknown).startswith(YAW) and not self._yaw_reported:
            self._yaw_reported = True
            log.warning("scale.source imu: no metres: %s", why)

    def why_unknown(self, name: str) -> str:
        why = self._filter.why_unknown
        if self.imu_state == "no":
            why = "the camera's rotations contradict the IMU"
        elif not why and self.imu_state == "unknown":
            why = NOT_VERIFIED
        return f"the scale is unknown yet ({name}: {why})" if why else super().why_unknown(name)
