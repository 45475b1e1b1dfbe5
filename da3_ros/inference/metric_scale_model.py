"""A metric model beside a multi-view one: looks at new frames now and then and says the unit.

Runs da3metric-large on the very images that the window's network saw, and aligns both depths as
the nested model does. Knows windows and predictions, not what becomes of the measure.
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
from da3_ros.inference.prediction import focal_px, spread
from da3_ros.inference.preprocess import normalize, smaller, to_size
from da3_ros.network import CheckpointError, Network, metric
from da3_ros.network.monocular import MonocularDepth, MonocularOutput
from da3_ros.types import Prediction, ScaleMeasurement, Window

log = logging.getLogger(__name__)

MODEL = "da3metric-large"
SCALES = (1.0, 0.5)  # of the pictures' sides, where memory runs out
WARN_EVERY_S = 60.0


class MetricDepthModel:
    """Holds one metric network. Not thread-safe: the worker that owns the session owns it too.

    Raises CheckpointError or DeviceError at construction, each with one line.
    """

    def __init__(
        self, config: InferenceConfig, checkpoint: str = "", network: MonocularDepth | None = None
    ) -> None:
        """``network`` stands in for the official one."""
        self.on = open_device(config.device, config.performance_mode)
        self.device = self.on.device
        loaded, precision = load_checked(
            lambda: network or _load(checkpoint),
            self.on,
            self.on.precision(config.mixed_precision),
        )
        loaded.set_chunks(SMALLEST)
        self.network = loaded
        self.beside = CompanionModel(
            MODEL, precision, weight_bytes(loaded)
        )  # what a budget must hold too
        self._warned = False
        self._warn_again_at = 0.0

    @torch.inference_mode()
    def measure(self, window: Window, prediction: Prediction) -> Prediction:
        """``prediction`` with its ``measure`` and with the sky of the new frames.

        The measure is NaN where too little can be compared (all sky). Where memory runs out the
        pictures are taken at half size, and if that does not do, ``prediction`` stays as it was.
        """
        for scale in SCALES:
            try:
                return self._look(window, prediction, scale)
            except Exception as error:
                if not self.on.is_out_of_memory(error):
                    raise
            self.on.release()  # outside `except`: the error's frames hold the tensors
        if time.monotonic() >= self._warn_again_at:
            self._warn_again_at = time.monotonic() + WARN_EVERY_S
            log.warning(
                "out of memory: %s did not look at window %d, the scale is held; lower "
                "process_res or raise memory_budget_gb", MODEL, window.id,
            )  # fmt: skip
        return prediction

    def _look(self, window: Window, prediction: Prediction, scale: float) -> Prediction:
        count, size = len(window.views), window.views[0].image.shape[:2]
        new = list(range(count - window.new, count))
        inner = smaller(size, scale)
        out = self._run([to_size(window.views[i].image, inner) for i in new])
        focal = self._focal_px(window, prediction, new, inner)
        metres = metric.metric_depth(out.depth.float().cpu(), focal)[0]
        depth, sky = spread(metres, count, new, size), spread(out.sky[0], count, new, size)
        maps = (prediction.depth, prediction.confidence, depth, sky)
        found = metric.align_depth(*(torch.from_numpy(m[new])[None] for m in maps))
        measure = ScaleMeasurement(float(found.scale[0]), float(found.spread[0]))
        return replace(prediction, measure=measure, sky=sky)

    def _run(self, images: list[np.ndarray]) -> MonocularOutput:
        batch = torch.from_numpy(np.stack(images)).to(self.device)
        out: MonocularOutput = self.network(normalize(batch)[None], fill_sky=False)
        return out

    def _focal_px(
        self, window: Window, prediction: Prediction, new: list[int], size: tuple[int, int]
    ) -> Tensor:
        """Mean focal lengths [1, M] in pixels of the images that the network sees."""
        known = focal_px(window, new, size)
        if bool(known.isfinite().all()):
            return known
        if not self._warned:
            self._warned = True
            log.warning("metres by a focal length that was guessed: publish a camera_info")
        views = zip(window.views, prediction.K, strict=True)
        guessed = replace(window, views=tuple(replace(v, K=K) for v, K in views))
        return torch.where(known.isfinite(), known, focal_px(guessed, new, size))


def _load(checkpoint: str) -> Network:
    try:
        return load_network(MODEL, checkpoint, meaning="metres")
    except CheckpointError as error:
        raise CheckpointError(f"scale.source is metric_model: {error}") from error
