"""Renders pictures of a scene from any viewpoint, without a graphics library.

To show the inside of a room, surfaces seen from behind and points above the cameras are omitted.
Points are squares as large as the gaps between them, pixels behind depth edges are darkened
(eye-dome lighting, Boucheny 2009), and a picture is rendered larger than it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.drawing.scene_drawing import MAX_POINTS, Drawing
from da3_ros.drawing.viewpoint import Viewpoint
from da3_ros.types import Array, Image

BACKGROUND = 24
FIT_SAMPLES = 50_000  # points used to fit the viewpoint
CAMERA_COLOR, PATH_COLOR, MARKED_COLOR = (255, 140, 0), (0, 160, 255), (255, 255, 255)
# Sides of the squares of points, in pixels of the internal image: each takes a pass over it.
SQUARES_PX = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16, 20, 24, 32, 48])
CELL = 0.03  # size of a patch, relative to the scene
FLAT = 0.3  # largest ratio of variance across a flat patch to that along it
MIN_POINTS_FOR_NORMAL = 8  # fewest points in a patch with a normal
MIN_POINTS = 4  # patches with fewer points are noise
LIGHT = 0.35  # strength of the darkening at depth edges
FARTHEST = np.float32(128)  # logarithm of the depth of pixels without a point
MAX_CENTRES = 200  # camera positions that are compared with each patch


@dataclass(frozen=True, eq=False)
class _Patches:
    """Small cubes of the scene with the surface in each."""

    of_point: Array  # [M] index of the patch
    mean: Array  # [V, 3]
    normal: Array  # [V, 3] unit, of either sign
    flat: NDArray[np.bool_]  # [V] whether it has a normal
    spacing: Array  # [V] between neighbouring points
    isolated: NDArray[np.bool_]  # [V] whether it has few points compared to others


class SceneRenderer:
    """Draws a scene; what does not depend on the viewpoint is done once."""

    def __init__(self, drawing: Drawing, largest_px: int, supersampling: int = 2) -> None:
        """largest_px: side of the largest square of a point, pixels of the picture.
        supersampling: factor of the internal image size."""
        drawing = drawing.take(_thinned(drawing.points))
        self.drawing = drawing.take(_below_ceiling(drawing.points, drawing.centres()))
        self.everything = _points_in_view(self.drawing)
        self._supersampling = supersampling
        self._sides = SQUARES_PX[largest_px * supersampling >= SQUARES_PX]
        if len(self.drawing.points):
            edge = CELL * float(np.ptp(self.everything, axis=0).max())
            self._patches = _patches(self.drawing.points, edge)
            self._front = _fronts(self._patches, self.drawing.centres())
            self._spacing = self._patches.spacing.astype(np.float32)[self._patches.of_point]

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
        """Returns a picture of the points alone, without cameras and path."""
        canvas = self._surfaces(viewpoint.enlarged(self._supersampling))
        return np.asarray(cv2.resize(canvas, viewpoint.size, interpolation=cv2.INTER_AREA))

    def _surfaces(self, viewpoint: Viewpoint) -> Image:
        canvas = np.full((*viewpoint.size[::-1], 3), BACKGROUND, np.uint8)
        if len(self.drawing.points):
            self._paint_points(canvas, viewpoint)
        return canvas

    def _paint_points(self, canvas: Image, viewpoint: Viewpoint) -> None:
        """Draw the nearest point of each pixel, darkened at depth edges."""
        shown = self._shown(viewpoint.eye)[self._patches.of_point]
        rgb = self.drawing.rgb[shown]
        pixels, depth = viewpoint.project(self.drawing.points[shown])
        with np.errstate(divide="ignore", invalid="ignore"):
            wanted = np.float32(viewpoint.focal) * self._spacing[shown] / depth
        kind = np.searchsorted(self._sides, wanted).clip(0, len(self._sides) - 1)
        corner = np.floor(pixels - (self._sides[kind, None] - 1) / np.float32(2))
        margin = int(self._sides[-1])
        width, height = viewpoint.size
        inside = (corner > -margin).all(axis=1) & (corner < (width, height)).all(axis=1)
        index = np.flatnonzero(inside & (depth > viewpoint.near))
        index = index[np.argsort(-depth[index], kind="stable")]  # the nearest are last
        nearest = _nearest(
            corner[index].astype(np.int64), self._sides, kind[index], (width, height)
        )
        # The first row is of pixels without a point.
        colors = np.concatenate((np.full((1, 3), BACKGROUND, np.uint8), rgb[index]))
        far = np.concatenate(([FARTHEST], np.log2(depth[index]))).astype(np.float32)
        shade = _shade(np.take(far, nearest), self._supersampling)
        np.multiply(
            np.take(colors, nearest, axis=0), shade[..., None], out=canvas, casting="unsafe"
        )

    def _shown(self, eye: Array) -> NDArray[np.bool_]:
        """Returns the mask [V] of patches seen from their front: the side of the camera nearest
        to the patch."""
        patches = self._patches
        to_eye = eye - patches.mean
        cosine = self._front * (to_eye * patches.normal).sum(axis=1)
        away = cosine <= -0.1 * np.linalg.norm(to_eye, axis=1)
        return np.asarray(~patches.isolated & ~(patches.flat & away))


def _nearest(corner: Array, sides: Array, kind: Array, size: tuple[int, int]) -> NDArray[np.int64]:
    """Returns for each pixel [H, W] the number of the last square that covers it, from 1; 0: none.

    corner: upper left pixels [N, 2] of squares, at most the largest side outside the picture.
    kind: index [N] of each one's side in ``sides``.
    """
    margin = int(sides[-1])
    # Whole numbers below 2^24 are exact, MAX_POINTS is less.
    last = np.zeros((size[1] + margin, size[0] + margin), np.float32)
    layer = np.empty_like(last)
    for k, side in enumerate(sides.tolist()):
        chosen = np.flatnonzero(kind == k)
        if not len(chosen):
            continue
        layer[:] = 0
        layer[corner[chosen, 1] + margin, corner[chosen, 0] + margin] = chosen + 1
        # A square covers what lies right of and below its corner.
        covered = cv2.dilate(layer, np.ones((side, side), np.uint8), anchor=(side - 1, side - 1))
        np.maximum(last, np.asarray(covered), out=last)
    return last[margin:, margin:].astype(np.int64)


def _thinned(points: Array) -> Array:
    """Returns indices of finite points, evenly thinned to MAX_POINTS."""
    finite = np.flatnonzero(np.isfinite(points).all(axis=1))
    return finite[:: max(1, -(-len(finite) // MAX_POINTS))]


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


def _patches(points: Array, edge: float) -> _Patches:
    """Groups the points into cubes of side ``edge``."""
    cell = np.floor((points - points.min(axis=0)) / max(edge, 1e-9)).astype(np.int64)
    sides = cell.max(axis=0) + 1
    keys = (cell[:, 0] * sides[1] + cell[:, 1]) * sides[2] + cell[:, 2]
    of_point = np.unique(keys, return_inverse=True)[1]
    count = np.bincount(of_point)

    def mean(values: Array) -> Array:
        return np.bincount(of_point, weights=values) / count

    centre = np.stack([mean(points[:, i]) for i in range(3)], axis=1)
    offset = points - centre[of_point]
    pairs = [[mean(offset[:, i] * offset[:, j]) for j in range(3)] for i in range(3)]
    variance, axes = np.linalg.eigh(np.moveaxis(np.array(pairs), 2, 0))
    flat = (variance[:, 0] < FLAT * variance[:, 1]) & (count >= MIN_POINTS_FOR_NORMAL)
    # A surface in a cube has about the area of its side; 1.5: points are unevenly distributed.
    spacing = 1.5 * edge / np.sqrt(count)
    spacing = np.minimum(spacing, 2 * float(np.median(spacing[of_point])))
    isolated = count < min(MIN_POINTS, float(np.median(count)))
    return _Patches(of_point, centre, axes[:, :, 0], flat, spacing, isolated)


def _fronts(patches: _Patches, centres: Array) -> Array:
    """Returns for each patch [V] the sign that its normal needs to point to the camera nearest to
    it; 0 without cameras."""
    nearest = np.full(len(patches.mean), np.inf)
    seen_from = patches.mean.copy()
    for centre in centres[:: max(1, len(centres) // MAX_CENTRES)]:
        distance = ((patches.mean - centre) ** 2).sum(axis=1)
        closer = distance < nearest
        nearest[closer], seen_from[closer] = distance[closer], centre
    return np.asarray(np.sign(((seen_from - patches.mean) * patches.normal).sum(axis=1)))


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
    cv2.polylines(canvas, list(ends), False, color, width, cv2.LINE_AA)
