"""The network's own guesses of the focal lengths of cameras without calibration, steadied."""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from dataclasses import replace

import numpy as np

from da3_ros.types import Prediction, Window

KEPT = 25  # newest guesses of a camera


class GuessedFocal:
    """Medians of the newest guesses, so that all views of a graph have nearly one focal length."""

    def __init__(self) -> None:
        # By camera and image size: focal lengths (fx, fy), pixels of the network's image.
        self._guesses: dict[tuple[str, int, int], deque[tuple[float, float]]] = {}

    def steadied(
        self, window: Window, prediction: Prediction, known: Container[str]
    ) -> Prediction:
        """Returns the prediction with steadied focal lengths of views without calibration.

        known: cameras whose focal length is not a guess.
        """
        guessed = [view.K is None and view.camera not in known for view in window.views]
        if not any(guessed):
            return prediction
        K, count = prediction.K.copy(), len(window.views) - window.new
        for k, view in enumerate(window.views):
            if guessed[k]:
                key = view.camera, *view.image.shape[:2]
                kept = self._guesses.setdefault(key, deque(maxlen=KEPT))
                if k >= count:
                    kept.append((float(K[k, 0, 0]), float(K[k, 1, 1])))
                if kept:
                    K[k, 0, 0], K[k, 1, 1] = np.median(kept, axis=0)
        return replace(prediction, K=K)
