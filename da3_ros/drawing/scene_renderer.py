"""Renders pictures of a scene from any viewpoint, without a graphics library.

To show the inside of a room, surfaces seen from behind and points above the cameras are omitted.
Surfaces are points or triangles, drawn as small squares. Pixels behind depth edges are darkened
(eye-dome lighting, Boucheny 2009), and a picture is rendered larger than it is.
"""

from __future__ import annotations

from typing import Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.drawing.point_surface import PointSurface
from da3_ros.drawing.scene_drawing import MAX_POINTS, Drawing
from da3_ros.drawing.squares import Squares
from da3_ros.drawing.triangle_surface import TriangleSurface
from da3_ros.drawing.viewpoint import Viewpoint
from da3_ros.types import Array, Image

BACKGROUND = 24
FIT_SAMPLES = 50_000  # points used to fit the viewpoint
CAMERA_COLOR, PATH_COLOR, MARKED_COLOR = (255, 140, 0), (0, 160, 255), (255, 255, 255)
LIGHT = 0.35  # strength of the darkening at depth edges
FARTHEST = np.float32(128)  # logarithm of the depth of pixels without a point


class Surface(Protocol):
    """What is drawn of a scene, but its lines."""

    def squares(self, viewpoint: Viewpoint) -> Squares:
        """Returns what is seen from a viewpoint."""


class SceneRenderer:
    """Draws a scene; what does not depend on the viewpoint is done once."""

    def __init__(self, drawing: Drawing, largest_px: int, supersampling: int = 2) -> None:
        """largest_px: side of the largest square of a point, pixels of the picture.
        supersampling: factor of the internal image size."""
        drawing = drawing.take(_drawn(drawing))
        self.drawing = drawing.take(_below_ceiling(drawing.points, drawing.centres()))
        self.everything = _points_in_view(self.drawing)
        self._supersampling = supersampling
        self._largest = largest_px * supersampling
        self._surface: Surface | None = None
        if len(self.drawing.faces):
            self._surface = TriangleSurface(self.drawing)
        elif len(self.drawing.points):
            extent = float(np.ptp(self.everything, axis=0).max())
            self._surface = PointSurface(self.drawing, extent)

    def picture(self, viewpoint: Viewpoint, lines: Array | None = None) -> Image:
        """Returns RGB [H, W, 3] of the viewpoint's size.

        lines: drawn last and brighter, [N, 2, 3] in the map; none by default.
        """
        large = viewpoint.enlarged(self._supersampling)
        canvas = self._surfaces(large)
        for drawn, color in (
            (self.drawing.cameras, CAMERA_COLOR),
            (self.drawing.path, PATH_COLOR),
        ):
            paint_lines(canvas, large, drawn, color, self._supersampling)
        if lines is not None:
            paint_lines(canvas, large, lines, MARKED_COLOR, 2 * self._supersampling)
        return np.asarray(cv2.resize(canvas, viewpoint.size, interpolation=cv2.INTER_AREA))

    def surfaces(self, viewpoint: Viewpoint) -> Image:
        """Returns a picture of the surfaces alone, without cameras and path."""
        canvas = self._surfaces(viewpoint.enlarged(self._supersampling))
        return np.asarray(cv2.resize(canvas, viewpoint.size, interpolation=cv2.INTER_AREA))

    def _surfaces(self, viewpoint: Viewpoint) -> Image:
        canvas = np.full((*viewpoint.size[::-1], 3), BACKGROUND, np.uint8)
        if self._surface is not None:
            self._paint(canvas, viewpoint, self._surface)
        return canvas

    def _paint(self, canvas: Image, viewpoint: Viewpoint, surface: Surface) -> None:
        """Draw what is nearest in each pixel, darkened at depth edges."""
        squares = surface.squares(viewpoint)
        index, nearest = squares.nearest(viewpoint.size, viewpoint.near, self._largest)
        # The first row is of pixels in which nothing is seen.
        colors = np.concatenate((np.full((1, 3), BACKGROUND, np.uint8), squares.rgb[index]))
        far = np.concatenate(([FARTHEST], np.log2(squares.depth[index]))).astype(np.float32)
        shade = _shade(np.take(far, nearest), self._supersampling)
        shaded = np.take(colors, nearest, axis=0)
        np.multiply(shaded, shade[..., None], out=canvas, casting="unsafe")


def _drawn(drawing: Drawing) -> Array:
    """Returns indices of finite points, evenly thinned to MAX_POINTS; of a surface all, since a
    triangle needs its three."""
    finite = np.flatnonzero(np.isfinite(drawing.points).all(axis=1))
    stride = 1 if len(drawing.faces) else max(1, -(-len(finite) // MAX_POINTS))
    return finite[::stride]


def _below_ceiling(points: Array, centres: Array) -> Array:
    if not len(points) or not len(centres):
        return np.ones(len(points), bool)
    top = centres[:, 2].max()
    low, high = np.percentile(points[:, 2], (2, 98))
    return np.asarray(points[:, 2] < top + 0.15 * max(high - low, 1e-6))


def _points_in_view(drawing: Drawing) -> Array:
    """Returns positions [N, 3] that must be visible: all cameras, and points without outliers."""
    some = drawing.points[:: max(1, len(drawing.points) // FIT_SAMPLES)].astype(np.float64)
    if len(some):
        low, high = np.percentile(some, (1, 99), axis=0)
        some = some[((some >= low) & (some <= high)).all(axis=1)]
    return np.concatenate((some, drawing.cameras.reshape(-1, 3), drawing.centres()))


def _shade(far: NDArray[np.float32], reach: int) -> NDArray[np.float32]:
    """Returns eye-dome lighting [H, W]: brightness 0..1, lower where neighbours are nearer.

    far: logarithm of depth to the base 2. reach: distance of neighbours, pixels.
    """
    height, width = far.shape
    padded = np.pad(far, reach, mode="edge")
    # The depth of a slanted wall changes too: only depth edges count.
    darker = np.zeros_like(far)
    for dy, dx in ((0, 1), (0, -1), (1, 0), (-1, 0)):
        rows = slice(reach * (1 + dy), reach * (1 + dy) + height)
        columns = slice(reach * (1 + dx), reach * (1 + dx) + width)
        step = far - padded[rows, columns]
        step -= np.float32(0.03)
        darker += np.clip(step, 0, np.float32(0.1), out=step)
    darker[far == FARTHEST] = 0
    return np.exp(np.float32(-LIGHT / 0.1) * darker)


def paint_lines(
    canvas: Image, viewpoint: Viewpoint, lines: Array, color: tuple[int, int, int], width: int
) -> None:
    """Draw lines [N, 2, 3] of the map, ``width`` pixels wide, into a picture of the viewpoint."""
    pixels, depth = viewpoint.project(lines)
    within = np.abs(pixels).max(axis=(1, 2), initial=0) < 1e5 if len(pixels) else np.zeros(0, bool)
    ends = np.round(pixels[within & (depth > viewpoint.near).all(axis=1)]).astype(np.int32)
    if not len(ends):  # which older OpenCV refuses
        return
    cv2.polylines(canvas, list(ends), False, color, width, cv2.LINE_AA)
