"""Brings a stated calibration to the lens that images show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.optimize import least_squares

from da3_ros.geometry.lens import Lens
from da3_ros.sensors.calibration import image_calibration, rectification_rotation
from da3_ros.sensors.camera_models import is_distorted
from da3_ros.sensors.distortion import distort
from da3_ros.types import Array, Calibration

MOST_COEFFICIENTS = 8  # of D that are fitted: those after them are of thin prisms and tilt
LEFT_OVER = 0.15  # largest share of the lens's shifts that a camera model fails to express, RMS


def corrected_calibration(c: Calibration, lens: Lens, *, rectified: bool) -> Calibration | None:
    """Returns the calibration of a camera's raw images, if images that are rectified by ``c`` show
    that they were taken by ``lens``; None: its model cannot express that.

    rectified: the images already were, and nobody rectified them again.
    """
    image = image_calibration(c)
    P = image.K if image.P is None else image.P[:, :3]
    if rectified or not _is_remapped(image):
        K = lens.K(P if rectified else image.K)
        return replace(
            image, K=K, distortion_model="plumb_bob", D=np.array([lens.k1, lens.k2, 0, 0, 0]),
            R=np.eye(3), P=None,
        )  # fmt: skip
    return _fitted(image, P, lens)


def _is_remapped(c: Calibration) -> bool:
    """Whether images are rectified by ``c``; see ``Rectifier``."""
    return is_distorted(c) or not np.array_equal(rectification_rotation(c), np.eye(3))


def _fitted(c: Calibration, P: Array, lens: Lens) -> Calibration | None:
    """Returns K and D of the same model that show directions where ``c`` and the lens do."""
    if not is_distorted(c):
        c = replace(c, distortion_model="plumb_bob", D=np.zeros(5))
    R, new_P = rectification_rotation(c), lens.K(P)
    u, v = np.meshgrid(np.linspace(0, c.width - 1, 24), np.linspace(0, c.height - 1, 18))
    rays = np.stack((u, v, np.ones_like(u)), -1).reshape(-1, 3) @ np.linalg.inv(new_P).T
    seen = np.column_stack((lens.seen(rays[:, :2]), np.ones(len(rays))))
    wanted, after = distort(c, _in_raw(seen, R)), _in_raw(rays, R)
    inside = ((wanted > -0.5) & (wanted < [c.width - 0.5, c.height - 0.5])).all(1)
    wanted, after = wanted[inside], after[inside]
    shift = distort(c, after) - wanted
    count = min(len(c.D), MOST_COEFFICIENTS)

    def calibration(x: Array) -> Calibration:
        K, D = c.K.copy(), np.array(c.D, np.float64)
        K[0, 0], K[1, 1], K[0, 2], K[1, 2] = x[:4] * c.width
        D[:count] = x[4:]
        return replace(c, K=K, D=D)

    def error(x: Array) -> Array:
        return (distort(calibration(x), after) - wanted).ravel()

    K = lens.K(c.K)
    start = np.concatenate((np.array([K[0, 0], K[1, 1], K[0, 2], K[1, 2]]) / c.width, c.D[:count]))
    found = least_squares(error, start, x_scale="jac", max_nfev=60)
    if not np.linalg.norm(error(found.x)) <= LEFT_OVER * np.linalg.norm(shift):
        return None
    columns = np.zeros((3, 1)) if c.P is None else c.P[:, 3:] * np.exp(lens.focal)
    return replace(calibration(found.x), P=np.hstack((new_P, columns)))


def _in_raw(directions: Array, R: Array) -> Array:
    """Returns rectified directions [N, 3] as rays [N, 2] of the raw camera."""
    raw = directions @ R
    return np.asarray(raw[:, :2] / raw[:, 2:])
