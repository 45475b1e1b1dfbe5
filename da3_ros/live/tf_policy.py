"""Decides which transforms can be published without breaking a robot's tree (REP-105).

No middleware.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from da3_ros.geometry.poses import invert_pose
from da3_ros.messages.output_topics import Edge
from da3_ros.sensors.transform_tree import TransformTree
from da3_ros.types import Array

OWNED = "the node that gives the pose prior already publishes the motion below odom"
FOLLOWED = "the other SLAM that is followed publishes the transform to odom"
Parent = Callable[[str], "str | None"]  # parent that another node publishes for a child frame


@dataclass(frozen=True)
class Frames:
    """Names of the frames."""

    map: str
    odom: str
    base: str  # empty: no robot base
    optical: str


@dataclass(frozen=True)
class TfPlan:
    """The choice: ``base``, ``camera``, ``map_only`` or ``none``, with a warning why not more."""

    mode: str
    warning: str = ""


def plan(
    requested: str,
    frames: Frames,
    others: TransformTree,
    *,
    metric: bool,
    prior: bool = False,
    corrected: bool = False,
    parent: Parent | None = None,
) -> TfPlan:
    """Chooses the transforms by the parameter ``tf.publish`` and by those of other nodes.

    requested: value of ``tf.publish``. others: transforms of all other nodes. metric: True if the
    scale is known; with an unknown scale nothing is attached to a robot's tree, whose lengths are
    in metres. prior: True if another node's odometry is used; that node publishes the motion.
    corrected: True if another SLAM is followed by its transform from map to odom, which it owns.
    parent: returns the current parent of a frame; by default that in ``others``.
    """
    if requested == "none":
        return TfPlan("none")
    parent = parent or others.parent
    reasons = {
        "base": OWNED if prior else _why_not_base(frames, others, parent, metric),
        "camera": OWNED if prior else _why_not_camera(frames, others, parent, metric),
        "map_only": FOLLOWED if corrected else _why_not_map(frames, others, parent, metric),
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
    """Returns the transforms of one frame.

    T_map_odom: map corrections [4, 4]; left out if another node publishes this transform. parent:
    as in ``plan``. Raises TransformError if transforms of other nodes are missing at that time.
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
        return f"{owner} is already the parent of {frames.base}"
    if not others.connected(frames.base, frames.optical):
        return f"the transform from {frames.base} to {frames.optical} is unknown"
    return ""


def _why_not_camera(frames: Frames, others: TransformTree, parent: Parent, metric: bool) -> str:
    owner = parent(frames.optical)
    if owner:
        return f"{owner} is already the parent of {frames.optical}"
    used = [f for f in (frames.odom, frames.map) if not metric and _in_use(f, others, parent)]
    return f"the scale is unknown and {used[0]} is part of a robot's tree" if used else ""


def _in_use(frame: str, others: TransformTree, parent: Parent) -> bool:
    """True if another node publishes a child or the parent of a frame."""
    return bool(parent(frame)) or any(parent(other) == frame for other in others.frames())


def _why_not_map(frames: Frames, others: TransformTree, parent: Parent, metric: bool) -> str:
    if not others.connected(frames.odom, frames.optical):
        return f"no node publishes a transform from {frames.odom} to {frames.optical}"
    if not metric:
        return f"the scale is unknown and {frames.odom} is part of a robot"
    owner = parent(frames.odom)
    return f"{owner} is already the parent of {frames.odom}" if owner else ""
