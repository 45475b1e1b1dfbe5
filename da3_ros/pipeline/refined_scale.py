"""Scale measurements of a window, in the unit that refinement gives it."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from da3_ros.geometry.poses import spread
from da3_ros.refinement.refiner import RefinedWindow
from da3_ros.refinement.self_calibration import NO_CHANGE
from da3_ros.types import Prediction, ScaleMeasurement, Window

LEAST_MOTION = 0.02  # spread of a camera's positions over depth, below which it shows no unit
DOUBT = 0.2  # share of a change of the unit that counts as error


def in_refined_unit(
    window: Window,
    network: Prediction,
    refined: Prediction,
    result: RefinedWindow,
    *,
    by_depth: bool,
) -> Prediction:
    """Returns a refined prediction with the network's scale measurement in its new unit; without
    one if a focal length was found, because what was measured has its error.

    network: the prediction before. by_depth: whether its depth was measured; else the unit of its
    poses, which tracks may bring to another one. Refined poses themselves are no measurement:
    those of earlier windows hold them, so that they repeat one error.
    """
    measure = network.measure
    if measure is None:
        return refined
    if result.change != NO_CHANGE:
        return dataclasses.replace(refined, measure=None)
    if by_depth:
        factor = float(np.median(result.factors))
        found: ScaleMeasurement | None = dataclasses.replace(measure, value=measure.value / factor)
    else:
        found = _by_positions(window, network, refined, measure)
    return dataclasses.replace(refined, measure=found)


def _by_positions(
    window: Window, network: Prediction, refined: Prediction, measure: ScaleMeasurement
) -> ScaleMeasurement | None:
    """Returns the measurement times the network's units per refined unit; None if no positions
    show them.

    The spread of each camera's positions counts; of a rig that has not moved, the distances
    between its cameras, which repeat an error of tracks in every window.
    """
    known = refined.depth[np.isfinite(refined.depth)]
    depth = float(np.median(known)) if len(known) else math.inf
    cameras = np.array([view.camera for view in window.views])
    for groups in (cameras, np.zeros(len(cameras), int)):
        before, after = (spread(p.T_window_camera[:, :3, 3], groups) for p in (network, refined))
        square = float((after**2).sum())
        if math.sqrt(square / len(after)) < LEAST_MOTION * depth:
            continue
        ratio = float((before * after).sum()) / square  # the network's positions have the errors
        if not ratio > 0:
            continue
        noise = float(((before - ratio * after) ** 2).sum()) / max(1, 3 * len(after) - 4)
        sigma = math.hypot(math.sqrt(noise / square) / ratio, DOUBT * math.log(ratio))
        return ScaleMeasurement(measure.value * ratio, math.hypot(measure.sigma, sigma))
    return None
