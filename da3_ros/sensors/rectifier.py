"""Rectifies a camera image with its calibration: a pinhole image with a corner-rule K.

Converts from the ROS pixel rule (pixel ``i`` centred on ``i``) to the corner rule used inside
(pixel ``i`` covers ``[i, i + 1)``), and applies binning and regions of interest. No ROS, no
network.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.geometry.projection import Size, corner_K
from da3_ros.sensors.calibration import (
    calibration_key,
    image_calibration,
    rectification_rotation,
)
from da3_ros.sensors.calibration_check import check_calibration, doubt_of
from da3_ros.sensors.camera_models import camera_model_of, is_distorted
from da3_ros.types import Array, Calibration, Image

log = logging.getLogger(__name__)

Mask = NDArray[np.bool_]
Maps = tuple[NDArray[Any], NDArray[Any]]  # CV_16SC2 and its CV_16UC1 fractions


@dataclass(frozen=True, eq=False)
class Rectified:
    """A pinhole image. ``image`` is the input array itself if nothing was remapped."""

    image: Image  # [H, W, 3], black where ``valid`` is False
    K: Array  # [3, 3] corner rule
    valid: Mask | None = None  # [H, W], False without a source; None: every pixel has one


def _maps(c: Calibration, P: Array) -> tuple[Maps, Mask]:
    """Returns fixed-point remap tables of an image calibration, and the mask [H, W] of pixels
    with a source."""
    R, model = rectification_rotation(c), camera_model_of(c)
    x, y = model.sources(c.K, c.D, R, P, (c.width, c.height))
    u, v = np.meshgrid(np.arange(c.width), np.arange(c.height))
    rays = np.stack([u, v, np.ones_like(u)], -1) @ np.linalg.inv(P).T @ R
    ahead = rays[..., 2] > 1e-6
    radius = np.hypot(rays[..., 0], rays[..., 1]) / np.where(ahead, rays[..., 2], 1.0)
    within = (x >= -0.5) & (x <= c.width - 0.5) & (y >= -0.5) & (y <= c.height - 0.5)
    valid = within & ahead & (radius <= model.ray_limit(c.D))
    x, y = np.where(valid, x, 0.0), np.where(valid, y, 0.0)
    x, y = cv2.convertMaps(x.astype(np.float32), y.astype(np.float32), cv2.CV_16SC2)
    return (x, y), valid


@dataclass(frozen=True, eq=False)
class _Recipe:
    """Rectification of images of one calibration and size."""

    K: Array
    maps: Maps | None = None
    hole: Mask | None = None  # [H, W] pixels without a source; None: there are none
    valid: Mask | None = None


def _recipe(c: Calibration, size: Size, rectified: bool) -> _Recipe:
    check_calibration(c, size)
    if doubt := doubt_of(c):
        log.warning("%s", doubt)
    c = replace(image_calibration(c), width=size[0], height=size[1])
    P = c.K if c.P is None else c.P[:, :3]
    if rectified:
        return _Recipe(corner_K(P))
    if not is_distorted(c) and np.array_equal(rectification_rotation(c), np.eye(3)):
        return _Recipe(corner_K(c.K))
    maps, valid = _maps(c, np.ascontiguousarray(P))
    if valid.all():
        return _Recipe(corner_K(P), maps)
    return _Recipe(corner_K(P), maps, ~valid, valid)


class Rectifier:
    """Rectifies images as image_proc does, and caches the remap tables.

    Tables are cached by the value of the calibration, for the last ``kept`` ones, so that a
    recalibrated camera or a new resolution gets new tables. Any thread may call it.
    """

    def __init__(self, kept: int = 2) -> None:
        self._kept = kept
        self._recipes: OrderedDict[tuple[object, ...], _Recipe] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, image: Image, calibration: Calibration, rectified: bool) -> Rectified:
        """Rectifies ``image`` uint8 [H, W, 3] (or [H, W]).

        rectified: the image already is: then P is used (K without P) and D is ignored. Without
        distortion and rotation nothing is remapped, and K is used. Raises CalibrationError.
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
        key = (*calibration_key(c), size, rectified)
        recipe = self._recipes.get(key)
        if recipe is None:
            recipe = self._recipes[key] = _recipe(c, size, rectified)
            while len(self._recipes) > self._kept:
                self._recipes.popitem(last=False)
        self._recipes.move_to_end(key)
        return recipe
