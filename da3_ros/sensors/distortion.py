"""Lens distortion: the models of camera_info and their inverse."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.sensors.calibration import image_calibration
from da3_ros.types import Array, Calibration


def is_distorted(c: Calibration) -> bool:
    """True if D is not all zero; as in image_proc, all zero means no distortion in every model."""
    return bool(np.any(c.D))


def distort(c: Calibration, rays: Array) -> Array:
    """Projects rays [..., 2] (x/z, y/z in the raw camera frame) to pixels [..., 2] (ROS rule).

    Binning and roi are not applied: pass ``image_calibration(c)`` for pixels of the image.
    """
    flat = np.ascontiguousarray(rays, np.float64).reshape(-1, 1, 2)
    if not is_distorted(c):
        pixels = flat * [c.K[0, 0], c.K[1, 1]] + [c.K[0, 2], c.K[1, 2]]
    elif c.distortion_model == "equidistant":
        pixels = cv2.fisheye.distortPoints(flat, c.K, column(c.D))
    else:
        points = np.concatenate([flat, np.ones_like(flat[..., :1])], -1)
        pixels = cv2.projectPoints(points, np.zeros(3), np.zeros(3), c.K, column(c.D))[0]
    return np.asarray(pixels, np.float64).reshape(rays.shape)


def pixel_rays(c: Calibration) -> Array:
    """Returns the ray of each raw pixel: float64 [H, W, 2], x/z and y/z in the camera frame.

    Binning and roi are applied. Exact to 1e-9 where the model is invertible; NaN elsewhere.
    """
    c = image_calibration(c)
    u, v = np.meshgrid(np.arange(c.width, dtype=np.float64), np.arange(c.height, dtype=np.float64))
    return undistort(c, np.stack([u, v], -1).reshape(-1, 2)).reshape(c.height, c.width, 2)


def undistort(c: Calibration, pixels: Array) -> Array:
    """Returns the rays [N, 2] (x/z, y/z in the raw camera frame) of raw pixels [N, 2] (ROS rule).

    Binning and roi are not applied. Exact to 1e-9 where the model is invertible; NaN elsewhere.
    """
    pinhole = (pixels - [c.K[0, 2], c.K[1, 2]]) / [c.K[0, 0], c.K[1, 1]]
    return _undistort(c, pinhole, pixels) if is_distorted(c) else pinhole


def _undistort(c: Calibration, pinhole: Array, target: Array) -> Array:
    """Returns rays [N, 2] that ``distort`` maps to pixels ``target`` [N, 2]; NaN without a ray."""
    if c.distortion_model == "equidistant":
        angle = np.hypot(*pinhole.T).clip(1e-9, 1.4)  # without D the radius equals the angle
        rays = pinhole * (np.tan(angle) / angle)[:, None]
    else:
        approximate = cv2.undistortPoints(target[:, None], c.K, column(c.D))
        rays = np.array(approximate, np.float64).reshape(-1, 2)
    open_ = np.arange(len(rays))
    for _ in range(30):  # Newton on the forward model: OpenCV's inverse is only approximate
        error = distort(c, rays[open_]) - target[open_]
        open_, error = _not_small(open_, error)
        if not open_.size:
            break
        rays[open_] -= _newton_step(c, rays[open_], error)
    rays[open_] = np.nan
    rays[np.hypot(*rays.T) > ray_limit(c)] = np.nan
    return rays


def _not_small(index: NDArray[np.intp], error: Array) -> tuple[NDArray[np.intp], Array]:
    keep = ~(np.abs(error).max(-1) < 1e-9)
    return index[keep], error[keep]


def _newton_step(c: Calibration, rays: Array, error: Array) -> Array:
    """Returns the Newton step [N, 2] for distort(rays) = target, with a numerical Jacobian."""
    e = 1e-6
    ex, ey = np.array([e, 0.0]), np.array([0.0, e])
    du = (distort(c, rays + ex) - distort(c, rays - ex)) / (2 * e)
    dv = (distort(c, rays + ey) - distort(c, rays - ey)) / (2 * e)
    det = du[:, 0] * dv[:, 1] - du[:, 1] * dv[:, 0]
    det = np.where(np.abs(det) < 1e-9, np.inf, det)
    x = (error[:, 0] * dv[:, 1] - error[:, 1] * dv[:, 0]) / det
    y = (error[:, 1] * du[:, 0] - error[:, 0] * du[:, 1]) / det
    return np.clip(np.stack([x, y], -1), -0.5, 0.5)


def column(D: Array) -> Array:
    """Returns D as a column [n, 1] for OpenCV."""
    return np.ascontiguousarray(D, np.float64).reshape(-1, 1)


def ray_limit(c: Calibration) -> float:
    """Returns the largest |(x/z, y/z)| up to which the radial model increases.

    Far outside the field of view that the polynomial was fitted to, it decreases again: pixels
    there would show a second, mirrored copy of the scene.
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
