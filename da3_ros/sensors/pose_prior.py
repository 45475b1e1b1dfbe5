"""The robot's own camera poses (the prior), by odometry or TF, at the stamp of a frame.

Odometry and TF arrive at their own times. A frame gets the pose at its stamp, interpolated, or
extrapolated for a short time if the odometry is late, or none. No ROS, no network.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left, bisect_right

from da3_ros.geometry.poses import extrapolate, interpolate, is_pose
from da3_ros.sensors.transform_tree import JUMP_S, TransformError, TransformTree
from da3_ros.types import Array, ScaleMeasurement

CARRY_NS = 100_000_000  # time span of the motion that extrapolates a late prior


class PriorError(LookupError):
    """No pose for a frame; one line with the cause."""


class PoseHistory:
    """Poses of a base in the odometry frame, in the order of their stamps.

    All are kept for a recording that is read as a whole (``keep_s`` infinite). Live, a stamp that
    jumps back starts a new history.
    """

    def __init__(self, keep_s: float = 30.0) -> None:
        live = math.isfinite(keep_s)
        self.keep_ns = int(keep_s * 1e9) if live else 2**62
        self._jump_ns = int(JUMP_S * 1e9) if live else 2**62
        self._poses: list[tuple[int, Array]] = []
        self._variances: dict[int, Array] = {}  # [6] by stamp

    def add(self, stamp_ns: int, T: Array, variance: Array | None = None) -> None:
        """Adds a pose [4, 4], and the variances [6] of position and rotation if they are known.

        Raises PriorError if it is not a rigid motion.
        """
        if not is_pose(T):
            raise PriorError("an odometry pose is not finite or not a rigid motion")
        if self._poses and stamp_ns < self._poses[-1][0] - self._jump_ns:
            self._poses.clear()  # they are in the future now
            self._variances.clear()
        at = bisect_left(self._poses, stamp_ns, key=lambda item: item[0])
        repeated = at < len(self._poses) and self._poses[at][0] == stamp_ns
        self._poses[at : at + repeated] = [(stamp_ns, T)]  # a repeated stamp replaces
        self._variances.pop(stamp_ns, None)
        if variance is not None:
            self._variances[stamp_ns] = variance
        while self._poses[0][0] < self._poses[-1][0] - self.keep_ns:
            self._variances.pop(self._poses.pop(0)[0], None)

    def at(self, stamp_ns: int, max_age_ns: int) -> Array:
        """Returns the pose [4, 4] at a stamp. Raises PriorError if none is near enough."""
        if not self._poses:
            raise PriorError("no odometry yet")
        after = bisect_left(self._poses, stamp_ns, key=lambda item: item[0])
        if after < len(self._poses) and self._poses[after][0] == stamp_ns:
            return self._poses[after][1]
        if after == 0:
            raise PriorError("the frame is older than the odometry")
        if after == len(self._poses):
            return self._carried(stamp_ns, max_age_ns)
        (t0, T0), (t1, T1) = self._poses[after - 1 : after + 1]
        if t1 - t0 > max_age_ns:
            raise PriorError(f"the odometry has a gap of {(t1 - t0) / 1e9:.2f} s here")
        return interpolate(T0, T1, (stamp_ns - t0) / (t1 - t0))

    def variance(self, stamp_ns: int) -> Array | None:
        """Returns the variances [6] of the newest pose up to a stamp; None: unknown."""
        before = bisect_right(self._poses, stamp_ns, key=lambda item: item[0]) - 1
        return self._variances.get(self._poses[before][0]) if before >= 0 else None

    def _carried(self, stamp_ns: int, max_age_ns: int) -> Array:
        newest, T = self._poses[-1]
        late = stamp_ns - newest
        if late > max_age_ns:
            raise PriorError(f"the odometry is {late / 1e9:.2f} s old")
        before = bisect_left(self._poses, newest - CARRY_NS, key=lambda item: item[0])
        first, T_first = self._poses[min(before, len(self._poses) - 1)]
        if first == newest:
            return T
        return extrapolate(T_first, T, late / (newest - first))


class PosePrior:
    """The robot's own camera pose: by odometry and the mount's transform, or by TF alone."""

    def __init__(
        self,
        source: str,
        max_age_s: float,
        transforms: TransformTree,
        odom_frame: str,
        keep_s: float = 30.0,
    ) -> None:
        """source: odometry or tf. transforms: of the robot, for the mount or the whole pose."""
        self.source, self.odom_frame = source, odom_frame
        self.prior_frame = odom_frame  # in which the poses are
        self.max_age_ns = int(max_age_s * 1e9)
        self.transforms = transforms
        self.base_frame = ""
        self._history = PoseHistory(keep_s)
        self._lock = threading.Lock()  # callbacks add while a worker reads

    def add_odometry(
        self, base_frame: str, T_odom_base: Array, stamp_ns: int, variance: Array | None = None,
        prior_frame: str = "",
    ) -> None:  # fmt: skip
        """Adds an odometry message, with the variances [6] of position, m^2, and rotation, rad^2,
        that it states. prior_frame: of the pose; empty: ``odom_frame``. Raises PriorError if its
        pose is not a rigid motion."""
        with self._lock:
            self.base_frame = base_frame
            self.prior_frame = prior_frame or self.odom_frame
            self._history.add(stamp_ns, T_odom_base, variance)

    def camera(self, frame_id: str, stamp_ns: int) -> Array:
        """Returns ``T_prior_camera`` [4, 4] of an optical frame at a stamp. Raises PriorError."""
        try:
            if self.source == "tf":
                return self._by_tf(frame_id, stamp_ns)
            with self._lock:
                T_odom_base = self._history.at(stamp_ns, self.max_age_ns)
            mount = self.transforms.lookup(self.base_frame, frame_id, stamp_ns)
        except TransformError as error:
            raise PriorError(str(error)) from error
        return T_odom_base @ mount

    def variance(self, stamp_ns: int) -> Array | None:
        """Returns the variances [6] of position, m^2, and rotation, rad^2, in the axes of the
        odometry frame, that the robot states for a stamp; None: it states none."""
        with self._lock:
            return self._history.variance(stamp_ns)

    def _by_tf(self, frame_id: str, stamp_ns: int) -> Array:
        newest = self.transforms.newest(self.odom_frame, frame_id)
        if newest is None or stamp_ns <= newest:
            return self.transforms.lookup(self.odom_frame, frame_id, stamp_ns)
        late = stamp_ns - newest
        if late > self.max_age_ns:
            raise PriorError(f"{self.odom_frame} to {frame_id} is {late / 1e9:.2f} s old")
        T = self.transforms.lookup(self.odom_frame, frame_id, newest)
        try:
            T_first = self.transforms.lookup(self.odom_frame, frame_id, newest - CARRY_NS)
        except TransformError:
            return T
        return extrapolate(T_first, T, late / CARRY_NS)


UNKNOWN = ScaleMeasurement(math.nan, math.nan)
