"""Noise of tracks, depths and poses, learned from the residuals of each window of a stream."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from da3_ros.refinement.bundle import NETWORK, RIG, ROBOT, Adjusted, pose_prior_terms
from da3_ros.types import Array

RATE = 0.2  # weight of a window; the first ones weigh more
NORMAL = 1.4826  # standard deviation over the median absolute deviation
RAYLEIGH = 1.1774  # median over the standard deviation of an axis, of distances in a plane
CHI3 = 1.5382  # the same in space
MIN_SCALE, SCALE_SHARE = 0.02, 0.3  # noise of a view's scale; the latter over that of its depth
FEWEST = 30  # tracks of a view whose residuals measure the noise


@dataclass(frozen=True)
class PoseNoise:
    """Standard deviations of one axis of relative poses."""

    rotation: float  # rad
    position: float  # of position, over depth


class TrackNoise:
    """Standard deviations, as medians over a window's residuals, slowly averaged."""

    def __init__(self) -> None:
        self._windows = 0
        self.pixel = 0.7  # of a feature's position, pixels
        self.depth = 0.1  # of the logarithm of predicted depth
        # Of the relative poses by the network, by the robot and by the rig (only its rotations).
        self.poses = {
            NETWORK: PoseNoise(0.03, 0.05), ROBOT: PoseNoise(0.03, 0.05),
            RIG: PoseNoise(0.002, 0.0),
        }  # fmt: skip

    @property
    def scale(self) -> float:
        """Standard deviation of the logarithm of a view's scale."""
        return max(MIN_SCALE, SCALE_SHARE * self.depth)

    def add(self, done: Adjusted, seen: Array, new: list[int]) -> None:
        """Learns from a solved bundle.

        seen: number [V] of each view's tracks. new: indices of the window's new views.
        """
        known = [k for k in new if seen[k] >= FEWEST]
        if not known or not len(done.reprojection):
            return
        b, o = done.bundle, done.bundle.observations
        free = 2 * len(o.view) - 3 * len(b.points) - 6 * int(b.free.sum())
        share = max(free, 1) / (2 * len(o.view))
        self._windows += 1
        if o.normal is None:  # edges have other errors
            pixel = float(np.median(done.reprojection)) / RAYLEIGH / math.sqrt(share)
            self.pixel = self._moved(self.pixel, pixel, 0.2, 3.0)
        self.depth = self._moved(self.depth, done.depth_sigma(), 0.02, 2.0)
        for source, noise in self.poses.items():
            self.poses[source] = self._learned(noise, done, set(known), source)

    def _learned(
        self, noise: PoseNoise, done: Adjusted, known: set[int], source: int
    ) -> PoseNoise:
        b, p = done.bundle, done.bundle.poses
        some = np.array([int(i) in known for i in p.second], bool) & (p.source == source)
        if not some.any():
            return noise
        T = b.T_local_camera
        first, second = p.first[some], p.second[some]
        r, *_ = pose_prior_terms(
            T[first, :3, :3], T[first, :3, 3], T[second, :3, :3], T[second, :3, 3],
            p.T_first_second[some],
        )  # fmt: skip
        depth = float(np.exp(np.median(b.typical_log_depth())))
        rotation, position = (
            float(np.median(np.linalg.norm(r[:, k : k + 3], axis=1))) for k in (0, 3)
        )
        # Else nobody knows the unit of the measured positions; a rig's are in metres.
        placed = source != RIG and p.root[some][:, 3:].any()
        return PoseNoise(
            self._moved(noise.rotation, rotation / CHI3, 0.001, 1.0),
            self._moved(noise.position, position / CHI3 / depth, 0.001, 1.0)
            if placed
            else noise.position,
        )

    def _moved(self, value: float, found: float, low: float, high: float) -> float:
        """Returns the logarithmic mean of the old and the found value, within limits."""
        if not math.isfinite(found):
            return value
        found, rate = min(max(found, low), high), max(RATE, 1 / (self._windows + 1))
        return math.exp((1 - rate) * math.log(value) + rate * math.log(found))
