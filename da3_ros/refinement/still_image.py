"""Whether an image shows what an earlier one of its camera shows, from the same pose.

Corners of the earlier image are followed into the newer one. Works on pixels; no poses, no
network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.types import Array, FloatImage, Image

MOST, QUALITY, APART = 150, 0.01, 5  # corners: how many, share of the best one's strength, pixels
FEWEST = 12  # corners, below which an image does not say whether it moves
WIDTH = 256  # pixels of the longer side to which images are shrunk
WINDOW = (11, 11)  # pixels around a corner that are compared
STEPS = (cv2.TERM_CRITERIA_COUNT | cv2.TERM_CRITERIA_EPS, 10, 0.02)  # most, and least of them
STAYS_PX = 1.0  # a corner that has moved by less may stay; more is the motion of something
NEAR = 33.0  # percentile of depth, up to which a corner is near


@dataclass(frozen=True)
class ImageMotion:
    """How an image has moved since another one."""

    share: float  # of the corners that have stayed; NaN: there are too few corners
    near_share: float  # the same of the nearest third, which show a translation best
    # RMS motion of those that have stayed, without their noise, of an image of at most ``WIDTH``.
    pixels: float


UNSEEN = ImageMotion(float("nan"), float("nan"), float("inf"))


class StillImage:
    """An image that later ones of the same camera are compared with."""

    def __init__(self, image: Image, valid: NDArray[np.bool_] | None, depth: FloatImage) -> None:
        """image: [h, w, 3]. valid: [h, w] pixels that count; None: all. depth: [h, w], any unit.
        """  # fmt: skip
        self._grey = _grey(image)
        size = self._grey.shape[1], self._grey.shape[0]
        mask = None
        if valid is not None:
            mask = cv2.resize(valid.astype(np.uint8), size, interpolation=cv2.INTER_NEAREST)
        found = cv2.goodFeaturesToTrack(self._grey, MOST, QUALITY, APART, mask=mask)
        self._corners = np.zeros((0, 2), np.float32) if found is None else found.reshape(-1, 2)
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
        grey = _as_bright(_grey(image), self._grey)
        moved, status, _ = cv2.calcOpticalFlowPyrLK(
            self._grey, grey, self._corners, np.empty_like(self._corners), winSize=WINDOW,
            criteria=STEPS, maxLevel=0,  # more than some pixels is a motion in any case
        )  # fmt: skip
        flow = np.asarray(moved, float) - self._corners
        stays = (status.ravel() == 1) & (np.linalg.norm(flow, axis=1) < STAYS_PX)
        near = float(stays[self._near].mean()) if self._near.any() else 1.0
        return ImageMotion(float(stays.mean()), near, _common(self._corners[stays], flow[stays]))


def _grey(image: Image) -> NDArray[Any]:
    """Returns the grey values of an image [H, W, 3], its longer side at most ``WIDTH``."""
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    share = WIDTH / max(grey.shape)
    if share >= 1:
        return np.asarray(grey)
    size = round(share * grey.shape[1]), round(share * grey.shape[0])
    return np.asarray(cv2.resize(grey, size, interpolation=cv2.INTER_AREA))


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
