"""Decodes ROS image messages to arrays; the same code for live node and replay.

Uses field names only, so that it works with the classes of rclpy and of ``rosbags``; imports no
ROS. Every fault of an image raises an ``ImageError`` with one line of text.
"""

from __future__ import annotations

import struct
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.types import Image

MAX_PIXELS = 64_000_000
MAX_ASPECT = 20  # of width to height; the network needs at least one square patch
DEPTH_ENCODINGS = ("16uc1", "32fc1", "64fc1")

# Encoding (lower case): bits, channels, OpenCV conversion to RGB (None: already RGB).
# 8UC3 and 8UC4 do not define the colour order; OpenCV-based drivers use blue first.
_PACKED: dict[str, tuple[int, int, int | None]] = {
    "rgb8": (8, 3, None),
    "bgr8": (8, 3, cv2.COLOR_BGR2RGB),
    "rgba8": (8, 4, cv2.COLOR_RGBA2RGB),
    "bgra8": (8, 4, cv2.COLOR_BGRA2RGB),
    "mono8": (8, 1, cv2.COLOR_GRAY2RGB),
    "8uc1": (8, 1, cv2.COLOR_GRAY2RGB),
    "8uc3": (8, 3, cv2.COLOR_BGR2RGB),
    "8uc4": (8, 4, cv2.COLOR_BGRA2RGB),
    "rgb16": (16, 3, None),
    "bgr16": (16, 3, cv2.COLOR_BGR2RGB),
    "rgba16": (16, 4, cv2.COLOR_RGBA2RGB),
    "bgra16": (16, 4, cv2.COLOR_BGRA2RGB),
    "mono16": (16, 1, cv2.COLOR_GRAY2RGB),
    "16uc3": (16, 3, cv2.COLOR_BGR2RGB),
    "yuv422": (8, 2, cv2.COLOR_YUV2RGB_UYVY),
    "uyvy": (8, 2, cv2.COLOR_YUV2RGB_UYVY),
    "yuv422_yuy2": (8, 2, cv2.COLOR_YUV2RGB_YUY2),
    "yuyv": (8, 2, cv2.COLOR_YUV2RGB_YUY2),
}
# ROS names a pattern by its first two rows, OpenCV's old names by the second pixel of the second
# row, so the letters look swapped.
_BAYER = {
    "bayer_rggb": cv2.COLOR_BayerBG2RGB,
    "bayer_bggr": cv2.COLOR_BayerRG2RGB,
    "bayer_gbrg": cv2.COLOR_BayerGR2RGB,
    "bayer_grbg": cv2.COLOR_BayerGB2RGB,
}
_PACKED |= {f"{name}{bits}": (bits, 1, code) for name, code in _BAYER.items() for bits in (8, 16)}
# Luma rows, then rows of interleaved chroma. Conversion, rows of ``step`` bytes per image row.
_PLANAR = {
    "nv12": (cv2.COLOR_YUV2RGB_NV12, 1.5),
    "nv21": (cv2.COLOR_YUV2RGB_NV21, 1.5),
    "nv24": (cv2.COLOR_YUV2RGB_NV12, 3.0),
}
ENCODINGS = tuple(_PACKED) + tuple(_PLANAR)


class ImageError(ValueError):
    """An image that cannot be used; the text is one line with the fault and the remedy."""


def stamp_ns(stamp: Any) -> int:
    """Nanoseconds of a builtin_interfaces/Time, exact."""
    return int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec)


def decode(message: Any, max_pixels: int = MAX_PIXELS) -> Image:
    """RGB uint8 [H, W, 3] of a sensor_msgs/Image or CompressedImage. Raises ImageError."""
    if hasattr(message, "encoding"):
        return decode_image(message, max_pixels)
    return decode_compressed(message, max_pixels)


def image_size(message: Any) -> tuple[int, int]:
    """(width, height) of an Image or CompressedImage, without decoding it.

    Raises ImageError, also for a size outside the limits.
    """
    if hasattr(message, "encoding"):
        width, height = int(message.width), int(message.height)
    else:
        width, height = encoded_size(_payload(message))
    _check_size(width, height, MAX_PIXELS)
    return width, height


def is_depth(message: Any) -> bool:
    """True if an Image or CompressedImage holds depth (REP-118 encodings), not a camera image.

    By convention mono16 is a camera image; 16UC1 and 32FC1 are depth.
    """
    text = str(getattr(message, "encoding", None) or getattr(message, "format", "")).lower()
    return "compresseddepth" in text or text.partition(";")[0].strip() in DEPTH_ENCODINGS


def is_grey(message: Any) -> bool:
    """True if the encoding of an Image or CompressedImage has one channel of brightness."""
    text = str(getattr(message, "encoding", None) or getattr(message, "format", "")).lower()
    return text.startswith(("mono", "8uc1"))


# Raw images -------------------------------------------------------------------------------------


def decode_image(message: Any, max_pixels: int = MAX_PIXELS) -> Image:
    """RGB uint8 [H, W, 3] of a sensor_msgs/Image, contiguous, in memory of its own.

    16-bit values are scaled by their full range (65535 becomes 255; round to nearest), so that
    brightness does not depend on content. YUV is BT.601 limited range, as from
    V4L2 cameras; Bayer images are interpolated bilinearly. Big-endian and padded rows are
    supported. Raises ImageError: empty, too large, rows or data too short, depth (16UC1, 32FC1),
    unknown encoding.
    """
    encoding = str(message.encoding)
    width, height = int(message.width), int(message.height)
    _check_size(width, height, max_pixels)
    name = encoding.lower()
    if name in _PLANAR:
        return _decode_planar(message, name)
    if name not in _PACKED:
        raise ImageError(_unknown(encoding))
    bits, channels, code = _PACKED[name]
    if channels == 2 and width % 2:
        raise ImageError(f"{encoding} image is {width} wide: 4:2:2 needs an even width")
    rows = _rows(message, width * channels * bits // 8, height)
    if bits == 16:
        rows = rows.view(">u2" if message.is_bigendian else "<u2").astype(np.uint16)
    return _to_rgb8(rows.reshape((height, width, channels)), code)


def _unknown(encoding: str) -> str:
    if encoding.lower() in DEPTH_ENCODINGS:
        return _no_camera(f"encoding {encoding}")
    return (
        f"unknown image encoding {encoding!r}: have the driver publish one of "
        "rgb8, bgr8, mono8, yuv422, nv12, bayer_*, or compressed images"
    )


def _no_camera(what: str) -> str:
    return (
        f"{what} is a depth image, not a camera's: choose a colour topic (a camera with 16 bits "
        "of brightness has encoding mono16)"
    )


def _check_size(width: int, height: int, max_pixels: int) -> None:
    if width <= 0 or height <= 0:
        raise ImageError(f"image is empty ({width}x{height}): check the camera driver")
    if width * height > max_pixels:
        raise ImageError(
            f"image is {width}x{height}, over the limit of {max_pixels / 1e6:g} megapixels: "
            "publish smaller images"
        )
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise ImageError(f"image is {width}x{height}: longer than {MAX_ASPECT} times its width")


def _rows(message: Any, row_bytes: int, height: int) -> NDArray[np.uint8]:
    """Returns the rows without padding: uint8 [height, row_bytes], contiguous."""
    step = int(message.step)
    if step < row_bytes:
        raise ImageError(
            f"step is {step} but a row of {message.width} {message.encoding} pixels has "
            f"{row_bytes} bytes: the driver sets a wrong step or encoding"
        )
    data = _payload(message)
    if len(data) < step * height:
        raise ImageError(
            f"data has {len(data)} bytes but step x rows = {step} x {height} = {step * height}: "
            "the message is truncated, or its driver sets wrong fields"
        )
    return np.ascontiguousarray(data[: step * height].reshape(height, step)[:, :row_bytes])


def _payload(message: Any) -> NDArray[np.uint8]:
    """Returns ``message.data`` (array.array, bytes or ndarray) as uint8 [n] without a copy."""
    data = message.data
    return np.frombuffer(data, np.uint8) if len(data) else np.zeros(0, np.uint8)


def _decode_planar(message: Any, name: str) -> Image:
    """Decodes NV12, NV21 (4:2:0), NV24 (4:4:4). Rows have ``step`` bytes, NV24's chroma twice."""
    code, factor = _PLANAR[name]
    width, height = int(message.width), int(message.height)
    if factor == 1.5 and (width % 2 or height % 2):
        raise ImageError(f"{name} image is {width}x{height}: 4:2:0 needs even sides")
    if name != "nv24":
        return cv2.cvtColor(_rows(message, width, int(height * factor)), code)  # type: ignore[return-value]
    planes = _rows(message, max(width, int(message.step)), int(height * factor))
    luma, chroma = planes[:height, :width], planes[height:].reshape(height, -1)[:, : 2 * width]
    # OpenCV lacks 4:4:4; in a 4:2:0 image of doubled size every pixel has its own chroma.
    doubled = np.concatenate([luma.repeat(2, 0).repeat(2, 1), chroma])
    return np.ascontiguousarray(cv2.cvtColor(doubled, code)[::2, ::2])


def _to_rgb8(pixels: NDArray[Any], code: int | None) -> Image:
    """Converts uint8 or uint16 [H, W, C] to RGB uint8 [H, W, 3] in memory of its own."""
    out: NDArray[Any] = np.array(pixels) if code is None else cv2.cvtColor(pixels, code)
    if out.dtype == np.uint16:
        out = cv2.convertScaleAbs(out, alpha=1 / 257)
    return out


# Compressed images ------------------------------------------------------------------------------


def decode_compressed(message: Any, max_pixels: int = MAX_PIXELS) -> Image:
    """RGB uint8 [H, W, 3] of a sensor_msgs/CompressedImage with a JPEG or PNG inside.

    ``format`` is image_transport's ("jpeg", "rgb8; jpeg compressed bgr8"). The text before the
    semicolon is the camera's encoding; a one-channel image of a Bayer camera is interpolated. The
    text after it is the compressed encoding; with "compressed rgb8" red and blue are swapped in
    the file. The codec is detected from the data. Raises ImageError.
    """
    text = str(message.format).lower()
    if is_depth(message):
        raise ImageError(_no_camera(f"format {message.format!r}"))
    pixels = _decode_encoded(_payload(message), max_pixels, cv2.IMREAD_UNCHANGED)
    original = text.partition(";")[0].strip()
    channels = 1 if pixels.ndim == 2 else pixels.shape[2]
    if channels == 1 and original[:10] in _BAYER:
        return _to_rgb8(pixels, _BAYER[original[:10]])
    if channels == 1:
        return _to_rgb8(pixels, cv2.COLOR_GRAY2RGB)
    if "compressed rgb" in text:
        return _to_rgb8(pixels[..., :3], None)
    return _to_rgb8(pixels, cv2.COLOR_BGR2RGB if channels == 3 else cv2.COLOR_BGRA2RGB)


def decode_file(data: bytes, max_pixels: int = MAX_PIXELS, *, upright: bool = True) -> Image:
    """RGB uint8 [H, W, 3] of an image file's bytes (OpenCV's formats).

    upright: whether it is turned by its EXIF data; else it is as it was stored, and as a K of its
    pixels has it. Raises ImageError.
    """
    flags = cv2.IMREAD_COLOR | (0 if upright else cv2.IMREAD_IGNORE_ORIENTATION)
    pixels = _decode_encoded(np.frombuffer(data, np.uint8), max_pixels, flags)
    return _to_rgb8(pixels, cv2.COLOR_BGR2RGB)


def encoded_size(data: NDArray[np.uint8] | bytes) -> tuple[int, int]:
    """(width, height) from the header of a JPEG or PNG. Raises ImageError for anything else."""
    head = bytes(data[:24])
    if head.startswith(b"\x89PNG\r\n\x1a\n") and len(head) == 24:
        width, height = struct.unpack(">II", head[16:])
        return width, height
    if head.startswith(b"\xff\xd8"):
        return _jpeg_header(bytes(data))[:2]
    raise ImageError(
        f"data ({len(data)} bytes) is neither a JPEG nor a PNG: set the publisher's format to jpeg"
    )


def _jpeg_header(data: bytes) -> tuple[int, int, int]:
    """Returns width, height and offset of the first scan (ITU-T T.81, annex B)."""
    at, size = 2, (0, 0)
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if marker == 0xFF:  # fill byte
            at += 1
        elif marker == 0x01 or 0xD0 <= marker <= 0xD7:  # no payload
            at += 2
        elif marker == 0xDA:
            return *size, at
        else:
            if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
                height, width = struct.unpack(">HH", data[at + 5 : at + 9].ljust(4, b"\0"))
                size = (width, height)
            at += 2 + length
    raise ImageError(_cut_off("JPEG", len(data)))


def _cut_off(codec: str, size: int) -> str:
    return f"{codec} is cut off after {size} bytes: damaged in transport or in the recording"


def _check_complete(data: bytes) -> None:
    """Raises ImageError without an end marker: OpenCV silently fills cut JPEGs with grey."""
    if data.startswith(b"\xff\xd8"):
        # Searched from the scan on: thumbnails in the header have end markers too.
        if data.find(b"\xff\xd9", _jpeg_header(data)[2]) < 0:
            raise ImageError(_cut_off("JPEG", len(data)))
    elif data.startswith(b"\x89PNG") and data.rfind(b"IEND") < 0:
        raise ImageError(_cut_off("PNG", len(data)))


def _decode_encoded(data: NDArray[np.uint8], max_pixels: int, flags: int) -> NDArray[Any]:
    """Returns the pixels of a complete image file in OpenCV's order, blue first."""
    if not len(data):
        raise ImageError("image is empty (0 bytes): check the camera driver")
    if flags == cv2.IMREAD_UNCHANGED or bytes(data[:2]) in (b"\xff\xd8", b"\x89P"):
        # The header is checked first: a few bytes may claim gigapixels.
        _check_size(*encoded_size(data), max_pixels)
        _check_complete(data.tobytes())
    try:
        pixels = cv2.imdecode(data, flags)
    except cv2.error as error:
        raise ImageError(f"image cannot be decoded: {' '.join(str(error).split())}") from error
    if pixels is None:
        raise ImageError(f"image of {len(data)} bytes cannot be decoded: it is damaged")
    _check_size(pixels.shape[1], pixels.shape[0], max_pixels)
    return pixels
