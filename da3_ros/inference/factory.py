"""Which networks a pipeline's parameters ask for, and whether they can be had together."""

from __future__ import annotations

import logging

from da3_ros.config import PipelineConfig
from da3_ros.inference.metric_scale_model import MetricDepthModel
from da3_ros.inference.session import InferenceSession
from da3_ros.network import MODELS, ModelSpec
from da3_ros.parameter_schema import ConfigError

log = logging.getLogger(__name__)


def open_networks(config: PipelineConfig) -> tuple[InferenceSession, MetricDepthModel | None]:
    """The networks that the parameters ask for, in one memory budget.

    A nested model measures its own windows. Raises ConfigError, CheckpointError or DeviceError.
    """
    inference, spec = config.inference, _checked_model(config)
    metric_model = None
    if config.scale.source == "metric_model" and not spec.metric:
        # First: the session then knows what is taken, and a missing file is told at once.
        metric_model = MetricDepthModel(inference, config.scale.metric_checkpoint)
    independent = config.window.mode == "independent"
    session = InferenceSession(
        inference,
        poses=config.pose_prior.source != "none",
        streams=max(1, len(config.cameras)) if independent else 1,
        beside=metric_model.beside if metric_model else None,
    )
    return session, metric_model


def _checked_model(config: PipelineConfig) -> ModelSpec:
    """The model, if it can do what other parameters ask of it. Raises ConfigError."""
    name, source = config.inference.model, config.scale.source
    if name not in MODELS:
        raise ConfigError(f"model is {name!r}: one of {', '.join(MODELS)}")
    spec = MODELS[name]
    if spec.multi_view:
        if spec.metric and source == "none":
            log.warning("%s knows metres: set scale.source to metric_model to have them", name)
        return spec
    if config.pose_prior.source != "none":
        raise ConfigError(
            f"{name} sees each image alone and takes no poses: set pose_prior.source to none"
        )
    if source not in (("none", "metric_model") if spec.metric else ("none",)):
        raise ConfigError(
            f"{name} sees each image alone, so scale.source {source} has nothing to measure: "
            "set scale.source to none; da3metric-large says metres by itself"
        )
    return spec
