"""Opens the networks that a pipeline's parameters select, after checking their combination."""

from __future__ import annotations

import dataclasses
import logging

from da3_ros.config import InferenceConfig, PipelineConfig
from da3_ros.derived.measuring import MeasuringLoad
from da3_ros.inference.metric_scale_model import MetricDepthModel
from da3_ros.inference.session import InferenceSession
from da3_ros.network import MODELS, CheckpointError, ModelSpec
from da3_ros.parameter_schema import ConfigError
from da3_ros.scale_sources import SCALE_SOURCES, scale_source

log = logging.getLogger(__name__)


def open_networks(
    config: PipelineConfig, *, wait_for_engine: bool = True
) -> tuple[InferenceSession, MetricDepthModel | None]:
    """Open the session and, if selected, the metric model, in one memory budget.

    A nested model measures its own windows and needs no metric model. ``wait_for_engine``: as in
    ``InferenceSession``. Raises ConfigError, CheckpointError or DeviceError.
    """
    spec = _checked_model(config)
    inference = _checked_backend(config)
    # Opened first: the session then counts its memory, and a missing file fails early.
    metric_model = None if spec.metric else _metric_model(config, inference)
    independent, cameras = config.window.mode == "independent", max(1, len(config.cameras))
    load = MeasuringLoad(config.dense.size, *((cameras, 1) if independent else (1, cameras)))
    session = InferenceSession(
        inference,
        poses=config.pose_prior.source != "none",
        streams=cameras if independent else 1,
        companion=metric_model.beside if metric_model else None,
        wait_for_engine=wait_for_engine,
        gaussians=config.splats.enabled,
        measuring=load if config.dense.enabled and config.refinement.enabled else None,
    )
    return session, metric_model


def _metric_model(config: PipelineConfig, inference: InferenceConfig) -> MetricDepthModel | None:
    """The metric model, if the scale's source needs it. Raises CheckpointError or DeviceError."""
    source = config.scale.source
    if not scale_source(source).needs_metric_model:
        return None
    try:
        return MetricDepthModel(inference, config.scale.metric_checkpoint)
    except CheckpointError as error:
        raise CheckpointError(f"scale.source is {source}: {error}") from error


def _checked_backend(config: PipelineConfig) -> InferenceConfig:
    """The network's parameters; Gaussians run on torch only. Raises ConfigError."""
    inference = config.inference
    if not config.splats.enabled:
        return inference
    if inference.backend not in ("auto", "torch"):
        raise ConfigError(
            f"splats.enabled needs torch, but backend is {inference.backend}: set it to auto"
        )
    return dataclasses.replace(inference, backend="torch")


def _checked_model(config: PipelineConfig) -> ModelSpec:
    """The model's spec. Raises ConfigError if the other parameters need more than it gives."""
    name, source = config.inference.model, scale_source(config.scale.source)
    if name not in MODELS:
        raise ConfigError(f"unknown model {name!r}: set model to one of {', '.join(MODELS)}")
    spec = MODELS[name]
    if config.splats.enabled and not spec.gaussians:
        models = " or ".join(m for m, other in MODELS.items() if other.gaussians)
        raise ConfigError(
            f"splats.enabled is true, but {name} has no Gaussian head: set model to {models}, or "
            "export COLMAP for programs that make splats"
        )
    if spec.multi_view:
        if spec.metric and not source.gives_metres:
            users = [other for other in SCALE_SOURCES if scale_source(other).needs_metric_model]
            log.warning(
                "%s measures metric scale: set scale.source to %s to use it",
                name, " or ".join(users),
            )  # fmt: skip
        return spec
    if config.pose_prior.source != "none":
        raise ConfigError(
            f"{name} is a single-image network and takes no poses: set pose_prior.source to none"
        )
    if source.gives_metres and not (spec.metric and source.needs_metric_model):
        raise ConfigError(
            f"{name} is a single-image network, so scale.source {config.scale.source} cannot "
            "measure its scale: set scale.source to none; the depth of da3metric-large is in "
            "metres anyway"
        )
    return spec
