"""Whether a measured loop is possible, and whether two loops measure the same.

By the drift between keyframes along the graph of submaps.
"""

from __future__ import annotations

import numpy as np

from da3_ros.geometry.similarity import IDENTITY
from da3_ros.mapping.loop_keyframes import LoopKeyframe
from da3_ros.mapping.loop_verification import Loop, within_sigmas
from da3_ros.mapping.submap_graph import SubmapGraph
from da3_ros.types import Array

SAME_PLACE = 0.25  # drift variance within a place over that between the sides of a loop


def drift_between(graph: SubmapGraph, old: LoopKeyframe, new: LoopKeyframe) -> Array:
    """Returns the variance [3] of the new keyframe relative to the old one, along the most certain
    path."""
    first, second = (graph.index(p.submap) for p in (old, new))
    return np.asarray(old.own + new.own + graph.drift_variance(first, second, new.centre))


def is_possible(graph: SubmapGraph, loop: Loop) -> bool:
    """True if the drift that a loop measures is possible."""
    drift = drift_between(graph, loop.old, loop.new) + loop.variance
    return within_sigmas(loop.drift, IDENTITY, loop.new.centre, drift)


def agree(graph: SubmapGraph, first: Loop, second: Loop) -> bool:
    """True if two loops of different keyframes are of one place and measure the same drift."""
    apart = drift_between(graph, first.new, second.new)
    apart = apart + drift_between(graph, first.old, second.old)
    if not apart[2] < SAME_PLACE * drift_between(graph, second.old, second.new)[2]:
        return False
    point = second.new.centre
    square = float(((first.new.centre - point) ** 2).sum())
    moved = first.variance + [0, 0, square * (first.variance[0] + first.variance[1])]
    return within_sigmas(first.drift, second.drift, point, moved + second.variance + apart)
