"""A surface of points: small squares as large as the gaps between the points."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from da3_ros.drawing.scene_drawing import Drawing
from da3_ros.drawing.squares import Squares
from da3_ros.drawing.viewpoint import Viewpoint
from da3_ros.types import Array

CELL = 0.03  # size of a patch, relative to the scene
FLAT = 0.3  # largest ratio of variance across a flat patch to that along it
MIN_POINTS_FOR_NORMAL = 8  # fewest points in a patch with a normal
MIN_POINTS = 4  # patches with fewer points are noise
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


class PointSurface:
    """Points as they are seen from a viewpoint; what does not depend on it is done once."""

    def __init__(self, drawing: Drawing, extent: float) -> None:
        """extent: of the scene, in the map's unit. There must be points."""
        self._drawing = drawing
        self._patches = _patches(drawing.points, CELL * extent)
        self._front = _fronts(self._patches, drawing.centres())
        self._spacing = self._patches.spacing.astype(np.float32)[self._patches.of_point]

    def squares(self, viewpoint: Viewpoint) -> Squares:
        """Returns the points whose surface is seen from its front."""
        shown = self._shown(viewpoint.eye)[self._patches.of_point]
        pixels, depth = viewpoint.project(self._drawing.points[shown])
        with np.errstate(divide="ignore", invalid="ignore"):
            side = np.float32(viewpoint.focal) * self._spacing[shown] / depth
        return Squares(pixels, depth, side, self._drawing.rgb[shown])

    def _shown(self, eye: Array) -> NDArray[np.bool_]:
        """Returns the mask [V] of patches seen from their front: the side of the camera nearest
        to the patch."""
        patches = self._patches
        to_eye = eye - patches.mean
        cosine = self._front * (to_eye * patches.normal).sum(axis=1)
        away = cosine <= -0.1 * np.linalg.norm(to_eye, axis=1)
        return np.asarray(~patches.isolated & ~(patches.flat & away))


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
