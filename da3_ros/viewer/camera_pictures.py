"""Pictures of a frame for the page: image with feature tracks, depth and confidence."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from da3_ros.drawing.colormaps import colorize_confidence, colorize_depth
from da3_ros.drawing.track_sheet import draw_history
from da3_ros.refinement.track_history import TrackHistory
from da3_ros.types import FloatImage, Image
from da3_ros.viewer.page_texts import note
from da3_ros.viewer.wire import ViewerMessage

WIDTH = 420  # of the pictures, pixels
SHOWN_PERCENT = (2, 98)  # of depths that the colours span where no range is given


@dataclass(frozen=True, eq=False)
class FramePictures:
    """What the page shows of a frame; images are RGB [h, w, 3], ``caption`` is HTML."""

    image: Image
    depth: Image
    confidence: Image
    caption: str


def pictures_of(message: ViewerMessage, *, tracks: bool) -> FramePictures:
    """Returns the pictures of a ``frame`` message. tracks: whether feature tracks are drawn."""
    arrays, values = message.arrays, message.values
    image = _sized(arrays["image"])
    if tracks and "track_position" in arrays:
        image = draw_history(
            image, TrackHistory(arrays["track_position"], arrays["track_error_px"])
        )
    depth = _sized_floats(arrays["depth"])
    near, far = values["range"] or _range(depth)
    unit = "m" if values["metric"] else "scene units"
    return FramePictures(
        image, colorize_depth(depth, (near, far)),
        colorize_confidence(_sized_floats(arrays["confidence"])),
        _caption(message, f"{near:.2f} (red) to {far:.2f} (blue) {unit}"),
    )  # fmt: skip


def _caption(message: ViewerMessage, span: str) -> str:
    values = message.values
    seconds, rest = divmod(int(values["stamp_ns"]), 10**9)
    lines = [f"Stamp {seconds}.{rest // 10**6:03d} s", f"Depth: {span}"]
    if values["note"]:
        lines.append(values["note"])
    if not np.isfinite(message.arrays["T_ros_camera"]).all():
        lines.append("The pose is not known")
    return note(*lines)


def _range(depth: FloatImage) -> tuple[float, float]:
    known = depth[np.isfinite(depth)]
    if not known.size:
        return 0.0, 1.0
    near, far = np.percentile(known, SHOWN_PERCENT)
    return float(near), float(max(far, near * 1.01 + 1e-6))


def _sized(image: Image) -> Image:
    factor = WIDTH / image.shape[1]
    how = cv2.INTER_AREA if factor < 1 else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(image, None, fx=factor, fy=factor, interpolation=how), np.uint8)


def _sized_floats(values: FloatImage) -> FloatImage:
    """Returns depth or confidence at the picture's size; unknown stays unknown."""
    factor = WIDTH / values.shape[1]
    return np.asarray(
        cv2.resize(values, None, fx=factor, fy=factor, interpolation=cv2.INTER_NEAREST)
    )
