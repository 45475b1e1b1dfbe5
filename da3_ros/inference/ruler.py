"""A metric model beside a multi-view one: looks at new frames now and then and says the unit.

Runs da3metric-large on the very images that the window's network saw, and aligns both depths as
the nested model does. Knows windows and predictions, not what becomes of the measure.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from da3_ros.config import InferenceConfig, PipelineConfig
from da3_ros.inference.devices import open_device
from da3_ros.inference.footprint import peak_of, weight_bytes
from da3_ros.inference.planner import GIB, SMALLEST, BudgetError
from da3_ros.inference.preprocess import normalize
from da3_ros.inference.session import RANDOM, InferenceSession
from da3_ros.network import (
    CheckpointError,
    build_network,
    initialize_randomly,
    load_checkpoint,
    metric,
)
from da3_ros.network.monocular import MonocularDepth
from da3_ros.network.precision import channels_last, convert
from da3_ros.types import Measure, Prediction, View, Window

log = logging.getLogger(__name__)

MODEL = "da3metric-large"
WORK_SPACE = 1.2  # of predicted activations, as for windows that were not measured yet


class MetricRuler:
    """Holds one metric network. Not thread-safe: the worker that owns the session owns it too.

    Raises CheckpointError or DeviceError at construction, each with one line.
    """

    def __init__(
        self, config: InferenceConfig, checkpoint: str = "", network: MonocularDepth | None = None
    ) -> None:
        """``network`` stands in for the official one."""
        on = open_device(config.device, config.performance_mode)
        self.device = on.device
        loaded = network or _load(checkpoint)
        convert(loaded, on.precision(config.mixed_precision))
        if self.device.type != "cpu":
            channels_last(loaded)
        loaded.set_chunks(SMALLEST)
        self.network: MonocularDepth = loaded.to(self.device).eval()
        self.nbytes = weight_bytes(self.network) + int(WORK_SPACE * _activations(config, loaded))
        self._warned = False

    @torch.inference_mode()
    def measure(self, window: Window, prediction: Prediction) -> Prediction:
        """``prediction`` with its ``measure`` and with the sky of the new frames.

        The measure is NaN where too little can be compared (all sky).
        """
        new = range(len(window.views) - window.new, len(window.views))
        images = torch.from_numpy(np.stack([window.views[i].image for i in new])).to(self.device)
        out = self.network(normalize(images)[None], fill_sky=False)
        focal = torch.tensor([[self._focal_px(window.views[i], prediction, i) for i in new]])
        metres = metric.metric_depth(out.depth.float().cpu(), focal)
        ours, confidence = (
            torch.from_numpy(maps[list(new)])[None]
            for maps in (prediction.depth, prediction.confidence)
        )
        sky = out.sky.float().cpu()
        found = metric.align_depth(ours, confidence, metres, sky)
        maps = np.full(prediction.depth.shape, np.nan, np.float32)
        maps[list(new)] = sky[0].numpy()
        measure = Measure(float(found.scale[0]), float(found.spread[0]))
        return replace(prediction, measure=measure, sky=maps)

    def _focal_px(self, view: View, prediction: Prediction, index: int) -> float:
        """Mean focal length in pixels of the image that the network sees."""
        K = prediction.K[index] if view.K is None else view.K
        if view.K is None and not self._warned:
            self._warned = True
            log.warning("metres by a focal length that was guessed: publish a camera_info")
        return float(K[0, 0] + K[1, 1]) / 2


def open_networks(config: PipelineConfig) -> tuple[InferenceSession, MetricRuler | None]:
    """The networks that the parameters ask for, in one memory budget.

    Raises CheckpointError, DeviceError or BudgetError.
    """
    inference = config.inference
    if config.scale.source != "metric_model":
        return InferenceSession(inference), None
    # First: what it takes is no longer free when the session looks.
    ruler = MetricRuler(inference, config.scale.metric_checkpoint)
    rest = budget_beside(ruler, inference.memory_budget_gb)
    return InferenceSession(replace(inference, memory_budget_gb=rest)), ruler


def budget_beside(ruler: Any, memory_budget_gb: float) -> float:
    """What remains of a budget for the session (GiB); 0, most of what is free, stays 0.

    Raises BudgetError where nothing remains.
    """
    taken = getattr(ruler, "nbytes", 0) / GIB
    if not memory_budget_gb or not taken:
        return memory_budget_gb
    if memory_budget_gb <= taken:
        raise BudgetError(
            f"{MODEL} alone needs {taken:.2f} GiB of memory_budget_gb {memory_budget_gb:g}: raise "
            "it, or choose another scale.source"
        )
    return memory_budget_gb - taken


def _load(checkpoint: str) -> MonocularDepth:
    network = build_network(MODEL)
    assert isinstance(network, MonocularDepth)
    if checkpoint == RANDOM:
        log.warning("checkpoint `random`: %s gives metres without meaning", MODEL)
        initialize_randomly(network)
    else:
        try:
            folder = load_checkpoint(network, checkpoint)
        except CheckpointError as error:
            raise CheckpointError(f"scale.source is metric_model: {error}") from error
        log.info("%s loaded from %s", MODEL, folder)
    network.requires_grad_(False)
    return network


def _activations(config: InferenceConfig, network: MonocularDepth) -> int:
    """The most bytes that one frame's pass needs beside the weights."""
    return _activations_of(network.spec, -(-config.process_res // 14) * 14)


@functools.lru_cache(maxsize=8)
def _activations_of(spec: Any, side: int) -> int:
    with torch.device("meta"):
        network = MonocularDepth(spec).eval()
    network.set_chunks(SMALLEST)
    return peak_of(
        lambda: network(torch.empty(1, 1, 3, side, side, device="meta"), fill_sky=False)
    )
