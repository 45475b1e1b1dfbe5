"""Output of one scene: messages and transforms, the same live and in a replay."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Container
from dataclasses import dataclass

from da3_ros.config import NodeConfig
from da3_ros.geometry.poses import invert_pose
from da3_ros.messages.build import MessageLibrary
from da3_ros.messages.outputs import Edge, Outputs
from da3_ros.pipeline.scene_map import SceneMap
from da3_ros.sensors.transform_tree import TransformError, TransformTree
from da3_ros.types import Array, TrackedFrame

log = logging.getLogger(__name__)


class SceneOutput:
    """Builds messages and transforms in the scene's frames, and sets the pose of its map.

    The first scene uses the robot's frames; an ``additional`` one uses ``<camera>/map`` and
    ``<camera>/odom``.
    """

    def __init__(
        self,
        scene_map: SceneMap,
        lib: MessageLibrary,
        config: NodeConfig,
        transforms: TransformTree,
        warn: Callable[..., None],
        *,
        camera: str,
        additional: bool,
        prior: bool,
        timings: bool = True,
    ) -> None:
        """camera: name of the scene's only camera; empty for a scene of all cameras.

        prior: True if the robot's own poses are used. timings: as in ``Outputs``. False is for a
        file; then no line says which topics cannot be built.
        """
        own = f"{camera}/" if additional else ""
        self.messages = Outputs(
            lib,
            config.pipeline,
            map_frame=own + config.map_frame,
            odom_frame=own + config.odom_frame,
            timings=timings,
            T_ros_map=lambda: scene_map.T_ros_map,
            tf=lambda frame: self.tf.edges(frame),
            scene_prefix=camera,
            base_frame=config.base_frame,
            warn=warn if timings else lambda text, every_s=0.0: None,
        )
        self.tf = TfOutput(
            config,
            transforms,
            self.messages,
            warn,
            prior=prior,
            camera=camera if additional else "",
        )

    def reset(self) -> None:
        """Start a new stream: forget frames and transforms of the old one."""
        self.messages.reset()
        self.tf.reset()


# Decides which transforms can be published without breaking a robot's tree (REP-105).
#
# No middleware.

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


def tf_plan(
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


def tf_edges(
    mode: str,
    frames: Frames,
    others: TransformTree,
    T_ros_optical: Array,
    stamp_ns: int,
    T_ros_odom: Array,
    parent: Parent | None = None,
) -> list[Edge]:
    """Returns the transforms of one frame.

    T_ros_odom: map corrections [4, 4]; left out if another node publishes this transform. parent:
    as in ``plan``. Raises TransformError if transforms of other nodes are missing at that time.
    """
    if mode == "none":
        return []
    if mode == "map_only":
        T_odom_optical = others.lookup(frames.odom, frames.optical, stamp_ns)
        return [(frames.map, frames.odom, T_ros_optical @ invert_pose(T_odom_optical))]
    owned = (parent or others.parent)(frames.odom)
    corrections = [] if owned else [(frames.map, frames.odom, T_ros_odom)]
    T_odom_optical = invert_pose(T_ros_odom) @ T_ros_optical
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


# Transforms that are published for the frames of one scene; applies the policy to every frame.

MOST_CHILDREN = 64  # own child frames whose owners are checked; bounds ever new frame names
IDLE_S = 1.0  # time without a frame before a repetition, and between two repetitions
Stamped = tuple[int, str, str, Array]  # stamp_ns, parent, child, T_parent_child


@dataclass(eq=False)
class _LastTransform:
    """The last published transform of one child frame."""

    parent: str
    T: Array
    stamp_ns: int
    at_s: float  # time of publication, steady clock
    repeats: int = 0


class TfOutput:
    """Transforms of one scene. With several cameras the first one determines the motion.

    The optical frames of the other cameras become children of ``odom`` at their own poses, unless
    another node publishes their parent (/tf_static of a robot). In a frameset without the first
    camera, the next one moves the base.

    If another node begins to publish a transform of ours, we stop publishing it from the next
    frame on (at once while no frames come), and resume when that node is gone. A transform that
    another node published from the beginning is never published.
    """

    def __init__(
        self,
        config: NodeConfig,
        transforms: TransformTree,
        outputs: Outputs,
        warn: Callable[..., None],
        *,
        prior: bool,
        camera: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """camera: camera of an additional scene, which publishes only its own motion."""
        self._config, self._others, self._outputs = config, transforms, outputs
        self._warn, self._prior, self._camera, self._clock = warn, prior, camera, clock
        self._plan: TfPlan | None = None
        # Newest stamp that others' transforms were returned for, and their children.
        self._given: tuple[int, set[str]] = (-1, set())
        self._last: dict[str, _LastTransform] = {}  # by child frame
        self._children_of_camera: dict[str, set[str]] = {}  # children
        # Parents of all child frames that we have ever published, the newest last.
        self._published: dict[str, str] = {}
        # Child frames that another node publishes now; value: transform to repeat when it is gone.
        self._yielded: dict[str, _LastTransform | None] = {}
        self._newest = (0, math.inf)  # stamp_ns and steady time of the last frame
        self._lock = threading.Lock()  # one thread publishes frames, another repetitions

    def edges(self, frame: TrackedFrame) -> list[Edge]:
        """Returns the transforms of a frame."""
        if self._config.tf.publish == "none":  # it cannot change while the node is configured
            return []
        with self._lock:
            self._newest = frame.stamp_ns, self._clock()
            self._update_owners(frame.stamp_ns)
            self._yielded = dict.fromkeys(self._yielded)  # their transforms are outdated
            try:
                edges = self._edges(frame)
            except TransformError as error:
                self._warn(f"no transform for this frame: {error}", every_s=5.0)
                return []
            self._store(frame, edges)
            return edges

    def repeat(self) -> list[Stamped]:
        """Returns the last transforms, if there were no newer ones for ``IDLE_S``.

        So a program that starts late (RViz) receives a tree. A stamp is that of the last frame,
        plus a nanosecond per repetition. It is not the current time: the pose is known only for
        that frame, and the robot may have moved. With ROS time, moreover, tf2 would reject the
        next frames as too old if a recording is played without /clock. The nanosecond avoids tf2's
        warning about repeated stamps.
        """
        with self._lock:
            stamp_ns, at_s = self._newest
            idle = self._idle()
            if idle or self._clock() - at_s >= IDLE_S:
                self._update_owners(max((h.stamp_ns for h in idle.values()), default=stamp_ns))
            out = []
            for child, last in self._idle().items():
                last.repeats += 1
                out.append((last.stamp_ns + last.repeats, last.parent, child, last.T))
            return out

    def of_others(self, frame: TrackedFrame) -> list[Edge]:
        """Returns the transforms of others that connect a frame's camera to the map, after
        ``edges``: for a file in which ours would lead nowhere without them.

        None where no transform connects the two, and where those of others alone do so but the
        map has no metres. Of frames with one stamp, each transform comes once.
        """
        with self._lock:
            ours = set(self._last)
        found: dict[str, Edge] = {}
        for start in (frame.frame_id, self._outputs.odom_frame):
            edges, top = self._climb(start, ours, frame.stamp_ns)
            if top in ours or (top == self._outputs.map_frame and frame.scale.metric):
                found |= {child: (parent, child, T) for parent, child, T in edges}
        given, self._given = self._given, (frame.stamp_ns, set(found))
        if given[0] == frame.stamp_ns:
            self._given[1].update(given[1])
            found = {child: edge for child, edge in found.items() if child not in given[1]}
        return list(found.values())

    def _climb(self, child: str, ours: Container[str], stamp_ns: int) -> tuple[list[Edge], str]:
        """Returns the transforms of others above a frame, and the frame where they end: one of
        ``ours``, the map, or the root of their tree."""
        edges: list[Edge] = []
        while child not in ours and child != self._outputs.map_frame:
            parent = self._others.parent(child)
            if parent is None or len(edges) > MOST_CHILDREN:
                break
            try:
                edges.append((parent, child, self._others.lookup(parent, child, stamp_ns)))
            except TransformError:  # unknown at that time
                break
            child = parent
        return edges, child

    def reset(self) -> None:
        """Start a new stream: transforms of the old one are not repeated."""
        with self._lock:
            self._last.clear()
            self._children_of_camera.clear()
            self._yielded = dict.fromkeys(self._yielded)
            self._plan = None
        self._given = (-1, set())

    def _idle(self) -> dict[str, _LastTransform]:
        now_s = self._clock()
        return {c: last for c, last in self._last.items() if now_s - last.at_s >= IDLE_S}

    def _parent(self, child: str, stamp_ns: int) -> str | None:
        """Returns the parent of ``child`` published by another node at ``stamp_ns``, or None."""
        if child in self._published and self._others.abandoned(child, stamp_ns):
            return None
        return self._others.parent(child)

    def _update_owners(self, stamp_ns: int) -> None:
        """Find own child frames that another node has begun, or ceased, to publish."""
        for child in sorted(self._published):
            parent = self._parent(child, stamp_ns)
            if parent is None and child in self._yielded:
                log.info("/tf: the other publisher of %s is silent: da3 publishes it again", child)
                last = self._yielded.pop(child)
                if last is not None:
                    self._last[child] = last
            elif parent is not None and child not in self._yielded:
                self._yield_to_other(child, parent)

    def _yield_to_other(self, child: str, parent: str) -> None:
        """Stop publishing ``child``: another node publishes it."""
        self._yielded[child] = self._last.pop(child, None)
        remedy = "none" if child == self._outputs.odom_frame else "map_only"
        self._warn(
            f"/tf: {self._others.owner(child)} publishes {parent} -> {child} too: da3 stops "
            f"publishing {self._published[child]} -> {child}; a frame has one parent and one "
            f"publisher: stop the other one, or set tf.publish to {remedy}",
        )

    def _store(self, frame: TrackedFrame, edges: list[Edge]) -> None:
        children = {child for _, child, _ in edges}
        for child in self._children_of_camera.get(frame.camera, set()) - children:
            self._last.pop(child, None)
        for others in self._children_of_camera.values():  # a child belongs to its last camera
            others -= children
        self._children_of_camera[frame.camera] = children
        for parent, child, T in edges:
            self._last[child] = _LastTransform(parent, T, frame.stamp_ns, self._clock())
            self._published.pop(child, None)
            self._published[child] = parent
        self._remove_oldest()

    def _remove_oldest(self) -> None:
        """Forget the oldest child frames, except those published now."""
        old = [child for child in self._published if child not in self._last]
        for child in old[: max(0, len(self._published) - MOST_CHILDREN)]:
            del self._published[child]
            self._yielded.pop(child, None)

    def _edges(self, frame: TrackedFrame) -> list[Edge]:
        names = self._config.pipeline.cameras
        if self._camera or not names or frame.camera == names[0] or self._plan is None:
            self._plan = self._decide(frame)
            return self._motion_edges(frame)
        if self._plan.mode == "base" and frame.is_reference:
            return self._motion_edges(frame)
        unowned = self._parent(frame.frame_id, frame.stamp_ns) is None
        if self._plan.mode in ("base", "camera") and unowned:
            T_odom_optical = self._outputs.T_ros_map @ frame.T_odom_map @ frame.T_map_camera
            return [(self._outputs.odom_frame, frame.frame_id, T_odom_optical)]
        return []

    def _decide(self, frame: TrackedFrame) -> TfPlan:
        requested = self._config.tf.publish
        if self._camera:
            requested = "camera" if requested in ("auto", "camera") else "none"
        plan = tf_plan(
            requested, self._frames(frame), self._others, metric=frame.scale.metric,
            prior=self._prior,
            corrected=self._config.pipeline.pose_prior.corrections == "tf",
            parent=lambda child: self._parent(child, frame.stamp_ns),
        )  # fmt: skip
        if plan != self._plan and plan.warning and not self._camera:
            self._warn(plan.warning)
        return plan

    def _motion_edges(self, frame: TrackedFrame) -> list[Edge]:
        assert self._plan is not None
        T_ros_optical = self._outputs.T_ros_map @ frame.T_map_camera
        return tf_edges(
            self._plan.mode, self._frames(frame), self._others, T_ros_optical, frame.stamp_ns,
            self._outputs.T_ros_odom(frame), lambda child: self._parent(child, frame.stamp_ns),
        )  # fmt: skip

    def _frames(self, frame: TrackedFrame) -> Frames:
        base = "" if self._camera else self._config.base_frame
        return Frames(self._outputs.map_frame, self._outputs.odom_frame, base, frame.frame_id)
