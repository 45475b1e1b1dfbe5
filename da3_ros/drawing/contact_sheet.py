"""A contact sheet of a run: image, coloured depth and coloured confidence of a few frames."""

from __future__ import annotations

import cv2
import numpy as np

from da3_ros.config import DepthConfig
from da3_ros.drawing.colormaps import colorize_confidence, colorize_depth, depth_range
from da3_ros.drawing.uniform_sampler import UniformSampler
from da3_ros.types import FloatImage, Image

ROWS = 6
CELL_WIDTH = 320
MARGIN = 4


class ContactSheet:
    """Keeps evenly spaced frames of a stream of unknown length."""

    def __init__(self, config: DepthConfig, metric: bool) -> None:
        self.config = config
        self.metric = metric
        self._rows: UniformSampler[Image] = UniformSampler(ROWS)

    def add(self, image: Image, depth: FloatImage, confidence: FloatImage) -> None:
        """Add the stream's next frame: RGB [h, w, 3], depth and confidence [h, w]."""
        self._rows.add(lambda: self._row(image, depth, confidence))

    def picture(self) -> Image:
        """The sheet, RGB [H, W, 3], one row per frame; black if no frame was added."""
        rows = self._rows.chosen()
        if not rows:
            return np.zeros((MARGIN, CELL_WIDTH, 3), np.uint8)
        height = max(row.shape[0] for row in rows)
        width = max(row.shape[1] for row in rows)
        return np.concatenate([_pad(row, height, width) for row in rows])

    def _row(self, image: Image, depth: FloatImage, confidence: FloatImage) -> Image:
        cells = (
            image,
            colorize_depth(depth, self._range(depth), self.config.color_map),
            colorize_confidence(confidence, self.config.color_map),
        )
        return np.concatenate([_cell(c) for c in cells], axis=1)

    def _range(self, depth: FloatImage) -> tuple[float, float]:
        """The configured range; without metric scale the frame's own range."""
        seen = None if self.metric else depth_range(depth)
        return self.config.color_range_m if seen is None else seen


def _cell(image: Image) -> Image:
    height = round(image.shape[0] * CELL_WIDTH / image.shape[1])
    small = cv2.resize(image, (CELL_WIDTH, height), interpolation=cv2.INTER_AREA)
    return _pad(np.asarray(small, np.uint8), height + MARGIN, CELL_WIDTH + MARGIN)


def _pad(image: Image, height: int, width: int) -> Image:
    out = np.zeros((height, width, 3), np.uint8)
    out[: image.shape[0], : image.shape[1]] = image
    return out
