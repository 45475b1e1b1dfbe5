"""Frames in, tracked frames out: the path that live node, replay and tests share."""

from da3_ros.config import PipelineConfig
from da3_ros.pipeline.pipeline import Pipeline

__all__ = ["Pipeline", "PipelineConfig"]
