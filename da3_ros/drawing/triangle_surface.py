"""A surface of triangles: small squares cover each, as if lit from the viewpoint."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from da3_ros.drawing.scene_drawing import Drawing
from da3_ros.drawing.squares import Squares
from da3_ros.drawing.viewpoint import Viewpoint
from da3_ros.types import Array

STEP_PX = 1.5  # distance of squares along an edge
# Numbers of squares along an edge: each takes a pass. Those of longer edges are larger.
STEPS = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512])
MAX_SQUARES = 10_000_000  # above it squares become larger, so that memory is bounded
SIDE = 1.4  # side of a square, by the distance of squares: they overlap
AMBIENT = 0.45  # brightness of a surface that is seen from its edge


class TriangleSurface:
    """Triangles as they are seen from a viewpoint, from their front alone."""

    def __init__(self, drawing: Drawing) -> None:
        """There must be triangles."""
        self._points, self._rgb, self._faces = drawing.points, drawing.rgb, drawing.faces
        corners = self._points[self._faces]
        across = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
        self._across = across.astype(np.float32)
        self._normals = _vertex_normals(self._faces, across, len(self._points))

    def squares(self, viewpoint: Viewpoint) -> Squares:
        """Returns the triangles that face the viewpoint and lie before it."""
        to_eye = viewpoint.eye.astype(np.float32) - self._points
        pixels, depth = viewpoint.project(self._points)
        front = (to_eye[self._faces[:, 0]] * self._across).sum(axis=1) > 0
        faces = self._faces[front & (depth[self._faces] > viewpoint.near).all(axis=1)]
        corners = pixels[faces]
        low, high = corners.min(axis=1), corners.max(axis=1)
        inside = ((high >= 0) & (low < viewpoint.size)).all(axis=1)
        faces, corners = faces[inside], corners[inside]
        cosine = (to_eye * self._normals).sum(axis=1) / np.linalg.norm(to_eye, axis=1)
        light = AMBIENT + (1 - AMBIENT) * np.clip(cosine, 0, 1)
        color = self._rgb * light[:, None].astype(np.float32)
        values = np.concatenate((pixels, 1 / depth[:, None], color), axis=1)
        longest = np.linalg.norm(corners - np.roll(corners, 1, axis=1), axis=2).max(axis=1)
        parts = [np.zeros((0, 7), np.float32), *_covered(values, faces, longest)]
        found: NDArray[np.float32] = np.concatenate(parts, dtype=np.float32)
        depth, rgb = np.float32(1) / found[:, 2], np.round(found[:, 3:6]).astype(np.uint8)
        return Squares(found[:, :2], depth, found[:, 6], rgb)


def _covered(
    values: NDArray[np.float32], faces: NDArray[np.int64], longest: Array
) -> Iterator[NDArray[np.float32]]:
    """Yields pixel, inverse depth, colour and side [N, 7] of squares that cover triangles.

    values: pixel, inverse depth and colour of vertices [V, 6], which are linear in the picture but
    for the colour, whose error is not seen. longest: edge of each triangle, pixels.
    """
    kind = np.searchsorted(STEPS, longest / STEP_PX).clip(0, len(STEPS) - 1)
    squares = (STEPS + 1) * (STEPS + 2) // 2
    while squares[kind].sum() > MAX_SQUARES and kind.any():
        kind = np.maximum(kind - 1, 0)
    for k, steps in enumerate(STEPS.tolist()):
        of_kind = kind == k
        if not of_kind.any():
            continue
        corners = values[faces[of_kind]]
        places = _lattice(steps) @ corners
        side = np.maximum(longest[of_kind] / steps, STEP_PX) * SIDE
        sides = np.broadcast_to(side[:, None, None], (*places.shape[:2], 1))
        yield np.concatenate((places, sides), axis=2).reshape(-1, 7).astype(np.float32)


def _lattice(steps: int) -> NDArray[np.float32]:
    """Returns barycentric coordinates [K, 3] of places all over a triangle."""
    places = [(a, b, steps - a - b) for a in range(steps + 1) for b in range(steps + 1 - a)]
    return np.array(places, np.float32) / np.float32(steps)


def _vertex_normals(faces: NDArray[np.int64], across: Array, count: int) -> NDArray[np.float32]:
    """Returns unit normals [count, 3] of vertices: means of their triangles, by area."""
    sums = [
        np.bincount(faces.reshape(-1), np.repeat(across[:, axis], 3), count) for axis in range(3)
    ]
    normals = np.stack(sums, axis=1)
    length = np.linalg.norm(normals, axis=1, keepdims=True)
    return np.asarray((normals / np.maximum(length, 1e-12)).astype(np.float32))
