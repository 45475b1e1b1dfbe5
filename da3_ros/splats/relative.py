"""Gaussians relative to pixel, depth and camera, as the network gives them and the store keeps
them: they follow every later correction of depth, pose and focal length, and have the depth's
unit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from da3_ros.types import FloatImage

SH = 9  # coefficients of degree 0 to 2, for each colour
# Channels of a relative Gaussian, all dimensionless.
CHANNELS = {
    "offset": slice(0, 2),  # of the image point from the pixel's centre, x and y, pixels
    "stretch": slice(2, 3),  # distance from the camera over the depth of the pixel, minus 1
    "scale": slice(3, 6),  # standard deviations over distance * (1 / fx + 1 / fy)
    "rotation": slice(6, 10),  # of the Gaussian's axes to the camera's: quaternion w, x, y, z
    "opacity": slice(10, 11),  # 0 to 1
    "sh": slice(11, 38),  # [3 colours, SH] in the camera's axes
}
COUNT = 38  # of channels
BORDER = 8 / 256  # of each side of an image: there the network's Gaussians are worse
LEAST_OPACITY = 0.01  # less is not seen
LEAST_SCALE = 2.0**-24  # the smallest float16: its logarithm is stored in files
LEAST_ROTATION = 0.1  # of a quaternion's length, which is 1 but for rounding
BYTES = 2 * COUNT  # of a stored Gaussian


@dataclass(frozen=True, eq=False)
class RelativeSplats:
    """The Gaussians of a keyframe that are kept, in the order of its pixels."""

    kept: NDArray[np.bool_]  # [h, w]
    values: NDArray[np.float16]  # [N, 38] of the kept pixels: ``CHANNELS``

    def __len__(self) -> int:
        return len(self.values)


def keep_visible(values: NDArray[np.float16], depth: FloatImage) -> RelativeSplats:
    """Returns the Gaussians of an image, values [38, h, w], without those that never help: at
    unknown depth or sky, at the border, invisible, or not finite.

    depth: [h, w] z-depth; NaN unknown, +Inf sky.
    """
    height, width = depth.shape
    kept = np.isfinite(depth) & (depth > 0)
    y, x = round(BORDER * height), round(BORDER * width)
    inside = np.zeros_like(kept)
    inside[y : height - y, x : width - x] = True
    kept &= inside & (values[CHANNELS["opacity"]][0] >= LEAST_OPACITY)
    found = np.ascontiguousarray(values[:, kept].T)
    found[:, CHANNELS["scale"]] = np.maximum(found[:, CHANNELS["scale"]], LEAST_SCALE)
    good = are_valid(found)
    kept[kept] = good
    return RelativeSplats(kept, found[good])


def are_valid(values: NDArray[np.float16]) -> NDArray[np.bool_]:
    """Returns which of relative Gaussians [N, 38] are Gaussians before the camera."""
    opacity, scale = values[:, CHANNELS["opacity"]], values[:, CHANNELS["scale"]]
    length = np.linalg.norm(values[:, CHANNELS["rotation"]].astype(np.float32), axis=1)
    with np.errstate(invalid="ignore"):
        return np.asarray(
            np.isfinite(values).all(axis=1) & (values[:, CHANNELS["stretch"]] > -1)[:, 0]
            & (opacity >= 0)[:, 0] & (opacity <= 1)[:, 0] & (scale > 0).all(axis=1)
            & (length > LEAST_ROTATION)
        )  # fmt: skip
