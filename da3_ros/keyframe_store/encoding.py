"""Depth and confidence in 16 bits, lossless from there on (PNG).

Depth is stored as inverse depth in equal steps between the frame's smallest and largest one. The
error of inverse depth is at most half a step, (largest - smallest) / 131066: relative to a depth z
it is z / z_nearest * 7.6e-6 at most. Confidence is a float16: a relative error of 5e-4 at most.
"""

from __future__ import annotations

import struct

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.splats.relative import COUNT, RelativeSplats, are_valid
from da3_ros.types import FloatImage, Image

UNKNOWN, SKY = 0, 65535  # codes of NaN and +Inf
STEPS = SKY - 2  # between the codes 1 and 65534
JPEG_QUALITY = 95
MAX_FLOAT16 = 65504.0
SIGMA, SIGMA_STEPS = (1e-4, 1.0), 126  # relative standard deviations that are stored, and steps
# Markers of JPEG that are followed by the size (ITU T.81, table B.1).
FRAME_HEADERS = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
FAST = [cv2.IMWRITE_PNG_COMPRESSION, 1]
Codes = NDArray[np.uint16]


def encode_depth(depth: FloatImage) -> tuple[bytes, float, float]:
    """Returns PNG, and the smallest and largest inverse depth, of depth [h, w].

    NaN and +Inf stay; other values that are not positive become NaN.
    """
    known = np.isfinite(depth) & (depth > 0)
    inverse = 1.0 / np.where(known, depth, 1.0).astype(np.float64)
    low, high = (float(f(inverse[known])) for f in (np.min, np.max)) if known.any() else (1.0, 1.0)
    step = (high - low) / STEPS or 1.0
    codes = np.where(known, 1 + np.rint((inverse - low) / step), UNKNOWN).astype(np.uint16)
    codes[np.isposinf(depth)] = SKY
    return _png(codes), low, high


def decode_depth(data: bytes, low: float, high: float) -> FloatImage:
    """Returns the depth [h, w] of ``encode_depth``. Raises ValueError for other data."""
    codes = _codes(data)
    inverse = low + (codes.astype(np.float64) - 1) * ((high - low) / STEPS)
    known = (codes != UNKNOWN) & (codes != SKY)
    depth = 1.0 / np.where(known, inverse, 1.0)
    depth[codes == UNKNOWN], depth[codes == SKY] = np.nan, np.inf
    return depth.astype(np.float32)


def encode_confidence(confidence: FloatImage) -> bytes:
    """Returns PNG of confidence [h, w]."""
    return _png(np.clip(confidence, 0, MAX_FLOAT16).astype(np.float16).view(np.uint16))


def decode_confidence(data: bytes) -> FloatImage:
    """Returns the confidence [h, w] of ``encode_confidence``. Raises ValueError for other data."""
    return _codes(data).view(np.float16).astype(np.float32)


def encode_sigma(sigma: FloatImage, measured: NDArray[np.bool_]) -> bytes:
    """Returns PNG of relative standard deviations [h, w], and of which pixels are measured [h, w].

    In 7 bits, equal steps of the logarithm: to 4 %. Values outside SIGMA become its ends; NaN is
    0.
    """
    known = np.isfinite(sigma)
    low, high = np.log(SIGMA)
    share = (np.log(np.clip(np.where(known, sigma, 1.0), *SIGMA)) - low) / (high - low)
    codes = np.where(known, 1 + np.rint(share * SIGMA_STEPS), 0).astype(np.uint8)
    return _encoded(".png", codes + np.uint8(128) * (measured & known), FAST)


def decode_sigma(data: bytes) -> tuple[FloatImage, NDArray[np.bool_]]:
    """Returns the standard deviations [h, w], and which pixels are measured [h, w], of
    ``encode_sigma``. Raises ValueError for other data."""
    found = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if found is None or found.dtype != np.uint8 or found.ndim != 2:
        raise ValueError("no image of 8 bits")
    found = np.asarray(found, np.uint8)
    codes, (low, high) = found % 128, np.log(SIGMA)
    sigma = np.exp(low + (codes.astype(np.float32) - 1) / SIGMA_STEPS * (high - low))
    return np.where(codes > 0, sigma, np.nan).astype(np.float32), found >= 128


def encode_image(image: Image) -> bytes:
    """Returns JPEG of RGB [H, W, 3]."""
    return _encoded(
        ".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY]
    )


def decode_image(data: bytes) -> Image:
    """Returns the RGB [H, W, 3] of a JPEG. Raises ValueError for other data."""
    found = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    if found is None:
        raise ValueError("no image")
    return np.asarray(cv2.cvtColor(found, cv2.COLOR_BGR2RGB))


def encoded_size(data: bytes) -> tuple[int, int]:
    """Returns (width, height) of a PNG or JPEG, which decoding would allocate.

    Raises ValueError for other data.
    """
    if data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) >= 24:
        width, height = struct.unpack(">II", data[16:24])
        return width, height
    at = 2 if data[:2] == b"\xff\xd8" else len(data)
    while at + 9 <= len(data) and data[at] == 0xFF:
        kind, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if kind in FRAME_HEADERS:
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        at += 2 + length
    raise ValueError("neither PNG nor JPEG")


def encode_splats(splats: RelativeSplats) -> bytes:
    """Returns which pixels have Gaussians, a bit each, and their values, float16."""
    return np.packbits(splats.kept).tobytes() + splats.values.astype("<f2").tobytes()


def decode_splats(data: bytes, size: tuple[int, int]) -> RelativeSplats:
    """Returns the Gaussians of ``encode_splats``; size: (width, height) of their image.

    Raises ValueError for other data.
    """
    pixels = size[0] * size[1]
    bits = np.frombuffer(data[: -(-pixels // 8)], np.uint8)
    kept = np.unpackbits(bits, count=pixels).astype(bool).reshape(size[1], size[0])
    values = np.frombuffer(data[len(bits) :], "<f2").reshape(-1, COUNT)
    if len(values) != kept.sum():
        raise ValueError("the number of Gaussians")
    if not are_valid(values).all():
        raise ValueError("values of Gaussians")
    return RelativeSplats(kept, values.astype(np.float16))


def _png(codes: Codes) -> bytes:
    return _encoded(".png", codes, FAST)


def _codes(data: bytes) -> Codes:
    found = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if found is None or found.dtype != np.uint16 or found.ndim != 2:
        raise ValueError("no 16-bit image")
    return np.asarray(found)


def _encoded(suffix: str, image: cv2.typing.MatLike, options: list[int]) -> bytes:
    good, data = cv2.imencode(suffix, image, options)
    if not good:
        raise ValueError(f"an image of shape {image.shape} cannot be encoded")
    return bytes(data.tobytes())
