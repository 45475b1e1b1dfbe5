"""Metres from a network that knows the size of things: the session's own, or one beside it."""

from __future__ import annotations

from da3_ros.scale_sources.interface import ScaleSource
from da3_ros.types import Scale, ScaleMeasurement


class MetricDepth(ScaleSource):
    """The network's depth over metric depth, which is in the prediction already."""

    by_depth = True
    needs_metric_model = True
    bias = 0.1  # from one kind of scene to another; assumed, not measured


def scale_of_depth(measure: ScaleMeasurement | None) -> Scale:
    """Returns the scale of depth maps of a single-image network, which are in metres if they have
    a measurement."""
    return Scale() if measure is None else Scale("metric_model", 1.0)
