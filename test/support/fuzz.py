"""Camera messages that no camera should send, the same for the same seed. For tests and soak."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from da3_ros.messages import build
from da3_ros.messages.decode import ENCODINGS, ImageError, decode, image_size

SIZES = (0, 1, 2, 3, 7, 14, 33, 64, 140, 2**16, 2**31 - 1, 2**32 - 1)
WORDS = ("", " ", "RGB8", "rgb8\0", "32FC1", "16UC1", "8UC0", "bayer", "yuv", "тёмный", "x" * 300,
         "jpeg", "png", "compressedDepth", "rgb8; jpeg compressed bgr8", "bayer_rggb8; png",
         "; ; ;", "mono8; jpeg compressed ")  # fmt: skip
NUMBERS = (0.0, -1.0, 1e-300, 1e300, float("nan"), float("inf"), -float("inf"), 100.0)
STAMP_NS = 1_700_000_000_000_000_000


class Fuzzer:
    """Draws messages; ``lib`` makes them."""

    def __init__(self, lib: Any, seed: int, frame_id: str = "camera_optical") -> None:
        self.lib, self.random, self.frame_id = lib, random.Random(seed), frame_id
        self.numpy = np.random.default_rng(seed)

    def image(self, stamp_ns: int = STAMP_NS) -> Any:
        """A sensor_msgs/Image with one to three things wrong, or nothing but an odd size."""
        width, height = self.random.choice(
            ((64, 48), (32, 24), (33, 25), (2, 2), (1, 1), (140, 1))
        )
        pixels = self.numpy.integers(0, 256, (height, width, 3)).astype(np.uint8)
        message = build.image(self.lib, stamp_ns, self.frame_id, pixels)
        for _ in range(self.random.randint(0, 3)):
            self.random.choice(
                (self._size, self._encoding, self._step, self._data, self._endian, self._length)
            )(message)
        return message

    def compressed(self, stamp_ns: int = STAMP_NS) -> Any:
        """A sensor_msgs/CompressedImage whose file or format may be damaged."""
        pixels = self.numpy.integers(0, 256, (24, 32, 3)).astype(np.uint8)
        codec = self.random.choice(("jpeg", "png"))
        message = build.compressed_image(self.lib, stamp_ns, self.frame_id, pixels, codec)
        data = bytearray(message.data)
        if self.random.random() < 0.5:
            for _ in range(self.random.randint(1, 8)):
                data[self.random.randrange(len(data))] = self.random.randrange(256)
        if self.random.random() < 0.3:
            data = data[: self.random.randrange(len(data) + 1)]
        if self.random.random() < 0.2:
            data = data + data[: self.random.randrange(50)]
        if self.random.random() < 0.3:
            message.format = self.random.choice(WORDS)
        message.data = self.lib.bytes(np.frombuffer(bytes(data), np.uint8))
        return message

    def camera_info(self, size: tuple[int, int], stamp_ns: int = STAMP_NS) -> Any:
        """A sensor_msgs/CameraInfo with one to three fields spoilt."""
        K = np.array([[size[0], 0, size[0] / 2], [0, size[0], size[1] / 2], [0, 0, 1.0]])
        message = build.camera_info(self.lib, stamp_ns, self.frame_id, K, *size)
        for _ in range(self.random.randint(1, 3)):
            kind = self.random.randrange(6)
            if kind == 0:
                message.k = self._spoilt(9)
            elif kind == 1:
                message.p = self._spoilt(12)
            elif kind == 2:
                count = self.random.choice((0, 1, 4, 5, 8, 14, 20))
                message.d = self.lib.sequence(list(self._spoilt(count)), "d")
                message.distortion_model = self.random.choice(("plumb_bob", "equidistant", "?"))
            elif kind == 3:
                message.width = self.random.choice(SIZES)
            elif kind == 4:
                message.binning_x = self.random.choice((0, 1, 2, 77, 2**32 - 1))
            else:
                message.roi.width = self.random.choice(SIZES)
                message.roi.x_offset = self.random.choice(SIZES)
        return message

    def stamp(self) -> int:
        """Nanoseconds: mostly of one second, now and then from elsewhere."""
        if self.random.random() < 0.05:
            return self.random.choice((0, 1, 2**31 * 10**9 - 1))
        return STAMP_NS + self.random.randrange(10**9)

    def _spoilt(self, count: int) -> Any:
        values = self.numpy.normal(size=count) * 100
        values[self.numpy.random(count) < 0.3] = self.random.choice(NUMBERS)
        return values

    def _size(self, message: Any) -> None:
        side = self.random.choice(("width", "height"))
        setattr(message, side, self.random.choice(SIZES))

    def _encoding(self, message: Any) -> None:
        message.encoding = self.random.choice((*ENCODINGS, *WORDS))

    def _step(self, message: Any) -> None:
        message.step = self.random.choice(SIZES)

    def _endian(self, message: Any) -> None:
        message.is_bigendian = self.random.choice((0, 1, 2, 255))

    def _length(self, message: Any) -> None:
        data = np.frombuffer(bytes(message.data), np.uint8)
        keep = self.random.randrange(len(data) + 1) if len(data) else 0
        message.data = self.lib.bytes(data[:keep])

    def _data(self, message: Any) -> None:
        count = self.random.choice((0, 1, 3, 1000, 20_000))
        message.data = self.lib.bytes(self.numpy.integers(0, 256, count).astype(np.uint8))


def one_line(error: Exception) -> bool:
    """Whether an error is a single line that is not empty."""
    return "\n" not in str(error) and len(str(error)) > 10


def try_decoder(lib: Any, seed: int, count: int) -> dict[str, int]:
    """How many of ``count`` messages were refused and decoded; anything else raises."""
    fuzzer, result = Fuzzer(lib, seed), {"tried": 0, "refused": 0, "decoded": 0}
    for n in range(count):
        message = fuzzer.compressed() if n % 3 == 2 else fuzzer.image()
        result["tried"] += 1
        try:
            size = image_size(message)
            pixels = decode(message)
        except ImageError as error:
            result["refused"] += one_line(error)
            continue
        assert pixels.dtype == np.uint8
        assert pixels.shape == (size[1], size[0], 3)
        result["decoded"] += 1
    return result
