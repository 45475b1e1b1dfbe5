"""Prepares frames for the network: when they are needed, or earlier in another thread.

The result is the same in either case.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.config import PipelineConfig
from da3_ros.inference.preprocess import resize_for_network
from da3_ros.sensors.calibration import calibration_key
from da3_ros.sensors.ego_mask import EgoMask
from da3_ros.sensors.rectifier import Rectifier
from da3_ros.types import Frame, PreparedImage

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class _ValidPixels:
    """The pixels that show the surroundings, the same in all frames of a camera; read-only."""

    full: Mask  # [H, W] at the camera's size
    small: Mask  # [h, w] at the network's size


class FramePreparation:
    """Rectifies, masks and resizes frames. Any thread may call it."""

    def __init__(self, config: PipelineConfig) -> None:
        """Raises ConfigError if the files of the parameter ``mask`` cannot be used."""
        self._kept = len(config.cameras) + 2
        self._rectifier = Rectifier(self._kept)
        self._ego_mask = EgoMask(config.mask, config.cameras) if config.mask else None
        self._valid: OrderedDict[tuple[object, ...], _ValidPixels] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, frame: Frame, process_res: int) -> PreparedImage:
        """Returns the prepared images, K and masks.

        Raises CalibrationError or ValueError, one line, for an unusable frame.
        """
        full, K, hole_free = frame.image, None, None
        if frame.calibration is not None:
            done = self._rectifier(full, frame.calibration, frame.rectified)
            full, K, hole_free = done.image, done.K, done.valid
        image, K = resize_for_network(full, K, process_res)
        if hole_free is None and self._ego_mask is None:
            return PreparedImage(process_res, image, full, K, None)
        valid = self._valid_pixels(frame, hole_free, image.shape[:2])
        return PreparedImage(process_res, image, full, K, valid.small, valid.full)

    def _valid_pixels(
        self, frame: Frame, hole_free: Mask | None, shape: tuple[int, ...]
    ) -> _ValidPixels:
        """Returns the masks at the camera's size and at ``shape`` (h, w).

        They are cached by the same values as the tables of the rectifier.
        """
        calibration = None if frame.calibration is None else calibration_key(frame.calibration)
        key = (frame.camera, frame.image.shape, calibration, frame.rectified, shape)
        with self._lock:
            found = self._valid.get(key)
            if found is None:
                full = self._at_camera_size(frame, hole_free)
                found = self._valid[key] = _ValidPixels(full, _shrink_mask(full, shape))
                while len(self._valid) > self._kept:
                    self._valid.popitem(last=False)
            self._valid.move_to_end(key)
        return found

    def _at_camera_size(self, frame: Frame, hole_free: Mask | None) -> Mask:
        """Returns the mask [H, W] of pixels of the rectified image that have a source and of
        which no source shows the robot."""
        if self._ego_mask is None:
            assert hole_free is not None
            return hole_free
        seen = self._ego_mask.at(frame.camera, (frame.image.shape[1], frame.image.shape[0]))
        if frame.calibration is not None:
            seen = self._rectifier(seen, frame.calibration, frame.rectified).image
        valid = seen == 255  # less is interpolated from a pixel of the robot
        return valid if hole_free is None else valid & hole_free


def _shrink_mask(valid: Mask, shape: tuple[int, ...]) -> Mask:
    """Returns the mask at the network's size; a pixel is valid if all its source pixels are."""
    area = cv2.resize(valid.astype(np.float32), (shape[1], shape[0]), interpolation=cv2.INTER_AREA)
    return np.asarray(area > 0.999)
