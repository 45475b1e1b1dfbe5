"""Checks a loop by features: two visits of a place must share tracks of one geometry."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from da3_ros.geometry.similarity import IDENTITY
from da3_ros.refinement.effort import Effort
from da3_ros.refinement.refiner import CameraImage, WindowRefiner
from da3_ros.types import Prediction, Window

MIN_SHARED_TRACKS = 20  # tracks that views of both visits see


def refined_loop(
    window: Window, split: int, prediction: Prediction, effort: Effort
) -> Prediction | None:
    """Returns the prediction of a window of two visits with poses that tracks determine.

    split: index of the first view of the second visit. None if too few tracks connect both
    visits: then the network's word is not enough.
    """
    refiner = WindowRefiner(effort)
    images = [CameraImage(view.image, view.valid) for view in window.views]
    refined = refiner.refine(replace(window, new=len(images)), images, prediction, IDENTITY)
    if refined is None:
        return None
    tracks = [refiner.graph.views[view.id].track for view in window.views]
    first, second = (np.unique(np.concatenate(side)) for side in (tracks[:split], tracks[split:]))
    shared = np.intersect1d(first, second)
    return refined.prediction if (shared >= 0).sum() >= MIN_SHARED_TRACKS else None
