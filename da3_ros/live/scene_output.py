"""What goes out of one scene: its messages and transforms, alike live and in a replay."""

from __future__ import annotations

from collections.abc import Callable

from da3_ros.config import NodeConfig
from da3_ros.live.tf_output import TfOutput, level_of
from da3_ros.messages.library import MessageLibrary
from da3_ros.messages.outputs import Outputs
from da3_ros.pipeline.scene_map import SceneMap
from da3_ros.sensors.transform_tree import TransformTree
from da3_ros.types import TrackedFrame


class SceneOutput:
    """Builds messages and transforms in the scene's frames, and places its map.

    The first scene has the robot's frames; one ``beside`` it has frames of its own, named
    ``<camera>/map`` and ``<camera>/odom``.
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
        beside: bool,
        prior: bool,
        timings: bool = True,
    ) -> None:
        """``camera``: of a scene of its own, else empty. ``prior``: the robot's own poses are in
        use. ``timings`` as in ``Outputs``."""
        self._scene_map, self._base = scene_map, config.base_frame
        self._transforms, self._warn = transforms, warn
        own = f"{camera}/" if beside else ""
        self.messages = Outputs(
            lib,
            config.pipeline.depth,
            window_size=config.pipeline.window.size,
            map_frame=own + config.map_frame,
            odom_frame=own + config.odom_frame,
            timings=timings,
            T_map_world=lambda: scene_map.T_map_world,
            tf=lambda frame: self.tf.edges(frame),
            scene_prefix=camera,
        )
        self.tf = TfOutput(
            config, transforms, self.messages, warn, prior=prior, camera=camera if beside else ""
        )

    def place_map(self, frame: TrackedFrame) -> None:
        """Decide where the map lies, before the first frame of a scene goes out.

        With a known base it begins at the base, level as the robot stands.
        """
        if not self._scene_map.map_placed:
            level = level_of(self._transforms, self._base, frame, self._warn)
            self._scene_map.place_map(level)

    def reset(self) -> None:
        """A new stream: nothing of the old one goes out again."""
        self.messages.reset()
        self.tf.reset()
