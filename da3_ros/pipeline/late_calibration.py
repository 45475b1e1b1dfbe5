"""Rectifies a view again whose calibration came late, so that later windows can share it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from da3_ros.mapping.overlap_view import OverlapView
from da3_ros.sensors.calibration import rectification_rotation, resized_calibration
from da3_ros.sensors.distortion import undistort
from da3_ros.sensors.rectifier import Rectifier
from da3_ros.types import Array, Calibration


def rectified_again(a: OverlapView, calibration: Calibration, *, rectified: bool) -> OverlapView:
    """Returns a view that had no calibration, with its image rectified.

    Each sample of depth moves to the pixel that shows its point now, so that the view aligns
    windows of rectified images to those of before. rectified: the image already was, only K was
    unknown. Raises CalibrationError.
    """
    view, size = a.view, a.view.image.shape[1::-1]
    c, rectifier = resized_calibration(calibration, (size[0], size[1])), Rectifier()
    done = rectifier(view.image, c, rectified)
    valid = done.valid
    if view.valid is not None:
        seen = rectifier(view.valid.astype(np.uint8) * 255, c, rectified).image == 255
        valid = seen if valid is None else valid & seen
    view = replace(view, image=done.image, K=done.K, valid=valid)
    out = replace(a, view=view, K=done.K, observations=1.0, keyframe=False, refined=False)
    return out if rectified else _with_moved_samples(out, c)


def _with_moved_samples(a: OverlapView, c: Calibration) -> OverlapView:
    """Moves pose and samples from the raw image of ``c`` to the rectified one."""
    height, width = a.view.image.shape[:2]
    row, column = np.divmod(a.pixels, width)
    rays = undistort(c, np.stack((column, row), axis=-1).astype(np.float64))
    R = rectification_rotation(c)
    P = c.K if c.P is None else c.P[:, :3]
    points = a.depth[:, None] * np.column_stack((rays, np.ones(len(rays)))) @ R.T
    inside = np.isfinite(points).all(axis=1) & (points[:, 2] > 0)
    projected = points[inside] @ P.T
    x, y = np.round(projected[:, :2] / projected[:, 2:]).astype(np.int64).T
    index, pixels = _in_image(np.flatnonzero(inside), x, y, (width, height))
    T = a.T_local_camera.copy()
    T[:3, :3] = T[:3, :3] @ R.T
    return replace(
        a, T_local_camera=T, pixels=pixels, depth=points[index, 2], confidence=a.confidence[index]
    )


def _in_image(
    index: NDArray[np.intp], x: Array, y: Array, size: tuple[int, int]
) -> tuple[NDArray[np.intp], Array]:
    """Returns which samples lie in the image, one of each pixel, and their flat pixels."""
    inside = (x >= 0) & (x < size[0]) & (y >= 0) & (y < size[1])
    pixels, first = np.unique((y * size[0] + x)[inside], return_index=True)
    return index[inside][first], pixels
