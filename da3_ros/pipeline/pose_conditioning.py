"""Known camera poses of a window: those given to the network, and those published."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from scipy.spatial.transform import Rotation

from da3_ros.geometry.poses import is_pose
from da3_ros.geometry.similarity import Similarity
from da3_ros.inertial.gyro_turns import GyroTurns
from da3_ros.mapping.alignment import Alignment
from da3_ros.scale_sources.depth_consistency import SHORTEST_M, fit_unit
from da3_ros.sensors.pose_prior import UNKNOWN
from da3_ros.types import Array, ScaleMeasurement, View, Window, WindowEstimate

Item = TypeVar("Item")
# A network's rotation between two views is refused if it is farther from the gyro's than this
# many standard deviations, of which its own is as large, rad.
REFUSED, NETWORK_SIGMA = 3.0, 0.02


@dataclass(frozen=True, eq=False)
class WindowPrior:
    """The known poses that the network gets with a window."""

    T_prior_camera: Array | None  # [N, 4, 4]; None: no poses
    scale: bool  # whether the translations carry a scale
    reason: str = ""  # why there are no poses, or no scale


def window_prior(views: Sequence[View]) -> WindowPrior:
    """Returns the poses of a window, if every view has a valid one."""
    poses = [view.T_prior_camera for view in views]
    missing = sum(pose is None for pose in poses)
    if missing:
        return WindowPrior(None, False, "frames without a pose")
    if any(view.K is None for view in views):
        return WindowPrior(None, False, "known poses need a camera_info")
    T = np.stack([pose for pose in poses if pose is not None])
    if not all(is_pose(pose) for pose in T):
        return WindowPrior(None, False, "a prior pose is not finite or not a rigid motion")
    distance = np.sort(np.linalg.norm(T[:, :3, 3] - T[0, :3, 3], axis=1))
    if distance[(len(distance) - 1) // 2] < SHORTEST_M:
        return WindowPrior(T, False, "two views or a standing camera: the poses carry no scale")
    return WindowPrior(T, True)


def views_with_poses(
    shared: list[Item], view_of: Callable[[Item], View], new: Sequence[View]
) -> list[Item]:
    """Returns the overlap views with a prior pose, if all new ones have one and half remain.

    Otherwise returns all. A window of which an overlap view has none gets no poses.
    """
    known = [item for item in shared if view_of(item).T_prior_camera is not None]
    whole = all(view.T_prior_camera is not None for view in new)
    return known if whole and 2 * len(known) >= len(shared) > 0 else shared


def turned_by_gyro(window: Window, estimate: WindowEstimate, gyro: GyroTurns) -> WindowEstimate:
    """Returns the estimate in which a new view has turned as the gyro says since its camera's view
    before, where the network says something else; the same estimate if it never does.

    Positions stay.
    """
    poses, differs = estimate.T_window_camera.copy(), False
    last: dict[str, int] = {}
    for k in sorted(range(len(window.views)), key=lambda k: window.views[k].id):
        view = window.views[k]
        before, last[view.camera] = last.get(view.camera), k
        if k < len(window.views) - window.new or before is None:
            continue
        turn = gyro.turn(window.views[before].id, view.id)
        if turn is None:
            continue
        R = poses[before, :3, :3] @ turn[0]
        apart = Rotation.from_matrix(R.T @ poses[k, :3, :3]).magnitude()
        if apart > REFUSED * math.hypot(NETWORK_SIGMA, turn[1]):
            poses[k, :3, :3], differs = R, True
    return replace(estimate, T_window_camera=poses) if differs else estimate


def with_prior_poses(
    estimate: WindowEstimate, T_prior_camera: Array, unit: float
) -> WindowEstimate:
    """Returns the estimate with the prior's poses, in the window's unit (``unit`` metres)."""
    T = T_prior_camera.copy()
    T[:, :3, 3] /= unit
    return replace(estimate, T_window_camera=T)


def unit_by_prior(window: Window, estimate: WindowEstimate) -> ScaleMeasurement | None:
    """Returns metres per network unit of a window by the known poses that the network got; None
    without them, or if they carry no scale."""
    T = window.T_prior_camera
    if T is None or not window_prior(window.views).scale:
        return None
    measure = fit_unit(T, estimate)
    return measure if math.isfinite(measure.value) else None


class PriorPoseSubstitution:
    """Replaces the network's poses by the prior's, if ``pose_prior.output`` is ``prior``.

    The prior's frame is aligned to that of odometry at the first window that has a prior; later
    poses come from the prior.
    """

    def __init__(self, output: str) -> None:
        self.output = output
        # First view after the newest one without a prior: who gives poses may have begun anew.
        self._since = 0
        self.restart()

    def restart(self) -> None:
        """Forgets the prior's alignment: a new chain begins."""
        self._T_local_prior: Similarity | None = None
        self._measure = UNKNOWN

    def leads(self, window: Window) -> bool:
        """True if a window's pose comes from the prior."""
        return self.replaces_poses and self.output == "prior" and window.T_prior_camera is not None

    def leads_poses(self, window: Window) -> bool:
        """True if the prior's poses are published for a window, or will be once it is aligned."""
        given = self.output == "prior" and window.T_prior_camera is not None
        return given or self.replaces_poses

    @property
    def knows_unit(self) -> bool:
        """Whether the prior gives the scale of the newest window."""
        return math.isfinite(self._measure.value)

    @property
    def unit(self) -> tuple[float, float] | None:
        """Units of odometry per network unit of the newest window, and the relative standard
        deviation, by the prior's motion; None if the prior is not aligned or gives no scale."""
        if self._T_local_prior is None or not self.knows_unit:
            return None
        return self._T_local_prior.scale * self._measure.value, self._measure.sigma

    @property
    def replaces_poses(self) -> bool:
        """Whether the newest window's poses are the prior's."""
        return self._T_local_prior is not None

    def apply(
        self, window: Window, estimate: WindowEstimate, measure: ScaleMeasurement | None
    ) -> WindowEstimate:
        """Returns the estimate with the prior's poses, if they are published.

        measure: of the window's unit, as ``unit_by_prior``.
        """
        T = window.T_prior_camera
        self._measure = UNKNOWN
        if T is None or measure is None or self.output != "prior":
            return estimate
        self._measure = measure
        return with_prior_poses(estimate, T, measure.value)

    def pose(self, view: View) -> Array | None:
        """Returns the pose [4, 4] of a view by the prior; None: unknown, or not
        published."""
        T = view.T_prior_camera
        if self._T_local_prior is None or T is None or not np.isfinite(T).all():
            return None
        return self._T_local_prior.pose(T)

    def poses_since_gap(self, views: Iterable[View]) -> dict[int, Array]:
        """Returns the poses [4, 4] by the prior, by id, of the views after its newest gap."""
        poses = {view.id: self.pose(view) for view in views if view.id >= self._since}
        return {id: T for id, T in poses.items() if T is not None}

    def place(
        self, window: Window, estimate: WindowEstimate, aligned: Alignment
    ) -> tuple[WindowEstimate, Alignment]:
        """Returns estimate and alignment with the prior's poses, of a window that was
        ``aligned``."""
        for view in window.views:
            if view.T_prior_camera is None:
                self._since = max(self._since, view.id + 1)
        T, T_local_prior = window.T_prior_camera, self._T_local_prior
        if T is None or self.output != "prior":
            self._T_local_prior = None
            return estimate, aligned
        S = aligned.T_local_window
        if T_local_prior is None:
            # Of a refused window the scale is a guess, which would stay.
            if self.knows_unit and (aligned.accepted or window.new == len(window.views)):
                scale = S.scale / self._measure.value
                self._T_local_prior = Similarity(scale, S.R, S.t)
            return estimate, aligned
        # The scale comes from the alignment (better than one window's motion), the pose from the
        # prior.
        estimate = with_prior_poses(estimate, T, S.scale / T_local_prior.scale)
        placed = Similarity(S.scale, T_local_prior.R, T_local_prior.t)
        return estimate, replace(aligned, T_local_window=placed)
