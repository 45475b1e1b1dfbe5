"""Decodes messages of range sensors to returns in the sensor's frame.

Point clouds, laser scans and single ranges. Uses field names only, as `decode.py`; imports no ROS.

Every fault raises a ``RangeError`` with one line of text.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from da3_ros.config import NodeConfig, needs_ranges
from da3_ros.messages.decode import stamp_ns
from da3_ros.parameter_schema import ConfigError
from da3_ros.sensors.pose_prior import PosePrior
from da3_ros.sensors.range_returns import RangeError, RangeScan, RangeSensors
from da3_ros.sensors.transform_tree import TransformTree

CLOUD, SCAN, RANGE = (f"sensor_msgs/msg/{name}" for name in ("PointCloud2", "LaserScan", "Range"))
MAX_POINTS = 8_000_000  # of a cloud or scan
# Types of sensor_msgs/PointField by their number.
_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 8: "f8"}
_FLOATS = (7, 8)
TIME_FIELDS = ("t", "time", "timestamp", "offset_time", "time_stamp")
LONGEST_S = 1.0  # of a sweep; times farther from the message's stamp are not understood
# Units of times, ns; and how long sweeps last, by which a driver's unit is told, ns.
_UNITS = {"nanoseconds": 1, "microseconds": 10**3, "milliseconds": 10**6, "seconds": 10**9}
_SWEEP = 2e6, 5e8


def message_bytes(kind: str, message: Any) -> int:
    """Returns about how many bytes a message of type ``kind`` takes."""
    if kind == CLOUD:
        return len(message.data)
    return 4 * len(message.ranges) if kind == SCAN else 64


def read_ranges(kind: str, message: Any) -> RangeScan:
    """Returns the returns of a message of type ``kind``, one of ``RANGE_TYPES``.

    Raises RangeError for a message whose fields contradict each other or its type.
    """
    scan: RangeScan = RANGE_TYPES[kind](message)
    if not scan.frame_id:
        raise RangeError("header.frame_id is empty: the driver must name the sensor's frame")
    return scan


def read_cloud(message: Any) -> RangeScan:
    """Returns the finite points of a sensor_msgs/PointCloud2, organised or not.

    The fields x, y and z may be float32 or float64, anywhere in a point, of either byte order. A
    field named as one of ``TIME_FIELDS`` gives each point its own stamp: integers are
    nanoseconds, floating-point numbers seconds, unless a sweep cannot be as short or long; since
    the cloud's stamp, or absolute.
    """
    points = _points(message)
    xyz = np.stack([points[name].astype(np.float32) for name in "xyz"], axis=1)
    good = np.isfinite(xyz).all(axis=1) & xyz.any(axis=1)  # drivers write 0, 0, 0 for no return
    stamp, note = stamp_ns(message.header.stamp), ""
    name = next((n for n in TIME_FIELDS if n in (points.dtype.names or ())), None)
    stamps = None
    if name is not None and good.any():
        usual = "nanoseconds" if points[name].dtype.kind in "iu" else "seconds"
        unit = _unit(points[name][good], usual)
        stamps = _stamps(points[name][good], _UNITS[unit], stamp)
        if stamps is not None and unit != usual == "nanoseconds":
            note = f"the field {name} is taken as {unit}, by the time that a sweep lasts"
        if stamps is None:
            note = f"the field {name} has no times near the cloud's stamp: that is used"
    return RangeScan(message.header.frame_id, stamp, xyz[good], stamps, note=note)


def _points(message: Any) -> NDArray[Any]:
    """Returns the points [N] as records with the fields of the message."""
    order = ">" if message.is_bigendian else "<"
    height, width, step = int(message.height), int(message.width), int(message.point_step)
    row = int(message.row_step) if height > 1 else width * step
    fields = {str(f.name): f for f in message.fields if f.name in (*"xyz", *TIME_FIELDS)}
    missing = [n for n in "xyz" if n not in fields or fields[n].datatype not in _FLOATS]
    if missing:
        known = ", ".join(str(f.name) for f in message.fields) or "none"
        raise RangeError(
            f"field {missing[0]} is missing or no floating-point number; fields: {known}"
        )
    used = {n: f for n, f in fields.items() if f.datatype in _TYPES and f.count in (0, 1)}
    formats = [order + _TYPES[f.datatype] for f in used.values()]
    offsets = [int(f.offset) for f in used.values()]
    end = max(o + np.dtype(t).itemsize for o, t in zip(offsets, formats, strict=True))
    data = np.frombuffer(message.data, np.uint8)
    needed = (height - 1) * row + width * step if height and width else 0
    if not set("xyz") <= used.keys() or end > step or row < width * step or needed > len(data):
        raise RangeError(
            f"{width} x {height} points of {step} bytes in rows of {row} with {len(data)} bytes "
            "of data: its sizes contradict each other"
        )
    if height * width > MAX_POINTS:
        raise RangeError(f"{height * width} points: more than {MAX_POINTS} are not read")
    kind = np.dtype({
        "names": list(used), "formats": formats, "offsets": offsets, "itemsize": step,
    })  # fmt: skip
    if not height or not width:
        return np.zeros(0, kind)
    return np.ndarray((height, width), kind, data, strides=(row, step)).reshape(-1)


def _unit(times: NDArray[Any], usual: str) -> str:
    """Returns the unit of points' times [N]: the usual one, unless a sweep takes another time."""
    span = float(times.max()) - float(times.min())
    if not span or _SWEEP[0] <= span * _UNITS[usual] <= LONGEST_S * 1e9:
        return usual
    fitting = (name for name, ns in _UNITS.items() if _SWEEP[0] <= span * ns <= _SWEEP[1])
    return next(fitting, usual)


def _stamps(times: NDArray[Any], unit: int, stamp: int) -> NDArray[np.int64] | None:
    """Returns the points' own stamps [N], ns; None if they are not near that of the message.

    unit: of the times, ns.
    """
    if times.dtype.kind in "iu":
        ns = times.astype(np.int64) * unit
    else:
        given = times.astype(np.float64)
        if not np.isfinite(given).all():
            return None
        ns = np.rint(given * unit).astype(np.int64)
    for offset in (ns, ns - stamp):
        if np.abs(offset).max() <= LONGEST_S * 1e9:
            return np.asarray(stamp + offset, np.int64)
    return None


def read_scan(message: Any) -> RangeScan:
    """Returns the returns of a sensor_msgs/LaserScan, each at its own stamp.

    Distances outside of range_min to range_max, NaN and Inf are no returns.
    """
    ranges = np.asarray(message.ranges, np.float64)
    if len(ranges) > MAX_POINTS:
        raise RangeError(f"{len(ranges)} ranges: more than {MAX_POINTS} are not read")
    numbers = message.angle_min, message.angle_increment, message.time_increment
    if not all(map(math.isfinite, numbers)):
        raise RangeError("angle_min, angle_increment or time_increment is not finite")
    with np.errstate(invalid="ignore"):
        good = (ranges >= message.range_min) & (ranges <= message.range_max) & (ranges > 0)
    good &= np.isfinite(ranges)
    index = np.flatnonzero(good)
    angle = message.angle_min + index * message.angle_increment
    points = np.stack([np.cos(angle), np.sin(angle), np.zeros(len(index))], axis=1)
    points = (points * ranges[good, None]).astype(np.float32)
    stamp, note = stamp_ns(message.header.stamp), ""
    offset = np.rint(1e9 * message.time_increment * index)
    stamps = None
    if len(index) and message.time_increment:
        if np.abs(offset).max() <= LONGEST_S * 1e9:
            stamps = stamp + offset.astype(np.int64)
        else:
            note = "time_increment makes a sweep of more than a second: the scan's stamp is used"
    return RangeScan(message.header.frame_id, stamp, points, stamps, note=note)


def read_range(message: Any) -> RangeScan:
    """Returns the return of a sensor_msgs/Range, on the x axis, with the cone that it is in.

    By REP-117, -Inf is too near and +Inf too far to be measured: no return, as range_max itself,
    which drivers send where there is no echo.
    """
    distance, half = float(message.range), float(message.field_of_view) / 2
    if not 0 <= half < math.pi / 2:
        raise RangeError(f"field_of_view is {2 * half:.3g} rad: must be 0 to pi")
    good = math.isfinite(distance) and distance > 0
    good = good and message.min_range <= distance < message.max_range
    points = np.array([[distance, 0, 0]] if good else np.zeros((0, 3)), np.float32)
    stamp = stamp_ns(message.header.stamp)
    return RangeScan(message.header.frame_id, stamp, points, None, half_angle=half)


def open_ranges(
    config: NodeConfig, transforms: TransformTree, prior: PosePrior | None,
    warn: Callable[..., None],
) -> RangeSensors | None:  # fmt: skip
    """Returns the range sensors that the parameters name; None if they name none.

    Raises ConfigError if the scale needs some.
    """
    source = config.pipeline.scale.source
    if not config.range_topics and needs_ranges(config.pipeline):
        raise ConfigError(
            f"scale.source is {source}, but range_topics is empty: set it to the topics of the "
            "robot's range sensors"
        )
    if not config.range_topics:
        return None
    return RangeSensors(config.range_topics, transforms, config.odom_frame, warn, prior)


RANGE_TYPES: dict[str, Callable[[Any], RangeScan]] = {
    CLOUD: read_cloud, SCAN: read_scan, RANGE: read_range,
}  # fmt: skip
