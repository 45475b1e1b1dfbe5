"""Image resizing and normalisation as in training (architecture notes, section 12).

Images are resized twice, first by one side and then to multiples of 14, because the reference does
so and a single resize gives other pixels. The side is the longest (UPPER_BOUND) or the shortest
(LOWER_BOUND). The reference's methods that crop are left out: they lose a border.
"""

from __future__ import annotations

import cv2
import numpy as np
import torch
from torch import Tensor

from da3_ros.geometry.projection import resize_K
from da3_ros.network.specs import MEAN, PATCH, STD
from da3_ros.types import LOWER_BOUND, UPPER_BOUND, Array, Image

MAX_ASPECT = 20.0


def fit_size(
    width: int, height: int, process_res: int, method: str = UPPER_BOUND
) -> list[tuple[int, int]]:
    """The sizes (width, height) after each of the two resizes; the last one is the final size.

    method: UPPER_BOUND or LOWER_BOUND, by which ``process_res`` is the longest or the shortest
    side. Raises ValueError if the aspect ratio exceeds MAX_ASPECT.
    """
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise ValueError(f"image of {width}x{height} is too thin for patches of {PATCH} pixels")
    scale = process_res / (min if method == LOWER_BOUND else max)(width, height)
    bounded = (max(1, round(width * scale)), max(1, round(height * scale)))
    final = tuple(max(PATCH, (side + PATCH // 2) // PATCH * PATCH) for side in bounded)
    return [bounded, (final[0], final[1])]


def resize_for_network(
    image: Image, K: Array | None, process_res: int, method: str = UPPER_BOUND
) -> tuple[Image, Array | None]:
    """Resize RGB [H, W, 3] to [h, w, 3], multiples of 14, as ``fit_size`` says.

    ``K`` (pixel i covers [i, i+1)) is scaled by the exact ratio of each side.
    """
    source = (image.shape[1], image.shape[0])
    for size in fit_size(*source, process_res, method):
        image = _resize(image, size)
    final = (image.shape[1], image.shape[0])
    return image, None if K is None else resize_K(K, source, final)


def scaled_size(size: tuple[int, ...], scale: float) -> tuple[int, int]:
    """``size`` (height, width) of a prepared image times ``scale``, as multiples of 14."""
    if scale == 1:
        return size[0], size[1]
    width, height = fit_size(size[1], size[0], round(max(size) * scale))[-1]
    return height, width


def resize_to(image: Image, size: tuple[int, int]) -> Image:
    """Resize a prepared image to ``size`` (height, width)."""
    return _resize(image, (size[1], size[0]))


def normalize(images: Tensor) -> Tensor:
    """Convert uint8 RGB [..., H, W, 3] to float32 [..., 3, H, W], ImageNet-normalised."""
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
