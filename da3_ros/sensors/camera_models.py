"""Camera models: the distortion of lenses, by the ``distortion_model`` of camera_info."""

from __future__ import annotations

from abc import ABC, abstractmethod

import cv2
import numpy as np

from da3_ros.geometry.projection import Size
from da3_ros.sensors.calibration import CalibrationError
from da3_ros.types import Array, Calibration


class CameraModel(ABC):
    """Distortion of a lens. Pixels are under the ROS rule; rays are (x/z, y/z) in the raw camera
    frame. ``coefficients`` and ``distort`` are enough: the rest follows from them.
    """

    coefficients: tuple[int, ...] = ()  # lengths that D may have; none: it distorts without D

    @abstractmethod
    def distort(self, K: Array, D: Array, rays: Array) -> Array:
        """Projects rays [N, 2] to pixels [N, 2], with K [3, 3] and D [n]."""

    def approximate_rays(self, K: Array, D: Array, pixels: Array) -> Array:
        """Returns rays [N, 2] near those of pixels [N, 2], where the search for them begins."""
        return (pixels - [K[0, 2], K[1, 2]]) / [K[0, 0], K[1, 1]]

    def sources(self, K: Array, D: Array, R: Array, P: Array, size: Size) -> tuple[Array, Array]:
        """Returns the raw pixel (x and y, each [H, W]) of each pixel of the rectified image.

        R, P [3, 3] as in camera_info; size (width, height) of both images. What is behind the
        camera may have any pixel.
        """
        u, v = np.meshgrid(np.arange(size[0]), np.arange(size[1]))
        rays = np.stack([u, v, np.ones_like(u)], -1) @ np.linalg.inv(P).T @ R
        rays = rays[..., :2] / np.maximum(rays[..., 2:], 1e-6)
        pixels = self.distort(K, D, rays.reshape(-1, 2)).reshape(rays.shape)
        return pixels[..., 0], pixels[..., 1]

    def distorted_radius(self, D: Array, radius: Array) -> Array:
        """Returns the distorted length [N] of rays of length ``radius`` [N], as far as it is the
        same in all directions."""
        rays = np.stack([radius, np.zeros_like(radius)], -1)
        return self.distort(np.eye(3), D, rays)[:, 0]

    def ray_limit(self, D: Array) -> float:
        """Returns the largest |(x/z, y/z)| up to which the distorted radius increases.

        Far outside the field of view that the coefficients were fitted to, it decreases again:
        pixels there would show a second, mirrored copy of the scene.
        """
        radius = np.linspace(0.0, 10.0, 4001)[1:]
        bent = self.distorted_radius(D, radius)
        folds = np.flatnonzero(np.diff(bent, prepend=0.0) <= 0.0)
        if not folds.size:
            return float("inf")
        return float(radius[folds[0] - 1]) if folds[0] else 0.0


class Pinhole(CameraModel):
    """No distortion."""

    def distort(self, K: Array, D: Array, rays: Array) -> Array:
        return np.asarray(rays * [K[0, 0], K[1, 1]] + [K[0, 2], K[1, 2]])

    def sources(self, K: Array, D: Array, R: Array, P: Array, size: Size) -> tuple[Array, Array]:
        x, y = cv2.initUndistortRectifyMap(K, np.zeros((4, 1)), R, P, size, cv2.CV_32FC1)
        return np.asarray(x), np.asarray(y)

    def ray_limit(self, D: Array) -> float:
        return float("inf")


class Polynomial(CameraModel):
    """OpenCV's radial and tangential polynomial, with thin prisms and tilt from 12 and 14
    coefficients on."""

    def __init__(self, *coefficients: int) -> None:
        self.coefficients = coefficients

    def distort(self, K: Array, D: Array, rays: Array) -> Array:
        points = np.concatenate([rays, np.ones_like(rays[:, :1])], -1)[:, None]
        pixels = cv2.projectPoints(points, np.zeros(3), np.zeros(3), K, _column(D))[0]
        return np.asarray(pixels, np.float64)[:, 0]

    def approximate_rays(self, K: Array, D: Array, pixels: Array) -> Array:
        return np.array(cv2.undistortPoints(pixels[:, None], K, _column(D)), np.float64)[:, 0]

    def sources(self, K: Array, D: Array, R: Array, P: Array, size: Size) -> tuple[Array, Array]:
        x, y = cv2.initUndistortRectifyMap(K, _column(D), R, P, size, cv2.CV_32FC1)
        return np.asarray(x), np.asarray(y)

    def distorted_radius(self, D: Array, radius: Array) -> Array:
        """As ``CameraModel.distorted_radius``, of the radial terms; -1 beyond a pole."""
        k, r = np.zeros(14), radius
        k[: D.size] = D.ravel()
        top = 1 + k[0] * r**2 + k[1] * r**4 + k[4] * r**6
        bottom = 1 + k[5] * r**2 + k[6] * r**4 + k[7] * r**6
        pole = np.minimum.accumulate(bottom) <= 0.0
        return np.where(pole, -1.0, r * top / np.where(pole, 1.0, bottom))


class Equidistant(CameraModel):
    """OpenCV's fisheye: a polynomial of the angle from the optical axis."""

    coefficients = (4,)

    def distort(self, K: Array, D: Array, rays: Array) -> Array:
        pixels = cv2.fisheye.distortPoints(rays[:, None], K, _column(D))
        return np.asarray(pixels, np.float64)[:, 0]

    def approximate_rays(self, K: Array, D: Array, pixels: Array) -> Array:
        pinhole = super().approximate_rays(K, D, pixels)
        angle = np.hypot(*pinhole.T).clip(1e-9, 1.4)  # without D the radius equals the angle
        return np.asarray(pinhole * (np.tan(angle) / angle)[:, None])

    def sources(self, K: Array, D: Array, R: Array, P: Array, size: Size) -> tuple[Array, Array]:
        x, y = cv2.fisheye.initUndistortRectifyMap(K, _column(D), R, P, size, cv2.CV_32FC1)
        return np.asarray(x), np.asarray(y)


def _column(D: Array) -> Array:
    """Returns D as a column [n, 1] for OpenCV."""
    return np.ascontiguousarray(D, np.float64).reshape(-1, 1)


NO_DISTORTION = ("", "none")  # names that drivers write with an empty or zero D
PINHOLE = Pinhole()
CAMERA_MODELS: dict[str, CameraModel] = {
    "plumb_bob": Polynomial(4, 5),
    "rational_polynomial": Polynomial(8, 12, 14),
    "equidistant": Equidistant(),
}


def is_distorted(c: Calibration) -> bool:
    """True if D is not all zero, or if its model has no D.

    As in image_proc, all zero means no distortion in every model that has coefficients.
    """
    model = CAMERA_MODELS.get(c.distortion_model)
    return bool(np.any(c.D)) or (model is not None and not model.coefficients)


def camera_model_of(c: Calibration) -> CameraModel:
    """Returns the model by which ``c`` distorts. Raises CalibrationError for an unknown one."""
    return named_model(c.distortion_model) if is_distorted(c) else PINHOLE


def named_model(name: str) -> CameraModel:
    """Returns the model of this ``distortion_model``. Raises CalibrationError."""
    if name not in CAMERA_MODELS:
        raise CalibrationError(
            f"camera_info: unknown distortion_model '{name}'; known are "
            f"{', '.join(CAMERA_MODELS)}: rectify elsewhere and set input_rectified to true"
        )
    return CAMERA_MODELS[name]
