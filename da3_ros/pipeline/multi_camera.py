"""Which pipelines the cameras go through: all through one, or each through one of its own."""

from __future__ import annotations

import dataclasses

from da3_ros.config import PipelineConfig
from da3_ros.inference import open_networks
from da3_ros.inference.interfaces import MetricModel, Session
from da3_ros.pipeline.pipeline import Pipeline


def open_pipelines(
    config: PipelineConfig, session: Session | None = None, metric_model: MetricModel | None = None
) -> dict[str, Pipeline]:
    """One pipeline named "", or with ``window.mode: independent`` one per camera by its name.

    All run on one network. ``session`` stands in for the one that ``config`` names.
    """
    if session is None:
        session, metric_model = open_networks(config)
    if not is_independent(config):
        return {"": Pipeline(config, session, metric_model)}
    return {name: Pipeline(alone(config), session, metric_model) for name in config.cameras}


def is_independent(config: PipelineConfig) -> bool:
    """Whether each camera has windows and a scene of its own."""
    return config.window.mode == "independent" and len(config.cameras) > 1


def alone(config: PipelineConfig) -> PipelineConfig:
    """``config`` of a pipeline that sees one of several cameras."""
    if not is_independent(config):
        return config
    rig = dataclasses.replace(config.rig, poses=())
    return dataclasses.replace(config, cameras=(), rig=rig)
