"""The parts of the robot that its own cameras see, from image files that the user drew.

Knows files and image sizes; rectification and the network's size are its caller's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from da3_ros.parameter_schema import ConfigError
from da3_ros.types import Image

CAMERA = "{camera}"  # stands for the camera's name
HALF = 127  # brighter than this is white
GREY = (64, 191)  # neither black nor white; a drawing has it along its edges only
MOST_GREY = 0.1  # share of grey pixels; a photograph has more
SAME_ASPECT = 0.01  # largest relative difference of the aspects of drawing and image


class EgoMask:
    """Drawings of one or several cameras, as their images arrive: black where the robot is.

    All files are read at construction. Any thread may use it.
    """

    def __init__(self, path: str, cameras: Sequence[str] = ()) -> None:
        """``path``: the parameter ``mask``, with ``{camera}`` for each name in ``cameras``.

        Raises ConfigError for a file that is missing, is no image, or is not black and white.
        """
        self._path = path
        self._drawn = {file: _read(file) for file in map(self._file, cameras or ("",))}

    def at(self, camera: str, size: tuple[int, int]) -> Image:
        """Returns uint8 [H, W] for a camera's images of ``size`` (width, height).

        255: usable, 0: the robot. Raises ValueError if the drawing has another aspect ratio.
        """
        file = self._file(camera)
        drawn = self._drawn[file]
        width, height = drawn.shape[1::-1]
        if abs(width * size[1] / (height * size[0]) - 1) > SAME_ASPECT:
            raise ValueError(
                f"mask is {file!r} of {width}x{height}, but the camera's images are "
                f"{size[0]}x{size[1]}: draw it on an image as the camera sends it"
            )
        if (width, height) == size:
            return drawn
        resized = cv2.resize(drawn, size, interpolation=cv2.INTER_NEAREST_EXACT)
        return np.asarray(resized, np.uint8)

    def _file(self, camera: str) -> str:
        return self._path.replace(CAMERA, camera)


def _read(file: str) -> Image:
    """Returns a drawing, uint8 [H, W] of 0 and 255. Raises ConfigError."""
    try:
        data = np.frombuffer(Path(file).expanduser().read_bytes(), np.uint8)
    except (OSError, RuntimeError, ValueError) as error:  # ValueError: a zero in the name
        why = (isinstance(error, OSError) and error.strerror) or str(error)
        raise ConfigError(
            f"mask is {file!r}: {why}: give the path of an image, or leave it empty"
        ) from error
    try:
        grey = cv2.imdecode(data, cv2.IMREAD_GRAYSCALE) if data.size else None
    except cv2.error:  # for example more pixels than OpenCV allows
        grey = None
    if grey is None:
        raise ConfigError(f"mask is {file!r}: it cannot be read as an image: save it as PNG")
    if not (grey > HALF).any():
        raise ConfigError(
            f"mask is {file!r}: all of it is black, so that no pixel would get depth: make "
            "everything white except the robot itself"
        )
    if ((grey > GREY[0]) & (grey < GREY[1])).mean() > MOST_GREY:
        raise ConfigError(
            f"mask is {file!r}: it is not black and white: make everything white except the "
            "robot itself"
        )
    return np.where(grey > HALF, np.uint8(255), np.uint8(0))
