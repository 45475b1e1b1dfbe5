"""Output of one scene: messages and transforms, the same live and in a replay."""

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

        prior: True if the robot's own poses are used. timings: as in ``Outputs``.
        """
        self._scene_map, self._base = scene_map, config.base_frame
        self._transforms, self._warn = transforms, warn
        own = f"{camera}/" if additional else ""
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
            config,
            transforms,
            self.messages,
            warn,
            prior=prior,
            camera=camera if additional else "",
        )

    def place_map(self, frame: TrackedFrame) -> None:
        """Set the pose of the map before the first frame of a scene is published.

        If the base is known, the map begins at the base, level with the robot.
        """
        if not self._scene_map.map_placed and not frame.blind:
            level = level_of(self._transforms, self._base, frame, self._warn)
            self._scene_map.place_map(level)

    def reset(self) -> None:
        """Start a new stream: forget frames and transforms of the old one."""
        self.messages.reset()
        self.tf.reset()
