"""Points of feature tracks: triangulated from all images that see them, held by stored depth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from da3_ros.types import Array

FEWEST_VIEWS = 2
MAX_ERROR_PX = 4.0  # of an observation; others are outliers
HUBER_PX = 1.0
# Relative standard deviation of a point's stored depth, against 1 px of a feature: it decides only
# where the images show no parallax.
DEPTH_SIGMA = 0.03
STEPS = 8  # of Gauss-Newton; it converges in about four
CHUNK = 1 << 18  # observations that are solved at once
OBSERVATION = np.dtype(
    [("track", "<i8"), ("image", "<i4"), ("pixel", "<f4", (2,)), ("depth", "<f4"),
     ("rgb", "u1", (3,))]
)  # fmt: skip
Rows = NDArray[np.void]  # [N] of OBSERVATION


@dataclass(frozen=True, eq=False)
class TriangulatedTracks:
    """Points with tracks, in the map frame."""

    xyz: Array  # [P, 3]
    rgb: NDArray[np.uint8]  # [P, 3]
    error_px: Array  # [P] mean reprojection error

    def __len__(self) -> int:
        return len(self.xyz)

    def take(self, chosen: NDArray[Any]) -> TriangulatedTracks:
        """Returns the chosen points."""
        return TriangulatedTracks(self.xyz[chosen], self.rgb[chosen], self.error_px[chosen])


NO_POINTS = TriangulatedTracks(np.zeros((0, 3)), np.zeros((0, 3), np.uint8), np.zeros(0))


@dataclass(frozen=True, eq=False)
class Cameras:
    """The cameras of images."""

    T_camera_ros: Array  # [I, 4, 4]
    K: Array  # [I, 3, 3] corner rule


def triangulated(rows: Rows, cameras: Cameras) -> tuple[TriangulatedTracks, NDArray[np.int64]]:
    """Returns the points of tracks, and the point [N] of each observation, -1 for none.

    rows: observations [N] of OBSERVATION; depth in units of the map, not finite if unknown. A
    point needs two images that agree within MAX_ERROR_PX, and depth in one of its images. Points
    are in the order of their tracks' ids.
    """
    point = np.full(len(rows), -1, np.int64)
    order = np.lexsort((rows["image"], rows["track"]))
    bounds = np.flatnonzero(np.diff(rows["track"][order])) + 1
    found, first = [NO_POINTS], 0
    for chosen in _chunks(order, bounds):
        points, of_rows = _solved(rows[chosen], cameras)
        point[chosen[of_rows >= 0]] = first + of_rows[of_rows >= 0]
        found.append(points)
        first += len(points)
    return TriangulatedTracks(
        np.concatenate([p.xyz for p in found]),
        np.concatenate([p.rgb for p in found]),
        np.concatenate([p.error_px for p in found]),
    ), point


def _chunks(order: NDArray[np.int64], bounds: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Returns the sorted rows in pieces of about CHUNK that end where tracks end."""
    if not len(bounds):
        return [order] if len(order) else []
    ends = bounds[np.maximum(np.searchsorted(bounds, np.arange(CHUNK, len(order), CHUNK)) - 1, 0)]
    return [piece for piece in np.split(order, np.unique(ends)) if len(piece)]


def _solved(rows: Rows, cameras: Cameras) -> tuple[TriangulatedTracks, NDArray[np.int64]]:
    """As ``triangulated``, for rows that are sorted by track."""
    _, track = np.unique(rows["track"], return_inverse=True)
    problem = _TrackProblem(rows, track.reshape(-1), cameras)
    xyz = problem.starts()
    good = np.isfinite(xyz[problem.track]).all(axis=1) & _first_in_image(rows)
    for _ in range(2):  # the second time without outliers
        xyz = problem.refined(xyz, good)
        good &= problem.errors_px(xyz) <= MAX_ERROR_PX
    views = np.bincount(problem.track[good], minlength=len(xyz))
    kept = views >= FEWEST_VIEWS
    good &= kept[problem.track]
    number = np.cumsum(kept) - 1
    rgb = np.nan_to_num(problem.means(rows["rgb"].astype(float), good))
    error = problem.means(problem.errors_px(xyz)[:, None], good)[:, 0]
    points = TriangulatedTracks(xyz, np.rint(rgb).astype(np.uint8), error)
    return points.take(kept), np.where(good, number[problem.track], -1)


def _first_in_image(rows: Rows) -> NDArray[np.bool_]:
    """Whether an observation is the first of its track in its image; others are mistakes."""
    again = np.zeros(len(rows), bool)
    same = rows["track"][1:] == rows["track"][:-1]
    again[1:] = same & (rows["image"][1:] == rows["image"][:-1])
    return ~again


class _TrackProblem:
    """The observations of tracks; solves for their points."""

    def __init__(self, rows: Rows, track: NDArray[np.int64], cameras: Cameras) -> None:
        self.track = track  # [N] index of the point
        self._count = int(track.max(initial=-1)) + 1
        T, K = cameras.T_camera_ros[rows["image"]], cameras.K[rows["image"]]
        self._R, self._t, self._K = T[:, :3, :3], T[:, :3, 3], K
        self._pixel = rows["pixel"].astype(float)
        depth = rows["depth"].astype(float)
        self._depth = np.where(np.isfinite(depth) & (depth > 0), depth, np.nan)
        count = np.bincount(track[np.isfinite(self._depth)], minlength=self._count)
        # Depth of all images errs alike: together they count as one.
        self._depth_weight = 1 / np.maximum(count, 1)[track]

    def starts(self) -> Array:
        """Returns points [P, 3] by depth; NaN where no image has depth."""
        ones = np.ones((len(self._pixel), 1))
        rays = np.linalg.solve(self._K, np.hstack((self._pixel, ones))[..., None])[..., 0]
        camera = self._depth[:, None] * rays - self._t
        points = np.einsum("nji,nj->ni", self._R, camera)
        return self.means(points, np.isfinite(self._depth))

    def means(self, values: Array, chosen: NDArray[np.bool_]) -> Array:
        """Returns the mean [P, D] of values [N, D] of the chosen observations; NaN: none."""
        sums = self._sums(np.where(chosen[:, None], values, 0.0))
        count = np.bincount(self.track[chosen], minlength=self._count)
        out = np.full(sums.shape, np.nan)
        np.divide(sums, count[:, None], out=out, where=count[:, None] > 0)
        return out

    def refined(self, xyz: Array, good: NDArray[np.bool_]) -> Array:
        """Returns points [P, 3] of least robust reprojection error of good observations."""
        for _ in range(STEPS):
            xyz = xyz - self._step(xyz, good)
        return xyz

    def _step(self, xyz: Array, good: NDArray[np.bool_]) -> Array:
        """Returns a robust step [P, 3] of Gauss-Newton."""
        camera, residual = self._residuals(xyz)
        used = good & (camera[:, 2] > 0)
        size = np.linalg.norm(residual, axis=1)
        weight = np.where(used, 1 / np.maximum(size / HUBER_PX, 1.0), 0.0)
        sigma = DEPTH_SIGMA * self._depth
        off = (camera[:, 2] - self._depth) / sigma
        held = used & np.isfinite(self._depth)
        prior = np.where(held, self._depth_weight / np.maximum(np.abs(off), 1.0), 0.0)
        by_depth = (self._R[:, 2] / sigma[:, None])[:, None]
        J = np.concatenate((self._jacobians(camera), by_depth), axis=1)
        r, w = np.column_stack((residual, off)), np.column_stack((weight, weight, prior))
        J, r = np.where(w[..., None] > 0, J, 0.0), np.where(w > 0, r, 0.0)
        H = self._sums(np.einsum("nk,nki,nkj->nij", w, J, J).reshape(-1, 9)).reshape(-1, 3, 3)
        g = self._sums(np.einsum("nk,nki,nk->ni", w, J, r))
        damping = 1e-9 * np.trace(H, axis1=1, axis2=2) + 1e-12
        H += damping[:, None, None] * np.eye(3)
        return np.asarray(np.linalg.solve(H, g[..., None])[..., 0])

    def errors_px(self, xyz: Array) -> Array:
        """Returns the reprojection errors [N], px; +Inf behind the camera or without a point."""
        camera, residual = self._residuals(xyz)
        error = np.linalg.norm(residual, axis=1)
        return np.where((camera[:, 2] > 0) & np.isfinite(error), error, np.inf)

    def _residuals(self, xyz: Array) -> tuple[Array, Array]:
        """Returns points in the cameras [N, 3], and their projections less the features [N, 2]."""
        camera = np.einsum("nij,nj->ni", self._R, xyz[self.track]) + self._t
        with np.errstate(divide="ignore", invalid="ignore"):
            seen = np.einsum("nij,nj->ni", self._K, camera / camera[:, 2:])
        return camera, seen[:, :2] - self._pixel

    def _jacobians(self, camera: Array) -> Array:
        """Returns the derivative [N, 2, 3] of pixels by points."""
        with np.errstate(divide="ignore", invalid="ignore"):
            x, y, z = camera.T
            fx, fy = self._K[:, 0, 0] / z, self._K[:, 1, 1] / z
            u = fx[:, None] * (self._R[:, 0] - (x / z)[:, None] * self._R[:, 2])
            v = fy[:, None] * (self._R[:, 1] - (y / z)[:, None] * self._R[:, 2])
        return np.stack((u, v), axis=1)

    def _sums(self, values: Array) -> Array:
        """Returns the sums [P, D] of values [N, D] by point."""
        columns = [np.bincount(self.track, v, self._count) for v in values.T]
        return np.stack(columns, axis=1)
