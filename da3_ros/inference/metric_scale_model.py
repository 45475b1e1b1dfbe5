"""Measures a window's unit in metres with a separate single-image network, da3metric-large.

It runs on the same images as the window's network, and both depths are aligned as in the nested
model. The caller decides which windows are measured and what the measurement is used for.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from da3_ros.config import InferenceConfig
from da3_ros.inference.devices import open_device
from da3_ros.inference.loading import load_checked, load_network
from da3_ros.inference.memory_footprint import weight_bytes
from da3_ros.inference.planner import SMALLEST, CompanionModel
from da3_ros.inference.preprocess import normalize, resize_to, scaled_size
from da3_ros.inference.session import focal_px, to_all_views
from da3_ros.network import metric
from da3_ros.network.monocular import MonocularDepth, MonocularOutput
from da3_ros.types import ScaleMeasurement, Window, WindowEstimate

log = logging.getLogger(__name__)

MODEL = "da3metric-large"
SCALES = (1.0, 0.5)  # factors for the images' sides; the second one if memory runs out
WARN_EVERY_S = 60.0


class MetricDepthModel:
    """Owns one metric network. Not thread-safe: the worker that owns the session owns it too.

    Raises CheckpointError or DeviceError at construction, each with one line.
    """

    def __init__(
        self, config: InferenceConfig, checkpoint: str = "", network: MonocularDepth | None = None
    ) -> None:
        """``network`` replaces the one loaded from ``checkpoint``."""
        self.hardware = open_device(config.device, config.performance_mode)
        self.device = self.hardware.device
        loaded, precision = load_checked(
            lambda: network or load_network(MODEL, checkpoint, meaning="metric depths"),
            self.hardware,
            self.hardware.precision(config.mixed_precision),
        )
        loaded.set_chunks(SMALLEST)
        self.network = loaded
        self.beside = CompanionModel(
            MODEL, precision, weight_bytes(loaded)
        )  # what a budget must hold too
        self.renew()

    def renew(self) -> None:
        """Forgets which warnings it gave, as before another recording."""
        self._warned = False
        self._warn_again_at = 0.0

    @torch.inference_mode()
    def measure(self, window: Window, estimate: WindowEstimate) -> WindowEstimate:
        """Return ``estimate`` with ``measure`` and with the sky of the new frames.

        The measurement is NaN if too few pixels can be compared (all sky). If memory runs out,
        the images are halved; if it runs out again, ``estimate`` is returned unchanged.
        """
        for scale in SCALES:
            try:
                return self._measure_at(window, estimate, scale)
            except Exception as error:
                if not self.hardware.is_out_of_memory(error):
                    raise
            self.hardware.release()  # outside `except`: the error's frames hold the tensors
        if time.monotonic() >= self._warn_again_at:
            self._warn_again_at = time.monotonic() + WARN_EVERY_S
            log.warning(
                "out of memory: %s did not measure window %d and the scale is held; lower "
                "process_res or raise memory_budget_gb", MODEL, window.id,
            )  # fmt: skip
        return estimate

    def _measure_at(
        self, window: Window, estimate: WindowEstimate, scale: float
    ) -> WindowEstimate:
        count, size = len(window.views), window.views[0].image.shape[:2]
        new = list(range(count - window.new, count))
        inner = scaled_size(size, scale)
        out = self._run([resize_to(window.views[i].image, inner) for i in new])
        focal = self._focal_px(window, estimate, new, inner)
        metres = metric.metric_depth(out.depth.float().cpu(), focal)[0]
        depth, sky = (
            to_all_views(metres, count, new, size),
            to_all_views(out.sky[0], count, new, size),
        )
        maps = (estimate.depth, estimate.confidence, depth, sky)
        found = metric.align_depth(*(torch.from_numpy(m[new])[None] for m in maps))
        measure = ScaleMeasurement(float(found.scale[0]), float(found.spread[0]))
        return replace(estimate, measure=measure, sky=sky)

    def _run(self, images: list[np.ndarray]) -> MonocularOutput:
        batch = torch.from_numpy(np.stack(images)).to(self.device)
        out: MonocularOutput = self.network(normalize(batch)[None], fill_sky=False)
        return out

    def _focal_px(
        self, window: Window, estimate: WindowEstimate, new: list[int], size: tuple[int, int]
    ) -> Tensor:
        """Mean focal lengths [1, M] in pixels, for images of ``size`` (height, width)."""
        known = focal_px(window, new, size)
        if bool(known.isfinite().all()):
            return known
        if not self._warned:
            self._warned = True
            log.warning("metric scale uses an estimated focal length: publish a camera_info")
        views = zip(window.views, estimate.K, strict=True)
        guessed = replace(window, views=tuple(replace(v, K=K) for v, K in views))
        return torch.where(known.isfinite(), known, focal_px(guessed, new, size))
