"""What is drawn of a scene: points, cameras and path, in the map frame (z up)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from da3_ros.drawing.colormaps import color_table
from da3_ros.export.camera_frusta import frusta, path_lines, path_of_chains
from da3_ros.mapping.scene import Scene
from da3_ros.types import Array

MAX_POINTS = 5_000_000  # more points would hide each other


@dataclass(frozen=True, eq=False)
class Drawing:
    """Contents of pictures of a scene, in the map frame (z up)."""

    points: NDArray[np.float32]  # [M, 3]
    rgb: NDArray[np.uint8]  # [M, 3]
    cameras: Array  # lines [8 C, 2, 3], eight per camera as in ``camera_frusta``
    path: Array  # lines [P, 2, 3]
    # Poses T_map_camera [N, 4, 4], one array for each chain of windows; none
    # in files that do not store them.
    chains: tuple[Array, ...] = ()
    # Triangles of ``points``, [F, 3] counterclockwise from outside; none: points alone are drawn.
    faces: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 3), np.int64))

    def centres(self) -> Array:
        """Returns camera positions [N, 3] of keyframes and path."""
        return np.concatenate((self.cameras[::8, 0], self.path.reshape(-1, 3)))

    def heading(self) -> Array:
        """Returns the horizontal viewing direction of the first camera, a unit vector [2]."""
        rays = self.cameras[:4]
        axis = (rays[:, 1] - rays[:, 0]).sum(axis=0)[:2]
        norm = np.linalg.norm(axis)
        return axis / norm if norm > 1e-6 else np.array([1.0, 0.0])

    def take(self, keep: Array) -> Drawing:
        """Returns a copy with only the points selected by a mask [M] or unique indices, and the
        triangles between them."""
        number = np.full(len(self.points), -1)
        number[keep] = np.arange(len(self.points[keep]))
        faces = number[self.faces]
        faces = faces[(faces >= 0).all(axis=1)]
        return dataclasses.replace(self, points=self.points[keep], rgb=self.rgb[keep], faces=faces)


def drawing_of(scene: Scene) -> Drawing:
    """Returns points, keyframe cameras and path of a scene."""
    cloud = scene.cloud(MAX_POINTS)
    return Drawing(cloud.xyz, cloud.rgb, frusta(scene), path_lines(scene), path_of_chains(scene))


def by_height(drawing: Drawing, color_map: str) -> Drawing:
    """Returns a copy whose points are coloured by their height: the highest in the colour of near
    depth. color_map: one of ``config.COLOR_MAPS``."""
    height = drawing.points[:, 2].astype(np.float64)
    if not len(height):
        return drawing
    low, high = np.percentile(height[np.isfinite(height)], (2, 98))
    share = np.nan_to_num((high - height) / max(high - low, 1e-9))
    rgb = color_table(color_map)[np.round(255 * np.clip(share, 0, 1)).astype(int)]
    return dataclasses.replace(drawing, rgb=rgb)
