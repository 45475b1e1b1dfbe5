"""Edge points: places on edges of the image, followed from view to view across the edge.

Where an image has no corners, it still has edges. What is seen of a point on one is its position
across the edge; along it nothing is measured. Works on small grey images; no network.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.refinement.direct_alignment import AlignmentImage, gradient, sampled
from da3_ros.types import Array

COLUMNS, ROWS = 12, 9  # cells of a grid
PER_CELL = 2  # edge points of a cell
LEAST_GRADIENT = 2.0  # grey levels per pixel
APART = 3.0  # pixels between edge points
PATCH = np.array([(x, y) for y in range(-2, 3) for x in range(-2, 3)], float)  # [25, 2]
STEPS = 6
FARTHEST = 3.0  # pixels from where an edge is expected
SIMILAR = 0.9  # least correlation of both patches
BORDER = 4.0  # pixels


@dataclass(frozen=True, eq=False)
class EdgePoints:
    """Edge points of a view. E rows."""

    pixel: Array  # [E, 2] column and row, corner rule, pixels of the small image
    normal: Array  # [E, 2] unit vectors across the edge, in the image
    log_depth: Array  # [E] logarithm of the depth predicted there
    track: Array  # [E] id; -1: none

    @staticmethod
    def none() -> EdgePoints:
        """Returns an empty set."""
        return EdgePoints(np.zeros((0, 2)), np.zeros((0, 2)), np.zeros(0), np.zeros(0, int))

    def __len__(self) -> int:
        return len(self.track)

    def copy(self) -> EdgePoints:
        """Returns the same with own ids of tracks, which solutions change."""
        return replace(self, track=self.track.copy())

    def where(self, mask: Array) -> EdgePoints:
        """Returns the edge points of a mask or of indices."""
        return EdgePoints(
            self.pixel[mask], self.normal[mask], self.log_depth[mask], self.track[mask]
        )

    def joined(self, other: EdgePoints) -> EdgePoints:
        """Returns the edge points of both."""
        fields = ("pixel", "normal", "log_depth", "track")
        return EdgePoints(*(np.concatenate((getattr(self, f), getattr(other, f))) for f in fields))


def new_edge_points(image: AlignmentImage, known: Array) -> tuple[Array, Array]:
    """Returns positions [E, 2] and normals [E, 2] of edge points away from ``known`` ones [N, 2],
    the strongest of each cell."""
    grey = image.levels[0]
    height, width = grey.shape
    gx, gy = gradient(grey)
    strength = np.hypot(gx, gy)
    # The strongest across the edge: no weaker than its neighbours along the gradient.
    row, column = np.nonzero((strength > LEAST_GRADIENT) & np.isfinite(image.log_depth))
    inside = (row > BORDER) & (row < height - BORDER - 1)
    inside &= (column > BORDER) & (column < width - BORDER - 1)
    row, column = row[inside], column[inside]
    at = np.column_stack((column, row)) + 0.5
    n = np.column_stack((gx[row, column], gy[row, column])) / strength[row, column, None]
    s = strength[row, column]
    top = (s >= sampled(strength, at + n)) & (s > sampled(strength, at - n))
    at, n, s = at[top], n[top], s[top]
    taken = np.zeros((height, width), np.uint8)
    count = np.zeros(COLUMNS * ROWS, int)
    for x, y in known:
        cv2.circle(taken, (int(x), int(y)), int(APART), 1, -1)
    np.add.at(count, _cell(known, width, height), 1)
    chosen = []
    cells = _cell(at, width, height)
    for k in np.argsort(-s, kind="stable").tolist():
        x, y = at[k]
        if count[cells[k]] >= PER_CELL or taken[int(y), int(x)]:
            continue
        count[cells[k]] += 1
        chosen.append(k)
        if (count >= PER_CELL).all():
            break
        cv2.circle(taken, (int(x), int(y)), int(APART), 1, -1)
    return at[chosen], n[chosen]


def _cell(pixel: Array, width: int, height: int) -> NDArray[np.int64]:
    column = (pixel[:, 0] * COLUMNS / width).astype(int).clip(0, COLUMNS - 1)
    row = (pixel[:, 1] * ROWS / height).astype(int).clip(0, ROWS - 1)
    return np.asarray(row * COLUMNS + column)


def followed(
    known: AlignmentImage, view: AlignmentImage, edges: EdgePoints, depth: Array, K_known: Array,
    K: Array, T_known_view: Array,
) -> tuple[Array, Array, NDArray[np.bool_]]:  # fmt: skip
    """Finds a known view's edge points in a view.

    depth: [E] of the edge points. K_known, K: of the small images. T_known_view: [4, 4] in the
    unit of depth. Returns positions [E, 2], normals [E, 2], and which were found [E].
    """
    T = np.linalg.inv(T_known_view)
    back = np.linalg.inv(K_known)

    def seen_at(pixel: Array) -> Array:
        ray = np.column_stack((pixel, np.ones(len(pixel)))) @ back.T
        x = (ray * depth[:, None]) @ T[:3, :3].T + T[:3, 3]
        z = np.where(x[:, 2] > 1e-9, x[:, 2], np.nan)
        return np.asarray(x[:, :2] / z[:, None] * (K[0, 0], K[1, 1]) + K[:2, 2])

    at = seen_at(edges.pixel)
    A = np.stack([seen_at(edges.pixel + step) - at for step in np.eye(2)], axis=2)  # [E, 2, 2]
    height, width = view.grey.shape
    with np.errstate(invalid="ignore"):
        good = (at > BORDER).all(1) & (at < (width - BORDER, height - BORDER)).all(1)
        area = np.linalg.det(A)
        good &= (area > 0.3) & (area < 3.0)
    good &= np.isfinite(edges.pixel).all(1)
    some = np.flatnonzero(good)
    position, normal = np.full_like(at, np.nan), np.full_like(at, np.nan)
    if not len(some):
        return position, normal, good
    A, start = A[some], at[some]
    n = np.einsum("eji,ej->ei", np.linalg.inv(A), edges.normal[some])
    n /= np.linalg.norm(n, axis=1, keepdims=True)
    wanted = _patches(known.levels[0], edges.pixel[some, None] + PATCH)
    wanted -= wanted.mean(1, keepdims=True)
    places = start[:, None] + np.einsum("eij,pj->epi", A, PATCH)
    gx, gy = gradient(view.levels[0])
    t = np.zeros(len(some))
    for _ in range(STEPS):
        now = places + (t[:, None] * n)[:, None]
        value, slope = (
            _patches(view.levels[0], now),
            (_patches(gx, now) * n[:, :1] + _patches(gy, now) * n[:, 1:]),
        )
        value -= value.mean(1, keepdims=True)
        slope -= slope.mean(1, keepdims=True)
        gain = (value * wanted).sum(1) / ((wanted**2).sum(1) + 1e-6)
        residual = value - gain[:, None] * wanted
        t = np.clip(t - (slope * residual).sum(1) / ((slope**2).sum(1) + 1e-3), -5.0, 5.0)
    now = places + (t[:, None] * n)[:, None]
    value = _patches(view.levels[0], now)
    value -= value.mean(1, keepdims=True)
    power = np.sqrt((value**2).sum(1) * (wanted**2).sum(1)) + 1e-6
    similar = (value * wanted).sum(1) / power > SIMILAR
    end = start + t[:, None] * n
    similar &= (np.abs(t) < FARTHEST) & (end > BORDER).all(1)
    similar &= (end < (width - BORDER, height - BORDER)).all(1)
    if view.usable is not None:
        inside = end.astype(int).clip(0, (width - 1, height - 1))
        similar &= view.usable[inside[:, 1], inside[:, 0]]
    position[some], normal[some] = end, n
    good[some] = similar
    return position, normal, good


def _patches(image: NDArray[np.float32], at: Array) -> Array:
    """Returns values [E, P] at positions [E, P, 2]."""
    return sampled(image, at.reshape(-1, 2)).reshape(at.shape[:2])
