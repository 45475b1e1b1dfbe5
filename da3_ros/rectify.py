"""From an image as the camera gave it and its calibration to a pinhole image with a corner-rule K.

The one place where the ROS pixel rule (pixel ``i`` centred on ``i``) meets the corner rule of the
core (pixel ``i`` covers ``[i, i + 1)``), and where binning and regions of interest are undone.
Knows NumPy, OpenCV and ``types``; nothing of ROS, the network or the pipeline.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.types import Array, Calibration, Image

Mask = NDArray[np.bool_]
Maps = tuple[NDArray[Any], NDArray[Any]]  # CV_16SC2 and its CV_16UC1 fractions
Size = tuple[int, int]  # width, height

COEFFICIENTS = {
    "plumb_bob": (4, 5),
    "rational_polynomial": (8, 12, 14),
    "equidistant": (4,),
}
NO_DISTORTION = ("", "none")  # what drivers write beside an empty or zero D
_HALF_PIXEL = np.array([[0.0, 0.0, 0.5], [0.0, 0.0, 0.5], [0.0, 0.0, 0.0]])


class CalibrationError(ValueError):
    """A calibration that cannot be used; one line says what is wrong and what to do."""


@dataclass(frozen=True, eq=False)
class Rectified:
    """A pinhole image. ``image`` is the input array itself where nothing had to be remapped."""

    image: Image  # [H, W, 3], black where ``valid`` is False
    K: Array  # [3, 3] corner rule
    valid: Mask | None = None  # [H, W], False without a source; None: every pixel has one


# Pixel rules ------------------------------------------------------------------------------------


def corner_K(K_ros: Array) -> Array:
    """K [3, 3] under the corner rule from one under the ROS rule (pixel centres at integers)."""
    return np.asarray(K_ros, np.float64) + _HALF_PIXEL


def ros_K(K_corner: Array) -> Array:
    """K [3, 3] under the ROS rule from one under the corner rule; the inverse of ``corner_K``."""
    return np.asarray(K_corner, np.float64) - _HALF_PIXEL


def resize_K(K_corner: Array, from_size: Size, to_size: Size) -> Array:
    """K [3, 3] (corner rule) of an image after it was resized; sizes are (width, height).

    Under the corner rule the whole row scales by the exact ratio, x and y each by its own.
    """
    ratio = np.array([to_size[0] / from_size[0], to_size[1] / from_size[1], 1.0])
    return np.asarray(K_corner, np.float64) * ratio[:, None]


def _scale_ros(M: Array, sx: float, sy: float) -> Array:
    """K [3, 3] or P [3, 4] (ROS rule) scaled: cx' = (cx + 0.5) s - 0.5, all else of a row by s."""
    scaled = np.array(M, np.float64) * np.array([[sx], [sy], [1.0]])
    scaled[0, 2] += 0.5 * sx - 0.5
    scaled[1, 2] += 0.5 * sy - 0.5
    return scaled


def _shift(M: Array, dx: float, dy: float) -> Array:
    """K or P of a crop whose first pixel is (dx, dy); the same under either pixel rule."""
    shifted = np.array(M, np.float64)
    shifted[0, 2] -= dx
    shifted[1, 2] -= dy
    return shifted


# Calibrations -----------------------------------------------------------------------------------


def is_calibrated(c: Calibration) -> bool:
    """Whether the camera is calibrated: CameraInfo marks one that is not by K[0] = 0."""
    return bool(c.K[0, 0] != 0.0)


def _has_projection(c: Calibration) -> bool:
    return c.P is not None and c.P[0, 0] != 0.0


def _rotation(c: Calibration) -> Array:
    """R [3, 3]; drivers without a stereo partner often leave it all zero, meaning identity."""
    R = np.asarray(c.R, np.float64)
    return R if R.any() else np.eye(3)


def _bins(c: Calibration) -> Size:
    return max(1, c.binning_x), max(1, c.binning_y)  # CameraInfo: 0 is considered the same as 1


def image_size(c: Calibration) -> Size:
    """(width, height) of the image that belongs to ``c``: full mode, cropped, then binned."""
    width, height = c.roi_width or c.width, c.roi_height or c.height
    return width // _bins(c)[0], height // _bins(c)[1]


def image_calibration(c: Calibration) -> Calibration:
    """The calibration of the image itself: region of interest and binning worked into K and P.

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


def resize_calibration(c: Calibration, to_size: Size) -> Calibration:
    """The calibration of ``c``'s image after it was resized to (width, height).

    Binning and roi are folded in. ROS rule: ``cx' = (cx + 0.5) s - 0.5`` in K and P; P[3] and
    P[7] scale with the focal row.
    """
    c = image_calibration(c)
    sx, sy = to_size[0] / c.width, to_size[1] / c.height
    return replace(
        c,
        width=to_size[0],
        height=to_size[1],
        K=_scale_ros(c.K, sx, sy),
        P=None if c.P is None else _scale_ros(c.P, sx, sy),
    )


def pinhole_calibration(K_corner: Array, size: Size) -> Calibration:
    """The calibration (ROS rule) of a rectified image: no distortion, P = [K | 0].

    K_corner [3, 3] is under the corner rule, size is (width, height).
    """
    K = ros_K(K_corner)
    P = np.hstack([K, np.zeros((3, 1))])
    return Calibration(width=size[0], height=size[1], K=K, D=np.zeros(5), P=P)


# Checks -----------------------------------------------------------------------------------------


def check_calibration(c: Calibration, image_size: Size) -> None:
    """Raise a one-line CalibrationError if ``c`` does not fit an image of (width, height)."""
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
    R = _rotation(c)
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
            f"{', '.join(COEFFICIENTS)}: rectify outside and set input_rectified to true"
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
            f"camera_info: roi {c.roi_width}x{c.roi_height} at ({c.roi_x}, {c.roi_y}) leaves the "
            f"full image of {c.width}x{c.height}; give the roi in full-resolution pixels"
        )
    expected = image_size(c)
    # Drivers round an odd size either way when they bin.
    odd = [(c.roi_width or c.width) % _bins(c)[0], (c.roi_height or c.height) % _bins(c)[1]]
    if any(size[i] - expected[i] not in (0, min(odd[i], 1)) for i in (0, 1)):
        bins = "x".join(str(b) for b in _bins(c))
        raise CalibrationError(
            f"camera_info is for {expected[0]}x{expected[1]} images ({c.width}x{c.height}, "
            f"binning {bins}, roi {c.roi_width}x{c.roi_height}) but the image is "
            f"{size[0]}x{size[1]}; publish the camera_info of this very image, or resize both"
        )


# Rays and maps ----------------------------------------------------------------------------------


def is_distorted(c: Calibration) -> bool:
    """Whether D bends anything. As in image_proc all zero means no, for every model."""
    return bool(np.any(c.D))


def distort(c: Calibration, rays: Array) -> Array:
    """Pixels [..., 2] (ROS rule) of rays [..., 2] (x/z, y/z in the raw camera frame) of ``c``'s K.

    Binning and roi are not applied: pass ``image_calibration(c)`` for pixels of the image.
    """
    flat = np.ascontiguousarray(rays, np.float64).reshape(-1, 1, 2)
    if not is_distorted(c):
        pixels = flat * [c.K[0, 0], c.K[1, 1]] + [c.K[0, 2], c.K[1, 2]]
    elif c.distortion_model == "equidistant":
        pixels = cv2.fisheye.distortPoints(flat, c.K, _column(c.D))
    else:
        points = np.concatenate([flat, np.ones_like(flat[..., :1])], -1)
        pixels = cv2.projectPoints(points, np.zeros(3), np.zeros(3), c.K, _column(c.D))[0]
    return np.asarray(pixels, np.float64).reshape(rays.shape)


def pixel_rays(c: Calibration) -> Array:
    """Where each pixel of the raw image looks: float64 [H, W, 2], x/z and y/z in the camera frame.

    Binning and roi are honoured. Exact to 1e-9 inside the range where the model is invertible;
    NaN beyond it.
    """
    c = image_calibration(c)
    u, v = np.meshgrid(np.arange(c.width, dtype=np.float64), np.arange(c.height, dtype=np.float64))
    target = np.stack([u, v], -1).reshape(-1, 2)
    pinhole = (target - [c.K[0, 2], c.K[1, 2]]) / [c.K[0, 0], c.K[1, 1]]
    rays = _undistort(c, pinhole, target) if is_distorted(c) else pinhole
    return rays.reshape(c.height, c.width, 2)


def _undistort(c: Calibration, pinhole: Array, target: Array) -> Array:
    """Rays [N, 2] that ``distort`` takes to pixels ``target`` [N, 2]; NaN where there are none."""
    if c.distortion_model == "equidistant":
        angle = np.hypot(*pinhole.T).clip(1e-9, 1.4)  # without D the radius is the angle itself
        rays = pinhole * (np.tan(angle) / angle)[:, None]
    else:
        approximate = cv2.undistortPoints(target[:, None], c.K, _column(c.D))
        rays = np.array(approximate, np.float64).reshape(-1, 2)
    open_ = np.arange(len(rays))
    for _ in range(30):  # Newton on the forward model: OpenCV's inverse is only approximate
        error = distort(c, rays[open_]) - target[open_]
        open_, error = _not_small(open_, error)
        if not open_.size:
            break
        rays[open_] -= _newton_step(c, rays[open_], error)
    rays[open_] = np.nan
    rays[np.hypot(*rays.T) > _ray_limit(c)] = np.nan
    return rays


def _not_small(index: NDArray[np.intp], error: Array) -> tuple[NDArray[np.intp], Array]:
    keep = ~(np.abs(error).max(-1) < 1e-9)
    return index[keep], error[keep]


def _newton_step(c: Calibration, rays: Array, error: Array) -> Array:
    """Newton step [N, 2] for distort(rays) = target, with a numerical Jacobian."""
    e = 1e-6
    ex, ey = np.array([e, 0.0]), np.array([0.0, e])
    du = (distort(c, rays + ex) - distort(c, rays - ex)) / (2 * e)
    dv = (distort(c, rays + ey) - distort(c, rays - ey)) / (2 * e)
    det = du[:, 0] * dv[:, 1] - du[:, 1] * dv[:, 0]
    det = np.where(np.abs(det) < 1e-9, np.inf, det)
    x = (error[:, 0] * dv[:, 1] - error[:, 1] * dv[:, 0]) / det
    y = (error[:, 1] * du[:, 0] - error[:, 0] * du[:, 1]) / det
    return np.clip(np.stack([x, y], -1), -0.5, 0.5)


def _column(D: Array) -> Array:
    return np.ascontiguousarray(D, np.float64).reshape(-1, 1)


def _ray_limit(c: Calibration) -> float:
    """Largest |(x/z, y/z)| up to which the radial model still grows; beyond, it folds back.

    A polynomial fitted to the image's own field of view says nonsense far outside it: pixels there
    would show a second, mirrored copy of the scene.
    """
    r = np.linspace(0.0, 10.0, 4001)[1:]
    k = np.zeros(14)
    k[: np.size(c.D)] = np.ravel(c.D)
    if c.distortion_model == "equidistant":
        t = np.arctan(r)
        bent = t * (1 + k[0] * t**2 + k[1] * t**4 + k[2] * t**6 + k[3] * t**8)
    else:
        top = 1 + k[0] * r**2 + k[1] * r**4 + k[4] * r**6
        bottom = 1 + k[5] * r**2 + k[6] * r**4 + k[7] * r**6
        pole = np.minimum.accumulate(bottom) <= 0.0
        bent = np.where(pole, -1.0, r * top / np.where(pole, 1.0, bottom))
    folds = np.flatnonzero(np.diff(bent, prepend=0.0) <= 0.0)
    if not folds.size:
        return float("inf")
    return float(r[folds[0] - 1]) if folds[0] else 0.0


def _maps(c: Calibration, P: Array) -> tuple[Maps, Mask]:
    """Fixed-point remap tables of an image calibration, and which pixels have a source [H, W]."""
    size, R = (c.width, c.height), _rotation(c)
    D = _column(c.D) if c.D.size else np.zeros((4, 1))
    if c.distortion_model == "equidistant" and is_distorted(c):
        x, y = cv2.fisheye.initUndistortRectifyMap(c.K, D, R, P, size, cv2.CV_32FC1)
    else:
        x, y = cv2.initUndistortRectifyMap(c.K, D, R, P, size, cv2.CV_32FC1)
    u, v = np.meshgrid(np.arange(c.width), np.arange(c.height))
    rays = np.stack([u, v, np.ones_like(u)], -1) @ np.linalg.inv(P).T @ R
    ahead = rays[..., 2] > 1e-6
    radius = np.hypot(rays[..., 0], rays[..., 1]) / np.where(ahead, rays[..., 2], 1.0)
    within = (x >= -0.5) & (x <= c.width - 0.5) & (y >= -0.5) & (y <= c.height - 0.5)
    valid = within & ahead & (radius <= (_ray_limit(c) if is_distorted(c) else np.inf))
    x, y = np.where(valid, x, 0.0), np.where(valid, y, 0.0)
    x, y = cv2.convertMaps(x.astype(np.float32), y.astype(np.float32), cv2.CV_16SC2)
    return (x, y), valid


@dataclass(frozen=True, eq=False)
class _Recipe:
    """All that one calibration and size need per image."""

    K: Array
    maps: Maps | None = None
    hole: Mask | None = None  # [H, W] pixels without a source, None: there are none
    valid: Mask | None = None


def _recipe(c: Calibration, size: Size, rectified: bool) -> _Recipe:
    check_calibration(c, size)
    c = replace(image_calibration(c), width=size[0], height=size[1])
    P = c.K if c.P is None else c.P[:, :3]
    if rectified:
        return _Recipe(corner_K(P))
    if not is_distorted(c) and np.array_equal(_rotation(c), np.eye(3)):
        return _Recipe(corner_K(c.K))
    maps, valid = _maps(c, np.ascontiguousarray(P))
    if valid.all():
        return _Recipe(corner_K(P), maps)
    return _Recipe(corner_K(P), maps, ~valid, valid)


class Rectifier:
    """Rectifies the images of a camera as image_proc would, keeping the maps between images.

    Maps are kept by the calibration's value, not its identity, for the last ``kept`` calibrations;
    a recalibrated camera or a new resolution gets new ones by itself. Any thread may call it.
    """

    def __init__(self, kept: int = 2) -> None:
        self._kept = kept
        self._recipes: OrderedDict[tuple[object, ...], _Recipe] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, image: Image, calibration: Calibration, rectified: bool) -> Rectified:
        """Rectify ``image`` uint8 [H, W, 3] (or [H, W]).

        ``rectified`` says that it already is: then P holds (K where P is missing) and D is
        ignored. Without distortion and rotation nothing is remapped and K holds. Raises
        CalibrationError.
        """
        size = (image.shape[1], image.shape[0])
        with self._lock:
            recipe = self._find(calibration, size, rectified)
        if recipe.maps is not None:
            remapped = cv2.remap(
                image, *recipe.maps, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
            )
            image = np.asarray(remapped, np.uint8)
            if recipe.hole is not None:
                image[recipe.hole] = 0
        return Rectified(image, recipe.K.copy(), recipe.valid)

    def _find(self, c: Calibration, size: Size, rectified: bool) -> _Recipe:
        key = (*_key(c), size, rectified)
        recipe = self._recipes.get(key)
        if recipe is None:
            recipe = self._recipes[key] = _recipe(c, size, rectified)
            while len(self._recipes) > self._kept:
                self._recipes.popitem(last=False)
        self._recipes.move_to_end(key)
        return recipe


def _key(c: Calibration) -> tuple[object, ...]:
    arrays = (np.asarray(a, np.float64).tobytes() for a in (c.K, c.D, c.R))
    P = b"" if c.P is None else np.asarray(c.P, np.float64).tobytes()
    cut = (c.binning_x, c.binning_y, c.roi_x, c.roi_y, c.roi_width, c.roi_height)
    return (c.width, c.height, c.distortion_model, *arrays, P, *cut)
