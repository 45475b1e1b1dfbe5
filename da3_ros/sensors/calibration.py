"""Camera calibrations: reading, checking and resizing them."""

from __future__ import annotations

import numpy as np

from da3_ros.geometry.projection import Size, ros_K
from da3_ros.types import Array, Calibration

COEFFICIENTS = {
    "plumb_bob": (4, 5),
    "rational_polynomial": (8, 12, 14),
    "equidistant": (4,),
}


NO_DISTORTION = ("", "none")  # models that drivers write with an empty or zero D


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


def _has_projection(c: Calibration) -> bool:
    return c.P is not None and c.P[0, 0] != 0.0


def rectification_rotation(c: Calibration) -> Array:
    """Returns R [3, 3]; monocular drivers often set it to all zeros, meaning identity."""
    R = np.asarray(c.R, np.float64)
    return R if R.any() else np.eye(3)


def _bins(c: Calibration) -> Size:
    return max(1, c.binning_x), max(1, c.binning_y)  # CameraInfo: 0 is considered the same as 1


def image_size(c: Calibration) -> Size:
    """Returns (width, height) of the image of ``c``: the full image, cropped, then binned."""
    width, height = c.roi_width or c.width, c.roi_height or c.height
    return width // _bins(c)[0], height // _bins(c)[1]


def image_calibration(c: Calibration) -> Calibration:
    """Returns the calibration of the image itself: K and P include region of interest and binning.

    Binned pixels are averages of full ones, so the principal point follows the pixel rule:
    ``cx' = (cx - roi_x + 0.5) / binning_x - 0.5`` (image_geometry drops the half pixels). P[3] and
    P[7] scale with the focal row. D and R act on directions and stay.
    """
    bx, by = _bins(c)

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
        P=fold(c.P) if c.P is not None and _has_projection(c) else None,
    )


def pinhole_calibration(K_corner: Array, size: Size) -> Calibration:
    """Returns the calibration (ROS rule) of a rectified image: no distortion, P = [K | 0].

    K_corner [3, 3] is under the corner rule, size is (width, height).
    """
    K = ros_K(K_corner)
    P = np.hstack([K, np.zeros((3, 1))])
    return Calibration(width=size[0], height=size[1], K=K, D=np.zeros(5), P=P)


def check_calibration(c: Calibration, image_size: Size) -> None:
    """Raises a one-line CalibrationError if ``c`` does not fit an image of (width, height)."""
    _check_numbers(c)
    _check_rotation(c)
    _check_distortion(c)
    _check_size(c, image_size)


def _check_numbers(c: Calibration) -> None:
    for name, value in (("K", c.K), ("D", c.D), ("R", c.R), ("P", c.P)):
        if value is not None and not np.isfinite(value).all():
            raise CalibrationError(
                f"camera_info: {name} has NaN or Inf; calibrate the camera again"
            )
    if not is_calibrated(c):
        raise CalibrationError(
            "camera_info: K[0] is 0, which means uncalibrated; calibrate the camera, or run "
            "without camera_info and let the network estimate the intrinsics"
        )
    for name, M in (("K", c.K), ("P", c.P if _has_projection(c) else None)):
        if M is not None and (M[0, 0] <= 0.0 or M[1, 1] <= 0.0):
            raise CalibrationError(
                f"camera_info: focal lengths of {name} are fx={M[0, 0]:g}, fy={M[1, 1]:g} but "
                "must be positive; calibrate the camera again"
            )


def _check_rotation(c: Calibration) -> None:
    R = rectification_rotation(c)
    if not np.allclose(R @ R.T, np.eye(3), atol=1e-3) or np.linalg.det(R) < 0.0:
        raise CalibrationError(
            "camera_info: R is not a rotation; a monocular camera has the identity here"
        )


def _check_distortion(c: Calibration) -> None:
    D, model = np.asarray(c.D), c.distortion_model
    if model in NO_DISTORTION and not D.any():
        return
    if model not in COEFFICIENTS:
        raise CalibrationError(
            f"camera_info: unknown distortion_model '{model}'; known are "
            f"{', '.join(COEFFICIENTS)}: rectify elsewhere and set input_rectified to true"
        )
    if D.size and D.size not in COEFFICIENTS[model]:
        wanted = " or ".join(str(n) for n in COEFFICIENTS[model])
        raise CalibrationError(
            f"camera_info: {model} takes {wanted} coefficients (or none) but D has {D.size}; "
            "name the right distortion_model or calibrate the camera again"
        )


def _check_size(c: Calibration, size: Size) -> None:
    if size[0] <= 0 or size[1] <= 0:
        raise CalibrationError(f"image is empty ({size[0]}x{size[1]}); check the camera driver")
    if (c.roi_x and not c.roi_width) or (c.roi_y and not c.roi_height):
        raise CalibrationError(
            f"camera_info: roi starts at ({c.roi_x}, {c.roi_y}) but has no size; give its width "
            "and height, or all zeros for the full image"
        )
    if c.roi_x + c.roi_width > c.width or c.roi_y + c.roi_height > c.height:
        raise CalibrationError(
            f"camera_info: roi {c.roi_width}x{c.roi_height} at ({c.roi_x}, {c.roi_y}) is outside "
            f"the full image of {c.width}x{c.height}; give the roi in full-resolution pixels"
        )
    expected = image_size(c)
    # Drivers round an odd size either way when they bin.
    odd = [(c.roi_width or c.width) % _bins(c)[0], (c.roi_height or c.height) % _bins(c)[1]]
    if any(size[i] - expected[i] not in (0, min(odd[i], 1)) for i in (0, 1)):
        bins = "x".join(str(b) for b in _bins(c))
        raise CalibrationError(
            f"camera_info is for {expected[0]}x{expected[1]} images ({c.width}x{c.height}, "
            f"binning {bins}, roi {c.roi_width}x{c.roi_height}) but the image is "
            f"{size[0]}x{size[1]}; publish the camera_info of this image, or resize both"
        )
