"""Sources of metres: what each needs and measures.

The table is light, so that parameters can list it: a source is imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from da3_ros.scale_sources.interface import ScaleSource


def _none() -> ScaleSource:
    from da3_ros.scale_sources.declared import NoScale

    return NoScale()


def _fixed() -> ScaleSource:
    from da3_ros.scale_sources.declared import FixedFactor

    return FixedFactor()


def _metric_model() -> ScaleSource:
    from da3_ros.scale_sources.metric_model import MetricDepth

    return MetricDepth()


def _odometry() -> ScaleSource:
    from da3_ros.scale_sources.odometry import OdometryMotion

    return OdometryMotion()


def _rig() -> ScaleSource:
    from da3_ros.scale_sources.rig import RigBaselines

    return RigBaselines()


def _imu() -> ScaleSource:
    from da3_ros.scale_sources.imu import ImuMotion

    return ImuMotion()


def _range() -> ScaleSource:
    from da3_ros.scale_sources.range import RangeDepth

    return RangeDepth()


def _global_pose() -> ScaleSource:
    from da3_ros.scale_sources.global_poses import GlobalPoseMotion

    return GlobalPoseMotion()


# By the value of parameter `scale.source`.
SCALE_SOURCES: dict[str, Callable[[], ScaleSource]] = {
    "none": _none,
    "fixed": _fixed,
    "global_pose": _global_pose,
    "imu": _imu,
    "metric_model": _metric_model,
    "odometry": _odometry,
    "range": _range,
    "rig": _rig,
}


def scale_choices() -> tuple[str, ...]:
    """Returns the values of parameter `scale.source`."""
    return tuple(SCALE_SOURCES)


def scale_source(value: str) -> ScaleSource:
    """Returns a new source by the value of parameter `scale.source`: a name of the table, or
    several with ``PLUS`` between, which are combined.

    One that measures has what it needs to remember of a scene.
    """
    from da3_ros.parameter_schema import PLUS

    names = value.split(PLUS)
    if len(names) == 1:
        return SCALE_SOURCES[value]()
    from da3_ros.scale_sources.combined import CombinedSource

    return CombinedSource({name: SCALE_SOURCES[name]() for name in names})
