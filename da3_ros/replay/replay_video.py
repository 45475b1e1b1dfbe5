"""The video of a replay: every processed frame beside the map so far."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from da3_ros.config import DepthConfig
from da3_ros.drawing.video_sheet import VideoSheet
from da3_ros.mapping.scene import Scene
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.replay.picture_spill import PictureSpill
from da3_ros.types import TrackedFrame

NAME = "video.mp4"
MOST_POINTS, MOST_POSES = 60_000, 5_000  # of the map that is drawn
POSES_PER_WINDOW = 2_000  # of the path, for each window that passes between two drawings of it


class ReplayVideo:
    """Draws frames while they are processed; the video is encoded at the end."""

    def __init__(self, path: Path, config: DepthConfig, written: int) -> None:
        """path: file of pictures, of which an interrupted replay has ``written`` bytes. Raises
        OSError."""
        self.spill = PictureSpill(path, written)
        self._sheet = VideoSheet(config)
        self._window = -1  # the newest one
        self._waited = 0  # windows since the map was drawn

    def add_frame(self, frame: TrackedFrame, pipeline: Pipeline) -> None:
        """Draw the next delivered frame of a pipeline. Raises OSError."""
        scene = None
        if frame.window.id != self._window:
            self._window, self._waited = frame.window.id, self._waited + 1
            # The cost of a map grows with its path: a longer one is drawn less often.
            if self._waited > len(pipeline.map.table.path) // POSES_PER_WINDOW:
                self._waited, scene = 0, _shown(pipeline)
        picture = self._sheet.picture(frame, scene, pipeline.scene_map.T_ros_map)
        self.spill.add(frame.stamp_ns, picture)


def _shown(pipeline: Pipeline) -> Scene:
    """Returns the points and the path of the component that the camera is in."""
    view = pipeline.map.view
    return dataclasses.replace(
        view.thinned(MOST_POINTS, pipeline.scene_map.T_ros_map),
        poses=view.path(MOST_POSES),
        chain_of={id: one.chain for id, one in pipeline.map.all_submaps().items()},
    )
