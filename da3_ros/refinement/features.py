"""Features of one image: positions and descriptors."""

from __future__ import annotations

import functools
import math
import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.types import Array, Image

CELLS = 8  # cells along the longer side of an image; each keeps its share of the features
SURPLUS = 1.5  # features that are detected per one that is kept, to choose from in each cell
LAYERS = 2  # per octave; OpenCV uses three, which takes longer and finds nothing better here
CONTRAST = 0.01  # lower than OpenCV's: bare walls have weak features
# From OpenCV's SIFT to the corner rule: half a pixel, less the quarter of a pixel by which the
# doubled image, in which SIFT begins, is off (``enable_precise_upscale`` is not in OpenCV 4.5).
CORNER = 0.5 - 0.25
BORDER = 4  # pixels between a feature and what no feature may lie on
MOST_AHEAD = 256  # images that begin before they are asked for: more than a replay reads ahead


@dataclass(frozen=True, eq=False)
class Features:
    """Features of an image."""

    shape: tuple[int, int]  # (height, width) of the image they were detected in, pixels
    pixel: Array  # [M, 2] column and row in that image, corner rule
    descriptor: NDArray[np.uint8]  # [M, 128] SIFT

    @functools.cached_property
    def unit(self) -> NDArray[np.float32]:
        """RootSIFT descriptors [M, 128]: roots of L1-normalised ones, which have unit length."""
        d = self.descriptor.astype(np.float32)
        return np.asarray(np.sqrt(d / np.maximum(d.sum(1, keepdims=True), 1.0)))

    def release(self) -> None:
        """Forgets ``unit``, which takes four times the memory of the descriptors."""
        self.__dict__.pop("unit", None)

    def __len__(self) -> int:
        return len(self.pixel)


class FeatureDetector:
    """Detects SIFT features, spread over the image. Not thread-safe.

    Time is proportional to the image's pixels: an image of more than ``most_pixels`` is shrunk by
    a whole number.
    """

    def __init__(self, most: int, most_pixels: int) -> None:
        self.most, self.most_pixels = most, most_pixels
        self._sift = cv2.SIFT.create(
            int(SURPLUS * most), nOctaveLayers=LAYERS, contrastThreshold=CONTRAST
        )

    def __call__(self, image: Image, usable: NDArray[np.bool_] | None = None) -> Features:
        """Returns at most ``most`` features of an image [H, W, 3].

        usable: [H, W] pixels that may carry a feature; None: all.
        """
        grey: Any = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
        factor = math.ceil(math.sqrt(grey.size / self.most_pixels))
        if factor > 1:
            grey = _shrunk(grey, factor)
            if usable is not None:
                usable = _shrunk(np.where(usable, np.uint8(255), np.uint8(0)), factor) == 255
        shape = (grey.shape[0], grey.shape[1])
        found, descriptors = self._sift.detectAndCompute(grey, _mask(usable))
        if not found:
            return Features(shape, np.zeros((0, 2)), np.zeros((0, 128), np.uint8))
        pixel = np.array([k.pt for k in found]) + CORNER
        strength = np.array([k.response for k in found])
        kept = spread(pixel, strength, grey.shape, self.most)
        return Features(shape, pixel[kept], descriptors[kept].astype(np.uint8))


class FeaturesAhead:
    """Detects features of images that will be needed soon, on a thread of its own. Thread-safe.

    OpenCV lets other Python threads run meanwhile. The result is that of ``FeatureDetector``, as
    is an error. Images that nobody else holds are dropped, and the oldest of too many.
    """

    def __init__(self, most: int, most_pixels: int) -> None:
        """most, most_pixels: as those of ``FeatureDetector``."""
        self._detector = FeatureDetector(most, most_pixels)
        self._pool: ThreadPoolExecutor | None = None  # made when it is needed
        self._begun: list[
            tuple[weakref.ref[Image], NDArray[np.bool_] | None, Future[Features]]
        ] = []
        self._lock = threading.Lock()

    def begin(self, image: Image, usable: NDArray[np.bool_] | None) -> None:
        """Starts with an image [H, W, 3], if that has not begun; returns at once."""
        with self._lock:
            self._drop_unheld()
            if self._index(image, usable) is not None:
                return
            if len(self._begun) == MOST_AHEAD:
                self._begun.pop(0)[2].cancel()
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, "da3-features")
            found = self._pool.submit(self._detector, image, usable)
            self._begun.append((weakref.ref(image), usable, found))

    def take(self, image: Image, usable: NDArray[np.bool_] | None) -> Features | None:
        """Returns the features of an image, and waits for them; None: they have not begun.

        The image and the mask are those objects that were given to ``begin``.
        """
        with self._lock:
            index = self._index(image, usable)
            if index is None:
                return None
            future = self._begun.pop(index)[2]
        return None if future.cancel() else future.result()

    def _drop_unheld(self) -> None:
        for image, _, future in self._begun:
            if image() is None:
                future.cancel()
        self._begun = [b for b in self._begun if b[0]() is not None]

    def _index(self, image: Image, usable: NDArray[np.bool_] | None) -> int | None:
        known = enumerate(self._begun)
        return next((i for i, (a, b, _) in known if a() is image and b is usable), None)


def spread(pixel: Array, strength: Array, shape: tuple[int, ...], most: int) -> Array:
    """Returns indices of at most ``most`` features [M], spread over an image of ``shape``.

    Each cell of a grid gives its strongest feature, then its second one, and so on. Duplicates
    (one position in several orientations) are left out.
    """
    edge = max(shape) / CELLS
    cell = (pixel[:, 1] // edge).astype(int) * (CELLS + 1) + (pixel[:, 0] // edge).astype(int)
    order = np.lexsort((pixel[:, 0], pixel[:, 1], -strength))
    _, first = np.unique(pixel[order], axis=0, return_index=True)
    order = order[np.sort(first)]
    by_cell = order[np.argsort(cell[order], kind="stable")]
    counts = np.unique(cell[by_cell], return_counts=True)[1]
    rank = np.arange(len(by_cell)) - np.repeat(np.cumsum(counts) - counts, counts)
    best = np.lexsort((-strength[by_cell], rank))[:most]
    return np.asarray(by_cell[best])


def _shrunk(image: NDArray[Any], factor: int) -> NDArray[Any]:
    size = image.shape[1] // factor, image.shape[0] // factor
    return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA))


def _mask(usable: NDArray[np.bool_] | None) -> NDArray[np.uint8] | None:
    if usable is None or usable.all():
        return None
    kernel = np.ones((2 * BORDER + 1, 2 * BORDER + 1), np.uint8)
    return np.asarray(cv2.erode(usable.astype(np.uint8), kernel, borderValue=1))
