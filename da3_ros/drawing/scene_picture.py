"""Renders an image of a scene: points, cameras and path, without a graphics library.

To show the inside of a room, surfaces seen from behind and points above the cameras are omitted.
Points are squares as large as the gaps between them, pixels behind depth edges are darkened
(eye-dome lighting, Boucheny 2009), and the image is rendered at twice its size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.export.camera_frusta import frusta, path_points
from da3_ros.mapping.scene import Scene
from da3_ros.types import Array, Image

BACKGROUND = 24
MAX_POINTS = 5_000_000  # more points would hide each other
FIELD_OF_VIEW_DEG = 45.0
FILL = 0.93  # share of the image that the scene fills
FIT_SAMPLES = 50_000  # points used to fit the viewpoint
CAMERA_COLOR, PATH_COLOR = (255, 140, 0), (0, 160, 255)
# Viewing direction: azimuth to the right of the first camera's heading, and elevation, degrees.
SIDES = {"behind": (0.0, 45.0), "corner": (40.0, 40.0), "side": (90.0, 35.0), "top": (0.0, 90.0)}
SUPERSAMPLING = 2  # factor of the internal image size
MAX_SQUARE_PX = 6 * SUPERSAMPLING  # largest square of a point
CELL = 0.03  # size of a patch, relative to the scene
FLAT = 0.3  # largest ratio of variance across a flat patch to that along it
MIN_POINTS_FOR_NORMAL = 8  # fewest points in a patch with a normal
MIN_POINTS = 4  # patches with fewer points are noise
LIGHT = 0.35  # strength of the darkening at depth edges


@dataclass(frozen=True, eq=False)
class Drawing:
    """Contents of an image of a scene, in the map frame (z up)."""

    points: NDArray[np.float32]  # [M, 3]
    rgb: NDArray[np.uint8]  # [M, 3]
    cameras: Array  # line segments [8 C, 2, 3], eight per camera as in ``camera_frusta``
    path: Array  # line segments [P, 2, 3]

    def centres(self) -> Array:
        """Camera positions [N, 3] of keyframes and path."""
        return np.concatenate((self.cameras[::8, 0], self.path.reshape(-1, 3)))

    def heading(self) -> Array:
        """Horizontal viewing direction of the first camera, a unit vector [2]."""
        rays = self.cameras[:4]
        axis = (rays[:, 1] - rays[:, 0]).sum(axis=0)[:2]
        norm = np.linalg.norm(axis)
        return axis / norm if norm > 1e-6 else np.array([1.0, 0.0])

    def take(self, keep: Array) -> Drawing:
        """A copy with only the points selected by a mask or index."""
        return Drawing(self.points[keep], self.rgb[keep], self.cameras, self.path)


@dataclass(frozen=True, eq=False)
class _Viewpoint:
    """A virtual pinhole camera in the map frame (z up)."""

    R: Array  # [3, 3] map to view (x right, y down, z forward)
    eye: Array
    focal: float
    size: tuple[int, int]

    def project(self, points: Array) -> tuple[Array, Array]:
        """Pixels [..., 2] and view depth [...] of map points [..., 3]."""
        view = (points - self.eye) @ self.R.T
        depth = view[..., 2]
        with np.errstate(divide="ignore", invalid="ignore"):
            xy = view[..., :2] / depth[..., None] * self.focal
        return xy + np.array(self.size) / 2, depth


@dataclass(frozen=True, eq=False)
class _Patches:
    """Small cubes of the scene with the surface in each."""

    of_point: Array  # [M] index of the patch
    mean: Array  # [V, 3]
    normal: Array  # [V, 3] unit, of either sign
    flat: NDArray[np.bool_]  # [V] whether it has a normal
    spacing: Array  # [V] between neighbouring points
    isolated: NDArray[np.bool_]  # [V] whether it has few points compared to others


def render_scene(scene: Scene, size: tuple[int, int] = (960, 720)) -> Image:
    """Render a scene from above and behind the first camera, RGB [H, W, 3]."""
    return render(drawing_of(scene), size)


def drawing_of(scene: Scene) -> Drawing:
    """Points, keyframe cameras and path of a scene."""
    cloud, centres = scene.cloud(MAX_POINTS), path_points(scene)
    path = np.stack((centres[:-1], centres[1:]), axis=1)
    return Drawing(cloud.xyz, cloud.rgb, frusta(scene), path)


def render(drawing: Drawing, size: tuple[int, int] = (960, 720), side: str = "behind") -> Image:
    """Render RGB [H, W, 3] of (width, height) ``size``; ``side``: a key of SIDES."""
    canvas = np.full((size[1] * SUPERSAMPLING, size[0] * SUPERSAMPLING, 3), BACKGROUND, np.uint8)
    drawing = drawing.take(_thinned(drawing.points))
    drawing = drawing.take(_below_ceiling(drawing.points, drawing.centres()))
    everything = _points_in_view(drawing)
    if len(everything):
        viewpoint = _viewpoint(everything, drawing.heading(), side, canvas.shape[1::-1])
        if len(drawing.points):
            patches = _patches(drawing.points, CELL * float(np.ptp(everything, axis=0).max()))
            _paint_points(canvas, viewpoint, drawing, patches)
        _paint_lines(canvas, viewpoint, drawing.cameras, CAMERA_COLOR)
        _paint_lines(canvas, viewpoint, drawing.path, PATH_COLOR)
    return np.asarray(cv2.resize(canvas, size, interpolation=cv2.INTER_AREA), np.uint8)


def write_png(path: Path, image: Image) -> None:
    """Write RGB [H, W, 3] as PNG. Raises OSError."""
    _, data = cv2.imencode(".png", cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
    path.write_bytes(data.tobytes())


def _thinned(points: Array) -> Array:
    """Indices of finite points, evenly thinned to MAX_POINTS."""
    finite = np.flatnonzero(np.isfinite(points).all(axis=1))
    return finite[:: max(1, -(-len(finite) // MAX_POINTS))]


def _below_ceiling(points: Array, centres: Array) -> Array:
    if not len(points) or not len(centres):
        return np.ones(len(points), bool)
    top = centres[:, 2].max()
    low, high = np.percentile(points[:, 2], (2, 98))
    return np.asarray(points[:, 2] < top + 0.15 * max(high - low, 1e-6))


def _points_in_view(drawing: Drawing) -> Array:
    """Positions [N, 3] that must be visible: all cameras, and points without outliers."""
    some = drawing.points[:: max(1, len(drawing.points) // FIT_SAMPLES)].astype(np.float64)
    if len(some):
        low, high = np.percentile(some, (1, 99), axis=0)
        some = some[((some >= low) & (some <= high)).all(axis=1)]
    return np.concatenate((some, drawing.cameras.reshape(-1, 3), drawing.centres()))


def _viewpoint(points: Array, heading: Array, side: str, size: tuple[int, ...]) -> _Viewpoint:
    """The nearest viewpoint with the given direction from which all points are visible."""
    azimuth, elevation = np.radians(SIDES[side])
    c, s = np.cos(azimuth), np.sin(azimuth)
    forward = np.array([c * heading[0] + s * heading[1], c * heading[1] - s * heading[0]])
    look = np.array([*(np.cos(elevation) * forward), -np.sin(elevation)])
    right = np.array([forward[1], -forward[0], 0.0])
    R = np.stack((right, np.cross(look, right), look))
    focal = min(size) / 2 / np.tan(np.radians(FIELD_OF_VIEW_DEG) / 2)
    view = points @ R.T
    # A point is visible if |x - eye_x| <= slope (z - eye_z), likewise for y. The outermost points
    # bound the eye on both sides; of x and y, the one that needs the larger distance decides.
    slope = FILL * np.array(size) / 2 / focal
    ahead = view[:, 2:] * slope
    most, least = (view[:, :2] - ahead).max(axis=0), (-view[:, :2] - ahead).max(axis=0)
    back = float((-(most + least) / (2 * slope)).min())
    eye = np.array([*((most - least) / 2), back - 1e-6])
    return _Viewpoint(R, eye @ R, float(focal), (size[0], size[1]))


def _patches(points: Array, edge: float) -> _Patches:
    """Group the points into cubes of side ``edge``."""
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


def _shown(patches: _Patches, centres: Array, eye: Array) -> Array:
    """Mask [V] of patches seen from their front: the side of the camera nearest to the patch."""
    if not len(centres):
        return ~patches.isolated
    nearest = np.full(len(patches.mean), np.inf)
    seen_from = np.zeros_like(patches.mean)
    for centre in centres[:: max(1, len(centres) // 200)]:
        distance = ((patches.mean - centre) ** 2).sum(axis=1)
        closer = distance < nearest
        nearest[closer], seen_from[closer] = distance[closer], centre
    front = np.sign(((seen_from - patches.mean) * patches.normal).sum(axis=1))
    to_eye = eye - patches.mean
    cosine = front * (to_eye * patches.normal).sum(axis=1) / np.linalg.norm(to_eye, axis=1)
    return np.asarray(~patches.isolated & (~patches.flat | (cosine > -0.1)))


def _paint_points(
    canvas: Image, viewpoint: _Viewpoint, drawing: Drawing, patches: _Patches
) -> None:
    """Draw the nearest point of each pixel, darkened at depth edges."""
    shown = _shown(patches, drawing.centres(), viewpoint.eye)[patches.of_point]
    pixels, depth = viewpoint.project(drawing.points[shown].astype(np.float64))
    side = viewpoint.focal * patches.spacing[patches.of_point[shown]] / np.maximum(depth, 1e-9)
    side = np.clip(np.ceil(side), 1, MAX_SQUARE_PX).astype(np.int64)
    corner = np.floor(pixels - (side[:, None] - 1) / 2)
    good = (depth > 0) & (np.abs(corner) < 1e6).all(axis=1)
    corner, side = corner[good].astype(np.int64), side[good]
    depth, rgb = depth[good].astype(np.float32), drawing.rgb[shown][good]
    height, width = canvas.shape[:2]
    z: Array = np.full(height * width, np.inf, np.float32)
    for pixel, points in _squares(corner, side, width, height):
        np.minimum.at(z, pixel, depth[points])
    flat = canvas.reshape(-1, 3)
    for pixel, points in _squares(corner, side, width, height):
        nearest = depth[points] == z[pixel]
        flat[pixel[nearest]] = rgb[points[nearest]]
    shade = _shade(z.reshape(height, width))
    canvas[:] = (canvas * shade[..., None]).astype(np.uint8)


def _squares(corner: Array, side: Array, width: int, height: int) -> Iterator[tuple[Array, Array]]:
    """Yield pixels (flat index) and the points that cover them, for each offset in the squares."""
    order = np.argsort(-side, kind="stable")
    largest = int(side.max(initial=0))
    for dx, dy in np.ndindex(largest, largest):
        count = int((side > max(dx, dy)).sum())
        points = order[:count]
        x, y = corner[points, 0] + dx, corner[points, 1] + dy
        inside = (x >= 0) & (y >= 0) & (x < width) & (y < height)
        yield y[inside] * width + x[inside], points[inside]


def _shade(z: Array) -> Array:
    """Eye-dome lighting: brightness 0..1 [H, W], lower where neighbours are nearer."""
    far = np.log2(np.where(np.isfinite(z), z, np.finfo(np.float32).max)).astype(np.float32)
    padded = np.pad(far, SUPERSAMPLING, mode="edge")
    height, width = z.shape
    # The depth of a slanted wall changes too: only depth edges count.
    darker = np.zeros_like(far)
    for dy, dx in ((0, 1), (0, -1), (1, 0), (-1, 0)):
        rows = slice(SUPERSAMPLING * (1 + dy), SUPERSAMPLING * (1 + dy) + height)
        columns = slice(SUPERSAMPLING * (1 + dx), SUPERSAMPLING * (1 + dx) + width)
        darker += np.clip((far - padded[rows, columns] - 0.03) / 0.1, 0, 1)
    return np.where(np.isfinite(z), np.exp(-LIGHT * darker), 1.0)


def _paint_lines(
    canvas: Image, viewpoint: _Viewpoint, segments: Array, color: tuple[int, int, int]
) -> None:
    pixels, depth = viewpoint.project(segments)
    near = np.abs(pixels).max(axis=(1, 2), initial=0) < 1e5 if len(pixels) else np.zeros(0, bool)
    for ends in pixels[near & (depth > 0).all(axis=1)]:
        a, b = ((round(float(x)), round(float(y))) for x, y in ends)
        cv2.line(canvas, a, b, color, SUPERSAMPLING, cv2.LINE_AA)
