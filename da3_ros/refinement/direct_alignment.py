"""Direct alignment: the pose of a view by the brightness of another one and its predicted depth.

Where features are few, edges and shading still show how a camera has moved. Pixels with a gradient
of the known view are put into space by its depth; the new view's pose is where they have the
brightness that they had, coarse to fine, but for one factor and one offset (exposure). Works on
small grey images; no network.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from da3_ros.geometry.projection import resize_K
from da3_ros.refinement.track_noise import PoseNoise
from da3_ros.types import Array, FloatImage, Image

WIDTH = 256  # most columns of the small image
# Of the small image: sharp edges between pixels draw poses to whole pixels (3 times the error).
BLUR_PX = 1.0
# Of the pyramid, each half as large as the one before, and least height and width, pixels.
LEVELS, SMALLEST = 4, 16
MARGIN = 2  # pixels of each level between what is aligned and what is not usable
MOST = (2000, 1500, 800, 400)  # pixels of a level that are aligned
CELLS = 8  # per side of a grid; each cell gives its share of the pixels
LEAST_GRADIENT = 0.5  # grey levels per pixel: less is the camera's rounding
STEPS, CONVERGED_PX = 12, 0.01  # of a level, and the motion in the image that ends it
MOST_FLOW_PX = 0.1  # the same of a pose that counts
GREY_SIGMA = 1.0  # least standard deviation of a pixel's brightness, grey levels
HUBER, OUTLIER = 1.5, 6.0  # standard deviations from which on a pixel counts less, and nothing
# Width of a neighbourhood, pixels, and the jump of the logarithm of depth in it at an outline.
OUTLINE, OUTLINE_JUMP = 7, 0.15
ROW = 256  # positions that are sampled in a row
FEWEST = 60  # pixels that determine a pose
FEWEST_SEEN = 0.3  # share of the pixels that both views see
FEWEST_RIGHT, RIGHT = 0.6, 3.0  # share of these that agree with the pose, to standard deviations
LEAST_CORRELATION = 0.8  # of the brightness of those that count: else it is another scene
MOST_EXPOSURE = 3.0  # factor on brightness, or its inverse


@dataclass(frozen=True, eq=False)
class AlignmentImage:
    """What a view shows, small."""

    grey: NDArray[np.uint8]  # [h, w]
    log_depth: FloatImage  # [h, w] logarithm of the predicted depth; NaN: unknown or not usable
    usable: NDArray[np.bool_] | None  # [h, w]; None: all

    @staticmethod
    def of(image: Image, usable: NDArray[np.bool_] | None, depth: FloatImage) -> AlignmentImage:
        """Returns the small image of a view's camera image [H, W, 3].

        usable: [H, W] pixels that show the scene; None: all. depth: [h, w], any size; NaN unknown.
        """
        height, width = image.shape[:2]
        shrink = max(1.0, width / WIDTH)
        size = round(width / shrink), round(height / shrink)
        grey = cv2.resize(
            cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), size, interpolation=cv2.INTER_AREA
        )
        seen = None
        if usable is not None and not usable.all():
            seen = cv2.resize(usable.astype(np.uint8), size, interpolation=cv2.INTER_AREA) > 0
            seen = cv2.erode(seen.astype(np.uint8), np.ones((5, 5), np.uint8), borderValue=1) > 0
        small = cv2.resize(depth, size, interpolation=cv2.INTER_NEAREST)
        with np.errstate(invalid="ignore", divide="ignore"):
            log_depth = np.log(np.where(small > 0, small, np.nan)).astype(np.float32)
        log_depth[~np.isfinite(log_depth)] = np.nan
        log_depth = _with_outlines(log_depth)
        if seen is not None:
            log_depth[~seen] = np.nan
        return AlignmentImage(np.asarray(grey, np.uint8), log_depth, seen)

    @functools.cached_property
    def levels(self) -> list[FloatImage]:
        """The pyramid, the finest level first."""
        level = np.asarray(
            cv2.GaussianBlur(self.grey.astype(np.float32), (0, 0), BLUR_PX), np.float32
        )
        out = [level]
        while len(out) < LEVELS and min(level.shape) >= 2 * SMALLEST:
            height, width = level.shape
            level = np.asarray(
                cv2.resize(level, (width // 2, height // 2), interpolation=cv2.INTER_AREA),
                np.float32,
            )
            out.append(level)
        return out

    @functools.cached_property
    def chosen(self) -> list[_Chosen]:
        """The pixels of each level that are aligned."""
        return [
            _chosen(grey, self.log_depth, self.usable_at(k), MOST[k])
            for k, grey in enumerate(self.levels)
        ]

    def usable_at(self, level: int) -> FloatImage | None:
        """Returns 1 where a level is usable, away from what is not; None: all."""
        if self.usable is None:
            return None
        size = self.levels[level].shape[::-1]
        small = cv2.resize(self.usable.astype(np.float32), size, interpolation=cv2.INTER_AREA)
        whole = (small > 0.99).astype(np.uint8)
        kernel = np.ones((2 * MARGIN + 1, 2 * MARGIN + 1), np.uint8)
        return np.asarray(cv2.erode(whole, kernel, borderValue=1), np.float32)

    def log_depth_at(self, pixel: Array) -> Array:
        """Returns the logarithms [P] of depth at positions [P, 2] in the image."""
        at = pixel.astype(int)
        return self.log_depth[at[:, 1], at[:, 0]].astype(np.float64)

    def release(self) -> None:
        """Forgets what is made from the image when it is needed."""
        for name in ("levels", "chosen"):
            self.__dict__.pop(name, None)


@dataclass(frozen=True, eq=False)
class _Chosen:
    """Pixels of one level. P rows."""

    pixel: Array  # [P, 2] column and row, corner rule
    grey: Array  # [P]
    depth: Array  # [P]


def _chosen(
    grey: FloatImage, log_depth: FloatImage, usable: FloatImage | None, most: int
) -> _Chosen:
    """Returns at most ``most`` pixels with depth and a gradient, the strongest of each cell."""
    height, width = grey.shape
    depth = cv2.resize(log_depth, (width, height), interpolation=cv2.INTER_NEAREST)
    strength = np.hypot(*gradient(grey))
    strength[~np.isfinite(depth)] = 0.0
    if usable is not None:
        strength[usable < 1] = 0.0
    strength[:2] = strength[-2:] = 0.0
    strength[:, :2] = strength[:, -2:] = 0.0
    flat = strength.ravel()
    order = np.argsort(-flat, kind="stable")
    order = order[: int((flat > LEAST_GRADIENT).sum())]
    row, column = np.divmod(order, width)
    cell = (row * CELLS // height) * CELLS + column * CELLS // width
    by_cell = np.argsort(cell, kind="stable")
    sorted_cells = cell[by_cell]
    rank = np.arange(len(order)) - np.searchsorted(sorted_cells, sorted_cells)
    first = rank < most // CELLS**2
    at = np.concatenate((order[by_cell[first]], order[np.sort(by_cell[~first])]))[:most]
    row, column = np.divmod(at, width)
    return _Chosen(
        np.column_stack((column, row)) + 0.5, grey[row, column].astype(np.float64),
        np.exp(depth[row, column].astype(np.float64)),
    )  # fmt: skip


def _with_outlines(log_depth: FloatImage) -> FloatImage:
    """Returns logarithms of depth in which the outline of a near surface, on both sides, has its
    depth: the outline moves with it."""
    known = np.where(np.isfinite(log_depth), log_depth, np.float32(1e9))
    near = cv2.erode(known, np.ones((OUTLINE, OUTLINE), np.uint8), borderValue=1e9)
    outline = np.isfinite(log_depth) & (known - near > OUTLINE_JUMP)
    return np.asarray(np.where(outline, near, log_depth), np.float32)


def gradient(grey: FloatImage) -> tuple[FloatImage, FloatImage]:
    """Returns the derivatives [h, w] by column and row, grey levels per pixel; 0 at the border."""
    x, y = np.zeros_like(grey), np.zeros_like(grey)
    x[:, 1:-1] = (grey[:, 2:] - grey[:, :-2]) / 2
    y[1:-1] = (grey[2:] - grey[:-2]) / 2
    return x, y


def aligned_pose(
    known: AlignmentImage, view: AlignmentImage, K_known: Array, K: Array, T_known_view: Array,
    depth_sigma: float, start: PoseNoise,
) -> Array | None:  # fmt: skip
    """Returns ``T_known_view`` [4, 4] of a view by a known one, from a start pose; None if they do
    not agree, or if too few pixels see the same.

    K_known, K: [3, 3] corner rule, pixels of ``grey``. T_known_view: [4, 4] of the start, unit of
    the known view's depth. depth_sigma: standard deviation of the logarithm of predicted depth.
    start: noise of the start pose; where brightness says nothing, that pose stays.
    """
    T = begin = np.linalg.inv(T_known_view)  # view from known
    exposure = _exposure(known, view)
    fit: _Fit | None = None
    flow = math.inf
    for level in reversed(range(min(len(known.levels), len(view.levels)))):
        target = _Target.of(view, level, K)
        points = _points(known, level, K_known)
        if len(points) < FEWEST:
            continue
        for _ in range(STEPS):
            fit = _fit(points, known.chosen[level], target, T, exposure, depth_sigma)
            if fit is None:
                return None
            step = fit.step(_motion(T, begin), start)
            if step is None:
                return None
            move = np.eye(4)
            move[:3, :3] = Rotation.from_rotvec(step[:3]).as_matrix()
            move[:3, 3] = step[3:6]
            T, exposure = move @ T, exposure + step[6:]
            flow = fit.flow(step)
            if flow < CONVERGED_PX:
                break
    if fit is None or not fit.is_good or not flow < MOST_FLOW_PX:
        return None
    if not 1 / MOST_EXPOSURE < exposure[0] < MOST_EXPOSURE:
        return None
    return np.asarray(np.linalg.inv(T))


def _motion(T: Array, begin: Array) -> Array:
    """Returns the rotation vector and the position [6] that move ``begin`` to ``T``."""
    move = T @ np.linalg.inv(begin)
    return np.concatenate((Rotation.from_matrix(move[:3, :3]).as_rotvec(), move[:3, 3]))


def _exposure(known: AlignmentImage, view: AlignmentImage) -> Array:
    """Returns factor and offset [2] between the brightness of both images, by their spread."""
    (a, b), (c, d) = ((i.levels[-1].mean(), i.levels[-1].std()) for i in (known, view))
    factor = float(np.clip(d / max(b, 1e-3), 1 / MOST_EXPOSURE, MOST_EXPOSURE))
    return np.array([factor, c - factor * a])


def _points(known: AlignmentImage, level: int, K: Array) -> Array:
    """Returns the points [P, 3] of a level's pixels, axes of the known view."""
    chosen = known.chosen[level]
    size, whole = known.levels[level].shape[::-1], known.grey.shape[::-1]
    own = resize_K(K, (whole[0], whole[1]), (size[0], size[1]))
    ray = np.column_stack((chosen.pixel, np.ones(len(chosen.pixel)))) @ np.linalg.inv(own).T
    return np.asarray(ray * chosen.depth[:, None])


@dataclass(frozen=True, eq=False)
class _Target:
    """One level of the view that is aligned."""

    maps: tuple[FloatImage, FloatImage, FloatImage]  # brightness, and its derivatives
    usable: FloatImage | None  # 1: usable
    K: Array

    @staticmethod
    def of(view: AlignmentImage, level: int, K: Array) -> _Target:
        grey = view.levels[level]
        size, whole = grey.shape[::-1], view.grey.shape[::-1]
        usable = view.usable_at(level)
        return _Target(
            (grey, *gradient(grey)), usable, resize_K(K, (whole[0], whole[1]), (size[0], size[1]))
        )

    def at(self, pixel: Array) -> tuple[Array, Array, Array]:
        """Returns brightness and derivatives [P] at positions [P, 2]."""
        value, x, y = (sampled(m, pixel) for m in self.maps)
        return value, x, y

    def sees(self, pixel: Array) -> NDArray[np.bool_]:
        """Returns which positions [P, 2] lie in the image, and are usable."""
        height, width = self.maps[0].shape
        with np.errstate(invalid="ignore"):
            inside = np.asarray(
                (pixel > 1.5).all(axis=1) & (pixel < (width - 1.5, height - 1.5)).all(axis=1)
            )
        if self.usable is not None:
            inside[inside] &= sampled(self.usable, pixel[inside]) > 0.99
        return inside


def sampled(image: FloatImage, pixel: Array) -> Array:
    """Returns the values [P] of an image at positions [P, 2], linear between pixels."""
    count = len(pixel)
    at = np.zeros((-(-count // ROW), ROW, 2), np.float32)  # OpenCV takes 32766 rows at most
    at.reshape(-1, 2)[:count] = pixel - 0.5
    if not count:
        return np.zeros(0)
    out = cv2.remap(
        image, at[..., 0], at[..., 1], cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
    )
    return np.asarray(out.reshape(-1)[:count], np.float64)


@dataclass(frozen=True, eq=False)
class _Fit:
    """Normal equations of a pose (rotation and position of the known view's points in the axes of
    the view) and of the exposure; P pixels that the view sees."""

    J: Array  # [P, 8]
    weight: Array  # [P] over variance
    residual: Array  # [P]
    right: float  # share of the pixels that agree
    correlation: float  # of the brightness of those that count
    typical_depth: float
    focal: float

    @property
    def is_good(self) -> bool:
        """Whether both views show the same."""
        return self.right >= FEWEST_RIGHT and self.correlation >= LEAST_CORRELATION

    @functools.cached_property
    def H(self) -> Array:
        """The information [8, 8]."""
        return np.asarray((self.J * self.weight[:, None]).T @ self.J)

    def step(self, away: Array, start: PoseNoise) -> Array | None:
        """Returns the Gauss-Newton step [8]; None: not determined.

        away: [6] motion from the start pose, whose noise is ``start``.
        """
        sigma = np.repeat((start.rotation, start.position * self.typical_depth), 3)
        H = self.H + np.diag(1e-6 * np.diag(self.H) + 1e-9)
        H[:6, :6] += np.diag(1 / sigma**2)
        g = (self.J * self.weight[:, None]).T @ self.residual
        g[:6] += away / sigma**2
        try:
            return np.asarray(-np.linalg.solve(H, g))
        except np.linalg.LinAlgError:
            return None

    def flow(self, step: Array) -> float:
        """Returns about how far a step moves the image, pixels of its level."""
        move = np.abs(step[3:6]).max() / self.typical_depth
        return float((np.abs(step[:3]).max() + move) * self.focal)


def _fit(
    points: Array, chosen: _Chosen, target: _Target, T: Array, exposure: Array, depth_sigma: float
) -> _Fit | None:
    """Returns the equations at a pose ``T`` [4, 4] of the view from the known one; None: too few
    pixels are seen."""
    seen_from = points @ T[:3, :3].T + T[:3, 3]
    z = np.where(seen_from[:, 2] > 1e-9, seen_from[:, 2], np.nan)
    K = target.K
    pixel = seen_from[:, :2] / z[:, None] * (K[0, 0], K[1, 1]) + K[:2, 2]
    some = np.flatnonzero(target.sees(pixel))
    if len(some) < max(FEWEST, FEWEST_SEEN * len(points)):
        return None
    x, z, known = seen_from[some], z[some], chosen.grey[some]
    value, gx, gy = target.at(pixel[some])
    residual = value - (exposure[0] * known + exposure[1])
    by_x = np.empty((len(some), 3))
    by_x[:, 0], by_x[:, 1] = gx * K[0, 0] / z, gy * K[1, 1] / z
    by_x[:, 2] = -(by_x[:, 0] * x[:, 0] + by_x[:, 1] * x[:, 1]) / z
    J = np.column_stack((np.cross(x, by_x), by_x, -known, -np.ones(len(some))))
    by_depth = (by_x * (x - T[:3, 3])).sum(1)
    noise = max(GREY_SIGMA, 1.4826 * float(np.median(np.abs(residual - np.median(residual)))))
    variance = noise**2 + (depth_sigma * by_depth) ** 2
    error = np.abs(residual) / np.sqrt(variance)
    weight = np.where(error < HUBER, 1.0, HUBER / np.maximum(error, 1e-9)) * (error < OUTLIER)
    return _Fit(
        J, weight / variance, residual, float((error < RIGHT).mean()),
        _correlation(value, known, weight), float(np.median(z)), float(K[0, 0]),
    )  # fmt: skip


def _correlation(a: Array, b: Array, weight: Array) -> float:
    """Returns the weighted correlation of values [P]; 0 if either has no spread."""
    total = float(weight.sum())
    if not total > 0:
        return 0.0
    a, b = a - float(weight @ a) / total, b - float(weight @ b) / total
    power = float(weight @ a**2) * float(weight @ b**2)
    return float(weight @ (a * b)) / power**0.5 if power > 0 else 0.0
