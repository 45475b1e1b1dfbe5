"""Whether an image shows what an earlier one of its camera shows, from the same pose.

Corners of the earlier image are followed into the newer one: the best few of each cell of a grid.
Each cell counts alike, so that sharp things that come along with the camera (its own body, a text
on the picture, drops on the lens) cannot speak for the whole image. Works on pixels; no poses, no
network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.types import Array, FloatImage, Image

CELLS = 8  # along the longer side of an image; they are square
# Corners of a cell: how many, share of the strength of its best one, and pixels between them.
MOST, QUALITY, APART = 3, 0.1, 5
# Largest strength of a corner (``cv2.cornerMinEigenVal``) by noise of variance one, smoothed, and
# how much stronger than by the image's noise a corner is at least.
OF_NOISE, STRONGER = 1.4e-5, 1.2
FEWEST = 12  # corners, below which an image does not say whether it moves
WIDTH = 256  # pixels of the longer side to which images are shrunk
WINDOW = (11, 11)  # pixels around a corner that are compared
STEPS = (cv2.TERM_CRITERIA_COUNT | cv2.TERM_CRITERIA_EPS, 10, 0.02)  # most, and least of them
STAYS_PX = 1.0  # a corner that has moved by less may stay; more is the motion of something
NEAR = 33.0  # percentile of depth, up to which a corner is near


@dataclass(frozen=True)
class ImageMotion:
    """How an image has moved since another one."""

    share: float  # of the cells with corners, that have stayed; NaN: there are too few corners
    near_share: float  # the same of the nearest third of corners, which show a translation best
    area: float  # of all cells that count, that have stayed: those without corners have not
    # RMS motion of those that have stayed, without their noise, of an image of at most ``WIDTH``.
    pixels: float


UNSEEN = ImageMotion(float("nan"), float("nan"), 0.0, float("inf"))


class StillImage:
    """An image that later ones of the same camera are compared with."""

    def __init__(self, image: Image, valid: NDArray[np.bool_] | None, depth: FloatImage) -> None:
        """image: [h, w, 3]. valid: [h, w] pixels that count; None: all. depth: [h, w], any unit.
        """  # fmt: skip
        grey = _grey(image)
        self._grey = _without_single_pixels(grey)
        size = self._grey.shape[1], self._grey.shape[0]
        counts = np.ones(self._grey.shape, bool)
        if valid is not None:
            counts = cv2.resize(valid.astype(np.uint8), size, interpolation=cv2.INTER_NEAREST) > 0
        self._corners, self._weight, self._cells = _corners(self._grey, counts, _noise(grey))
        column, row = (self._corners * (depth.shape[1] / size[0])).astype(int).T
        at = depth[row.clip(max=depth.shape[0] - 1), column.clip(max=depth.shape[1] - 1)]
        known = at[np.isfinite(at)]
        limit = np.percentile(known, NEAR) if len(known) else np.inf
        self._near = np.isfinite(at) & (at <= limit)

    def motion_to(self, image: Image) -> ImageMotion:
        """Returns how an image [h, w, 3] of the same size has moved since this one."""
        count = len(self._corners)
        if count < FEWEST:
            return UNSEEN
        grey = _as_bright(_without_single_pixels(_grey(image)), self._grey)
        moved, status, _ = cv2.calcOpticalFlowPyrLK(
            self._grey, grey, self._corners, np.empty_like(self._corners), winSize=WINDOW,
            criteria=STEPS, maxLevel=0,  # more than some pixels is a motion in any case
        )  # fmt: skip
        flow = np.asarray(moved, float) - self._corners
        stays = (status.ravel() == 1) & (np.linalg.norm(flow, axis=1) < STAYS_PX)
        share, near = (
            float(np.average(stays[some], weights=self._weight[some])) if some.any() else 1.0
            for some in (np.ones(count, bool), self._near)
        )
        area = float(self._weight[stays].sum()) / self._cells
        pixels = _common(self._corners[stays], flow[stays])
        return ImageMotion(share, near, area, pixels)


def _grey(image: Image) -> NDArray[Any]:
    """Returns the grey values of an image [H, W, 3], its longer side at most ``WIDTH``."""
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    share = WIDTH / max(grey.shape)
    if share >= 1:
        return np.asarray(grey)
    size = round(share * grey.shape[1]), round(share * grey.shape[0])
    return np.asarray(cv2.resize(grey, size, interpolation=cv2.INTER_AREA))


def _without_single_pixels(grey: NDArray[Any]) -> NDArray[Any]:
    """Returns an image [h, w] without what is one pixel wide: bad pixels of the sensor, which come
    along with the camera, and much of the noise."""
    return np.asarray(cv2.medianBlur(grey, 3))


def _corners(
    grey: NDArray[Any], counts: NDArray[np.bool_], noise: float
) -> tuple[Array, Array, int]:
    """Returns the best corners [M, 2] (x, y; float32) of each cell of an image [h, w], their
    weights [M], of which those of a cell sum to one, and how many cells count.

    counts: [h, w] pixels that do; a cell counts if most of its pixels do. noise: grey values.
    """
    strength = cv2.cornerMinEigenVal(grey, 3, ksize=3)
    strength[~counts | (strength < STRONGER * OF_NOISE * noise**2)] = 0
    strength[strength < cv2.dilate(strength, np.ones((APART, APART), np.uint8))] = 0
    cell = math.ceil(max(grey.shape) / CELLS)
    found: list[Array] = []
    weights: list[Array] = []
    cells = 0
    for top in range(0, grey.shape[0], cell):
        for left in range(0, grey.shape[1], cell):
            part = slice(top, top + cell), slice(left, left + cell)
            cells += counts[part].mean() > 0.5
            values = strength[part]
            best = np.argsort(values, axis=None, kind="stable")[: -MOST - 1 : -1]
            best = best[values.flat[best] > QUALITY * values.max()]
            if len(best):
                row, column = np.unravel_index(best, values.shape)
                found.append(np.column_stack((column + left, row + top)))
                weights.append(np.full(len(best), 1 / len(best)))
    if not found:
        return np.zeros((0, 2), np.float32), np.zeros(0), max(cells, 1)
    return np.concatenate(found).astype(np.float32), np.concatenate(weights), max(cells, 1)


def _noise(grey: NDArray[Any]) -> float:
    """Returns the standard deviation of the noise of an image [h, w], grey values, by what smooth
    surfaces do not have."""
    kernel = np.array([[1, -2, 1], [-2, 4, -2], [1, -2, 1]], np.float32) / 6
    rest = np.abs(cv2.filter2D(grey, cv2.CV_32F, kernel))
    return max(float(np.median(rest)) / 0.6745, 0.3)  # of rounding


def _as_bright(grey: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    """Returns an image [h, w] with the brightness and the contrast of another one."""
    gain = float(other.std()) / max(float(grey.std()), 1e-3)
    shift = float(other.mean()) - gain * float(grey.mean())
    return np.asarray(cv2.convertScaleAbs(grey, alpha=gain, beta=shift))


def _common(corners: Array, flow: Array) -> float:
    """Returns the RMS length of the motion [M, 2] that an affine map of the corners explains,
    pixels; infinite for too few of them."""
    if len(corners) < FEWEST:
        return float("inf")
    design = np.column_stack((corners - corners.mean(axis=0), np.ones(len(corners))))
    fitted = design @ np.linalg.lstsq(design, flow, rcond=None)[0]
    return float(np.sqrt((fitted**2).sum(axis=1).mean()))
