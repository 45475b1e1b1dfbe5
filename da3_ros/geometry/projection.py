"""Projection and intrinsics of pinhole cameras, in the conventions of ``types``."""

from __future__ import annotations

import numpy as np

from da3_ros.types import Array, FloatImage


def backproject(depth: FloatImage, K: Array) -> FloatImage:
    """Convert z-depth [h, w] to points [h, w, 3] in the camera's optical axes; NaN stays NaN.

    Corner rule: the ray of the pixel in row i, column j passes through (j + 0.5, i + 0.5).
    """
    height, width = depth.shape
    inverse = np.linalg.inv(K)
    u, v = np.arange(width) + 0.5, np.arange(height) + 0.5
    x = inverse[0, 0] * u[None] + inverse[0, 1] * v[:, None] + inverse[0, 2]
    y = np.broadcast_to((inverse[1, 1] * v + inverse[1, 2])[:, None], depth.shape)
    with np.errstate(invalid="ignore"):
        return np.stack((x * depth, y * depth, depth), axis=-1).astype(np.float32)


def project(points: Array, K: Array) -> Array:
    """Project camera points [..., 3] to pixels [..., 2] (column, row; corner rule).

    Points behind the camera give NaN.
    """
    z = np.where(points[..., 2] > 0, points[..., 2], np.nan)
    return (points / z[..., None] @ K.T)[..., :2]


Size = tuple[int, int]  # width, height


_HALF_PIXEL = np.array([[0.0, 0.0, 0.5], [0.0, 0.0, 0.5], [0.0, 0.0, 0.0]])


def corner_K(K_ros: Array) -> Array:
    """Convert K [3, 3] from the ROS rule (pixel centres at integers) to the corner rule."""
    return np.asarray(K_ros, np.float64) + _HALF_PIXEL


def ros_K(K_corner: Array) -> Array:
    """Convert K [3, 3] from the corner rule to the ROS rule; the inverse of ``corner_K``."""
    return np.asarray(K_corner, np.float64) - _HALF_PIXEL


def resize_K(K_corner: Array, from_size: Size, to_size: Size) -> Array:
    """K [3, 3] (corner rule) after an image was resized; sizes are (width, height).

    Under the corner rule the first row scales by the ratio of widths, the second one by the
    ratio of heights.
    """
    ratio = np.array([to_size[0] / from_size[0], to_size[1] / from_size[1], 1.0])
    return np.asarray(K_corner, np.float64) * ratio[:, None]
