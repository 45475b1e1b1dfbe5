"""Checks calibrations: what contradicts itself or the image is refused, with cause and remedy."""

from __future__ import annotations

import numpy as np

from da3_ros.geometry.projection import Size
from da3_ros.sensors.calibration import (
    CalibrationError,
    bins,
    has_projection,
    image_size,
    is_calibrated,
    rectification_rotation,
)
from da3_ros.sensors.camera_models import NO_DISTORTION, is_distorted, named_model
from da3_ros.sensors.distortion import distort
from da3_ros.types import Array, Calibration

SHORTEST_FOCAL = 0.05  # of the longer side: a field of view of 169 degrees on a plane
PIXEL_ASPECT = 3.0  # largest ratio of both focal lengths
# Largest distance of the principal point from the middle, as a factor in both directions alike.
# P is moved to one side on purpose (stereo pairs, cropping), K by a sloppy lens mount only.
OFF_MIDDLE = {"K": 1.2, "P": 1.5}
# The same for K in one direction: modes of 4:3 and 16:9 differ by 1.33 in width or height. K of an
# image that was cut is as far off, so such a K is refused only if its pixels are stretched too, or
# if the point lies outside the image.
OFF_MIDDLE_ONE_WAY, STRETCHED = 1.25, 1.15
LARGEST_STRETCH = 3.0  # pixels per pixel of the undistorted image, outwards; lenses have up to 2
SMALLEST_REACH = 0.25  # share of the image up to which the distortion increases outwards
_AZIMUTHS, _ANGLES = 8, 200  # directions in which the distortion is followed, and its steps
_WIDEST = np.radians(84.0)  # from the optical axis


def check_calibration(c: Calibration, size: Size) -> None:
    """Raises a one-line CalibrationError if ``c`` does not fit an image of (width, height), or
    cannot be that of a camera."""
    _check_numbers(c)
    _check_rotation(c)
    _check_distortion(c)
    _check_size(c, size)
    for name, M in _matrices(c):
        _check_focal_lengths(c, name, M)
        _check_principal_point(c, name, M)
    _check_lens(c)


def _matrices(c: Calibration) -> list[tuple[str, Array]]:
    """Returns K, and P where it is given, with their names."""
    return [("K", c.K), *([("P", c.P)] if c.P is not None and has_projection(c) else [])]


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
    for name, M in _matrices(c):
        if M[0, 0] <= 0.0 or M[1, 1] <= 0.0:
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
    lengths = named_model(model).coefficients
    if D.size and D.size not in lengths:
        wanted = " or ".join([*(str(n) for n in lengths), "no"])
        raise CalibrationError(
            f"camera_info: {model} takes {wanted} coefficients but D has {D.size}; "
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
    odd = [(c.roi_width or c.width) % bins(c)[0], (c.roi_height or c.height) % bins(c)[1]]
    if any(size[i] - expected[i] not in (0, min(odd[i], 1)) for i in (0, 1)):
        binning = "x".join(str(b) for b in bins(c))
        raise CalibrationError(
            f"camera_info is for {expected[0]}x{expected[1]} images ({c.width}x{c.height}, "
            f"binning {binning}, roi {c.roi_width}x{c.roi_height}) but the image is "
            f"{size[0]}x{size[1]}; publish the camera_info of this image, or resize both"
        )


def _check_focal_lengths(c: Calibration, name: str, M: Array) -> None:
    fx, fy = float(M[0, 0]), float(M[1, 1])
    what = f"camera_info: focal lengths of {name} are fx={fx:g}, fy={fy:g}"
    if min(fx, fy) < SHORTEST_FOCAL * max(c.width, c.height):
        raise CalibrationError(
            f"{what} for images of {c.width}x{c.height}, less than any lens has: they must be in "
            f"pixels; if {name} is normalised, multiply its first row by the width and its second "
            "by the height"
        )
    if max(fx, fy) > PIXEL_ASPECT * min(fx, fy):
        raise CalibrationError(
            f"{what}, but no camera's pixels are so long; calibrate the camera again"
        )
    if np.abs(M[[1, 2, 2], [0, 0, 1]]).max() > 1e-6 * fx or abs(M[2, 2] - 1.0) > 1e-6:
        raise CalibrationError(
            f"camera_info: {name} is not [fx 0 cx; 0 fy cy; 0 0 1], by rows; is it transposed?"
        )


def _check_principal_point(c: Calibration, name: str, M: Array) -> None:
    """A factor in both directions alike, or in one together with the focal lengths, is between
    two resolutions."""
    off = _off_middle(c, M)
    limit = OFF_MIDDLE[name]
    alike = off.min() >= limit or off.max() <= 1 / limit
    stretch = max(M[0, 0] / M[1, 1], M[1, 1] / M[0, 0])
    outside = name == "K" and not 0.0 < off.min() <= off.max() < 2.0
    if not (alike or outside or (name == "K" and stretch >= STRETCHED and _is_off_one_way(off))):
        return
    raise CalibrationError(
        f"camera_info: the principal point of {name} is ({M[0, 2]:g}, {M[1, 2]:g}), far from the "
        f"middle of images of {c.width}x{c.height}: {name} is for another "
        "resolution; scale it with the image, and give a crop as roi of the full image"
    )


def doubt_of(c: Calibration) -> str:
    """Returns a warning about a calibration that passes the check and may be wrong, or an empty
    text."""
    if not _is_off_one_way(_off_middle(c, c.K)):
        return ""
    return (
        f"camera_info: the principal point of K is ({c.K[0, 2]:g}, {c.K[1, 2]:g}), far from the "
        f"middle of images of {c.width}x{c.height}: right if these are a part of the sensor's "
        "image; else K is for another resolution: calibrate the camera again"
    )


def _off_middle(c: Calibration, M: Array) -> Array:
    """Returns the principal point [2] in units of the image's middle."""
    return np.array([(2 * M[0, 2] + 1) / c.width, (2 * M[1, 2] + 1) / c.height])


def _is_off_one_way(off: Array) -> bool:
    return not 1 / OFF_MIDDLE_ONE_WAY < off.min() <= off.max() < OFF_MIDDLE_ONE_WAY


def _check_lens(c: Calibration) -> None:
    """D must be that of a lens, in the part of the image where it is used."""
    if not is_distorted(c):
        return
    reach, stretch = _lens_course(c)
    if reach < SMALLEST_REACH:
        fault = f"the distortion turns back after {100 * reach:.0f} % of the image"
    elif stretch > LARGEST_STRETCH:
        fault = f"the distortion stretches a part of the image {stretch:.2g} times"
    else:
        return
    D = ", ".join(f"{value:g}" for value in c.D)
    raise CalibrationError(
        f"camera_info: {fault}, as no lens does: D is [{D}] ({c.distortion_model}); calibrate the "
        "camera again, with the board in the corners of the image too"
    )


def _lens_course(c: Calibration) -> tuple[float, float]:
    """Follows the distortion from the optical axis outwards.

    Returns the share of the full image's area that it reaches before it turns back or the image
    ends, and its largest stretch there: distorted length per undistorted one, outwards.
    """
    # Rays closer to the axis than 84 degrees; a wider lens is followed that far.
    radii = np.tan(np.linspace(0.0, _WIDEST, _ANGLES))
    azimuth = np.arange(_AZIMUTHS) * 2 * np.pi / _AZIMUTHS
    outwards = np.stack([np.cos(azimuth), np.sin(azimuth)], -1)
    with np.errstate(all="ignore"):  # a polynomial may end in infinity
        pixels = distort(c, radii[:, None, None] * outwards)
        distorted = np.hypot(*np.moveaxis((pixels - c.K[:2, 2]) / np.diag(c.K)[:2], -1, 0))
        stretch = np.diff(distorted, axis=0) / np.diff(radii)[:, None]
    edge = _edge(c, outwards)
    rises = np.logical_and.accumulate(stretch > 0.0)
    seen = rises & (distorted[:-1] < edge)
    turned = ~rises.all(axis=0)
    farthest = np.where(rises, distorted[1:], 0.0).max(axis=0)
    farthest = np.where(turned, np.minimum(farthest, edge), edge)
    return (farthest**2).sum() / (edge**2).sum(), float(np.where(seen, stretch, 0.0).max())


def _edge(c: Calibration, outwards: Array) -> Array:
    """Returns the distance [N] of the full image's edge from the principal point, in directions
    ``outwards`` [N, 2], in focal lengths; 0 where the point lies outside."""
    f, middle = np.diag(c.K)[:2], c.K[:2, 2]
    size = np.array([c.width, c.height])
    room = np.where(outwards > 0.0, size - 0.5 - middle, middle + 0.5) / f
    with np.errstate(divide="ignore"):
        return np.asarray((room / np.abs(outwards)).min(axis=-1).clip(0.0))
