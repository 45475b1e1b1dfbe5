"""Opens the pipelines of several cameras: one for all, or one for each."""

from __future__ import annotations

import dataclasses

from da3_ros.config import PipelineConfig
from da3_ros.inference import open_networks
from da3_ros.inference.interfaces import MetricModel, Session
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.pipeline.window_refinement import chosen_limits
from da3_ros.refinement.solver_limits import SolverLimits
from da3_ros.sensors.ego_mask import CAMERA


def open_pipelines(
    config: PipelineConfig,
    session: Session | None = None,
    metric_model: MetricModel | None = None,
    *,
    wait_for_engine: bool = True,
    limits: SolverLimits | None = None,
) -> dict[str, Pipeline]:
    """Returns one pipeline named "", or one per camera by name with ``window.mode: independent``.

    All use one network. ``session`` replaces the one that ``config`` names. ``wait_for_engine``:
    as in ``InferenceSession``. limits: of the refinement; None: chosen by the parameters.
    """
    if session is None:
        session, metric_model = open_networks(config, wait_for_engine=wait_for_engine)
    if not is_independent(config):
        return {"": Pipeline(config, session, metric_model, limits)}
    limits = limits or chosen_limits(config)
    return {
        name: Pipeline(alone(config, name), session, metric_model, limits)
        for name in config.cameras
    }


def is_independent(config: PipelineConfig) -> bool:
    """Whether each camera has windows and a scene of its own."""
    return config.window.mode == "independent" and len(config.cameras) > 1


def alone(config: PipelineConfig, camera: str) -> PipelineConfig:
    """Returns the configuration of the pipeline for one of several cameras."""
    if not is_independent(config):
        return config
    rig = dataclasses.replace(config.rig, poses=())
    mask = config.mask.replace(CAMERA, camera)
    return dataclasses.replace(config, cameras=(), rig=rig, mask=mask)
