"""Checks by features whether views show one location: they must share tracks of one geometry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from da3_ros.geometry.similarity import IDENTITY
from da3_ros.refinement.refiner import CameraImage, RefinedWindow, WindowRefiner
from da3_ros.refinement.solver_limits import SolverLimits
from da3_ros.types import Window, WindowEstimate

MIN_SHARED_TRACKS = 20  # tracks that views of both visits see


def refined_loop(
    window: Window, split: int, estimate: WindowEstimate, limits: SolverLimits
) -> WindowEstimate | None:
    """Returns the estimate of a window of two visits with poses that tracks determine.

    split: index of the first view of the second visit. None if too few tracks connect both
    visits: then the network's word is not enough.
    """
    views = range(len(window.views))
    joined = joined_by_tracks(window, [(views[:split], views[split:])], estimate, limits)
    return None if joined is None else joined.estimate


def joined_by_tracks(
    window: Window, sides: Iterable[tuple[Sequence[int], Sequence[int]]], estimate: WindowEstimate,
    limits: SolverLimits,
) -> RefinedWindow | None:  # fmt: skip
    """Returns a window, all of whose views are new, with poses that tracks determine.

    sides: pairs of sets of views, by index. None if too few tracks connect both sets of a pair.
    """
    refiner = WindowRefiner(limits)
    images = [CameraImage(view.image, view.valid) for view in window.views]
    refined = refiner.refine(replace(window, new=len(images)), images, estimate, IDENTITY)
    if refined is None:
        return None
    tracks = [refiner.graph.views[view.id].track for view in window.views]
    for pair in sides:
        first, second = (np.concatenate([tracks[i] for i in side]) for side in pair)
        if (np.intersect1d(first, second) >= 0).sum() < MIN_SHARED_TRACKS:
            return None
    return refined
