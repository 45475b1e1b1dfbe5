"""Distorts rays to pixels and back, by the camera model of a calibration."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from da3_ros.sensors.calibration import image_calibration
from da3_ros.sensors.camera_models import camera_model_of
from da3_ros.types import Array, Calibration


def distort(c: Calibration, rays: Array) -> Array:
    """Projects rays [..., 2] (x/z, y/z in the raw camera frame) to pixels [..., 2] (ROS rule).

    Binning and roi are not applied: pass ``image_calibration(c)`` for pixels of the image. Raises
    CalibrationError for an unknown camera model.
    """
    flat = np.ascontiguousarray(rays, np.float64).reshape(-1, 2)
    return camera_model_of(c).distort(c.K, c.D, flat).reshape(rays.shape)


def pixel_rays(c: Calibration) -> Array:
    """Returns the ray of each raw pixel: float64 [H, W, 2], x/z and y/z in the camera frame.

    Binning and roi are applied. Exact to 1e-9 where the model is invertible; NaN elsewhere.
    Raises CalibrationError for an unknown camera model.
    """
    c = image_calibration(c)
    u, v = np.meshgrid(np.arange(c.width, dtype=np.float64), np.arange(c.height, dtype=np.float64))
    return undistort(c, np.stack([u, v], -1).reshape(-1, 2)).reshape(c.height, c.width, 2)


def undistort(c: Calibration, pixels: Array) -> Array:
    """Returns the rays [N, 2] (x/z, y/z in the raw camera frame) of raw pixels [N, 2] (ROS rule).

    Binning and roi are not applied. Exact to 1e-9 where the model is invertible; NaN elsewhere.
    Raises CalibrationError for an unknown camera model.
    """
    model = camera_model_of(c)
    rays = model.approximate_rays(c.K, c.D, pixels)
    open_ = np.arange(len(rays))
    for _ in range(30):  # Newton on the forward model: the start is only near
        error = distort(c, rays[open_]) - pixels[open_]
        open_, error = _not_small(open_, error)
        if not open_.size:
            break
        rays[open_] -= _newton_step(c, rays[open_], error)
    rays[open_] = np.nan
    rays[np.hypot(*rays.T) > model.ray_limit(c.D)] = np.nan
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
