"""A picture of a processed frame: image, depth, confidence, and the map so far from above."""

from __future__ import annotations

import cv2
import numpy as np

from da3_ros.config import DepthConfig
from da3_ros.drawing.colormaps import colorize_confidence, colorize_depth, depth_range
from da3_ros.drawing.dense_sheet import fitted
from da3_ros.drawing.view_from_above import ViewFromAbove
from da3_ros.mapping.scene import Scene
from da3_ros.types import Array, Image, TrackedFrame

CELL = 640, 480  # largest width and height of each of the four pictures, pixels
TITLE = 24  # height of the line above each of them, pixels
FOLLOWS = 0.1  # share by which the range of depth without a unit follows that of a frame


class VideoSheet:
    """Draws the pictures of a video, all of one size."""

    def __init__(self, config: DepthConfig) -> None:
        self.config = config
        self._size: tuple[int, int] | None = None  # of a cell
        self._above: ViewFromAbove | None = None
        self._range: tuple[float, float] | None = None  # of depth without a unit
        self._start_ns = 0

    def picture(self, frame: TrackedFrame, scene: Scene | None, T_ros_map: Array) -> Image:
        """Returns RGB [H, W, 3] of even height and width.

        scene: the map after the frame's window; None: as with the frame before. T_ros_map: the
        map [4, 4] in the axes of ROS.
        """
        if self._size is None or self._above is None:
            self._begin(frame)
        assert self._size is not None
        assert self._above is not None
        if scene is not None:
            self._above.look(scene)
        pose = T_ros_map @ frame.T_map_camera if frame.posed else None
        seen, name = self._depth_range(frame), self.config.color_map
        unit = "m" if frame.scale.metric else "without unit"
        seconds = (frame.stamp_ns - self._start_ns) / 1e9
        depth_title = f"depth {seen[0]:.2f} to {seen[1]:.2f} {unit}"
        if not np.isfinite(frame.depth_m).any():
            depth_title = "depth unknown"
        cells = (
            (frame.image, f"{seconds:.2f} s   {frame.blind}"),
            (colorize_depth(frame.depth_m, seen, name), depth_title),
            (colorize_confidence(frame.confidence, name), "confidence"),
            (self._above.picture(frame.stamp_ns, pose), "map from above"),
        )
        pictures = [_titled(fitted(cell, self._size), title) for cell, title in cells]
        return np.vstack((np.hstack(pictures[:2]), np.hstack(pictures[2:])))

    def _begin(self, frame: TrackedFrame) -> None:
        height, width = frame.depth_m.shape
        scale = min(CELL[0] / width, CELL[1] / height)
        self._size = 2 * round(scale * width / 2), 2 * round(scale * height / 2)
        self._above = ViewFromAbove(self._size)
        self._start_ns = frame.stamp_ns

    def _depth_range(self, frame: TrackedFrame) -> tuple[float, float]:
        """Returns the configured range in metres; without metres one that follows the frames
        slowly, so that colours do not flicker."""
        if frame.scale.metric:
            return self.config.color_range_m
        now = depth_range(frame.depth_m)
        if now is not None:
            before = self._range or now
            self._range = (
                before[0] + FOLLOWS * (now[0] - before[0]),
                before[1] + FOLLOWS * (now[1] - before[1]),
            )
        return self._range or self.config.color_range_m


def _titled(picture: Image, text: str) -> Image:
    strip = np.zeros((TITLE, picture.shape[1], 3), np.uint8)
    cv2.putText(
        strip, text, (6, TITLE - 7), cv2.FONT_HERSHEY_SIMPLEX, 0.5, (255,) * 3, 1, cv2.LINE_AA
    )
    return np.vstack((strip, picture))
