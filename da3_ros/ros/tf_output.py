"""What goes to /tf for the frames of one scene: the policy, asked anew for every frame."""

from __future__ import annotations

from collections.abc import Callable

from da3_ros.config import NodeConfig
from da3_ros.ros import tf_policy
from da3_ros.ros.outputs import Edge, Outputs
from da3_ros.transforms import TransformError, TransformTree
from da3_ros.types import TrackedFrame


class TfOutput:
    """Transforms of one scene. Of several cameras the first one carries the motion.

    The others' optical frames hang below ``odom`` at their own poses where nobody else parents
    them, and are left alone where somebody does (/tf_static of a robot). Where only others saw an
    instant, the first of them moves the base.
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
    ) -> None:
        """``camera``: of a scene of its own beside the robot's: it publishes no more than that."""
        self._config, self._others, self._outputs = config, transforms, outputs
        self._warn, self._prior, self._camera = warn, prior, camera
        self._plan: tf_policy.TfPlan | None = None
        self._of_camera: dict[str, set[tuple[str, str]]] = {}
        self.own_edges: set[tuple[str, str]] = set()  # (parent, child) of what is published now

    def edges(self, frame: TrackedFrame) -> list[Edge]:
        """The transforms that a frame brings."""
        try:
            edges = self._edges(frame)
        except TransformError as error:
            self._warn(f"no transform for this frame: {error}", every_s=5.0)
            edges = []
        self._of_camera[frame.camera] = {(parent, child) for parent, child, _ in edges}
        self.own_edges = set().union(*self._of_camera.values())
        return edges

    def _edges(self, frame: TrackedFrame) -> list[Edge]:
        names = self._config.pipeline.cameras
        if self._camera or not names or frame.camera == names[0] or self._plan is None:
            self._plan = self._decide(frame)
            return self._moving(frame)
        if self._plan.mode == "base" and frame.leads:
            return self._moving(frame)
        unowned = self._others.parent(frame.frame_id) is None
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
            prior=self._prior,
        )  # fmt: skip
        if plan != self._plan and plan.warning and not self._camera:
            self._warn(plan.warning)
        return plan

    def _moving(self, frame: TrackedFrame) -> list[Edge]:
        assert self._plan is not None
        T_map_optical = self._outputs.T_map_world @ frame.T_world_camera
        return tf_policy.edges(
            self._plan.mode, self._frames(frame), self._others, T_map_optical, frame.stamp_ns,
            self._outputs.T_map_odom(frame),
        )  # fmt: skip

    def _frames(self, frame: TrackedFrame) -> tf_policy.Frames:
        base = "" if self._camera else self._config.base_frame
        return tf_policy.Frames(
            self._outputs.map_frame, self._outputs.odom_frame, base, frame.frame_id
        )
