"""Whether a measured loop is possible, and whether two loops measure the same.

By the drift between keyframes along the graph of submaps.
"""

from __future__ import annotations

import numpy as np

from da3_ros.geometry.similarity import IDENTITY, Similarity
from da3_ros.mapping.loop_keyframes import PlacedKeyframe
from da3_ros.mapping.loop_verification import Loop, placed_ends, within_sigmas
from da3_ros.mapping.map_table import MapTable
from da3_ros.mapping.submap_graph import SubmapGraph
from da3_ros.types import Array

SAME_PLACE = 0.25  # drift variance within a place over that between the sides of a loop


def drift_between(graph: SubmapGraph, old: PlacedKeyframe, new: PlacedKeyframe) -> Array:
    """Returns the variance [3] of the new keyframe relative to the old one, along the most certain
    path."""
    first, second = (graph.index(p.submap) for p in (old, new))
    drift = graph.drift_variance(first, second, new.centre)
    return np.asarray(old.variance + new.variance + drift)


class LoopAgreement:
    """Compares loops with the drift between their submaps."""

    def __init__(self, graph: SubmapGraph, submaps: MapTable) -> None:
        self._graph, self._submaps = graph, submaps

    def is_possible(self, loop: Loop) -> bool:
        """True if the drift that a loop measures is possible."""
        old, new, drift, variance = self._placed(loop)
        possible = drift_between(self._graph, old, new) + variance
        return within_sigmas(drift, IDENTITY, new.centre, possible)

    def agree(self, first: Loop, second: Loop) -> bool:
        """True if two loops of different keyframes are of one place and measure the same drift."""
        old, new, drift, variance = self._placed(first)
        other_old, other_new, other_drift, other_variance = self._placed(second)
        apart = drift_between(self._graph, new, other_new)
        apart = apart + drift_between(self._graph, old, other_old)
        if not apart[2] < SAME_PLACE * drift_between(self._graph, other_old, other_new)[2]:
            return False
        point = other_new.centre
        square = float(((new.centre - point) ** 2).sum())
        moved = variance + [0, 0, square * (variance[0] + variance[1])]
        return within_sigmas(drift, other_drift, point, moved + other_variance + apart)

    def _placed(self, loop: Loop) -> tuple[PlacedKeyframe, PlacedKeyframe, Similarity, Array]:
        """Returns both keyframes, the drift and its variance [3], in the frame of odometry."""
        old, new = placed_ends(loop, self._submaps)
        drift = loop.drift(old.T_local_submap, new.T_local_submap)
        return old, new, drift, loop.variance * [1, 1, new.T_local_submap.scale**2]
