"""Reads bags, videos and image folders, and writes bags. Needs no installed ROS."""

from da3_ros.recordings.base import Recording, RecordingError
from da3_ros.recordings.open import open_recording

__all__ = ["Recording", "RecordingError", "open_recording"]
