"""An off-screen picture of the scene: points, cameras and path, without any graphics library."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from da3_ros.mapping.frusta import frusta, path_points
from da3_ros.mapping.scene import Scene
from da3_ros.types import Array, Image

BACKGROUND = 24
MOST_POINTS = 5_000_000  # more would only cover each other
ELEVATION_DEG = 45.0
FIELD_OF_VIEW_DEG = 45.0
FILL = 0.95  # share of the picture that the scene may take
CAMERA_COLOR, PATH_COLOR = (255, 140, 0), (0, 160, 255)


@dataclass(frozen=True, eq=False)
class _Viewpoint:
    """A pinhole looking at the scene: world axes are the ROS map's (z up)."""

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


def render_scene(scene: Scene, size: tuple[int, int] = (960, 720)) -> Image:
    """RGB [H, W, 3] of the scene from above and behind the first camera.

    What lies clearly above the cameras (a room's ceiling) is cut away, as in a doll's house.
    """
    cloud, centres = scene.cloud(MOST_POINTS), path_points(scene)
    points = cloud.xyz.astype(np.float64)
    keep = _below_ceiling(points, centres)
    points, colors = points[keep], cloud.rgb[keep]
    canvas = np.full((size[1], size[0], 3), BACKGROUND, np.uint8)
    if not len(points) and not len(centres):
        return canvas
    viewpoint = _behind_and_above(_bounds(points, centres), scene, size)
    _paint_points(canvas, viewpoint, points, colors)
    _paint_lines(canvas, viewpoint, frusta(scene), CAMERA_COLOR)
    _paint_lines(canvas, viewpoint, np.stack((centres[:-1], centres[1:]), axis=1), PATH_COLOR)
    return canvas


def write_png(path: Path, image: Image) -> None:
    """Write RGB [H, W, 3]. Raises OSError."""
    _, data = cv2.imencode(".png", cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
    path.write_bytes(data.tobytes())


def _below_ceiling(points: Array, centres: Array) -> Array:
    if not len(points) or not len(centres):
        return np.ones(len(points), bool)
    top = centres[:, 2].max()
    low, high = np.percentile(points[:, 2], (2, 98))
    return np.asarray(points[:, 2] < top + 0.15 * max(high - low, 1e-6))


def _bounds(points: Array, centres: Array) -> Array:
    """Box [2, 3] of the path and of all points but the farthest few."""
    boxes = [np.percentile(points, (3, 97), axis=0)] if len(points) else []
    boxes += [centres] if len(centres) else []
    everything = np.concatenate(boxes)
    return np.stack((everything.min(axis=0), everything.max(axis=0)))


def _behind_and_above(bounds: Array, scene: Scene, size: tuple[int, int]) -> _Viewpoint:
    target = bounds.mean(axis=0)
    forward = _heading(scene)
    elevation = np.radians(ELEVATION_DEG)
    look = np.array([*(np.cos(elevation) * forward), -np.sin(elevation)])
    focal = min(size) / 2 / np.tan(np.radians(FIELD_OF_VIEW_DEG) / 2)
    right = np.array([forward[1], -forward[0], 0.0])
    R = np.stack((right, np.cross(look, right), look))
    corners = np.array(np.meshgrid(*(bounds - target).T)).reshape(3, -1).T @ R.T
    # Every corner within the picture: |x| / (distance + z) at most half the size over the focal.
    reach = np.abs(corners[:, :2]) * focal / (FILL * np.array(size) / 2)
    distance = max(float((reach - corners[:, 2:]).max()), 1e-6)
    return _Viewpoint(R, target - look * distance, focal, size)


def _heading(scene: Scene) -> Array:
    """Horizontal unit vector [2] that the first camera looks along."""
    if not len(scene.poses):
        return np.array([1.0, 0.0])
    axis = (scene.T_map_world[:3, :3] @ scene.poses.rows["T"][0, :, 2])[:2]
    norm = np.linalg.norm(axis)
    return axis / norm if norm > 1e-6 else np.array([1.0, 0.0])


def _paint_points(canvas: Image, viewpoint: _Viewpoint, points: Array, colors: Image) -> None:
    """Far to near, so that a later write is nearer; two pixels wide to close gaps."""
    pixels, depth = viewpoint.project(points)
    order = np.argsort(-depth, kind="stable")
    order = order[depth[order] > 0]
    xy, rgb = np.floor(pixels[order]).astype(np.int64), colors[order]
    for dx, dy in ((0, 0), (1, 0), (0, 1), (1, 1)):
        x, y = xy[:, 0] + dx, xy[:, 1] + dy
        inside = (x >= 0) & (y >= 0) & (x < canvas.shape[1]) & (y < canvas.shape[0])
        canvas[y[inside], x[inside]] = rgb[inside]


def _paint_lines(
    canvas: Image, viewpoint: _Viewpoint, segments: Array, color: tuple[int, int, int]
) -> None:
    pixels, depth = viewpoint.project(segments)
    near = np.abs(pixels).max(axis=(1, 2), initial=0) < 1e5 if len(pixels) else np.zeros(0, bool)
    for ends in pixels[near & (depth > 0).all(axis=1)]:
        a, b = ((round(float(x)), round(float(y))) for x, y in ends)
        cv2.line(canvas, a, b, color, 1, cv2.LINE_AA)
