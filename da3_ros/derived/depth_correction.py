"""Depth of a frame, corrected by what was measured of a keyframe that shows the same.

The network errs alike in images that are alike: how much a keyframe's depth was corrected by
measuring holds for a frame beside it, wherever both show one surface.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.derived.dense_depth import smooth_correction
from da3_ros.derived.plane_sweep import SweepView, mismatch
from da3_ros.geometry.projection import backproject
from da3_ros.types import Array, FloatImage

SAME_SURFACE = 0.15  # largest difference of log depth of one surface
SIDE = 126  # pixels of the smooth correction's longer side, about: it has no more detail
LEAST_SHARE = 0.2  # of a frame's pixels that the keyframe must show
BETTER = 0.95  # share of the mismatch that may be left, else the frame stays as it is: measured


@dataclass(frozen=True, eq=False)
class CorrectedKeyframe:
    """A measured keyframe; lengths in one unit with the frame's."""

    view: SweepView
    network: FloatImage  # [h, w] depth before measuring
    depth: FloatImage  # [h, w] measured, and corrected between


def corrected_depth(
    view: SweepView, depth: FloatImage, keyframe: CorrectedKeyframe
) -> FloatImage | None:
    """Returns the depth [h, w] of a frame with the keyframe's correction; None if the images do
    not agree better with it, or if the keyframe shows something else.

    depth: z-depth; NaN and +Inf stay.
    """
    step = max(1, round(max(depth.shape) / SIDE))
    smooth = _smooth(view, depth, keyframe, step)
    if smooth is None:
        return None
    out = depth * np.exp(smooth)  # NaN and infinity stay
    before, after = mismatch(view, keyframe.view, np.stack([depth, out]), max(1, round(step / 2)))
    return out if after < BETTER * before else None


def _smooth(
    view: SweepView, depth: FloatImage, keyframe: CorrectedKeyframe, step: int
) -> FloatImage | None:
    """Returns the log correction [h, w], computed of every ``step``-th pixel; None: the keyframe
    shows too few of them."""
    some = slice(step // 2, None, step), slice(step // 2, None, step)
    small = depth[some]
    known = np.isfinite(small) & (small > 0)
    log = _transferred(view, small, keyframe, step)
    found = np.isfinite(log) & known
    if not found.any() or found.sum() < LEAST_SHARE * known.sum():
        return None
    smooth = smooth_correction(np.where(known, small, np.float32(1)), log, found, known)
    return np.asarray(cv2.resize(smooth, depth.shape[::-1], interpolation=cv2.INTER_LINEAR))


def _transferred(
    view: SweepView, depth: FloatImage, keyframe: CorrectedKeyframe, step: int
) -> NDArray[np.float32]:
    """Returns the log correction [h, w] of the surface that each pixel shows; NaN where the
    keyframe does not show it.

    depth: every ``step``-th pixel of the view's.
    """
    T = (np.linalg.inv(keyframe.view.T_frame_camera) @ view.T_frame_camera).astype(np.float32)
    # Pixel n of the chosen ones is pixel n * step + step // 2 of the view.
    to_chosen = np.diag([1 / step, 1 / step, 1.0])
    to_chosen[:2, 2] = 0.5 - (step // 2 + 0.5) / step
    at: Array = backproject(depth, to_chosen @ view.K) @ T[:3, :3].T + T[:3, 3]
    K = keyframe.view.K
    with np.errstate(invalid="ignore", divide="ignore"):
        z = at[..., 2]
        x = (K[0, 0] * at[..., 0] / z + K[0, 2] - 0.5).astype(np.float32)
        y = (K[1, 1] * at[..., 1] / z + K[1, 2] - 0.5).astype(np.float32)
        network, measured = (
            cv2.remap(image, x, y, cv2.INTER_NEAREST, borderMode=cv2.BORDER_CONSTANT,
                      borderValue=float("nan"))
            for image in (keyframe.network, keyframe.depth)
        )  # fmt: skip
        correction = np.log(measured / network)
        same = (z > 0) & (np.abs(np.log(network / z)) < SAME_SURFACE)
    return np.where(same, correction, np.float32(np.nan)).astype(np.float32)
