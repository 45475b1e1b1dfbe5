"""Prepares frames for the network: when they are needed, or earlier in another thread.

The result is the same in either case.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.inference.preprocess import resize_for_network
from da3_ros.sensors.rectifier import Rectifier
from da3_ros.types import Frame, Ready


class FramePreparation:
    """Rectifies and resizes frames. Any thread may call it."""

    def __init__(self, cameras: int = 1) -> None:
        self._rectifier = Rectifier(kept=cameras + 2)

    def __call__(self, frame: Frame, process_res: int) -> Ready:
        """Returns the prepared images, K and mask.

        Raises CalibrationError or ValueError, one line, for an unusable frame.
        """
        full, K, valid = frame.image, None, None
        if frame.calibration is not None:
            done = self._rectifier(full, frame.calibration, frame.rectified)
            full, K, valid = done.image, done.K, done.valid
        image, K = resize_for_network(full, K, process_res)
        small = None if valid is None else _shrink_mask(valid, image.shape[:2])
        return Ready(process_res, image, full, K, small)


def _shrink_mask(valid: NDArray[np.bool_], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Returns the mask at the network's size; a pixel is valid if all its source pixels are."""
    area = cv2.resize(valid.astype(np.float32), (shape[1], shape[0]), interpolation=cv2.INTER_AREA)
    return np.asarray(area > 0.999)
