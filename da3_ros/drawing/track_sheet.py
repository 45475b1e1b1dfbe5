"""Draws feature tracks on the images of a few frames."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.drawing.tracks_file import FrameTracks
from da3_ros.refinement.track_history import TrackHistory
from da3_ros.types import Array, Image

COLUMNS = 3
GAP = 8  # pixels between pictures
BACKGROUND = 255
LARGE_PX = 2.0  # reprojection error that is drawn red
NO_POINT = (150, 150, 150)  # colour of a track without a point
DIMMED, GREYED = 0.6, 0.6  # brightness of images, and share of grey in their colours
SHIFT = 4  # fractional bits of drawn positions


def draw_tracks(frames: Sequence[FrameTracks], size: tuple[int, int]) -> Image:
    """Returns a sheet, RGB [H, W, 3]: at most three pictures a row, with a line of text below.

    size: width and height that each image is fitted into, pixels.
    """
    cells = [_cell(frame, size) for frame in frames]
    columns = min(COLUMNS, len(cells))
    height, width = cells[0].shape[:2]
    rows = -(-len(cells) // columns)
    shape = (rows * (height + GAP) - GAP, columns * (width + GAP) - GAP, 3)
    sheet = np.full(shape, BACKGROUND, np.uint8)
    for n, cell in enumerate(cells):
        y, x = (n // columns) * (height + GAP), (n % columns) * (width + GAP)
        sheet[y : y + height, x : x + width] = cell
    return sheet


def track_colors(error_px: Array) -> NDArray[np.uint8]:
    """Returns colours RGB [M, 3] of reprojection errors [M]: green to red; grey without one."""
    t = np.clip(np.nan_to_num(error_px) / LARGE_PX, 0, 1)
    rgb = np.stack((np.minimum(1, 2 * t), np.minimum(1, 2 - 2 * t), np.zeros_like(t)), axis=1)
    colors = np.round(255 * rgb).astype(np.uint8)
    colors[np.isnan(error_px)] = NO_POINT
    return colors


def draw_history(image: Image, history: TrackHistory) -> Image:
    """Returns a copy of an image RGB [h, w, 3], dimmed, with the tracks that it sees."""
    picture = _dimmed(image)
    _draw(picture, history)
    return picture


def _cell(frame: FrameTracks, size: tuple[int, int]) -> Image:
    """Returns a picture with a line of text below, in a box of the sheet."""
    image = frame.image()
    factor = min(size[0] / image.shape[1], size[1] / image.shape[0])
    shape = tuple(max(1, round(side * factor)) for side in (image.shape[1], image.shape[0]))
    small = np.asarray(cv2.resize(image, shape, interpolation=cv2.INTER_AREA), np.uint8)
    picture = draw_history(small, frame.track_history)
    strip = max(12, size[0] // 20)
    cell = np.full((size[1] + strip, size[0], 3), BACKGROUND, np.uint8)
    left = (size[0] - picture.shape[1]) // 2
    cell[: picture.shape[0], left : left + picture.shape[1]] = picture
    _write(cell, _caption(frame), (left + 2, picture.shape[0]), strip)
    return cell


def _dimmed(image: Image) -> Image:
    grey = image.mean(axis=2, keepdims=True)
    return np.asarray((DIMMED * (GREYED * grey + (1 - GREYED) * image)).astype(np.uint8))


def _draw(picture: Image, history: TrackHistory) -> None:
    """Draws all tracks on a picture; the largest errors last, so that they are seen."""
    side = np.array(picture.shape[1::-1])
    thick = max(1, round(side.max() / 500))
    radius = max(1.5, side.max() / 240)
    colors = track_colors(history.error_px).tolist()
    for m in np.argsort(np.nan_to_num(history.error_px, nan=-1.0), kind="stable"):
        seen = history.position[m][np.isfinite(history.position[m]).all(axis=1)]
        # OpenCV's integers are centres of pixels.
        at = np.round((np.clip(seen, -1, 2) * side - 0.5) * 2**SHIFT).astype(np.int32)
        cv2.polylines(picture, [at], False, colors[m], thick, cv2.LINE_AA, SHIFT)
        if len(at):
            center = (int(at[-1, 0]), int(at[-1, 1]))
            dot = round(radius * 2**SHIFT)
            cv2.circle(picture, center, dot, colors[m], -1, cv2.LINE_AA, SHIFT)


def _caption(frame: FrameTracks) -> str:
    seconds, rest = divmod(frame.stamp_ns, 10**9)
    rms = frame.track_history.rms_px
    error = "no points" if np.isnan(rms) else f"RMS {rms:.2f} px"
    return f"{seconds}.{rest // 10**6:03d} s   {len(frame.track_history)} tracks   {error}"


def _write(cell: Image, text: str, corner: tuple[int, int], height: int) -> None:
    """Writes a line of text into a strip of a cell; narrower if it would be too long."""
    font, wide = cv2.FONT_HERSHEY_SIMPLEX, cell.shape[1] - corner[0]
    (length, tall), _ = cv2.getTextSize(text, font, 1.0, 1)
    scale = min(0.55 * height / tall, 0.95 * wide / length)
    at = (corner[0], corner[1] + round(0.75 * height))
    cv2.putText(cell, text, at, font, scale, (0, 0, 0), 1, cv2.LINE_AA)
