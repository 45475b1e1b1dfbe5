"""Pictures for `da3_ros bench --pictures`: what the configured network sees of one window."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from da3_ros.config import PipelineConfig
from da3_ros.drawing.contact_sheet import ContactSheet
from da3_ros.drawing.depth_pictures import depth_histogram, depth_slices
from da3_ros.drawing.scene_picture import write_png
from da3_ros.inference import InferenceSession
from da3_ros.inference.images import window_of_images
from da3_ros.recordings.open import open_recording
from da3_ros.synthetic import SyntheticCamera
from da3_ros.types import Image

STRIDE = 3  # of the rendered room's frames: a tenth of a second each
SHEET, HISTOGRAM, SLICES = "depth.png", "histogram.png", "slices.png"


def write_pictures(
    folder: Path,
    session: InferenceSession,
    config: PipelineConfig,
    image: tuple[int, int],
    recording: Path | None,
) -> list[Path]:
    """Write pictures of a window's depth into ``folder``, which is made; returns their paths.

    image: (width, height) of the rendered room. recording: whose first images are shown instead.
    Raises RecordingError, OSError, ValueError.
    """
    plan = session.memory.plan
    assert plan is not None, "call fit first"
    images = _rendered(image, plan.window) if recording is None else _first(recording, plan.window)
    window = window_of_images(images, plan.process_res, plan.process_res_method)
    found = session.infer(window)
    metric = found.measure is not None and math.isfinite(found.measure.value)
    unit = "m" if metric else "units of the window"
    sheet = ContactSheet(config.depth, metric=metric)
    for view, depth, confidence in zip(window.views, found.depth, found.confidence, strict=True):
        sheet.add(view.image, depth, confidence)
    pictures = {
        SHEET: sheet.picture(),
        HISTOGRAM: depth_histogram(found.depth, config.depth.color_map, unit),
        SLICES: depth_slices(window.views[0].image, found.depth[0], unit),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        write_png(folder / name, picture)
    return [folder / name for name in pictures]


def _rendered(size: tuple[int, int], count: int) -> Sequence[Image]:
    camera = SyntheticCamera(seed=1, size=size, walk="loop", frames=STRIDE * count)
    return [frame.image for frame in _each(camera, count)]


def _each(frames: Iterable, count: int) -> Iterable:
    return itertools.islice(frames, 0, STRIDE * count, STRIDE)


def _first(path: Path, count: int) -> Sequence[Image]:
    """The first ``count`` images of a recording. Raises RecordingError, ValueError."""
    with open_recording(path) as recording:
        images = [np.asarray(f.image) for f in itertools.islice(recording, count)]
    if not images:
        raise ValueError(f"{path} has no image")
    return images
