"""Camera calibrations: what they say about the image, and resizing them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from da3_ros.geometry.projection import Size, ros_K
from da3_ros.types import Array, Calibration


class CalibrationError(ValueError):
    """An unusable calibration; one line states the fault and the remedy."""


def _scale_ros(M: Array, sx: float, sy: float) -> Array:
    """Scales K [3, 3] or P [3, 4] (ROS rule): cx' = (cx + 0.5) s - 0.5, the rest of a row by s."""
    scaled = np.array(M, np.float64) * np.array([[sx], [sy], [1.0]])
    scaled[0, 2] += 0.5 * sx - 0.5
    scaled[1, 2] += 0.5 * sy - 0.5
    return scaled


def _shift(M: Array, dx: float, dy: float) -> Array:
    """Returns K or P of a crop whose first pixel is (dx, dy); the same under either pixel rule."""
    shifted = np.array(M, np.float64)
    shifted[0, 2] -= dx
    shifted[1, 2] -= dy
    return shifted


def is_calibrated(c: Calibration) -> bool:
    """True if the camera is calibrated: CameraInfo marks an uncalibrated one by K[0] = 0."""
    return bool(c.K[0, 0] != 0.0)


def has_projection(c: Calibration) -> bool:
    """True if P is given: drivers leave it empty or zero."""
    return c.P is not None and c.P[0, 0] != 0.0


def rectification_rotation(c: Calibration) -> Array:
    """Returns R [3, 3]; monocular drivers often set it to all zeros, meaning identity."""
    R = np.asarray(c.R, np.float64)
    return R if R.any() else np.eye(3)


def bins(c: Calibration) -> Size:
    """Returns the pixels (in x, in y) that become one pixel of the image."""
    return max(1, c.binning_x), max(1, c.binning_y)  # CameraInfo: 0 is considered the same as 1


def image_size(c: Calibration) -> Size:
    """Returns (width, height) of the image of ``c``: the full image, cropped, then binned."""
    width, height = c.roi_width or c.width, c.roi_height or c.height
    return width // bins(c)[0], height // bins(c)[1]


def image_calibration(c: Calibration) -> Calibration:
    """Returns the calibration of the image itself: K and P include region of interest and binning.

    Binned pixels are averages of full ones, so the principal point follows the pixel rule:
    ``cx' = (cx - roi_x + 0.5) / binning_x - 0.5`` (image_geometry drops the half pixels). P[3] and
    P[7] scale with the focal row. D and R act on directions and stay.
    """
    bx, by = bins(c)

    def fold(M: Array) -> Array:
        return _scale_ros(_shift(M, c.roi_x, c.roi_y), 1.0 / bx, 1.0 / by)

    width, height = image_size(c)
    return Calibration(
        width=width,
        height=height,
        K=fold(c.K),
        distortion_model=c.distortion_model,
        D=c.D,
        R=c.R,
        P=fold(c.P) if c.P is not None and has_projection(c) else None,
    )


def calibration_key(c: Calibration) -> tuple[object, ...]:
    """Returns the value of a calibration, to be compared and hashed."""
    arrays = (np.asarray(a, np.float64).tobytes() for a in (c.K, c.D, c.R))
    P = b"" if c.P is None else np.asarray(c.P, np.float64).tobytes()
    cut = (c.binning_x, c.binning_y, c.roi_x, c.roi_y, c.roi_width, c.roi_height)
    return (c.width, c.height, c.distortion_model, *arrays, P, *cut)


def resized_calibration(c: Calibration, size: Size) -> Calibration:
    """Returns the calibration of an image of ``c`` that was resized to (width, height)."""
    image = image_calibration(c)
    sx, sy = size[0] / image.width, size[1] / image.height
    P = None if image.P is None else _scale_ros(image.P, sx, sy)
    return replace(image, width=size[0], height=size[1], K=_scale_ros(image.K, sx, sy), P=P)


def pinhole_calibration(K_corner: Array, size: Size) -> Calibration:
    """Returns the calibration (ROS rule) of a rectified image: no distortion, P = [K | 0].

    K_corner [3, 3] is under the corner rule, size is (width, height).
    """
    K = ros_K(K_corner)
    P = np.hstack([K, np.zeros((3, 1))])
    return Calibration(width=size[0], height=size[1], K=K, D=np.zeros(5), P=P)
