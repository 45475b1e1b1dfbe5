"""What goes to /tf for the frames of one scene: the policy, asked anew for every frame."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from da3_ros.config import NodeConfig
from da3_ros.live import tf_policy
from da3_ros.messages.outputs import Edge, Outputs
from da3_ros.sensors.transform_tree import TransformError, TransformTree
from da3_ros.types import Array, TrackedFrame

log = logging.getLogger(__name__)

MOST_CHILDREN = 64  # of ours whose owners are looked at: a camera may invent names for ever
IDLE_S = 1.0  # after which the last transforms are repeated, and between two repetitions
Stamped = tuple[int, str, str, Array]  # stamp_ns, parent, child, T_parent_child


@dataclass(eq=False)
class _Held:
    """The last transform of one child that was published."""

    parent: str
    T: Array
    stamp_ns: int
    at_s: float  # when, on the steady clock
    repeats: int = 0


class TfOutput:
    """Transforms of one scene. Of several cameras the first one carries the motion.

    The others' optical frames hang below ``odom`` at their own poses where no other node
    parents them, and are left alone where one does (/tf_static of a robot). Where only others saw
    an instant, the first of them moves the base.

    A transform that another node begins to publish is left to it from the next frame on, at once
    while no frames come, and taken up again when that node is gone. One that another node
    published from the beginning is never taken up: nothing says that its place is ours.
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
        """``camera``: of a scene of its own beside the robot's: it publishes no more than that."""
        self._config, self._others, self._outputs = config, transforms, outputs
        self._warn, self._prior, self._camera, self._clock = warn, prior, camera, clock
        self._plan: tf_policy.TfPlan | None = None
        self._held: dict[str, _Held] = {}  # by child
        self._of_camera: dict[str, set[str]] = {}  # children
        # Parents of the children that were ours at any time, the newest last.
        self._published: dict[str, str] = {}
        # Of these, what is left to another node now, and what to repeat when that one is gone.
        self._left: dict[str, _Held | None] = {}
        self._newest = (0, math.inf)  # the last frame's stamp_ns, and when it came
        self._lock = threading.Lock()  # frames go out on one thread, repetitions on another

    def edges(self, frame: TrackedFrame) -> list[Edge]:
        """The transforms that a frame brings."""
        with self._lock:
            self._newest = frame.stamp_ns, self._clock()
            self._look_at_owners(frame.stamp_ns)
            self._left = dict.fromkeys(self._left)  # older than this frame by now
            try:
                edges = self._edges(frame)
            except TransformError as error:
                self._warn(f"no transform for this frame: {error}", every_s=5.0)
                return []
            self._hold(frame, edges)
            return edges

    def repeat(self) -> list[Stamped]:
        """What was published last, where nothing newer has come for a second.

        A program that starts late (RViz) gets a tree so. The stamps are the last frames' own,
        a nanosecond later each time: the pose is known for that instant only, and a claim about
        now would be a guess while the robot may drive. Nor can the ROS clock serve: a recording
        that is played without it has stamps of another year, and tf2 would then refuse the frames
        to come as too old. tf2 warns of a stamp that repeats itself, hence the nanosecond.
        """
        with self._lock:
            stamp_ns, at_s = self._newest
            idle = self._idle()
            if idle or self._clock() - at_s >= IDLE_S:
                self._look_at_owners(max((h.stamp_ns for h in idle.values()), default=stamp_ns))
            out = []
            for child, held in self._idle().items():
                held.repeats += 1
                out.append((held.stamp_ns + held.repeats, held.parent, child, held.T))
            return out

    def reset(self) -> None:
        """A new stream: nothing of the old one is published again."""
        with self._lock:
            self._held.clear()
            self._of_camera.clear()
            self._left = dict.fromkeys(self._left)
            self._plan = None

    def _idle(self) -> dict[str, _Held]:
        now_s = self._clock()
        return {c: held for c, held in self._held.items() if now_s - held.at_s >= IDLE_S}

    def _parent(self, child: str, stamp_ns: int) -> str | None:
        """The frame on which another node hangs ``child``, as of ``stamp_ns``."""
        if child in self._published and self._others.abandoned(child, stamp_ns):
            return None
        return self._others.parent(child)

    def _look_at_owners(self, stamp_ns: int) -> None:
        """Which of what we published other nodes publish since, or no more."""
        for child in sorted(self._published):
            parent = self._parent(child, stamp_ns)
            if parent is None and child in self._left:
                log.info("/tf: the other publisher of %s is silent: da3 goes on", child)
                held = self._left.pop(child)
                if held is not None:
                    self._held[child] = held
            elif parent is not None and child not in self._left:
                self._leave(child, parent)

    def _leave(self, child: str, parent: str) -> None:
        """Leave ``child`` to another node: now, or as a scene begins after a reset."""
        self._left[child] = self._held.pop(child, None)
        remedy = "none" if child == self._outputs.odom_frame else "map_only"
        self._warn(
            f"/tf: {self._others.owner(child)} publishes {parent} -> {child} too: da3 stops "
            f"publishing {self._published[child]} -> {child}; a frame has one parent and one "
            f"publisher: end the other one, or set tf.publish to {remedy}",
        )

    def _hold(self, frame: TrackedFrame, edges: list[Edge]) -> None:
        children = {child for _, child, _ in edges}
        for child in self._of_camera.get(frame.camera, set()) - children:
            self._held.pop(child, None)
        for others in self._of_camera.values():  # who moved a child last answers for it
            others -= children
        self._of_camera[frame.camera] = children
        for parent, child, T in edges:
            self._held[child] = _Held(parent, T, frame.stamp_ns, self._clock())
            self._published.pop(child, None)
            self._published[child] = parent
        self._forget()

    def _forget(self) -> None:
        """Let go of the oldest children; what is published now is kept, however much it is."""
        old = [child for child in self._published if child not in self._held]
        for child in old[: max(0, len(self._published) - MOST_CHILDREN)]:
            del self._published[child]
            self._left.pop(child, None)

    def _edges(self, frame: TrackedFrame) -> list[Edge]:
        names = self._config.pipeline.cameras
        if self._camera or not names or frame.camera == names[0] or self._plan is None:
            self._plan = self._decide(frame)
            return self._moving(frame)
        if self._plan.mode == "base" and frame.leads:
            return self._moving(frame)
        unowned = self._parent(frame.frame_id, frame.stamp_ns) is None
        if self._plan.mode in ("base", "camera") and unowned:
            T_odom_optical = self._outputs.T_map_world @ frame.T_odom_world @ frame.T_world_camera
            return [(self._outputs.odom_frame, frame.frame_id, T_odom_optical)]
        return []

    def _decide(self, frame: TrackedFrame) -> tf_policy.TfPlan:
        requested = self._config.tf.publish
        if self._camera:
            requested = "camera" if requested in ("auto", "camera") else "none"
        plan = tf_policy.plan(
            requested, self._frames(frame), self._others, metric=frame.scale.metric,
            prior=self._prior, parent=lambda child: self._parent(child, frame.stamp_ns),
        )  # fmt: skip
        if plan != self._plan and plan.warning and not self._camera:
            self._warn(plan.warning)
        return plan

    def _moving(self, frame: TrackedFrame) -> list[Edge]:
        assert self._plan is not None
        T_map_optical = self._outputs.T_map_world @ frame.T_world_camera
        return tf_policy.edges(
            self._plan.mode, self._frames(frame), self._others, T_map_optical, frame.stamp_ns,
            self._outputs.T_map_odom(frame), lambda child: self._parent(child, frame.stamp_ns),
        )  # fmt: skip

    def _frames(self, frame: TrackedFrame) -> tf_policy.Frames:
        base = "" if self._camera else self._config.base_frame
        return tf_policy.Frames(
            self._outputs.map_frame, self._outputs.odom_frame, base, frame.frame_id
        )


def level_of(
    transforms: TransformTree, base: str, frame: TrackedFrame, warn: Callable[..., None]
) -> Array | None:
    """``T_map_world`` [4, 4] of a map that begins at the base, level as the robot stands at the
    first frame. None: no base is named, or where the camera sits on it is not known."""
    if not base:
        return None
    try:
        return transforms.lookup(base, frame.frame_id, frame.stamp_ns)
    except TransformError as error:
        warn(f"the map is not levelled: {error}")
        return None
