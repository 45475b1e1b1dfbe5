"""The drift of windows that are aligned one after the other."""

from __future__ import annotations

import numpy as np

from da3_ros.types import Array


class DriftModel:
    """Variance that the alignments of windows add up to along the path, kept as sums.

    The memory does not grow with the number of windows.
    """

    def __init__(self) -> None:
        self._own = np.zeros(3)
        self._arms = 0.0  # total variance of scales and rotations
        self._middle = np.zeros(3)  # mean of their positions, weighted by variance
        self._spread = 0.0  # weighted sum of squared distances from the mean

    def add(self, variance: Array, camera: Array) -> None:
        """Adds a window's variance [3] (log scale, rotation, position) at its camera [3]."""
        self._own = self._own + variance
        weight = float(variance[0] + variance[1])
        if not weight > 0:
            return
        self._arms += weight
        offset = camera - self._middle
        self._middle = self._middle + weight / self._arms * offset
        self._spread += weight * float(offset @ (camera - self._middle))

    def rescale(self, factor: float, about: Array) -> None:
        """Takes over that lengths are ``factor`` times what they were, seen from the point
        ``about`` [3]."""
        self._own = self._own * [1, 1, factor**2]
        self._middle = about + factor * (self._middle - about)
        self._spread *= factor**2

    def variance_at(self, point: Array) -> Array:
        """Returns the variance [3] at a point: rotation and scale errors move distant points."""
        by_arms = self._spread + self._arms * float(((self._middle - point) ** 2).sum())
        return np.asarray(self._own + [0, 0, by_arms])
