"""A picture of a growing map from above, with the path so far and the camera."""

from __future__ import annotations

import numpy as np

from da3_ros.drawing.scene_drawing import drawing_of
from da3_ros.drawing.scene_renderer import (
    BACKGROUND,
    MARKED_COLOR,
    PATH_COLOR,
    SceneRenderer,
    paint_lines,
)
from da3_ros.drawing.viewpoint import SIDES, Viewpoint, fitted
from da3_ros.export.camera_frusta import path_stamps
from da3_ros.mapping.scene import Scene
from da3_ros.types import Array, Image

LARGEST_PX = 6  # side of the square of a point
MARGIN = 0.08  # by which the shown part exceeds the map when it grows, of its extent
SHRINKS = 0.4  # the shown part becomes smaller when the map has less than this share of it
AHEAD = np.array([1.0, 0.0])  # the map's x points up in the picture
CAMERA = 0.06  # size of the drawn camera, relative to the shown part


class ViewFromAbove:
    """Shows a map that grows; the shown part changes seldom, so that the picture is calm."""

    def __init__(self, size: tuple[int, int]) -> None:
        """size: width and height of the pictures."""
        self._size = size
        self._box: Array | None = None  # lowest and highest corner [2, 3] of the shown part
        self._viewpoint: Viewpoint | None = None
        self._map = np.full((size[1], size[0], 3), BACKGROUND, np.uint8)
        self._stamps, self._path = np.zeros(0, np.int64), np.zeros((0, 2, 3))

    def look(self, scene: Scene) -> None:
        """Draw the map anew. scene: its points and path so far."""
        drawing = drawing_of(scene)
        renderer = SceneRenderer(drawing, LARGEST_PX, supersampling=1)
        if not len(renderer.everything):
            return
        self._fit(renderer.everything)
        assert self._box is not None
        (x, y), height = np.meshgrid(*self._box[:, :2].T), self._box[1, 2]  # the top looks largest
        corners = np.column_stack((x.ravel(), y.ravel(), np.full(4, height)))
        self._viewpoint = fitted(corners, AHEAD, *SIDES["top"], self._size)
        self._map = renderer.surfaces(self._viewpoint)
        self._path, self._stamps = drawing.path, path_stamps(scene)

    def picture(self, stamp_ns: int, T_map_camera: Array | None) -> Image:
        """Returns RGB [H, W, 3]: the map, the path up to a stamp, and the camera.

        T_map_camera: pose [4, 4] in the map (z up); None: unknown.
        """
        canvas = self._map.copy()
        if self._viewpoint is None or self._box is None:
            return canvas
        paint_lines(canvas, self._viewpoint, self._path[self._stamps <= stamp_ns], PATH_COLOR, 2)
        if T_map_camera is not None:
            lines = _wedge(T_map_camera, CAMERA * float(np.ptp(self._box[:, :2], axis=0).max()))
            paint_lines(canvas, self._viewpoint, lines, MARKED_COLOR, 2)
        return canvas

    def _fit(self, points: Array) -> None:
        """Enlarges the shown part to points [N, 3] that lie outside, or makes it smaller."""
        needed = np.stack((points.min(axis=0), points.max(axis=0)))
        extent = max(float(np.ptp(needed, axis=0)[:2].max()), 1e-3)
        if self._box is not None:
            inside = (needed[0] >= self._box[0]).all() and (needed[1] <= self._box[1]).all()
            too_large = extent < SHRINKS * float(np.ptp(self._box, axis=0)[:2].max())
            if inside and not too_large:
                return
            if not too_large:
                needed = np.stack(
                    (np.minimum(needed[0], self._box[0]), np.maximum(needed[1], self._box[1]))
                )
        self._box = needed + MARGIN * extent * np.array([[-1.0], [1.0]])


def _wedge(T_map_camera: Array, size: float) -> Array:
    """Returns lines [3, 2, 3] of a triangle that opens in the direction of view."""
    corners = np.array([[0.0, 0, 0], [-0.5, 0, 1], [0.5, 0, 1]])
    points = size * corners @ T_map_camera[:3, :3].T + T_map_camera[:3, 3]
    return np.stack((points, np.roll(points, -1, axis=0)), axis=1)
