"""A recording processed from end to end."""

from da3_ros.replay.results import ReplayError, ReplayOptions, ReplaySummary
from da3_ros.replay.run import replay

__all__ = ["ReplayError", "ReplayOptions", "ReplaySummary", "replay"]
