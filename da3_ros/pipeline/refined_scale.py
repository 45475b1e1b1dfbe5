"""Scale measurements of a window, in the unit that refinement gives it."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from da3_ros.config import ScaleConfig
from da3_ros.refinement.refiner import RefinedWindow
from da3_ros.types import Array, Prediction, ScaleMeasurement, Window

LEAST_MOTION = 0.02  # spread of a camera's positions over depth, below which it shows no unit
DOUBT = 0.2  # share of a change of the unit that counts as error


def in_refined_unit(
    window: Window,
    network: Prediction,
    refined: Prediction,
    result: RefinedWindow,
    config: ScaleConfig,
) -> Prediction:
    """Returns a refined prediction with the network's scale measurement in its new unit.

    network: the prediction before. Rig and odometry measure the unit of the network's poses, which
    tracks may bring to another one. Refined poses themselves are no measurement: those of earlier
    windows hold them, so that they repeat one error.
    """
    measure = network.measure
    if measure is None:
        return refined
    if config.source in ("rig", "odometry"):
        measure = _by_motion(window, network, refined, measure)
    else:  # by depth: a model's
        factor = float(np.median(result.factors))
        measure = dataclasses.replace(measure, value=measure.value / factor)
    return dataclasses.replace(refined, measure=measure)


def _by_motion(
    window: Window, network: Prediction, refined: Prediction, measure: ScaleMeasurement
) -> ScaleMeasurement:
    """Returns the measurement times the network's units per refined unit, by the spread of each
    camera's positions, without the distances between cameras."""
    before, after = _positions(window, network), _positions(window, refined)
    known = refined.depth[np.isfinite(refined.depth)]
    square = float((after**2).sum())
    depth = float(np.median(known)) if len(known) else math.inf
    if math.sqrt(square / len(after)) < LEAST_MOTION * depth:
        return measure
    ratio = float((before * after).sum()) / square  # the network's positions have the errors
    if not ratio > 0:
        return measure
    noise = float(((before - ratio * after) ** 2).sum()) / max(1, 3 * len(after) - 4)
    sigma = math.sqrt(noise / square) / ratio
    sigma = math.hypot(sigma, DOUBT * math.log(ratio))
    return ScaleMeasurement(measure.value * ratio, math.hypot(measure.sigma, sigma))


def _positions(window: Window, prediction: Prediction) -> Array:
    """Returns the positions [N, 3] of views, less the mean of their camera."""
    places = prediction.T_window_camera[:, :3, 3].copy()
    cameras = np.array([view.camera for view in window.views])
    for camera in set(cameras.tolist()):
        places[cameras == camera] -= places[cameras == camera].mean(axis=0)
    return places
