"""Frames made ready for the network: when they are needed, or beforehand in another thread.

What is done beforehand is exactly what would be done later: who does it never changes a result.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.inference.preprocess import resize_for_network
from da3_ros.sensors.rectifier import Rectifier
from da3_ros.types import Frame, Ready


class FramePreparation:
    """Rectifies and resizes. Any thread may call it."""

    def __init__(self, cameras: int = 1) -> None:
        self._rectifier = Rectifier(kept=cameras + 2)

    def __call__(self, frame: Frame, process_res: int) -> Ready:
        """Raises CalibrationError or ValueError, one line, for a frame that cannot be used."""
        full, K, valid = frame.image, None, None
        if frame.calibration is not None:
            done = self._rectifier(full, frame.calibration, frame.rectified)
            full, K, valid = done.image, done.K, done.valid
        image, K = resize_for_network(full, K, process_res)
        small = None if valid is None else _shrink_mask(valid, image.shape[:2])
        return Ready(process_res, image, full, K, small)


def _shrink_mask(valid: NDArray[np.bool_], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Mask at the network's size; a pixel is valid only where all that it averages is."""
    area = cv2.resize(valid.astype(np.float32), (shape[1], shape[0]), interpolation=cv2.INTER_AREA)
    return np.asarray(area > 0.999)
