"""Metres from the robot's own poses: its way over the camera's, and the unit of windows."""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from da3_ros.scale_sources.estimates import (
    Estimate,
    MeasurementFilter,
    best_average,
    contradicted,
    drift_of,
    inliers,
)
from da3_ros.scale_sources.interface import ScaleSource
from da3_ros.types import Array, ScaleMeasurement, View, Window, WindowEstimate

# Distance over depth that ends a stretch; a shorter one is smaller than the network's noise.
PARALLAX = 0.05
MIN_MOTION_M = 0.01  # motion by odometry below which the robot stands still
MIN_COSINE = 0.8  # cosine between both directions of motion, below which one of them is wrong
MAX_STRETCHES = 40  # newest stretches that are used
MIN_STRETCHES = 5  # fewer have no spread that detects outliers


class OdometryRatio:
    """Ratio of travelled distances: the robot's odometry over its camera in `local`, per stretch.

    A stretch ends when the camera has moved by a share of the depth. So a standing robot
    makes none, and slipping wheels make one stretch, which is an outlier among the others.
    """

    def __init__(self) -> None:
        self._logs: deque[float] = deque(maxlen=MAX_STRETCHES)
        self._distances: deque[tuple[float, float]] = deque(maxlen=MAX_STRETCHES)
        self.discard_current()

    def discard_current(self) -> None:
        """Discards the current stretch; a new one starts with the next frame."""
        self._start: tuple[Array, Array] | None = None

    def add(self, T_local_camera: Array, T_prior_camera: Array | None, depth: float) -> None:
        """Adds a frame: its poses in ``local`` and by the robot (metres), and its typical
        depth."""
        if T_prior_camera is None or not np.isfinite(T_prior_camera).all() or not depth > 0:
            self.discard_current()
            return
        here = (T_local_camera, T_prior_camera)
        if self._start is None:
            self._start = here
            return
        own_motion, prior_motion = (_motion(a, b) for a, b in zip(self._start, here, strict=True))
        distance, distance_m = (
            float(np.linalg.norm(own_motion)),
            float(np.linalg.norm(prior_motion)),
        )
        if distance < PARALLAX * depth:
            return
        self._start = here
        if (
            distance_m > MIN_MOTION_M
            and own_motion @ prior_motion > MIN_COSINE * distance * distance_m
        ):
            self._logs.append(math.log(distance_m / distance))
            self._distances.append((distance_m, distance))

    def estimate(self) -> Estimate | None:
        """Returns the scale from all stretches that agree; None if they are too few."""
        if len(self._logs) < MIN_STRETCHES:
            return None
        logs = np.array(self._logs)
        good = inliers(logs)
        count = int(good.sum())
        if count < MIN_STRETCHES or 2 * count < len(logs):
            return None
        newest, sigma = best_average(logs[good], 0.0, MIN_STRETCHES)
        distance_m, distance = np.array(self._distances)[good][-newest:].sum(axis=0)
        found = Estimate(math.log(distance_m / distance), sigma, drift_of(logs[good], newest))
        return contradicted(found, logs)


def _motion(T_start: Array, T_end: Array) -> Array:
    """Returns the translation [3] from start to end in the axes of the camera at the start."""
    return np.asarray(T_start[:3, :3].T @ (T_end[:3, 3] - T_start[:3, 3]))


class MotionFilter(MeasurementFilter):
    """Windows that got the robot's poses, and stretches of the way: the more certain counts."""

    def __init__(self) -> None:
        super().__init__()
        self._ratio = OdometryRatio()

    def add_motion(self, view: View, T_local_camera: Array, depth: float) -> None:
        self._ratio.add(T_local_camera, view.T_prior_camera, depth)

    def interrupt_motion(self) -> None:
        self._ratio.discard_current()

    def estimate(self) -> Estimate | None:
        estimates = filter(None, (super().estimate(), self._ratio.estimate()))
        return min(estimates, key=lambda e: e.deviation, default=None)


class OdometryMotion(ScaleSource):
    """The robot's own motion, in each window that got its poses and along the way."""

    needs_prior = True
    bias = 0.01  # of the size of wheels and of their slip; assumed, not measured

    def measure(
        self, window: Window, estimate: WindowEstimate, by_prior: ScaleMeasurement | None
    ) -> ScaleMeasurement | None:
        return by_prior  # what a nested network measures itself is another source

    def estimator(self) -> MeasurementFilter:
        return MotionFilter()
