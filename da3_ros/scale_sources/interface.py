"""The interface of scale sources: what one needs, and what it measures in windows and motions.

Imports no numpy, because parameters ask sources what they need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from da3_ros.scale_sources.estimates import MeasurementFilter
    from da3_ros.types import ScaleMeasurement, Window, WindowEstimate


class ScaleSource:
    """A value of parameter `scale.source`. ``measure`` or ``estimator`` is enough for a new one.

    An object serves one scene; any object of the class states the facts.
    """

    gives_metres = True  # whether lengths are metres once the scale is known
    declared_by = ""  # parameter that states the scale of the first chain; "": it is measured
    by_depth = False  # whether depths are measured; else distances between cameras
    needs_prior = False  # whether it needs the robot's own poses: topic `odometry` without others
    needs_rig = False  # whether it needs the poses of the cameras on the rig
    needs_imu = False  # whether it needs the samples of an IMU: topic `imu`
    # Whether rotations of the camera confirm the IMU, so far: agrees, unknown, or no.
    imu_state = "unknown"
    needs_ranges = False  # whether it needs the returns of range sensors
    needs_global_poses = False  # whether it needs what says where the robot is: `~/global_pose`
    needs_metric_model = False  # whether a metric network measures windows for it
    # Relative standard deviation of an error that all measurements of a scene have, and that none
    # of them states; it counts where several sources are combined.
    bias = 0.0

    @property
    def members(self) -> tuple[ScaleSource, ...]:
        """The sources that it combines; itself, if it combines none."""
        return (self,)

    @property
    def learns(self) -> bool:
        """Whether the scale is estimated, rather than declared."""
        return self.gives_metres and not self.declared_by

    def unsuited(self, cameras: int) -> str:
        """Returns why it is not for this number of named cameras whose views share a window; "" if
        it is."""
        return ""

    def measure(
        self, window: Window, estimate: WindowEstimate, by_prior: ScaleMeasurement | None
    ) -> ScaleMeasurement | None:
        """Returns metres per network unit of a window; None if it shows none.

        estimate: with what a metric network measured, if it ran, and with the network's own
        poses. by_prior: by the robot's own poses; None without them or their motion.
        """
        return estimate.measure

    def note_imu(self, state: str) -> None:
        """Notes whether rotations of the camera confirm the IMU, as ``imu_state``."""
        self.imu_state = state

    def report_missing(self) -> None:
        """Logs once why the newest window that was measured shows no scale; called if nothing else
        has shown it."""
        return

    def estimator(self) -> MeasurementFilter:
        """Returns a new estimator of the scale of a chain, which has one unit."""
        from da3_ros.scale_sources.estimates import MeasurementFilter

        return MeasurementFilter()

    def why_unknown(self, name: str) -> str:
        """Returns why there are no metres while the scale is unknown. name: its own one."""
        if self.declared_by:
            return f"{self.declared_by} holds for the first chain only"
        return f"the scale is unknown yet ({name})"
