"""Known camera poses of a window: which the network is given, and which are published."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from da3_ros.geometry.poses import is_pose
from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.alignment import Alignment
from da3_ros.mapping.depth_consistency import SHORTEST_M, fit_unit
from da3_ros.sensors.pose_prior import UNKNOWN
from da3_ros.types import Array, Prediction, View, Window

Item = TypeVar("Item")


@dataclass(frozen=True, eq=False)
class WindowPrior:
    """What a window gives to the network."""

    T_prior_camera: Array | None  # [N, 4, 4]; None: nothing
    scale: bool  # whether the translations carry a scale
    why: str = ""  # nothing, or no scale


def choose(views: Sequence[View]) -> WindowPrior:
    """All poses of a window, if all are there and good."""
    poses = [view.T_prior_camera for view in views]
    missing = sum(pose is None for pose in poses)
    if missing:
        return WindowPrior(None, False, "frames without a pose")
    if any(view.K is None for view in views):
        return WindowPrior(None, False, "known poses need a camera_info")
    T = np.stack([pose for pose in poses if pose is not None])
    if not all(is_pose(pose) for pose in T):
        return WindowPrior(None, False, "a pose of the prior is not finite or no rigid motion")
    way = np.sort(np.linalg.norm(T[:, :3, 3] - T[0, :3, 3], axis=1))
    if way[(len(way) - 1) // 2] < SHORTEST_M:
        return WindowPrior(T, False, "two views or a standing camera: the poses carry no scale")
    return WindowPrior(T, True)


def with_poses(
    shared: list[Item], view_of: Callable[[Item], View], new: Sequence[View]
) -> list[Item]:
    """Of the shared frames those with a pose, where new ones have poses and enough remain.

    One frame without a pose would else keep all windows that it is in from having any.
    """
    known = [item for item in shared if view_of(item).T_prior_camera is not None]
    whole = all(view.T_prior_camera is not None for view in new)
    return known if whole and 2 * len(known) >= len(shared) > 0 else shared


def with_prior_poses(prediction: Prediction, T_prior_camera: Array, unit: float) -> Prediction:
    """``prediction`` with the prior's own poses, in the window's unit (``unit`` metres)."""
    T = T_prior_camera.copy()
    T[:, :3, 3] /= unit
    return replace(prediction, T_window_camera=T)


class PriorPoseSubstitution:
    """Puts the prior's own poses in place of the network's, where that is asked for.

    The prior's frame is aligned to the segment at the first window that has a prior; from then on
    the cameras' poses come from the prior.
    """

    def __init__(self, output: str) -> None:
        self.output = output
        self.restart()

    def restart(self) -> None:
        """A segment begins, or goes on without a prior."""
        self._T_segment_prior: Similarity | None = None
        self._measure = UNKNOWN

    def leads(self, window: Window) -> bool:
        """Whether the prior says where a window lies in its segment."""
        return self.in_place and self.output == "prior" and window.T_prior_camera is not None

    @property
    def knows_unit(self) -> bool:
        """Whether the prior says in what unit the newest window is."""
        return math.isfinite(self._measure.value)

    @property
    def unit(self) -> tuple[float, float] | None:
        """Segment units per network unit of the newest window and its relative standard deviation,
        by the prior's motion; None where the prior does not lead or says nothing of it."""
        if self._T_segment_prior is None or not self.knows_unit:
            return None
        return self._T_segment_prior.scale * self._measure.value, self._measure.sigma

    @property
    def in_place(self) -> bool:
        """Whether the newest window's poses are the prior's own."""
        return self._T_segment_prior is not None

    def apply(self, window: Window, prediction: Prediction, metric: bool) -> Prediction:
        """``prediction`` with the unit that the prior gives, and with its poses if they go out.

        ``metric``: whether odometry is the source of metres.
        """
        T = window.T_prior_camera
        self._measure = UNKNOWN
        if T is None or not choose(window.views).scale:
            return prediction
        measure = fit_unit(T, prediction)
        if not math.isfinite(measure.value):
            return prediction
        if metric:
            prediction = replace(prediction, measure=measure)
        if self.output == "prior":
            self._measure = measure
            prediction = with_prior_poses(prediction, T, measure.value)
        return prediction

    def place(
        self, window: Window, prediction: Prediction, joined: Alignment
    ) -> tuple[Prediction, Alignment]:
        """Where a window that was ``joined`` to its segment lies by the prior, with its poses."""
        T, T_segment_prior = window.T_prior_camera, self._T_segment_prior
        if T is None or self.output != "prior":
            self._T_segment_prior = None
            return prediction, joined
        S = joined.T_ref_window
        if T_segment_prior is None:
            if self.knows_unit:
                scale = S.scale / self._measure.value
                self._T_segment_prior = Similarity(scale, S.R, S.t)
            return prediction, joined
        # The fit knows the window's unit (better than one window's motion), the prior its pose.
        prediction = with_prior_poses(prediction, T, S.scale / T_segment_prior.scale)
        placed = Similarity(S.scale, T_segment_prior.R, T_segment_prior.t)
        return prediction, replace(joined, T_ref_window=placed)
