"""Which transforms may be published without breaking a robot's tree (REP-105). No middleware."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from da3_ros.geometry.poses import invert_pose
from da3_ros.messages.outputs import Edge
from da3_ros.sensors.transform_tree import TransformTree
from da3_ros.types import Array

OWNED = "the motion in odom belongs to the pose prior"
Parent = Callable[[str], "str | None"]  # the frame on which another node hangs a child


@dataclass(frozen=True)
class Frames:
    """Names of the frames involved."""

    map: str
    odom: str
    base: str  # empty: a camera alone
    optical: str


@dataclass(frozen=True)
class TfPlan:
    """What is published: ``base``, ``camera``, ``map_only`` or ``none``, and why not more."""

    mode: str
    warning: str = ""


def plan(
    requested: str,
    frames: Frames,
    others: TransformTree,
    *,
    metric: bool,
    prior: bool = False,
    parent: Parent | None = None,
) -> TfPlan:
    """Decide by the parameter ``tf.publish`` and by what others publish.

    ``prior``: another node's odometry is in use; that node publishes the motion.
    ``parent``: where each child hangs now; by default as ``others`` says.

    ``others`` holds everybody's transforms but ours. With an unknown scale nothing is attached to
    a robot's tree: its lengths are no metres.
    """
    if requested == "none":
        return TfPlan("none")
    parent = parent or others.parent
    reasons = {
        "base": OWNED if prior else _why_not_base(frames, others, parent, metric),
        "camera": OWNED if prior else _why_not_camera(frames, others, parent, metric),
        "map_only": _why_not_map(frames, others, parent, metric),
    }
    if requested != "auto":
        if why := reasons[requested]:
            return TfPlan("none", f"tf.publish is {requested}, but {why}")
        return TfPlan(requested)
    for mode in ("base", "camera", "map_only"):
        if not reasons[mode]:
            return TfPlan(mode)
    return TfPlan("none", "no transform is published: " + "; ".join(reasons.values()))


def edges(
    mode: str,
    frames: Frames,
    others: TransformTree,
    T_map_optical: Array,
    stamp_ns: int,
    T_map_odom: Array,
    parent: Parent | None = None,
) -> list[Edge]:
    """The transforms of one frame. Raises TransformError where others' are missing at that time.

    ``T_map_odom`` holds what the map was corrected by, unless another node publishes it.
    ``parent`` as in ``plan``.
    """
    if mode == "none":
        return []
    if mode == "map_only":
        T_odom_optical = others.lookup(frames.odom, frames.optical, stamp_ns)
        return [(frames.map, frames.odom, T_map_optical @ invert_pose(T_odom_optical))]
    owned = (parent or others.parent)(frames.odom)
    corrections = [] if owned else [(frames.map, frames.odom, T_map_odom)]
    T_odom_optical = invert_pose(T_map_odom) @ T_map_optical
    if mode == "camera":
        return [*corrections, (frames.odom, frames.optical, T_odom_optical)]
    T_optical_base = others.lookup(frames.optical, frames.base, stamp_ns)
    return [*corrections, (frames.odom, frames.base, T_odom_optical @ T_optical_base)]


def _why_not_base(frames: Frames, others: TransformTree, parent: Parent, metric: bool) -> str:
    if not frames.base:
        return "base_frame is not set"
    if not metric:
        return f"the scale is unknown and {frames.base} is part of a robot"
    owner = parent(frames.base)
    if owner:
        return f"{owner} already parents {frames.base}"
    if not others.connected(frames.base, frames.optical):
        return f"{frames.base} to {frames.optical} is not known"
    return ""


def _why_not_camera(frames: Frames, others: TransformTree, parent: Parent, metric: bool) -> str:
    owner = parent(frames.optical)
    if owner:
        return f"{owner} already parents {frames.optical}"
    used = [f for f in (frames.odom, frames.map) if not metric and _in_use(f, others, parent)]
    return f"the scale is unknown and {used[0]} is part of a robot's tree" if used else ""


def _in_use(frame: str, others: TransformTree, parent: Parent) -> bool:
    """Whether another node hangs anything on a frame, or the frame on anything."""
    return bool(parent(frame)) or any(parent(other) == frame for other in others.frames())


def _why_not_map(frames: Frames, others: TransformTree, parent: Parent, metric: bool) -> str:
    if not others.connected(frames.odom, frames.optical):
        return f"nobody publishes {frames.odom} to {frames.optical}"
    if not metric:
        return f"the scale is unknown and {frames.odom} is part of a robot"
    owner = parent(frames.odom)
    return f"{owner} already parents {frames.odom}" if owner else ""
