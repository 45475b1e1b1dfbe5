"""Image size and normalisation as the network was trained with (architecture notes, section 12).

Two resizes, first to the longest side and then to multiples of 14, because that is what the
reference does and a single one gives other pixels.
"""

from __future__ import annotations

import cv2
import numpy as np
import torch
from torch import Tensor

from da3_ros.geometry.projection import resize_K
from da3_ros.network.specs import PATCH
from da3_ros.types import Array, Image

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
MAX_ASPECT = 20.0


def fit_size(width: int, height: int, process_res: int) -> list[tuple[int, int]]:
    """The sizes (width, height) an image passes through on its way to the network; last = final.

    Raises ValueError for images so thin that no patch fits.
    """
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise ValueError(f"image of {width}x{height} is too thin for patches of {PATCH} pixels")
    scale = process_res / max(width, height)
    bounded = (max(1, round(width * scale)), max(1, round(height * scale)))
    final = tuple(max(PATCH, (side + PATCH // 2) // PATCH * PATCH) for side in bounded)
    return [bounded, (final[0], final[1])]


def resize_for_network(
    image: Image, K: Array | None, process_res: int
) -> tuple[Image, Array | None]:
    """RGB [H, W, 3] -> [h, w, 3] with h and w multiples of 14, longest side near ``process_res``.

    ``K`` (corner rule) follows by the exact ratios of each side.
    """
    source = (image.shape[1], image.shape[0])
    for size in fit_size(*source, process_res):
        image = _resize(image, size)
    final = (image.shape[1], image.shape[0])
    return image, None if K is None else resize_K(K, source, final)


def smaller(size: tuple[int, ...], scale: float) -> tuple[int, int]:
    """``size`` (height, width) of a prepared image, both sides about ``scale`` as long."""
    if scale == 1:
        return size[0], size[1]
    width, height = fit_size(size[1], size[0], round(max(size) * scale))[-1]
    return height, width


def to_size(image: Image, size: tuple[int, int]) -> Image:
    """A prepared image at a smaller ``size`` (height, width)."""
    return _resize(image, (size[1], size[0]))


def normalize(images: Tensor) -> Tensor:
    """uint8 RGB [..., H, W, 3] on any device -> float32 [..., 3, H, W], ImageNet statistics."""
    mean = torch.tensor(MEAN).to(images.device)
    std = torch.tensor(STD).to(images.device)
    return ((images.float() / 255 - mean) / std).movedim(-1, -3).contiguous()


def _resize(image: Image, size: tuple[int, int]) -> Image:
    height, width = image.shape[:2]
    if (width, height) == size:
        return image
    grows = size[0] > width or size[1] > height
    method = cv2.INTER_CUBIC if grows else cv2.INTER_AREA
    return np.asarray(cv2.resize(image, size, interpolation=method), dtype=np.uint8)
